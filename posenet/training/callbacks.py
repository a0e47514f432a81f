"""The protocol of callbacks: what a training run reports to logs, and to the code of a user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posenet.settings import Config


class TrainingCallback:
    """Receives the measurements of a training run; a subclass overrides the methods that it needs.

    Only rank 0 calls the methods, in the order ``on_start``, then ``on_step``, ``on_skip``, ``on_drawing`` and
    ``on_epoch`` as training goes on, and ``on_end``. Training waits for each call.

    An exception in ``on_start`` ends the run before its first step. Later, an exception is logged as a warning, and
    the callback is not called any more: a failing log does not end a run.
    """

    def on_start(self, config: Config, folder: Path) -> None:
        """The run starts or resumes, with these settings, in this folder."""

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Every ``log.every_steps`` optimizer steps and at the end of an epoch; ``step`` counts from the run's start.

        Args:
            values: the "train" entry of log.jsonl: ``epoch`` (completed ones), ``loss`` (mean of the epoch so far; None
                if all its steps were skipped), ``lr``, ``samples_per_s``, ``data_wait`` (share of the time) and
                ``terms`` (of the loss, for every stack). With several data sets also ``sets``: for the name of each
                its ``samples`` and their mean ``loss`` since the last call.
        """

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        """A step was skipped because of a bad loss or gradient norm: ``value`` and ``image_ids``."""

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        """An epoch has ended and was validated: ``epoch`` (from 1), ``train_loss``, ``val_loss`` (None without
        validation samples) and, after an evaluation, COCO's scores such as ``AP``. With several data sets also ``sets``
        as in ``on_step``, since the start of the epoch or since it was resumed."""

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        """Predictions were drawn beside annotations: (H, W, 3) uint8 BGR; ``name`` is unique, such as epoch_0001."""

    def on_end(self) -> None:
        """The run has ended or was stopped, also by an error. Called if ``on_start`` returned."""

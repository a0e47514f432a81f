"""Saving a run off the critical path (the training waits for a copy, a thread writes it), and taking it up again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.weights import load_weights
from posenet.errors import CheckpointError
from posenet.training.optimizer import restore_optimizer
from posenet.training.weight_averaging import NoAverage, trained_weights

_log = logging.getLogger(__name__)


def on_host(value: Any) -> Any:
    """A copy in the host's memory: nothing that happens to the tensors in ``value`` later reaches it."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_host, value))
    return value


class CheckpointWriter:
    """Writes a run's checkpoints one at a time, in a thread of its own.

    One that cannot be written costs a warning, and the run goes on; ``finish`` raises where it was the last one.

    Args:
        every_steps, every_minutes: how often a checkpoint is due; 0 never.
    """

    def __init__(self, folder: CheckpointFolder, every_steps: int = 0, every_minutes: float = 0.0) -> None:
        self.folder, self.every_steps, self.every_minutes = folder, every_steps, every_minutes
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._saved_at = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after the run's ``step``-th step.

        By the clock it is not while the one before is still being written: a slow disk makes checkpoints rare, never
        the run slow. By steps it is, and waits, as a return to a checkpoint must not depend on the disk's speed.
        """
        by_steps = bool(self.every_steps) and step % self.every_steps == 0
        by_time = bool(self.every_minutes) and time.monotonic() - self._saved_at >= 60 * self.every_minutes
        return by_steps or (by_time and not (self._thread and self._thread.is_alive()))

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Copy ``state`` and have the copy written; waits for the checkpoint before to be so."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(on_host(state), step, best), name="checkpoint")
        self._thread.start()
        self._saved_at = time.monotonic()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """``wait``, and make sure of the newest checkpoint.

        Raises:
            CheckpointError: it could not be written.
        """
        self.wait()
        if self._failure:
            raise CheckpointError(
                f"the run's last step is not saved, --resume will go on from an earlier one: {self._failure}"
            ) from self._failure

    def _write(self, state: Mapping[str, Any], step: int, best: bool) -> None:
        try:
            self.folder.save(state, step, best)
            self._failure = None
        except Exception as error:  # a thread has nobody to raise it to
            self._failure = error
            _log.warning("WARNING: step %d is not saved, the run goes on: %s", step, error)


def restore(
    state: Mapping[str, Any],
    path: str,
    network: nn.Module,
    average: NoAverage,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Give all that is trained the state it has in a checkpoint, which came from ``path``.

    Raises:
        CheckpointError: it belongs to another network or optimizer.
    """
    load_weights(network, path, state={"model": trained_weights(state)}, least=0).require_all()
    average.load_state_dict(state)
    try:
        restore_optimizer(optimizer, state["optimizer"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} was saved by another optimizer or other frozen parameters; keep optim.name "
            "and train.freeze, or use --weights instead of --resume"
        ) from error
    # A fixed loss scale, whose backoff is 1, is a setting and no state.
    dynamic = scaler.is_enabled() and scaler.get_backoff_factor() < 1
    if dynamic and state["scaler"].get("backoff_factor", 1) < 1:
        scaler.load_state_dict(state["scaler"])

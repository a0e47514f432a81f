"""Where a run stands, how fast it goes and when it stops."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenet.messages import truncate_for_message

_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run stands; everything here is saved and comes back.

    Attributes:
        epoch: epochs completed.
        step: steps completed in the epoch under way.
        total_steps: steps since the very start, skipped ones included.
        loss_sum, loss_steps: training loss so far in this epoch, over the steps that were trained on.
        replaced: samples in this epoch that could not be read and others took the place of.
        best: best score so far; greater is better.
        stale: epochs since then.
        best_kind: what the score is of, "AP" or "val_loss".
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    replaced: int = 0
    best: float = -math.inf
    stale: int = 0
    best_kind: str = ""

    def judge(self, kind: str, value: float | None) -> bool:
        """Whether an epoch's value is the best so far; values of one kind only are compared, None is none.

        Args:
            kind: "AP", of which more is better, or "val_loss", of which less is.
        """
        if kind != self.best_kind:
            self.best, self.stale, self.best_kind = -math.inf, 0, kind
        if value is None:
            return False
        score = -value if kind == "val_loss" else value
        better = score > self.best
        self.best, self.stale = (score, 0) if better else (self.best, self.stale + 1)
        return better

    def rescale(self, old: int, new: int) -> None:
        """Keep the share of the epoch that is done where an epoch had ``old`` steps and now has ``new``."""
        if old != new:
            step, self.step = self.step, self.step * new // old
            _log.info("An epoch had %d steps and now has %d: step %d of it becomes step %d", old, new, step, self.step)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """What a checkpoint holds; ``TypeError`` or ``ValueError`` where it is no progress of a run."""
        progress = cls(**state)
        for key, value in vars(progress).items():
            kind = type(getattr(cls, key))
            if type(value) is not kind or (kind is int and value < 0):
                raise ValueError(f"{key} is {truncate_for_message(value)}")
        return progress


@dataclass
class Meter:
    """Speed since the last log line."""

    started: float
    samples: int = 0
    waited: float = 0.0

    def read(self, now: float) -> dict[str, float]:
        """Samples a second and the share of the time that was spent waiting for them; starts anew."""
        seconds = max(now - self.started, 1e-9)
        rates = {"samples_per_s": self.samples / seconds, "data_wait": self.waited / seconds}
        self.started, self.samples, self.waited = now, 0, 0.0
        return rates


@dataclass(frozen=True)
class Limits:
    """When to stop, save and speak; 0 means never, except for ``epochs`` and ``log_steps``."""

    epochs: int
    max_steps: int = 0
    accumulate: int = 1
    max_grad_norm: float = 0.0
    checkpoint_steps: int = 0
    checkpoint_minutes: float = 0.0
    log_steps: int = 20
    evaluate_epochs: int = 0
    patience: int = 0
    max_unreadable: float = 0.0

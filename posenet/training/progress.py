"""How far a run is: epochs, steps, the losses of an epoch, and its best score."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass

from posenet.messages import truncate_for_message

_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """The position of a run. Checkpoints contain all of it."""

    epoch: int = 0
    """Completed epochs."""
    step: int = 0
    """Completed steps of the current epoch."""
    total_steps: int = 0
    """Steps since the start of the run, skipped ones included."""
    loss_sum: float = 0.0
    """Sum of the losses of this epoch's steps that were not skipped."""
    loss_steps: int = 0
    """Number of these steps."""
    skipped: int = 0
    """Number of the steps of this epoch that were skipped."""
    replaced: int = 0
    """Unreadable samples of this epoch that were replaced by others."""
    best: float = -math.inf
    """Best score so far; greater is better."""
    stale: int = 0
    """Scores since the best one."""
    best_kind: str = ""
    """Kind of the score: "AP" or "val_loss"."""
    best_loss: float = math.inf
    """Validation loss of the epoch with the best score, which decides between equal ones."""
    resumed: str = ""
    """The checkpoint or folder that the command names to continue from."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                is_valid = type(value) is int and value >= 0
            elif isinstance(field.default, float):
                # Versions before 0.7 have written a loss that is not a number.
                is_valid = type(value) in (int, float) and (not math.isnan(value) or field.name == "best_loss")
            else:
                is_valid = isinstance(value, str)
            if not is_valid:
                raise ValueError(f"{field.name} is {truncate_for_message(value)}")  # in a checkpoint

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of this epoch's steps so far; None if all were skipped."""
        return self.loss_sum / self.loss_steps if self.loss_steps else None

    @property
    def best_score(self) -> dict[str, float]:
        """The best score by its kind, in its own sign; empty if there is none."""
        if not math.isfinite(self.best):
            return {}
        return {self.best_kind: -self.best if self.best_kind == "val_loss" else self.best}

    def count_step(self, loss: float | None) -> None:
        """Count a step with this loss; None if it was skipped."""
        self.step += 1
        self.total_steps += 1
        if loss is None:
            self.skipped += 1
        else:
            self.loss_sum += loss
            self.loss_steps += 1

    def start_next_epoch(self) -> None:
        self.epoch += 1
        self.step = self.loss_steps = self.skipped = self.replaced = 0
        self.loss_sum = 0.0

    def forget_scores(self) -> None:
        self.best, self.best_loss, self.best_kind, self.stale = -math.inf, math.inf, "", 0

    def record_score(self, kind: str, value: float | None, val_loss: float | None = None) -> bool:
        """Record the score of an epoch, None if there is none; return whether the epoch is the best so far.

        A ``kind`` is "AP", which should be high, or "val_loss", which should be low. Of epochs with the same score, the
        one with the lowest validation loss is the best, but it does not count as a better score.
        """
        if kind != self.best_kind:
            self.forget_scores()
            self.best_kind = kind
        if value is None:
            return False
        score = -value if kind == "val_loss" else value
        loss = math.inf if val_loss is None or math.isnan(val_loss) else val_loss
        is_better = score > self.best
        is_best = is_better or (score == self.best and loss < self.best_loss)
        self.stale = 0 if is_better else self.stale + 1
        if is_best:
            self.best, self.best_loss = score, loss
        return is_best

    def rescale_epoch(self, old_steps: int, new_steps: int) -> None:
        """Keep the completed share of an epoch that has another number of steps now.

        ``ValueError`` if more steps are done than the epoch had.
        """
        if type(old_steps) is not int or not self.step <= old_steps:
            raise ValueError(f"step {self.step} of an epoch of {truncate_for_message(old_steps)} steps")
        if old_steps != new_steps:
            new_step = self.step * new_steps // old_steps
            message = "An epoch had %d steps and now has %d: step %d of it becomes step %d"
            _log.info(message, old_steps, new_steps, self.step, new_step)
            self.step = new_step

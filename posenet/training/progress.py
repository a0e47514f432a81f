"""How far a run is: its epoch and step, the mean loss, the best score, and how many scores ago that was."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from posenet.messages import truncate_for_message


@dataclass
class Progress:
    """The position of a run. Checkpoints contain all of it."""

    epoch: int = 0  # completed epochs
    step: int = 0  # completed steps of the current epoch
    total_steps: int = 0  # steps since the start of the run, skipped ones included
    loss_sum: float = 0.0  # sum of the losses of this epoch's steps that were not skipped
    loss_steps: int = 0  # number of these steps
    skipped: int = 0  # number of the steps of this epoch that were skipped
    replaced: int = 0  # unreadable samples of this epoch that were replaced by others
    best: float = -math.inf  # best score so far; greater is better
    stale: int = 0  # scores since the best one
    best_kind: str = ""  # kind of the score: "AP" or "val_loss"
    resumed: str = ""  # the checkpoint or folder that the command names to continue from

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            kinds: Any = {int: int, float: (int, float), str: str}[type(field.default)]
            if not isinstance(value, kinds) or (kinds is int and value < 0):
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
        self.best, self.best_kind, self.stale = -math.inf, "", 0

    def record_score(self, kind: str, value: float | None) -> bool:
        """Record the score of an epoch, None if there is none; return whether the epoch is the best so far.

        A ``kind`` is "AP", which should be high, or "val_loss", which should be low. Of epochs with the same score, the
        last is the best, but it does not count as a better score.
        """
        if kind != self.best_kind:
            self.forget_scores()
            self.best_kind = kind
        if value is None:
            return False
        score = -value if kind == "val_loss" else value
        self.stale = 0 if score > self.best else self.stale + 1
        is_best = score >= self.best
        if is_best:
            self.best = score
        return is_best

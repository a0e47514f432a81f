"""Steps with an exploded loss or gradient: which are bad, and what a run does after too many; ``loop.py`` does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posenet.settings import GuardConfig

RECOVERY_STEPS = 100
"""Good steps that must follow a return to a checkpoint before the run may return to one again."""

Action = Literal["continue", "skip", "roll back", "fail"]
"""What to do after a step. continue: it was good. skip: it was bad and has been skipped. roll back: too many in a row
were bad; return to the last checkpoint, and go on after the bad batches. fail: too many were bad again, fewer than
``RECOVERY_STEPS`` good steps after a return."""


@dataclass
class BadStepCounts:
    """What the policy has counted so far. Checkpoints contain it."""

    bad_in_a_row: int = 0
    good_since_roll_back: int | None = None
    """None if the run has not returned to a checkpoint, or has recovered since."""


class BadStepPolicy:
    """Finds bad losses, counts bad steps, and decides what to do. All ranks decide the same."""

    def __init__(self, settings: GuardConfig, recovery_steps: int = RECOVERY_STEPS) -> None:
        self.threshold = settings.threshold
        self.max_skips = settings.max_skips
        self.recovery_steps = recovery_steps
        self.counts = BadStepCounts()

    def is_bad(self, value: float) -> bool:
        """Whether a loss or a gradient norm is bad. A step is bad if this holds on any rank."""
        return not math.isfinite(value) or value > self.threshold

    def bad_losses(self, losses: Tensor) -> Tensor:
        """``is_bad`` of losses that stay on their device: 1 where one is bad, else 0, in the dtype of the losses."""
        good = losses.isfinite() & (losses <= self.threshold)
        return (~good).to(losses.dtype)

    def next_action(self, bad: bool) -> Action:
        """Count one step and decide what to do next. ``bad`` must be the same on all ranks."""
        counts = self.counts
        if not bad:
            counts.bad_in_a_row = 0
            if counts.good_since_roll_back is not None:
                counts.good_since_roll_back += 1
                if counts.good_since_roll_back >= self.recovery_steps:
                    counts.good_since_roll_back = None
            return "continue"
        counts.bad_in_a_row += 1
        if counts.bad_in_a_row < self.max_skips:
            return "skip"
        if counts.good_since_roll_back is not None:
            return "fail"
        counts.bad_in_a_row = 0
        counts.good_since_roll_back = 0
        return "roll back"

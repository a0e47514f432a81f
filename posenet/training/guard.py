"""Protection against exploding losses: which losses are bad, and what to do after a bad step."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from posenet.settings import GuardConfig

RECOVERY_STEPS = 100
"""Good steps that must follow a return to a checkpoint before the run may return to one again."""

GuardAction = Literal["continue", "skip", "roll back", "fail"]
"""What to do after a step. continue: it was good. skip: it was bad and has been skipped. roll back: too many in a row
were bad; return to the last checkpoint, and go on after the bad batches. fail: too many were bad again, fewer than
``RECOVERY_STEPS`` good steps after a return."""


class LossGuard:
    """Finds bad losses and counts bad steps in a row."""

    def __init__(self, settings: GuardConfig, recovery_steps: int = RECOVERY_STEPS) -> None:
        self.threshold = settings.threshold
        self.max_skips = settings.max_skips
        self.recovery_steps = recovery_steps
        self.bad_in_a_row = 0
        self.good_since_roll_back: int | None = None

    def is_bad(self, value: float) -> bool:
        """Whether a loss or a gradient norm is bad. The loss of a bad step may be good on this rank."""
        return not math.isfinite(value) or value > self.threshold

    def bad_losses(self, losses: Tensor) -> Tensor:
        """``is_bad`` of losses that stay on their device: 1 where one is bad, else 0, in the dtype of the losses."""
        good = losses.isfinite() & (losses <= self.threshold)
        return (~good).to(losses.dtype)

    def next_action(self, bad: bool) -> GuardAction:
        """Count one step and decide what to do next. ``bad`` must be the same on all ranks."""
        if not bad:
            self.bad_in_a_row = 0
            if self.good_since_roll_back is not None:
                self.good_since_roll_back += 1
                if self.good_since_roll_back >= self.recovery_steps:
                    self.good_since_roll_back = None
            return "continue"
        self.bad_in_a_row += 1
        if self.bad_in_a_row < self.max_skips:
            return "skip"
        if self.good_since_roll_back is not None:
            return "fail"
        self.bad_in_a_row = 0
        self.good_since_roll_back = 0
        return "roll back"

    def state_dict(self) -> dict[str, int | None]:
        return {"bad_in_a_row": self.bad_in_a_row, "good_since_roll_back": self.good_since_roll_back}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Restore the counts; ``ValueError`` if they are not numbers."""
        bad_in_a_row = state["bad_in_a_row"]
        good_since_roll_back = state["good_since_roll_back"]
        if type(bad_in_a_row) is not int or type(good_since_roll_back) not in (int, type(None)):
            raise ValueError("the guard's counts are not numbers")
        self.bad_in_a_row = bad_in_a_row
        self.good_since_roll_back = good_since_roll_back

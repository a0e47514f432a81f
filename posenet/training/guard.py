"""Protection against exploding losses: which losses are bad, and what to do after a bad step."""

from __future__ import annotations

import enum
import math

from torch import Tensor

from posenet.settings import GuardConfig

RECOVERY_STEPS = 100
"""Good steps that must follow a return to a checkpoint before the run may return to one again."""


class GuardAction(enum.Enum):
    """What to do after an optimizer step."""

    CONTINUE = "continue"
    """The step was good."""
    SKIP = "skip"
    """The step was bad and has been skipped: continue with the next batches."""
    ROLL_BACK = "roll back"
    """Too many bad steps in a row: return to the last checkpoint and continue after the bad batches."""
    FAIL = "fail"
    """Too many bad steps in a row again, soon after a return to a checkpoint: end the run."""


class LossGuard:
    """Finds bad losses and counts bad steps in a row."""

    def __init__(self, settings: GuardConfig, recovery_steps: int = RECOVERY_STEPS) -> None:
        self.threshold = settings.threshold
        self.max_skips = settings.max_skips
        self.recovery_steps = recovery_steps
        self.bad_in_a_row = 0
        self.good_since_roll_back: int | None = None

    def is_bad(self, value: float) -> bool:
        """Whether a value that made a step bad, a loss or a gradient norm, is itself bad on this rank."""
        return not math.isfinite(value) or value > self.threshold

    def bad_losses(self, losses: Tensor) -> Tensor:
        """``is_bad`` of losses that stay on their device: 1 where one is bad, else 0, in the dtype of the losses."""
        good = losses.isfinite() & (losses <= self.threshold)
        return (~good).to(losses.dtype)

    def record_outcome(self, bad: bool) -> GuardAction:
        """Count one step and return what to do next. ``bad`` must be the same on all ranks."""
        if not bad:
            self._record_good_step()
            return GuardAction.CONTINUE
        self.bad_in_a_row += 1
        if self.bad_in_a_row < self.max_skips:
            return GuardAction.SKIP
        if self.good_since_roll_back is not None:
            return GuardAction.FAIL
        self.bad_in_a_row = 0
        self.good_since_roll_back = 0
        return GuardAction.ROLL_BACK

    def _record_good_step(self) -> None:
        self.bad_in_a_row = 0
        if self.good_since_roll_back is not None:
            self.good_since_roll_back += 1
            if self.good_since_roll_back >= self.recovery_steps:
                self.good_since_roll_back = None

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

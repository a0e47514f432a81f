"""The loss-explosion verdict: which losses a step may be trained on, and when skipping is not enough."""

from __future__ import annotations

import enum
import math

from torch import Tensor


class GuardAction(enum.Enum):
    """What to do with an optimizer step."""

    TRAIN = "train"
    SKIP = "skip"
    ROLL_BACK = "roll back"
    """Return to the last checkpoint and go on after the offending batches."""
    FAIL = "fail"
    """It has already been rolled back since it last trained well."""


class LossGuard:
    """Counts bad steps in a row.

    Args:
        threshold: losses above it are bad; so are NaN and infinity, which no comparison with ``>`` finds.
        max_skips: bad steps in a row after which the run returns to the last checkpoint.
        recovery: good steps after which an earlier roll-back is forgiven.
    """

    def __init__(self, threshold: float = 2e5, max_skips: int = 10, recovery: int = 100) -> None:
        self.threshold, self.max_skips, self.recovery = threshold, max_skips, recovery
        self.bad_in_a_row = 0
        self.good_since_roll_back: int | None = None

    def is_bad(self, loss: float) -> bool:
        """Whether a loss is not finite or above the threshold. Processes share this vote, then judge."""
        return not math.isfinite(loss) or loss > self.threshold

    def objects(self, loss: Tensor) -> Tensor:
        """``is_bad`` without reading the loss from its device: 1 where it is, else 0, in the loss's dtype."""
        return (~(loss.isfinite() & (loss <= self.threshold))).to(loss.dtype)

    def judge(self, bad: bool) -> GuardAction:
        """Record the shared vote on one step and say what to do with it."""
        if not bad:
            self.bad_in_a_row = 0
            if self.good_since_roll_back is not None:
                self.good_since_roll_back += 1
                if self.good_since_roll_back >= self.recovery:
                    self.good_since_roll_back = None
            return GuardAction.TRAIN
        self.bad_in_a_row += 1
        if self.bad_in_a_row < self.max_skips:
            return GuardAction.SKIP
        if self.good_since_roll_back is not None:
            return GuardAction.FAIL
        self.bad_in_a_row, self.good_since_roll_back = 0, 0
        return GuardAction.ROLL_BACK

    def state_dict(self) -> dict[str, int | None]:
        return {"bad_in_a_row": self.bad_in_a_row, "good_since_roll_back": self.good_since_roll_back}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Go on from ``state_dict``; ``ValueError`` where it is none."""
        if type(state["bad_in_a_row"]) is not int or type(state["good_since_roll_back"]) not in (int, type(None)):
            raise ValueError("counts of bad steps that are no numbers")
        self.bad_in_a_row = state["bad_in_a_row"]
        self.good_since_roll_back = state["good_since_roll_back"]

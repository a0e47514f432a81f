"""The guard: which losses and gradients are bad, and what a run does after too many bad steps; ``run.py`` does it.

A loss is bad if it is not finite, or explodes above its limit: a multiple of its median in the last good steps. The
same holds for the relative gradient, the gradient norm divided by the loss, which varies less than the norm. Both
limits are known before a step begins, and are the same on all ranks. docs/notes/reliability.md has the curves behind
the constants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal

from posenet.settings import GuardConfig

MAX_SKIPS = 10
"""Steps skipped in a row after which the run returns to its last checkpoint: by chance, only single steps are bad."""
RECOVERY_STEPS = 100  # good steps that must follow a return to a checkpoint before the run may return to one again
HISTORY = 50  # number of the last good steps whose median is the scale of the limits
EARLY_STEPS = 30
"""With fewer good steps so far, the limits are ``EARLY_FACTOR`` times as wide: a new network changes quickly."""
EARLY_FACTOR = 10
SHARE_OF_LARGEST = 0.25
"""The scale of the loss is at least this share of the largest of them: where most batches show nobody, the median is
that of batches without people, and people have hundred times the loss."""

Action = Literal["skip", "roll back", "fail"]
"""What to do after a bad step. skip: nothing, it has been skipped. roll back: too many in a row were bad; return to the
last checkpoint, and go on after the bad batches. fail: too many were bad again soon after a return."""


@dataclass(frozen=True)
class BadValue:
    """Why a step was skipped."""

    name: str
    """"loss" or "gradient norm"."""
    value: float
    limit: float
    is_own: bool = True  # whether this rank's value is bad; else that of another rank is

    def __str__(self) -> str:
        return f"{self.name} {self.value:g} (limit {self.limit:.4g})"


class Watched:
    """The loss or the relative gradient: its values in the last good steps, and its limit in the next step."""

    def __init__(self, factor: float, highest: float = math.inf, share_of_largest: float = 0.0) -> None:
        self.factor = factor
        self.highest = highest
        self.share_of_largest = share_of_largest
        self.values: list[float] = []
        """The oldest first. Checkpoints contain them."""

    @property
    def limit(self) -> float:
        """A value above it is bad. It may be infinite."""
        if not (self.values and self.factor):
            return self.highest
        early = EARLY_FACTOR if len(self.values) < EARLY_STEPS else 1
        scale = max(median_low(self.values), self.share_of_largest * max(self.values))
        return min(self.highest, early * self.factor * scale)

    def add(self, value: float) -> None:
        self.values = [*self.values, value][-HISTORY:]


class BadStepPolicy:
    """Knows the limits of the next step, counts bad steps, and decides what to do. All ranks decide the same."""

    def __init__(self, settings: GuardConfig) -> None:
        self.bad_in_a_row = 0
        self.good_since_roll_back: int | None = None
        """None if the run has not returned to a checkpoint, or has recovered since."""
        self.loss = Watched(settings.factor, settings.threshold, SHARE_OF_LARGEST)
        """Its history has means over batches and processes; each batch of each process must keep the limit."""
        self.relative_gradient = Watched(settings.factor)
        """The norm of the mean gradient before clipping, divided by the mean loss over batches and processes."""

    def record_good(self, loss: float, gradient_norm: float) -> None:
        """Count a good step, and add it to the history.

        A loss or a gradient that is not positive has no size to compare with.
        """
        self.bad_in_a_row = 0
        if self.good_since_roll_back is not None:
            self.good_since_roll_back += 1
            if self.good_since_roll_back >= RECOVERY_STEPS:
                self.good_since_roll_back = None
        if loss > 0:
            self.loss.add(loss)
            if gradient_norm > 0:
                self.relative_gradient.add(gradient_norm / loss)

    def record_bad(self) -> Action:
        """Count a bad step, which is bad on all ranks, and decide what to do next."""
        self.bad_in_a_row += 1
        if self.bad_in_a_row < MAX_SKIPS:
            return "skip"
        if self.good_since_roll_back is not None:
            return "fail"
        self.bad_in_a_row = 0
        self.good_since_roll_back = 0
        return "roll back"

    def state(self) -> dict[str, Any]:
        """What a checkpoint contains: the counts and the history."""
        return {
            "bad_in_a_row": self.bad_in_a_row,
            "good_since_roll_back": self.good_since_roll_back,
            "losses": self.loss.values,
            "relative_gradients": self.relative_gradient.values,
        }

    def restore_counts(self, state: Mapping[str, Any]) -> None:
        """Continue the counts of a checkpoint."""
        since = state["good_since_roll_back"]
        self.bad_in_a_row = int(state["bad_in_a_row"])
        self.good_since_roll_back = None if since is None else int(since)

    def restore_history(self, state: Mapping[str, Any]) -> None:
        """Continue the history of a checkpoint; begin without one if it has none."""
        self.loss.values = [float(value) for value in state.get("losses", [])]
        self.relative_gradient.values = [float(value) for value in state.get("relative_gradients", [])]

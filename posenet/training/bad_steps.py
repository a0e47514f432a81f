"""The guard: which losses and gradients are bad, and what a run does after too many bad steps; ``loop.py`` does it.

A loss or a gradient norm is bad if it is not finite, or above its limit: a multiple of its median in the last good
steps. Both limits are known before a step begins, and are the same on all ranks. The constants were chosen on the
curves of docs/notes/reliability.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any, Literal

from posenet.settings import Config, GuardConfig, config_to_dict

RECOVERY_STEPS = 100
"""Good steps that must follow a return to a checkpoint before the run may return to one again."""
HISTORY = 50
"""Number of the last good steps whose median is the scale of the limits."""
EARLY_STEPS = 30
"""With fewer good steps so far, the limits are ``EARLY_FACTOR`` times as wide: a new network changes quickly."""
EARLY_FACTOR = 10
SINGLE_IMAGE_FACTOR = 2.5
"""How much wider the limit of the gradient norm is where a step has one image: one can have 17 times the median."""

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


@dataclass(frozen=True)
class BadValue:
    """Why a step was skipped."""

    name: str
    """"loss" or "gradient norm"."""
    value: float
    limit: float
    """What it had to keep below, also where it is not finite."""
    reason: str
    """Such as "above 271 (10 times the median of the last 50 good steps)"."""
    is_own: bool = True
    """Whether this rank's value is bad; else that of another rank is."""


class Watched:
    """The loss or the gradient norm: its values in the last good steps, and its limit in the next step."""

    def __init__(self, name: str, factor: float, highest: float = math.inf) -> None:
        self.name = name
        self.factor = factor
        self.highest = highest
        self.values: list[float] = []
        """The oldest first. Checkpoints contain them."""

    @property
    def limit(self) -> float:
        """A value above it is bad. It may be infinite."""
        return min(self.highest, self._times_median * median_low(self.values)) if self.values else self.highest

    @property
    def _times_median(self) -> float:
        """How many times the median a value may be."""
        if not self.factor:
            return math.inf
        return self.factor * (EARLY_FACTOR if len(self.values) < EARLY_STEPS else 1)

    def add(self, value: float) -> None:
        """Add the value of a good step; 0, where a step supervises nothing, is left out."""
        if value > 0:
            self.values = [*self.values, value][-HISTORY:]

    def explain(self, value: float, is_own: bool = True) -> BadValue:
        """Why a value of the last step is bad."""
        limit = self.limit
        if not math.isfinite(value):
            reason = "not finite"
        elif limit == self.highest:
            reason = f"above guard.threshold ({limit:g})"
        else:
            steps = "good step" if len(self.values) == 1 else f"{len(self.values)} good steps"
            reason = f"above {limit:.4g} ({self._times_median:g} times the median of the last {steps})"
        return BadValue(self.name, value, limit, reason, is_own)


class BadStepPolicy:
    """Knows the limits of the next step, counts bad steps, and decides what to do. All ranks decide the same.

    ``images_per_step`` is the number of images of a step, over all processes. ``inputs`` identifies what the size of
    losses depends on, other than the weights: with others, the history in a checkpoint says nothing.
    """

    def __init__(
        self,
        settings: GuardConfig,
        images_per_step: int = 2,
        inputs: str = "",
        recovery_steps: int = RECOVERY_STEPS,
    ) -> None:
        self.max_skips = settings.max_skips
        self.inputs = inputs
        self.recovery_steps = recovery_steps
        self.counts = BadStepCounts()
        self.loss = Watched("loss", settings.factor, settings.threshold)
        """Its history has means over batches and processes; each batch of each process must keep the limit."""
        width = SINGLE_IMAGE_FACTOR if images_per_step == 1 else 1
        self.gradient_norm = Watched("gradient norm", settings.factor * width)
        """Before clipping, of the mean gradient."""

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

    def state(self) -> dict[str, Any]:
        """What a checkpoint contains: the counts and the history."""
        history = {"losses": self.loss.values, "gradient_norms": self.gradient_norm.values}
        return {**asdict(self.counts), **history, "inputs": self.inputs}

    def restore_history(self, state: Mapping[str, Any]) -> bool:
        """Continue the history of a checkpoint; return False, with an empty one, if it has none or other ``inputs``.

        ``ValueError`` if it is not valid.
        """
        is_continued = state.get("inputs") == self.inputs
        for watched, key in ((self.loss, "losses"), (self.gradient_norm, "gradient_norms")):
            values = [float(value) for value in state[key]] if is_continued else []
            if not all(0 < value < math.inf for value in values):
                raise ValueError(f"guard.{key} has values that are not positive numbers")
            watched.values = values[-HISTORY:]
        return is_continued


def digest_of_inputs(config: Config, contents: Mapping[str, Any], images_per_step: int) -> str:
    """Identifies what the size of losses depends on, other than the weights: the network, the data, the loss, the step.

    ``contents`` are those of the data and of the teacher; their paths do not count.
    """
    tables = config_to_dict(config)
    inputs = {name: tables[name] for name in ("model", "augment", "targets", "loss", "distill")}
    inputs["data"] = {name: tables["data"][name] for name in ("framing", "background", "transform", "exif_frame")}
    inputs["train"] = {name: tables["train"][name] for name in ("input_size", "batch_size", "amp", "freeze")}
    inputs["contents"] = {name: contents.get(name) for name in ("data.train", "train.teacher")}
    inputs["images_per_step"] = images_per_step
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

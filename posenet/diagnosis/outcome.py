"""What the COCO evaluation decides about every result and every person, and the precision that follows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.average_precision import PrecisionCurves
from posenet.diagnosis.matching import Found, Truth


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the COCO evaluation decides at T OKS thresholds about N results and G annotations."""

    scores: np.ndarray  # (N,)
    image: np.ndarray  # (N,) index of the image of every result
    correct: np.ndarray  # (T, N) results that match a person who counts
    counted: np.ndarray  # (T, N) results that count: without those that match an ignored annotation
    missed: np.ndarray  # (T, G) people who count and whom no result matches
    people_per_image: np.ndarray  # (images,) people who count

    @classmethod
    def build(cls, found: Found, truth: Truth, matches: np.ndarray, ignored: np.ndarray) -> Outcome:
        """From the (T, N) annotations that results match, -1 for none, and the (G,) ignored annotations."""
        is_matched = matches >= 0
        is_ignored = is_matched & ignored[matches]
        reached = np.zeros((len(matches), len(truth)), bool)
        level, result = np.nonzero(is_matched)
        reached[level, matches[level, result]] = True
        return cls(
            scores=found.scores,
            image=found.image,
            correct=is_matched & ~is_ignored,
            counted=~is_ignored,
            missed=~reached & ~ignored,
            people_per_image=np.bincount(truth.image[~ignored], minlength=truth.num_images),
        )

    @property
    def num_people(self) -> int:
        return int(self.people_per_image.sum())

    @property
    def background(self) -> np.ndarray:
        """(T, N) results that match nobody: false positives."""
        return np.asarray(self.counted & ~self.correct)

    def curves(self, without: Collection[str] = ()) -> np.ndarray:
        """(T, 101) precision, without ``background`` results or ``missed`` people where ``without`` names them.

        Both are taken away at each threshold separately. Where nobody is left to be found, the precision is 1, or 0 if
        there are false positives.
        """
        counted = self.correct if "background" in without else self.counted
        num_people = np.full(len(counted), self.num_people)
        if "missed" in without:
            num_people = num_people - self.missed.sum(axis=1)
        curves = PrecisionCurves(self.scores, self.correct, counted).compute(num_people)
        if self.num_people:
            has_false = (counted & ~self.correct).any(axis=1)
            curves[num_people == 0] = np.where(has_false, 0.0, 1.0)[num_people == 0, None]
        return curves

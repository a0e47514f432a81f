"""What the COCO evaluation decides about every result and every person, and the precision that follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.error_kinds import OKS_THRESHOLDS
from posenet.diagnosis.keypoint_errors import MatchedResults
from posenet.diagnosis.matching import match, select_rows

_RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the COCO evaluation decides at T OKS thresholds about N results and G annotations."""

    scores: np.ndarray  # (N,); of equal scores, the first result ranks higher
    correct: np.ndarray  # (T, N) bool: results that match a person who is to be found
    counted: np.ndarray  # (T, N) bool: results that count, as all do but those that match another annotation
    missed: np.ndarray  # (T, G) bool: people who are to be found and whom no result matches
    num_people: int  # number of people to be found

    @property
    def background(self) -> np.ndarray:
        """(T, N) bool: results that match nobody."""
        return np.asarray(self.counted & ~self.correct)

    def recall(self) -> np.ndarray:
        """(T,) share of the people who are found; -1 without people."""
        return np.asarray(self.correct.sum(axis=1) / self.num_people if self.num_people else [-1.0] * len(self.correct))

    def precision(self, removed: np.ndarray | None = None) -> np.ndarray:
        """(T, 101) the highest precision at recall 0, 0.01 ... 1 or beyond; -1 without people.

        With ``removed`` (T, G), it is that without these missed people. Where nobody is left to be found then, it is 1,
        or 0 if there are false positives.
        """
        num_people = np.full(len(self.correct), self.num_people)
        if removed is not None:
            num_people -= removed.sum(axis=1)
        ranking = np.argsort(-self.scores, kind="stable")
        curves = np.full((len(self.correct), len(_RECALLS)), -1.0)
        for curve, is_correct, counts, people in zip(curves, self.correct, self.counted, num_people):
            if people > 0:
                # The recall grows at correct results only, and between them the precision falls.
                correct = np.flatnonzero(is_correct[ranking][counts[ranking]])
                num_correct = np.arange(1, len(correct) + 1)
                precision = num_correct / (correct + 1 + np.spacing(1))
                precision = np.maximum.accumulate(precision[::-1])[::-1]
                first = np.searchsorted(num_correct / people, _RECALLS)
                curve[:] = np.append(precision, 0.0)[first]
        if removed is not None:
            curves[num_people == 0] = 1.0
            curves[(num_people == 0) & self.background.any(axis=1)] = 0.0
        return curves


def evaluate(matched: MatchedResults, low: float = 0.0, high: float = np.inf) -> Outcome:
    """The outcome at COCO's OKS thresholds for labelled people of an area from ``low`` to ``high``.

    Results of another area do not count if they match nobody.
    """
    results, truth = matched.results, matched.truth
    people = truth.people & (truth.areas >= low) & (truth.areas <= high)
    is_ignored = (results.areas < low) | (results.areas > high)
    matches = match(matched.pairs, matched.oks, results, truth, people, OKS_THRESHOLDS)
    correct = select_rows(people, matches)
    counted = correct | ~((matches >= 0) | is_ignored)
    missed = np.array([people & ~np.isin(np.arange(len(people)), found) for found in matches])
    return Outcome(results.scores, correct, counted, missed, int(people.sum()))


def average_precision(curves: np.ndarray) -> float:
    """AP, the mean of precision curves over recalls and thresholds; -1 if there are no people at any threshold."""
    values = curves[curves > -1]
    return float(values.mean()) if len(values) else -1.0

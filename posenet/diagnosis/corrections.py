"""What each kind of error costs: the AP after correcting it, after all kinds before it or alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.localisation import MATCH_OKS, classify_keypoints, corrected_keypoints
from posenet.diagnosis.matching import Found, Pairs, Truth, compute_oks, match
from posenet.diagnosis.outcome import Outcome
from posenet.diagnosis.result import OKS_THRESHOLDS, UNCORRECTED
from posenet.skeleton import Skeleton

LOCALISATION = ("miss", "swap", "inversion", "jitter")
"""Those of ``CORRECTIONS`` that move keypoints."""


@dataclass(frozen=True, eq=False)
class MatchedResults:
    """Results with their annotations: all that the localisation errors follow from."""

    found: Found
    truth: Truth
    pairs: Pairs
    oks: np.ndarray  # (P,) OKS of the pairs
    person: np.ndarray  # (N,) the labelled person that each result matches at OKS 0.1, -1 for none
    kinds: np.ndarray  # (N, F) see ``classify_keypoints``
    similarity: np.ndarray  # (N, F) see ``classify_keypoints``
    skeleton: Skeleton

    @classmethod
    def build(cls, found: Found, truth: Truth, skeleton: Skeleton) -> MatchedResults:
        pairs = Pairs.build(found, truth)
        oks = compute_oks(found, truth, pairs, np.array(skeleton.sigmas))
        [person] = match(pairs, oks, truth.ignored, truth.crowd, [MATCH_OKS], len(found))
        person = np.where((person >= 0) & ~truth.ignored[person], person, -1)
        kinds, similarity = classify_keypoints(found, truth, pairs, person, skeleton)
        return cls(found, truth, pairs, oks, person, kinds, similarity, skeleton)


@dataclass(frozen=True, eq=False)
class Corrections:
    """Precision curves (10, 101) before and after corrections, and the outcome before them."""

    outcome: Outcome
    corrected: dict[str, np.ndarray]
    """After each of ``UNCORRECTED`` and ``CORRECTIONS`` and all before it."""
    alone: dict[str, np.ndarray]
    """After each of ``CORRECTIONS`` and nothing else."""


def measure_corrections(results: MatchedResults) -> Corrections:
    """Correct every kind of error, after all kinds before it and alone, and compute the precision."""
    uncorrected = evaluate_corrected(results, ())
    corrected = {UNCORRECTED: uncorrected.curves()}
    alone = {}
    for number, kind in enumerate(LOCALISATION, 1):
        corrected[kind] = evaluate_corrected(results, LOCALISATION[:number]).curves()
        alone[kind] = evaluate_corrected(results, [kind]).curves()
    ranked = evaluate_corrected(results, [*LOCALISATION, "score"])
    corrected["score"] = ranked.curves()
    corrected["background"] = ranked.curves(without=["background"])
    corrected["missed"] = ranked.curves(without=["background", "missed"])
    alone["score"] = evaluate_corrected(results, ["score"]).curves()
    alone["background"] = uncorrected.curves(without=["background"])
    alone["missed"] = uncorrected.curves(without=["missed"])
    return Corrections(uncorrected, corrected, alone)


def evaluate_corrected(results: MatchedResults, corrections: Collection[str]) -> Outcome:
    """The outcome at COCO's OKS thresholds after correcting localisation errors and, if named, scores."""
    found, oks, pairs = correct_results(results, corrections)
    truth = results.truth
    matches = match(pairs, oks, truth.ignored, truth.crowd, OKS_THRESHOLDS, len(found))
    return Outcome.build(found, truth, matches, truth.ignored)


def correct_results(results: MatchedResults, corrections: Collection[str]) -> tuple[Found, np.ndarray, Pairs]:
    """The results with corrected keypoints and scores, the OKS of their pairs, and the pairs."""
    found, oks, pairs, truth = results.found, results.oks, results.pairs, results.truth
    moved = [kind for kind in LOCALISATION if kind in corrections]
    if moved:
        keypoints = corrected_keypoints(
            found, truth, results.person, results.kinds, results.similarity, moved, results.skeleton
        )
        found = found.with_keypoints(keypoints)
        oks = compute_oks(found, truth, pairs, np.array(results.skeleton.sigmas))
    if "score" in corrections:
        found, order = found.with_scores(true_oks(found, truth, pairs, oks))
        pairs = Pairs.build(found, truth)
        # Every result kept its image, and so its number of pairs, but may have another rank.
        first_row = np.searchsorted(results.pairs.result, np.arange(len(found)))
        offset = np.arange(len(pairs)) - np.searchsorted(pairs.result, pairs.result)
        oks = oks[first_row[order][pairs.result] + offset]
    return found, oks, pairs


def true_oks(found: Found, truth: Truth, pairs: Pairs, oks: np.ndarray) -> np.ndarray:
    """(N,) the scores of a perfect ranking: the OKS of every result with its person, and 0 without one.

    Results and people are assigned to each other one to one, the highest OKS first, down to ``MATCH_OKS``. A second
    result for the same person is a false positive and has nobody.
    """
    scores = np.zeros(len(found))
    assigned = np.zeros(len(found), bool)
    taken = np.zeros(len(truth), bool)
    rows = np.flatnonzero((oks >= MATCH_OKS) & ~truth.ignored[pairs.truth])
    for row in rows[np.argsort(-oks[rows], kind="stable")].tolist():
        result, person = pairs.result[row], pairs.truth[row]
        if not assigned[result] and not taken[person]:
            scores[result] = oks[row]
            assigned[result] = True
            taken[person] = True
    return scores

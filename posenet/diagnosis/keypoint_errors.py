"""The kinds of errors; what every keypoint of a matched result is, and results without such errors.

The kinds are those of Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV
2017). ``diagnose`` documents how they are decided and corrected.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from posenet.diagnosis.matching import OKS_THRESHOLDS, Outcome, Pairs, Results, Truth, compute_oks, match, select_rows
from posenet.skeleton import Skeleton
from posenet.skeleton.oks import keypoint_similarity, similar_distance
from posenet.skeleton.skeleton import twins

MATCH_OKS = 0.1
"""A result with at least this OKS has a person with whose keypoints its own are compared."""
GOOD_SIMILARITY = 0.85
"""A keypoint at least as similar to the right one is good: people who annotate differ as much."""
MIN_SIMILARITY = 0.5
"""A keypoint less similar to every true one is a miss."""

KEYPOINT_KINDS = ("good", "miss", "swap", "inversion", "jitter")
"""What a labelled keypoint of a matched result can be. All but the first are localisation errors."""
LOCALISATION = KEYPOINT_KINDS[1:]
CORRECTIONS = (*LOCALISATION, "score", "background", "missed", "inexact")
"""The kinds of errors in the order in which they are corrected one after the other."""
UNLABELLED = -1
"""Kind of the keypoints that cannot be judged; the others are indices into ``KEYPOINT_KINDS``."""
_GOOD, _MISS, _SWAP, _INVERSION, _JITTER = range(len(KEYPOINT_KINDS))


@dataclass(frozen=True, eq=False)
class MatchedResults:
    """N results beside G annotations, and the kind of every keypoint."""

    results: Results
    truth: Truth
    skeleton: Skeleton
    pairs: Pairs
    oks: np.ndarray  # (P,) OKS of the pairs
    person: np.ndarray  # (N,) the labelled person that each result matches at OKS 0.1; -1 for none
    person_oks: np.ndarray  # (N,) the OKS of each result with this person; 0 for none
    kinds: np.ndarray  # (N, F) index into ``KEYPOINT_KINDS``, or ``UNLABELLED`` where there is no match or no label
    similarity: np.ndarray
    """(N, F) the highest similarity to a true keypoint, which decides the kind; 0 where none is labelled."""

    @classmethod
    def of(cls, results: Results, truth: Truth, skeleton: Skeleton) -> "MatchedResults":
        pairs = Pairs.of(results, truth)
        oks = compute_oks(results.keypoints, truth, pairs, np.array(skeleton.sigmas))
        [person] = match(pairs, oks, results, truth, [MATCH_OKS])
        person = np.where(select_rows(truth.people, person), person, -1)
        is_match = person[pairs.result] == pairs.person
        person_oks = np.bincount(pairs.result[is_match], oks[is_match], len(person))
        kinds, similarity = _classify_keypoints(results, truth, pairs, person, skeleton)
        return cls(results, truth, skeleton, pairs, oks, person, person_oks, kinds, similarity)

    def correct(self, corrections: Collection[str]) -> "MatchedResults":
        """The results with other keypoints and scores, after correcting localisation errors and, if named, scores.

        A corrected keypoint lies in the direction of the found one from the true one, at the distance of a similarity:
        0.85 for a jitter and 0.5 for a miss, the upper limits of these kinds; for an inversion or a swap, that to the
        keypoint with which it was confused. Ronchi and Perona use the same similarities, but their code computes the
        distance with sigma instead of 2 sigma, so that its corrected keypoints have the fourth root of the similarity.
        The matches and kinds remain those of the uncorrected results.
        """
        target = np.minimum(self.similarity, 1.0)  # rounding may have made it a little more
        target[self.kinds == _JITTER] = GOOD_SIMILARITY
        target[self.kinds == _MISS] = MIN_SIMILARITY
        moved = [KEYPOINT_KINDS.index(kind) for kind in LOCALISATION if kind in corrections]
        row, k = np.nonzero(np.isin(self.kinds, moved))
        owner = self.person[row]
        true_xy = self.truth.keypoints[owner, k, :2]
        gap = self.results.keypoints[row, k, :2] - true_xy
        direction = gap / np.hypot(gap[:, :1], gap[:, 1:])  # an error is not at the right place: no length is 0
        sigmas = np.array(self.skeleton.sigmas)
        distance = similar_distance(target[row, k], self.truth.areas[owner], sigmas[k])
        keypoints = self.results.keypoints.copy()
        # Nearer by a billionth, so that no OKS is rounded below a threshold.
        keypoints[row, k, :2] = true_xy + direction * distance[:, None] * (1 - 1e-9)
        oks = compute_oks(keypoints, self.truth, self.pairs, sigmas)
        corrected = replace(self, results=replace(self.results, keypoints=keypoints), oks=oks)
        if "score" in corrections:
            corrected = replace(corrected, results=replace(corrected.results, scores=corrected.true_oks()))
        return corrected

    def evaluate(self) -> Outcome:
        """The outcome at COCO's OKS thresholds for all labelled people."""
        people = self.truth.people
        matches = match(self.pairs, self.oks, self.results, self.truth, OKS_THRESHOLDS)
        correct = select_rows(people, matches)
        missed = np.array([people & ~np.isin(np.arange(len(people)), found) for found in matches])
        return Outcome(self.results.scores, correct, correct | (matches < 0), missed, int(people.sum()))

    def true_oks(self) -> np.ndarray:
        """(N,) the scores of a perfect ranking: the OKS of every result with its person, and 0 without one.

        Results and people are assigned to each other one to one, the highest OKS first, down to ``MATCH_OKS``. A second
        result for the same person is a false positive and has nobody.
        """
        scores = np.zeros(len(self.results.scores))
        taken = np.zeros(len(self.truth.areas), bool)
        rows = np.flatnonzero((self.oks >= MATCH_OKS) & self.truth.people[self.pairs.person])
        for row in rows[np.argsort(-self.oks[rows], kind="stable")].tolist():
            result, person = self.pairs.result[row], self.pairs.person[row]
            if scores[result] == 0 and not taken[person]:
                scores[result] = self.oks[row]
                taken[person] = True
        return scores


def count_kinds(kinds: np.ndarray) -> dict[str, int]:
    """How often each of ``KEYPOINT_KINDS`` is in an array of indices into it."""
    return {kind: int((kinds == index).sum()) for index, kind in enumerate(KEYPOINT_KINDS)}


def _classify_keypoints(
    results: Results, truth: Truth, pairs: Pairs, person: np.ndarray, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """``MatchedResults.kinds`` and ``similarity`` of results that match ``person``.

    Each keypoint is compared with the same and with the mirrored labelled keypoint of the matched person, and with both
    of every other person. The most similar one decides; of equal ones the right one.
    """
    # Index of the left or right counterpart of every keypoint of the annotation file; else its own.
    names, twin_of = skeleton.file_keypoints, twins(skeleton.left_right)
    mirror = np.array([names.index(twin_of[a]) if twin_of.get(a) in names else k for k, a in enumerate(names)])  # (F,)
    rows = np.flatnonzero((person[pairs.result] >= 0) & ~truth.crowd[pairs.person])
    result, other = pairs.result[rows], pairs.person[rows]
    xy = results.keypoints[result, :, :2]
    same = _similarity_to(xy, truth, other, np.arange(len(mirror)), skeleton)  # (pairs, F)
    mirrored = _similarity_to(xy, truth, other, mirror, skeleton)
    is_own = person[result] == other

    right, inverted, swapped = np.zeros((3, len(person), len(mirror)))
    right[result[is_own]] = same[is_own]
    inverted[result[is_own]] = mirrored[is_own]
    np.maximum.at(swapped, result[~is_own], np.maximum(same, mirrored)[~is_own])

    best = np.maximum(np.maximum(right, inverted), swapped)
    at_right = np.where(right >= GOOD_SIMILARITY, _GOOD, _JITTER)
    elsewhere = np.where(inverted == best, _INVERSION, _SWAP)
    kinds = np.where(right == best, at_right, elsewhere)
    kinds[best < MIN_SIMILARITY] = _MISS
    kinds[~truth.labelled[person] | (person < 0)[:, None]] = UNLABELLED
    return kinds, best


def _similarity_to(
    xy: np.ndarray, truth: Truth, person: np.ndarray, keypoint: np.ndarray, skeleton: Skeleton
) -> np.ndarray:
    """(pairs, F) similarity of found keypoints (pairs, F, 2) to ``keypoint`` (F,) of people; 0 if not labelled."""
    true = truth.keypoints[person][:, keypoint]
    squares = ((xy - true[..., :2]) ** 2).sum(axis=-1)
    similarity = keypoint_similarity(squares, truth.areas[person, None], np.array(skeleton.sigmas)[keypoint])
    return np.where(true[..., 2] > 0, similarity, 0.0)

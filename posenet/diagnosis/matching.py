"""OKS of many results and people at once, and the matching of the COCO evaluation.

``pycocotools`` compares one result with one person at a time, in Python. A diagnosis needs some thirty evaluations of
the same file, so this module computes exactly the same numbers with arrays over all images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

MAX_RESULTS = 20
"""The COCO evaluation uses the results with the highest scores of every image, at most this many."""
_PAIRS_PER_BLOCK = 65536
"""Pairs whose OKS is computed at once, which limits the memory."""


@dataclass(frozen=True, eq=False)
class Truth:
    """All G annotations of a split, sorted by image. F keypoints in the order of the annotation file."""

    image: np.ndarray  # (G,) index of the image in the sorted ids
    keypoints: np.ndarray  # (G, F, 3) x, y, visibility
    boxes: np.ndarray  # (G, 4) x, y, width, height
    areas: np.ndarray  # (G,) square pixels
    crowd: np.ndarray  # (G,) bool
    num_images: int

    @classmethod
    def from_annotations(cls, people: Sequence[dict[str, Any]], image_ids: np.ndarray, num_keypoints: int) -> Truth:
        """The checked annotations of ``Split.people`` in the images with the sorted ``image_ids``."""
        ids = np.array([person["image_id"] for person in people], np.int64)
        image = np.searchsorted(image_ids, ids)
        listed = image_ids[np.minimum(image, len(image_ids) - 1)] == ids
        rows = np.flatnonzero(listed)
        rows = rows[np.argsort(image[rows], kind="stable")]
        chosen = [people[row] for row in rows.tolist()]
        return cls(
            image=image[rows],
            keypoints=np.array([person["keypoints"] for person in chosen], float).reshape(-1, num_keypoints, 3),
            boxes=np.array([person["bbox"] for person in chosen], float).reshape(-1, 4),
            areas=np.array([person["area"] for person in chosen], float),
            crowd=np.array([bool(person["iscrowd"]) for person in chosen], bool),
            num_images=len(image_ids),
        )

    def __len__(self) -> int:
        return len(self.image)

    @cached_property
    def labelled(self) -> np.ndarray:
        """(G, F) bool: labelled keypoints."""
        return np.asarray(self.keypoints[..., 2] > 0)

    @cached_property
    def ignored(self) -> np.ndarray:
        """(G,) bool: crowd regions and people without labelled keypoints, which results may match but need not."""
        return np.asarray(self.crowd | ~self.labelled.any(axis=1))


@dataclass(frozen=True, eq=False)
class Found:
    """The N results that the COCO evaluation uses, sorted by image and then by descending score."""

    image: np.ndarray  # (N,) index of the image in the sorted ids
    keypoints: np.ndarray  # (N, F, 3) x, y, and a value that COCO ignores
    scores: np.ndarray  # (N,)

    @classmethod
    def from_arrays(cls, image: np.ndarray, keypoints: np.ndarray, scores: np.ndarray) -> Found:
        """Sort results, and drop those of every image beyond ``MAX_RESULTS``. Equal scores keep their order."""
        order = np.lexsort((-scores, image))
        order = order[_ranks(image[order]) < MAX_RESULTS]
        return cls(image[order], keypoints[order], scores[order])

    def __len__(self) -> int:
        return len(self.image)

    def with_scores(self, scores: np.ndarray) -> tuple[Found, np.ndarray]:
        """The results with other scores, sorted again; and (N,) the row of each of them in ``self``."""
        order = np.lexsort((-scores, self.image))
        return Found(self.image[order], self.keypoints[order], scores[order]), order

    def with_keypoints(self, keypoints: np.ndarray) -> Found:
        return replace(self, keypoints=keypoints)

    @cached_property
    def areas(self) -> np.ndarray:
        """(N,) area of the box around all keypoints, as ``pycocotools`` computes it."""
        xy = self.keypoints[..., :2]
        return np.asarray(np.prod(xy.max(axis=1, initial=-np.inf) - xy.min(axis=1, initial=np.inf), axis=1))


@dataclass(frozen=True, eq=False)
class _RankPairs:
    """The pairs of the results with the same rank in their images."""

    rows: np.ndarray  # rows of ``Pairs``, result by result
    starts: np.ndarray  # first of the rows of each result
    lengths: np.ndarray  # number of the rows of each result
    results: np.ndarray  # the results


@dataclass(frozen=True, eq=False)
class Pairs:
    """All P pairs of a result and an annotation of the same image, sorted by result and then by annotation."""

    result: np.ndarray  # (P,)
    truth: np.ndarray  # (P,)
    by_rank: list[_RankPairs]

    @classmethod
    def build(cls, found: Found, truth: Truth) -> Pairs:
        people = np.bincount(truth.image, minlength=truth.num_images)
        first = np.cumsum(people) - people
        lengths = people[found.image]  # annotations beside each result
        result = np.repeat(np.arange(len(found)), lengths)
        starts = np.cumsum(lengths) - lengths
        offset = np.arange(len(result)) - starts[result]
        pairs_truth = first[found.image][result] + offset
        rank = _ranks(found.image)
        by_rank = []
        for value in range(int(rank.max(initial=-1)) + 1):
            results = np.flatnonzero((rank == value) & (lengths > 0))
            if not len(results):
                continue
            counts = lengths[results]
            rank_starts = np.cumsum(counts) - counts
            within = np.arange(counts.sum()) - np.repeat(rank_starts, counts)
            by_rank.append(_RankPairs(np.repeat(starts[results], counts) + within, rank_starts, counts, results))
        return cls(result, pairs_truth, by_rank)

    def __len__(self) -> int:
        return len(self.result)


def compute_oks(found: Found, truth: Truth, pairs: Pairs, sigmas: np.ndarray) -> np.ndarray:
    """(P,) OKS of every pair, the same to the last bit as that of ``pycocotools``.

    It is the mean over the labelled keypoints of exp(-d^2 / (2 area (2 sigma)^2)), where d is the distance of the found
    keypoint from the true one. For an annotation without labelled keypoints, d is the distance from its box, doubled.
    """
    oks = np.zeros(len(pairs))
    counts = truth.labelled.sum(axis=1)  # (G,)
    labelled_first = np.argsort(~truth.labelled, axis=1, kind="stable")  # (G, F)
    pair_counts = counts[pairs.truth]
    for count in np.unique(pair_counts):
        # Pairs with equally many terms are summed together, in the order of pycocotools.
        rows_of_count = np.flatnonzero(pair_counts == count)
        for start in range(0, len(rows_of_count), _PAIRS_PER_BLOCK):
            rows = rows_of_count[start : start + _PAIRS_PER_BLOCK]
            result, person = pairs.result[rows], pairs.truth[rows]
            if count:
                keypoint = labelled_first[person, :count]  # (rows, count)
                found_xy = found.keypoints[result[:, None], keypoint, :2]
                gaps = found_xy - truth.keypoints[person[:, None], keypoint, :2]
            else:
                keypoint = np.broadcast_to(np.arange(len(sigmas)), (len(rows), len(sigmas)))
                gaps = _gaps_to_regions(found.keypoints[result, :, :2], truth.boxes[person])
            exponents = _exponents(gaps, truth.areas[person, None], sigmas[keypoint])
            oks[rows] = np.exp(-exponents).sum(axis=1) / exponents.shape[1]
    return oks


def similarity(gaps: np.ndarray, areas: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Similarity of keypoints, exp(-d^2 / (2 area (2 sigma)^2)), from their gaps (..., 2) in pixels along x and y."""
    return np.asarray(np.exp(-_exponents(gaps, areas, sigmas)))


def match(
    pairs: Pairs, oks: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, thresholds: Sequence[float], num_results: int
) -> np.ndarray:
    """Match results to annotations as ``pycocotools`` does, at T thresholds.

    The results of an image choose in the order of their scores. Each takes the free annotation with the highest OKS
    that reaches the threshold; an ignored one only if no other is left. A crowd region is always free.

    Args:
        ignored: (G,) annotations that results may match but need not, crowd regions included.
        crowd: (G,) crowd regions.

    Returns:
        (T, N) the annotation of every result, -1 for none.
    """
    # An OKS that rounding has made a little less than 1 counts as 1.
    limits = np.minimum(np.asarray(thresholds, float), 1 - 1e-10)[:, None]
    matches = np.full((len(limits), num_results), -1)
    taken = np.zeros((len(limits), len(ignored)), bool)
    for rank in pairs.by_rank:
        person = pairs.truth[rank.rows]
        value = oks[rank.rows]
        free = (value >= limits) & (crowd[person] | ~taken[:, person])  # (T, rows)
        chosen = _last_best(value, free & ~ignored[person], rank)  # (T, results)
        second_choice = _last_best(value, free & ignored[person], rank)
        chosen = np.where(chosen >= 0, chosen, second_choice)
        level, column = np.nonzero(chosen >= 0)
        matched = person[chosen[level, column]]
        matches[level, rank.results[column]] = matched
        taken[level, matched] = True
    return matches


def _last_best(value: np.ndarray, allowed: np.ndarray, rank: _RankPairs) -> np.ndarray:
    """(T, results) the allowed row with the highest value, of equal ones the last; -1 for none."""
    values = np.where(allowed, value, -1.0)
    best = np.maximum.reduceat(values, rank.starts, axis=1)
    is_best = allowed & (values == np.repeat(best, rank.lengths, axis=1))
    rows = np.where(is_best, np.arange(len(value)), -1)
    return np.asarray(np.maximum.reduceat(rows, rank.starts, axis=1))


def _ranks(image: np.ndarray) -> np.ndarray:
    """(N,) position of every result among those of its image; the images are sorted."""
    return np.asarray(np.arange(len(image)) - np.searchsorted(image, image))


def _exponents(gaps: np.ndarray, areas: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    # The order of the divisions is that of pycocotools, so that the results are the same to the last bit.
    squares: np.ndarray = gaps[..., 0] ** 2 + gaps[..., 1] ** 2
    return np.asarray(squares / (2 * sigmas) ** 2 / (areas + np.spacing(1)) / 2)


def _gaps_to_regions(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(rows, F, 2) distance along x and y from boxes (rows, 4) of thrice the width and height; 0 inside."""
    corner = boxes[:, None, :2]
    size = boxes[:, None, 2:]
    low = corner - size
    high = corner + size * 2
    return np.asarray(np.maximum(0, low - points) + np.maximum(0, points - high))

"""People and results as arrays over all images, and the matching of the COCO evaluation.

A diagnosis needs some thirty evaluations of the same results. ``pycocotools`` compares one result with one person at a
time, in Python; this module computes the same numbers for all images at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from posenet.annotations.people import Split
from posenet.skeleton import Skeleton
from posenet.skeleton.oks import keypoint_similarity, mean_over_labelled

MAX_RESULTS = 20
"""The COCO evaluation uses the results with the highest scores of every image, at most this many."""


def index_images(split: Split) -> dict[int, int]:
    """The index of each image of a split by its id, in the order in which ``pycocotools`` evaluates them."""
    return {image_id: index for index, image_id in enumerate(sorted(image.id for image in split.images))}


@dataclass(frozen=True, eq=False)
class Truth:
    """All G annotations of a split, sorted by image, crowd regions included. F keypoints in the order of the file."""

    image: np.ndarray  # (G,) index of the image
    keypoints: np.ndarray
    """(G, F, 3) x, y in pixels of the annotations and COCO visibility: 0 not labelled, 1 hidden, 2 visible."""
    boxes: np.ndarray  # (G, 4) x, y, width, height
    areas: np.ndarray  # (G,) square pixels
    crowd: np.ndarray  # (G,) bool: crowd regions

    @classmethod
    def from_split(cls, split: Split, skeleton: Skeleton) -> Truth:
        """The annotations of the split's images; indices of images are those of ``index_images``."""
        index_of = index_images(split)
        listed = [person for person in split.people if person["image_id"] in index_of]
        chosen = sorted(listed, key=lambda person: index_of[person["image_id"]])
        num_keypoints = len(skeleton.file_keypoints)
        return cls(
            image=np.array([index_of[person["image_id"]] for person in chosen], int),
            keypoints=np.array([person["keypoints"] for person in chosen], float).reshape(-1, num_keypoints, 3),
            boxes=np.array([person["bbox"] for person in chosen], float).reshape(-1, 4),
            areas=np.array([person["area"] for person in chosen], float),
            crowd=np.array([person["iscrowd"] for person in chosen], bool),
        )

    def __len__(self) -> int:
        return len(self.image)

    @cached_property
    def labelled(self) -> np.ndarray:
        """(G, F) bool: labelled keypoints."""
        return np.asarray(self.keypoints[..., 2] > 0)

    @cached_property
    def people(self) -> np.ndarray:
        """(G,) bool: people with labelled keypoints. Results may match the other annotations, but need not."""
        return np.asarray(~self.crowd & self.labelled.any(axis=1))


@dataclass(frozen=True, eq=False)
class Results:
    """The N results that the COCO evaluation uses, sorted by image and then by descending score."""

    image: np.ndarray  # (N,) index of the image
    keypoints: np.ndarray  # (N, F, 3) x, y, and the third value of the results file, which COCO ignores
    scores: np.ndarray  # (N,)
    left_out: np.ndarray  # (images,) number of results beyond ``MAX_RESULTS``, which it does not use

    @classmethod
    def select(cls, image: np.ndarray, keypoints: np.ndarray, scores: np.ndarray, num_images: int) -> Results:
        """Sort results, and drop those of every image beyond ``MAX_RESULTS``. Equal scores keep their order."""
        left_out = np.maximum(np.bincount(image, minlength=num_images) - MAX_RESULTS, 0)
        order = np.lexsort((-scores, image))
        order = order[ranks_within(image[order]) < MAX_RESULTS]
        return cls(image[order], keypoints[order], scores[order], left_out)

    def __len__(self) -> int:
        return len(self.image)

    @property
    def areas(self) -> np.ndarray:
        """(N,) area of the box around all keypoints, as ``pycocotools`` computes it."""
        return np.asarray(np.ptp(self.keypoints[..., :2], axis=1).prod(axis=1))


class Pairs(NamedTuple):
    """All P pairs of a result and an annotation of the same image, sorted by result and then by annotation."""

    result: np.ndarray  # (P,) rows of ``Results``
    person: np.ndarray  # (P,) rows of ``Truth``

    @classmethod
    def of(cls, results: Results, truth: Truth) -> Pairs:
        first = np.searchsorted(truth.image, results.image)
        count = np.searchsorted(truth.image, results.image, side="right") - first
        result = np.repeat(np.arange(len(results)), count)
        return cls(result, first[result] + ranks_within(result))


def compute_oks(keypoints: np.ndarray, truth: Truth, pairs: Pairs, sigmas: np.ndarray) -> np.ndarray:
    """(P,) OKS of the pairs of results with (N, F, 3) keypoints; see ``posenet.skeleton.oks``.

    For an annotation without labelled keypoints, COCO takes the mean over all keypoints, at their distances from its
    box, thrice as wide and as high.
    """
    xy = keypoints[pairs.result, :, :2]
    gaps = xy - truth.keypoints[pairs.person, :, :2]
    labelled = truth.labelled[pairs.person]
    region = np.flatnonzero(~labelled.any(axis=1))
    corner, size = np.split(truth.boxes[pairs.person[region], None], 2, axis=2)
    low, high = corner - size, corner + 2 * size
    gaps[region] = np.maximum(0, low - xy[region]) + np.maximum(0, xy[region] - high)
    labelled[region] = True
    similarity = keypoint_similarity((gaps**2).sum(axis=-1), truth.areas[pairs.person, None], sigmas)
    return mean_over_labelled(similarity, labelled)


def match(
    pairs: Pairs, oks: np.ndarray, results: Results, truth: Truth, counted: np.ndarray, thresholds: ArrayLike
) -> np.ndarray:
    """(T, N) the annotation that each result matches at T thresholds as in ``pycocotools``, -1 for none.

    The results of an image choose in the order of their scores. Each takes the free annotation with the highest OKS
    that reaches the threshold; one not ``counted`` (G,) only if no other is left. Crowd regions are always free.
    """
    limits = np.asarray(thresholds)[:, None]
    matches = np.full((len(limits), len(results)), -1)
    taken = np.zeros((len(limits), len(truth)), bool)
    order = np.lexsort((-results.scores, results.image))
    rank = np.empty(len(results), int)
    rank[order] = ranks_within(results.image[order])
    # The pairs of a result in the order in which it prefers them; of an equal OKS, the last annotation.
    preferred = np.lexsort((-pairs.person, -oks, ~counted[pairs.person], pairs.result, rank[pairs.result]))
    # First the pairs of the best results of all images, then those of the second ...
    for rows in split_groups(preferred, rank[pairs.result[preferred]]):
        person = pairs.person[rows]
        is_free = (oks[rows] >= limits) & (truth.crowd[person] | ~taken[:, person])  # (T, rows)
        starts = np.flatnonzero(np.diff(pairs.result[rows], prepend=-1))
        first = np.minimum.reduceat(np.where(is_free, np.arange(len(rows)), len(rows)), starts, axis=1)
        level, column = np.nonzero(first < len(rows))
        chosen = rows[first[level, column]]
        matches[level, pairs.result[chosen]] = pairs.person[chosen]
        taken[level, pairs.person[chosen]] = True
    return matches


def ranks_within(groups: np.ndarray) -> np.ndarray:
    """(N,) position of every row among those of the same group; the groups are sorted."""
    return np.asarray(np.arange(len(groups)) - np.searchsorted(groups, groups))


def split_groups(rows: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    """The rows of each group; the groups are sorted numbers from 0."""
    return np.split(rows, np.flatnonzero(np.diff(groups, prepend=-1)))[1:]


def select_rows(chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Whether each of ``rows`` is chosen in a (N,) bool array; False for -1, which stands for no row."""
    return np.asarray(np.append(chosen, False)[rows])

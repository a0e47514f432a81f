"""The COCO evaluation with arrays over all images: people, results, who matches whom, and the precision that follows.

A diagnosis needs eleven evaluations of the same results, and others without what is missed at each OKS threshold.
``pycocotools`` compares one result with one person at a time, in Python; here are the same numbers for all images at
once, in the time of one of its evaluations.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from posenet.annotations.coco import MAX_NUMBER
from posenet.errors import DataError
from posenet.files import read_input
from posenet.skeleton.oks import keypoint_similarity, mean_over_labelled

MAX_RESULTS = 20
"""The COCO evaluation uses the results with the highest scores of every image, at most this many."""
OKS_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""COCO's OKS thresholds, 0.50, 0.55 ... 0.95, the order of every array of ten numbers. They are those of pycocotools to
the last bit: its 0.9 is a little less than the number of that name."""
_RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True, eq=False)
class Truth:
    """All G annotations, sorted by image, crowd regions included; F keypoints in the order of the file."""

    image: np.ndarray  # (G,) index of the image
    keypoints: np.ndarray  # (G, F, 3) x, y in pixels and COCO visibility: 0 not labelled, 1 hidden, 2 visible
    boxes: np.ndarray  # (G, 4) x, y, width, height
    areas: np.ndarray  # (G,) square pixels
    crowd: np.ndarray  # (G,) bool: crowd regions

    @classmethod
    def of(cls, people: Sequence[Mapping[str, Any]], index_of: Mapping[int, int], num_keypoints: int) -> "Truth":
        """The annotations of the images whose ids have an index."""
        listed = [person for person in people if person["image_id"] in index_of]
        listed.sort(key=lambda person: index_of[person["image_id"]])
        return cls(
            image=np.array([index_of[person["image_id"]] for person in listed], int),
            keypoints=np.array([person["keypoints"] for person in listed], float).reshape(-1, num_keypoints, 3),
            boxes=np.array([person["bbox"] for person in listed], float).reshape(-1, 4),
            areas=np.array([person["area"] for person in listed], float),
            crowd=np.array([person["iscrowd"] for person in listed], bool),
        )

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
    num_left_out: int  # results of images that have more than ``MAX_RESULTS``, which it does not use

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]], index_of: Mapping[int, int], num_keypoints: int) -> "Results":
        """Those of ``read_results``; ``index_of`` has the index of every image by its id."""
        image = np.array([index_of[entry["image_id"]] for entry in entries], int)
        found = np.array([entry["keypoints"] for entry in entries], float).reshape(-1, num_keypoints, 3)
        scores = np.array([entry["score"] for entry in entries], float)
        order = np.lexsort((-scores, image))  # equal scores keep their order
        order = order[ranks_within(image[order]) < MAX_RESULTS]
        return cls(image[order], found[order], scores[order], len(image) - len(order))


def read_results(
    results: str | Path | Sequence[Mapping[str, Any]],
    image_ids: Collection[int],
    categories: Collection[int],
    num_keypoints: int,
) -> list[Mapping[str, Any]]:
    """Read a results file, or take its content, which may be an empty list.

    ``DataError`` if it is no list of results, or one has an unknown image or category, or no numbers as it should.
    """
    name = results if isinstance(results, (str, Path)) else "results"
    remedy = "give a COCO results file: a list of objects with image_id, category_id, keypoints and score"
    try:
        entries = json.loads(read_input(results)) if isinstance(results, (str, Path)) else list(results)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read results {name}: {error}; {remedy}") from error
    if not isinstance(entries, list):
        raise DataError(f"{name} is not a list of results; {remedy}")
    for number, entry in enumerate(entries, 1):
        if not _is_result(entry, num_keypoints):
            raise DataError(
                f"{name}: result {number} has other content than numbers, {3 * num_keypoints} of them as keypoints; "
                f"{remedy}, and the skeleton of other keypoints (--skeleton FILE)"
            )
        if entry["image_id"] not in image_ids or entry["category_id"] not in categories:
            ids = f"image_id {entry['image_id']} or category_id {entry['category_id']}"
            raise DataError(f"{name}: result {number} has an {ids} that the annotations do not list; use others")
    return entries


def _is_result(entry: object, num_keypoints: int) -> bool:
    """Whether an entry has finite numbers; True and False are not numbers, and NaN is not below the limit."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("keypoints"), list):
        return False
    values = [entry.get("image_id"), entry.get("category_id"), entry.get("score"), *entry["keypoints"]]
    are_numbers = all(type(value) in (int, float) and abs(value) < MAX_NUMBER for value in values)
    return are_numbers and len(values) == 3 + 3 * num_keypoints


class Pairs(NamedTuple):
    """All P pairs of a result and an annotation of the same image, sorted by result and then by annotation."""

    result: np.ndarray  # (P,) rows of ``Results``
    person: np.ndarray  # (P,) rows of ``Truth``

    @classmethod
    def of(cls, results: Results, truth: Truth) -> "Pairs":
        first = np.searchsorted(truth.image, results.image)
        count = np.searchsorted(truth.image, results.image, side="right") - first
        result = np.repeat(np.arange(len(count)), count)
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


def match(pairs: Pairs, oks: np.ndarray, results: Results, truth: Truth, thresholds: ArrayLike) -> np.ndarray:
    """(T, N) the annotation that each result matches at T thresholds as in ``pycocotools``, -1 for none.

    The results of an image choose in the order of their scores. Each takes the free annotation with the highest OKS
    that reaches the threshold; one that is not in ``truth.people`` only if no other is left. Crowd regions stay free.
    """
    limits = np.asarray(thresholds)[:, None]
    matches = np.full((len(limits), len(results.scores)), -1)
    taken = np.zeros((len(limits), len(truth.areas)), bool)
    order = np.lexsort((-results.scores, results.image))
    rank = np.empty_like(order)
    rank[order] = ranks_within(results.image[order])
    # The pairs of a result in the order in which it prefers them; of an equal OKS, the last annotation.
    preferred = np.lexsort((-pairs.person, -oks, ~truth.people[pairs.person], pairs.result, rank[pairs.result]))
    # First the pairs of the best results of all images, then those of the second ...
    starts_of_ranks = np.flatnonzero(np.diff(rank[pairs.result[preferred]], prepend=-1))
    for rows in np.split(preferred, starts_of_ranks)[1:]:
        person = pairs.person[rows]
        is_free = (oks[rows] >= limits) & (truth.crowd[person] | ~taken[:, person])  # (T, rows)
        starts = np.flatnonzero(np.diff(pairs.result[rows], prepend=-1))
        first = np.minimum.reduceat(np.where(is_free, np.arange(len(rows)), len(rows)), starts, axis=1)
        level, column = np.nonzero(first < len(rows))
        chosen = rows[first[level, column]]
        matches[level, pairs.result[chosen]] = pairs.person[chosen]
        taken[level, pairs.person[chosen]] = True
    return matches


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the COCO evaluation decides at its T OKS thresholds about N results and G annotations."""

    scores: np.ndarray  # (N,); of equal scores, the first result ranks higher
    correct: np.ndarray  # (T, N) bool: results that match a person who is to be found
    counted: np.ndarray  # (T, N) bool: results that count, as all do but those that match another annotation
    missed: np.ndarray  # (T, G) bool: people who are to be found and whom no result matches
    num_people: int  # number of people to be found

    @property
    def background(self) -> np.ndarray:
        """(T, N) bool: results that match nobody."""
        return np.asarray(self.counted & ~self.correct)

    def precision(self, removed: np.ndarray | bool = False) -> np.ndarray:
        """(T,) AP at each threshold: the mean over recall 0, 0.01 ... 1 of the highest precision at it or beyond.

        With ``removed`` (T, G), it is that without these missed people. Where nobody is left to be found then, it is 1,
        or 0 if there are false positives.
        """
        num_people = self.num_people - (self.missed & removed).sum(axis=1)
        ranking = np.argsort(-self.scores, kind="stable")
        ap = np.where(self.background.any(axis=1), 0.0, 1.0)
        for row in np.flatnonzero(num_people):
            # The recall grows at correct results only, and between them the precision falls.
            correct = np.flatnonzero(self.correct[row, ranking][self.counted[row, ranking]])
            num_correct = np.arange(1, len(correct) + 1)
            precision = num_correct / (correct + 1 + np.spacing(1))
            precision = np.maximum.accumulate(precision[::-1])[::-1]
            first = np.searchsorted(num_correct / num_people[row], _RECALLS)
            ap[row] = np.append(precision, 0.0)[first].mean()
        return ap


def ranks_within(groups: np.ndarray) -> np.ndarray:
    """(N,) position of every row among those of the same group; the groups are sorted."""
    return np.asarray(np.arange(len(groups)) - np.searchsorted(groups, groups))


def select_rows(chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Whether each of ``rows`` is chosen in a (N,) bool array; False for -1, which stands for no row."""
    return np.asarray(np.append(chosen, False)[rows])

"""Choose the images of the gallery: the worst, and the worst of each kind of error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.result import Comparison, Diagnosis, ImageDiagnosis

MAX_IMAGES = 400
"""Images in the gallery."""
RANKED_IMAGES = 250
"""Of these, images that are the worst, the worst of a kind of error, or changed most. The others are the worst for a
keypoint, a size or a crowding, so that these filters find images too."""
MAX_POINTS = 300_000
"""Keypoints of all people in the gallery, which take about 20 bytes each: 6 MB. COCO's 17 keypoints and 20 results in
each of 400 images are 150,000."""
MISRANKED = 0.25
"""A result has a score error if its ranks by score and by true OKS differ by this share of the matched results. The
page explains it with this number."""
CROWDING = ("0", "1-2", "3 or more")
"""Numbers of overlapping people, as the sensitivity names them too."""


@dataclass(frozen=True)
class ResultRanks:
    """The order of all results of a file by score, and how far it is from the order by true OKS."""

    by_score: np.ndarray
    """(N,) rank of each result, 0 (best) to 1 (worst), image by image. Equal scores share their mean rank."""
    misranking: np.ndarray
    """(N,) difference from the nearest rank that the true OKS allows, as a share of the results that have a person.
    Results of equal OKS may have any order. 0 for results that do not count."""
    first: np.ndarray
    """(images,) row of the first result of each image."""

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> ResultRanks:
        results = [result for image in diagnosis.images for result in image.results]
        counts = [len(image.results) for image in diagnosis.images]
        counted = np.array([not result.ignored for result in results], bool)
        true_oks = np.array([result.true_oks for result in results], float)[counted]
        first, last = _rank_ranges(np.array([result.score for result in results], float)[counted])
        by_score = (first + last) / 2
        first, last = _rank_ranges(true_oks)
        ranks = cls(np.zeros(len(results)), np.zeros(len(results)), first=np.cumsum([0, *counts[:-1]]))
        ranks.by_score[counted] = by_score / max(len(by_score) - 1, 1)
        distance = np.maximum(np.maximum(first - by_score, by_score - last), 0)
        ranks.misranking[counted] = distance / max((true_oks > 0).sum() - 1, 1)
        return ranks

    @property
    def misranked(self) -> int:
        """Number of results with a score error."""
        return int((self.misranking >= MISRANKED).sum())

    def misrankings(self, image: int, results: int) -> list[float]:
        """``misranking`` of the results of an image."""
        return list(self.misranking[self.first[image] : self.first[image] + results].tolist())


def crowding_of(overlapping: int) -> str:
    """The one of ``CROWDING`` that a number of overlapping people belongs to."""
    if overlapping == 0:
        return CROWDING[0]
    return CROWDING[1] if overlapping <= 2 else CROWDING[2]


def loss_of(image: ImageDiagnosis) -> float:
    """What an image costs: the sum of 1 - OKS over its people."""
    return sum(1 - person.oks for person in image.people)


def choose_images(diagnoses: Sequence[Diagnosis], comparison: Comparison | None) -> list[int]:
    """Return indices of ``Diagnosis.images``, at most ``MAX_IMAGES``, in the order of the annotation file."""
    overall: list[list[int]] = []
    detailed: list[list[int]] = []
    for diagnosis in diagnoses:
        severities = _severities(diagnosis)
        by_kind = [key for key in severities if key[1] == ""]
        overall += [_worst_first(severities[key]) for key in by_kind]
        detailed += [_worst_first(severities[key]) for key in severities if key not in by_kind]
    if comparison is not None:
        position = {image.id: index for index, image in enumerate(diagnoses[0].images)}
        for difference in comparison.differences:
            overall.append([position[change.id] for change in difference.images])
    selection = _Selection(_count_points(diagnoses))
    selection.take_in_turn(overall, RANKED_IMAGES)
    selection.take_in_turn(detailed, MAX_IMAGES)
    selection.take_in_turn([range(len(diagnoses[0].images))], MAX_IMAGES)
    return sorted(selection.chosen)


def _severities(diagnosis: Diagnosis) -> dict[tuple[str, str], dict[int, float]]:
    """For each kind of error, and each kind with a keypoint, a size or a crowding: how bad each image is.

    Keys are (kind, detail); the detail is empty for all errors of the kind, and the kind is "worst" for what an
    image costs altogether. Values are above 0.
    """
    ranks = ResultRanks.of(diagnosis)
    severities: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    names = list(diagnosis.keypoints)
    for index, image in enumerate(diagnosis.images):
        severities["worst", ""][index] = loss_of(image)
        for person in image.people:
            severities["missed", ""][index] += person.missed
            severities["worst", f"size {person.size}"][index] += 1 - person.oks
            severities["worst", f"crowding {crowding_of(person.crowding)}"][index] += 1 - person.oks
        misrankings = ranks.misrankings(index, len(image.results))
        for row, (result, misranking) in enumerate(zip(image.results, misrankings), ranks.first[index]):
            if result.background:
                # Wrong results with high scores cost most: the first counts twice as much as the last.
                severities["background", ""][index] += 1 - ranks.by_score[row] / 2
            if misranking >= MISRANKED:
                severities["score", ""][index] += misranking
            for name, kind in zip(names, result.kinds):
                if kind is not None and kind != "good":
                    severities[kind, ""][index] += 1
                    severities[kind, name][index] += 1
    return severities


def _worst_first(severity: dict[int, float]) -> list[int]:
    flawed = [index for index, value in severity.items() if value > 0]
    return sorted(flawed, key=lambda index: -severity[index])


class _Selection:
    """Images chosen one after the other, with at most ``MAX_POINTS`` together.

    Args:
        points: number of keypoints of each image.
    """

    def __init__(self, points: Sequence[int]) -> None:
        self.chosen: set[int] = set()
        self._points = points
        self._left = MAX_POINTS

    def take_in_turn(self, rankings: Sequence[Sequence[int]], limit: int) -> None:
        """Add the first of each ranking, then the second of each, until ``limit`` are chosen or all rankings end."""
        for position in range(max(map(len, rankings), default=0)):
            for ranking in rankings:
                if len(self.chosen) >= limit:
                    return
                if position < len(ranking):
                    self._take(ranking[position])

    def _take(self, index: int) -> None:
        if index not in self.chosen and self._points[index] <= self._left:
            self.chosen.add(index)
            self._left -= self._points[index]


def _count_points(diagnoses: Sequence[Diagnosis]) -> list[int]:
    """Number of keypoints in each image: those of its people, and those of the results of all files."""
    keypoints = len(diagnoses[0].keypoints)
    people = [len(image.people) for image in diagnoses[0].images]
    results = [[len(image.results) for image in diagnosis.images] for diagnosis in diagnoses]
    return [keypoints * sum(counts) for counts in zip(people, *results)]


def _rank_ranges(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) first and (N,) last rank that each value may have among equal ones; 0 is that of the largest."""
    _, inverse, counts = np.unique(-values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    first = last - counts + 1
    return first[inverse], last[inverse]

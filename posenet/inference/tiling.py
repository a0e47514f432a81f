"""Cuts very wide and very tall images into overlapping tiles, and joins the people found in them.

A panorama that is resized to the width of the network input, or a strip that is resized to its height, is so narrow
that nobody can be found in it. Every tile goes through the network like an image of its own.

This module needs NumPy only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from posenet.inference.person import Person

MIN_ASPECT = 4.0
"""Longer over shorter side of an image, at least, to be cut."""
MIN_SIDE = 32
"""An image whose shorter side has fewer pixels is not cut: it shows nobody."""
WIDE_TILE = (3.0, 2.0)
"""Length of the tiles of a wide image, and distance of their starts; both in shorter sides of the image."""
TALL_TILE = (1.0, 0.5)
"""The same for a tall image. Its tiles are square, so that they are resized as much as those of a wide image."""
TOLERANCE = 0.08
"""How far apart two tiles may see a keypoint of one person, relative to the person's size."""


@dataclass(frozen=True)
class Tiling:
    """Tiles that cover an image along its longer side. Adjacent tiles overlap.

    Attributes:
        axis: 0 for tiles below each other, 1 for tiles beside each other.
        starts: the first row or column of each tile.
        length: rows or columns of a tile.
        tolerance: how far apart two tiles may see a keypoint of one person, at least; in pixels of the image.
    """

    axis: int
    starts: list[int]
    length: int
    tolerance: float

    def cut(self, image: np.ndarray) -> list[np.ndarray]:
        """The tiles of an (H, W, 3) image."""
        parts = [slice(start, start + self.length) for start in self.starts]
        return [image[part] if self.axis == 0 else image[:, part] for part in parts]

    def join(self, people_of_tiles: Sequence[Iterable[Person]]) -> list[Person]:
        """The people in the image by falling score, each once.

        A person that several tiles show has the keypoints of the best tile, and from others those that it lacks.

        Args:
            people_of_tiles: the people of each tile, with keypoints in pixels of the tile.
        """
        # A tile sees badly what its end cuts off. Where two tiles overlap, each is responsible up to the middle.
        middles = [(start + previous + self.length) / 2 for previous, start in zip(self.starts, self.starts[1:])]
        borders = [-math.inf, *middles, math.inf]
        coordinate = 1 - self.axis  # of (x, y)
        candidates = []
        for index, (start, people) in enumerate(zip(self.starts, people_of_tiles)):
            for person in people:
                keypoints = person.keypoints.copy()
                keypoints[person.found, coordinate] += start
                moved = dataclasses.replace(person, keypoints=keypoints)
                centre = moved.box().reshape(2, 2)[:, coordinate].mean()
                slack = self._tolerance_of(moved)
                is_responsible = borders[index] - slack <= centre <= borders[index + 1] + slack
                candidates.append((moved, bool(is_responsible)))
        candidates.sort(key=lambda candidate: -candidate[0].score)
        joined: list[tuple[Person, bool]] = []
        for person, is_responsible in candidates:
            index_of_same = self._find_same(person, [other for other, _ in joined])
            if index_of_same is None:
                joined.append((person, is_responsible))
            else:
                other, was_responsible = joined[index_of_same]
                joined[index_of_same] = (_fill_missing(other, person), is_responsible or was_responsible)
        return sorted((person for person, kept in joined if kept), key=lambda person: -person.score)

    def _tolerance_of(self, person: Person) -> float:
        left, top, right, bottom = person.box().tolist()
        return float(max(self.tolerance, TOLERANCE * max(right - left, bottom - top)))

    def _find_same(self, person: Person, others: Sequence[Person]) -> int | None:
        """Index of the person with the most keypoints at the same positions, and few at other positions."""
        if not others:
            return None
        keypoints = np.stack([other.keypoints for other in others])  # (P, K, 3)
        is_common = person.found & (keypoints[..., 2] > 0)
        distance = np.linalg.norm(keypoints[..., :2] - person.keypoints[:, :2], axis=-1)
        size = np.array([self._tolerance_of(other) for other in others])
        num_equal = (is_common & (distance <= size[:, None])).sum(axis=1)
        num_equal[2 * num_equal < is_common.sum(axis=1)] = 0
        best = int(num_equal.argmax())
        return best if num_equal[best] else None


def _fill_missing(person: Person, other: Person) -> Person:
    """``person`` with the keypoints that only ``other`` has, and the score of both; see ``assemble_people``."""
    if not (other.found & ~person.found).any():
        return person
    keypoints = np.where(person.found[:, None], person.keypoints, other.keypoints)
    scores = keypoints[:, 2]
    score = float(scores.sum() / math.sqrt(np.count_nonzero(scores) * len(scores)))
    return dataclasses.replace(person, keypoints=keypoints, score=score)


def choose_tiling(image_size: tuple[int, int], *, fits: bool, tolerance: float) -> Tiling | None:
    """How an image is cut; None for one that goes through the network in one piece.

    Args:
        image_size: (height, width).
        fits: whether the image, resized to the height of a network input, is neither too wide nor too narrow for one.
        tolerance: share of the height of a network input by which two tiles may differ.
    """
    height, width = image_size
    longer, shorter = max(image_size), min(image_size)
    is_wide = width > height
    if fits or longer <= MIN_ASPECT * shorter or shorter < MIN_SIDE:
        return None
    length, step = (round(shorter * sides) for sides in (WIDE_TILE if is_wide else TALL_TILE))
    count = 1 + math.ceil((longer - length) / step)
    starts = np.linspace(0, longer - length, count).round().astype(int).tolist()
    tile_height = height if is_wide else length
    return Tiling(axis=int(is_wide), starts=starts, length=length, tolerance=tolerance * tile_height)

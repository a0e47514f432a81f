"""The people of an image: whom training samples are centred on, and their masks as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pycocotools import mask as coco_mask

from posenet.annotations.run_lengths import decode_columns, decode_mask, encode_mask
from posenet.skeleton import COCO

Outline = list[list[float]] | np.ndarray | None
"""Polygons, flat lists x, y, x, y, ...; or (runs,) run lengths; or None: the box takes its place."""

MIN_AREA = 32 * 32
"""Smallest area of a main person in square pixels."""
SHARE_OF_BOX = 0.53
"""Area of a person relative to the box: the median of 757 people of COCO, half of whom have 0.45 to 0.62. An evaluation
whose areas are whole boxes measures an AP that is 8 to 23 points too high."""
SHARE_OF_KEYPOINT_BOX = 0.84
"""The same relative to the box around four and more labelled keypoints, which is smaller: the median of 454 people."""
MIN_DISTANCE = 0.3
"""Smallest distance between main persons, relative to the longer box side of the earlier one."""
BOX_TOLERANCE = 1.0
"""Difference in pixels at which a box is the one around the keypoints: files contain boxes and keypoints that are
rounded to whole pixels, each on its own."""


@dataclass(frozen=True, eq=False)
class People:
    """P people and crowd regions, in the order of the annotation file."""

    ids: np.ndarray  # (P,) int64
    keypoints: np.ndarray  # (P, K, 3) float32: x, y, visibility in channel order, derived keypoints included
    num_labelled: np.ndarray  # (P,) int64: labelled keypoints in the file, without derived ones
    boxes: np.ndarray  # (P, 4) float32: x, y, width, height
    areas: np.ndarray  # (P,) float32: square pixels
    is_crowd: np.ndarray  # (P,) bool: the region covers several people
    outlines: list[Outline]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_labelled(self) -> np.ndarray:
        """(P,) bool: a single person with at least one labelled keypoint."""
        return np.asarray((self.num_labelled > 0) & ~self.is_crowd)

    def select(self, rows: slice) -> People:
        """The people in some rows."""
        return People(
            self.ids[rows],
            self.keypoints[rows],
            self.num_labelled[rows],
            self.boxes[rows],
            self.areas[rows],
            self.is_crowd[rows],
            self.outlines[rows],
        )


def scale_people(people: People, size: tuple[int, int], new_size: tuple[int, int]) -> People:
    """People annotated in an image of (height, width) ``size``, in pixels of the same image in ``new_size``."""
    if size == new_size:
        return people
    zoom = np.array(new_size[::-1]) / np.array(size[::-1])  # of x and y
    is_labelled = people.keypoints[..., 2:] > 0
    keypoints = people.keypoints.copy()
    keypoints[..., :2] = np.where(is_labelled, (keypoints[..., :2] + 0.5) * zoom - 0.5, 0)
    return replace(
        people,
        keypoints=keypoints,
        boxes=(people.boxes * np.tile(zoom, 2)).astype(np.float32),
        areas=(people.areas * zoom.prod()).astype(np.float32),
        outlines=[_scale_outline(outline, size, new_size) for outline in people.outlines],
    )


def _scale_outline(outline: Outline, size: tuple[int, int], new_size: tuple[int, int]) -> Outline:
    if outline is None:
        return None
    if isinstance(outline, np.ndarray):
        rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for old, new in zip(size, new_size))
        return encode_mask(decode_mask(outline, *size)[rows][:, columns])
    zoom = np.array(new_size[::-1]) / np.array(size[::-1])
    return [(np.reshape(polygon, (-1, 2)) * zoom).ravel().tolist() for polygon in outline]


def select_main_persons(people: People, min_labelled: int = COCO.min_labelled_keypoints) -> list[int]:
    """Select one image's main persons, on each of whom a training sample is centred; return their rows in order.

    A main person

    - is not a crowd,
    - has at least ``min_labelled`` labelled keypoints (``Skeleton.min_labelled_keypoints``),
    - has an area of at least 32 x 32 pixels and a box of at least 1 x 1,
    - has a box centre farther from that of *every earlier* main person than 0.3 times the longer side of the earlier
      box. "Earlier" means file order, so that the selection depends only on the file.
    """
    is_large = (people.areas >= MIN_AREA) & (people.boxes[:, 2:] >= 1).all(axis=1)
    candidates = np.flatnonzero(~people.is_crowd & (people.num_labelled >= min_labelled) & is_large)
    centres = (people.boxes[:, :2] + people.boxes[:, 2:] / 2).tolist()
    distances = [MIN_DISTANCE * longer_side for longer_side in people.boxes[:, 2:].max(axis=1).tolist()]
    selected: list[int] = []
    for row in candidates.tolist():
        if all(math.dist(centres[earlier], centres[row]) > distances[earlier] for earlier in selected):
            selected.append(row)
    return selected


def box_of_points(points: np.ndarray) -> list[float] | None:
    """x, y, width, height around (N, 2) points; None if it is empty."""
    if len(points) < 2:
        return None
    low = points.min(axis=0)
    width, height = (points.max(axis=0) - low).tolist()
    return [*low.tolist(), width, height] if width > 0 and height > 0 else None


def is_box_of_points(box: Sequence[float], points: np.ndarray) -> bool:
    """Whether a box is the one around (N, 2) points."""
    around = box_of_points(points)
    return around is not None and all(abs(a - b) <= BOX_TOLERANCE for a, b in zip(box, around))


def estimate_area(box: Sequence[float], points: np.ndarray) -> float:
    """Estimate the area in square pixels of a person without an outline.

    Args:
        box: x, y, width, height.
        points: (N, 2) labelled keypoints. The box may be the one around them.
    """
    share = SHARE_OF_KEYPOINT_BOX if is_box_of_points(box, points) else SHARE_OF_BOX
    return share * box[2] * box[3]


def person_masks(people: People, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the person mask and the supervision mask of one image.

    Crowds and people without labelled keypoints are ignored regions. Pixels of labelled people are supervised even
    inside an ignored region: their keypoints are known, and crowd outlines are coarse and often cover annotated people.
    The box replaces a missing or unusable outline.

    Returns:
        ``mask_all`` (H, W) uint8: 1 on any person, crowds included. ``mask_miss`` (H, W) uint8: 0 on ignored regions,
        1 elsewhere. Both are Fortran-contiguous, the order of run lengths.
    """
    is_labelled = people.is_labelled
    labelled = _union_mask(people, np.flatnonzero(is_labelled), height, width)
    if is_labelled.all():
        return labelled, np.ones_like(labelled)
    ignored = _union_mask(people, np.flatnonzero(~is_labelled), height, width)
    return labelled | ignored, 1 - (ignored & ~labelled)


def _union_mask(people: People, rows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W) uint8, Fortran-contiguous: 1 on any of the people in some rows."""
    mask = np.zeros((width, height), np.uint8).T
    polygons: list[list[float]] = []
    for row in rows.tolist():
        outline = people.outlines[row]
        if isinstance(outline, np.ndarray):
            mask |= decode_columns(outline, height, width).T
        elif outline:
            polygons += outline
        else:
            polygons.append(_box_polygon(people.boxes[row], height, width))
    if polygons:
        mask |= polygons_to_mask(polygons, height, width)
    return mask


def _box_polygon(box: np.ndarray, height: int, width: int) -> list[float]:
    """Polygon of the pixels that a box touches. Its corners are corners of pixels, as in COCO's frame."""
    x, y, box_width, box_height = box.tolist()
    left, right = np.clip((math.floor(x), math.ceil(x + box_width)), 0, width).tolist()
    top, bottom = np.clip((math.floor(y), math.ceil(y + box_height)), 0, height).tolist()
    return [left, top, right, top, right, bottom, left, bottom]


def polygons_to_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """Rasterise flat lists x, y, x, y, ... as COCO does, to (H, W) uint8, Fortran-contiguous: 1 in any polygon."""
    return np.asarray(coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(list(polygons), height, width))))

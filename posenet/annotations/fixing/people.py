"""Repair of annotations: visibilities, keypoints on the edge of the image, boxes, areas and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenet.annotations.coco_file import (
    MAX_NUMBER,
    CocoImage,
    Entry,
    is_flat_outline,
    is_integer,
    parse_images,
    parse_segmentation,
)
from posenet.annotations.problems import AnnotationProblem
from posenet.annotations.run_lengths import decode_columns, polygons_to_mask
from posenet.images.decoding import MAX_PIXELS

BOOLEANS = "visibilities true and false turned into 2 and 0"
ONLY_HIDDEN = "visibilities 1 turned into 2, because no keypoint has 2"
EDGE = "keypoints up to a pixel outside moved to the edge of their image"
OUTLINES = "outlines that are one list of numbers turned into a list of polygons"
CROWD = "annotations without iscrowd set to 0"
BOX_OF_OUTLINE = "boxes computed from outlines"
BOX_OF_KEYPOINTS = "boxes computed from keypoints"
AREA_OF_OUTLINE = "areas computed from outlines"
AREA_OF_BOX = "areas computed from boxes"
COUNT = "num_keypoints counted"

EDGE_MARGIN = 1.0
"""Keypoints at most this far outside the image, in pixels, are moved to its edge."""

_Outline = list[list[float]] | np.ndarray | None
"""See ``parse_segmentation``."""


def fix_people(sections: dict[str, list[Entry]], fixes: Counter[str]) -> None:
    """Repair all annotations."""
    images = _usable_images(sections["images"])
    annotations = sections["annotations"]
    _fix_visibilities(annotations, fixes)
    for entry in annotations:
        reference = entry.get("image_id")
        image = images.get(reference) if is_integer(reference) else None
        if is_flat_outline(entry.get("segmentation")):
            entry["segmentation"] = [entry["segmentation"]]
            fixes[OUTLINES] += 1
        if image is not None:
            _fix_edge(entry, image, fixes)
        if entry.get("iscrowd") is None:
            entry["iscrowd"] = 0
            fixes[CROWD] += 1
        _fix_box_and_area(entry, image, fixes)
        points = labelled_points(entry)
        if _has_keypoints(entry) and entry.get("num_keypoints") != len(points):
            entry["num_keypoints"] = len(points)
            fixes[COUNT] += 1


def labelled_points(entry: Entry) -> np.ndarray:
    """(N, 2) x, y of the labelled keypoints of an annotation; empty if they cannot be used."""
    if not _has_keypoints(entry):
        return np.zeros((0, 2))
    keypoints = np.array(entry["keypoints"], np.float64).reshape(-1, 3)
    return keypoints[keypoints[:, 2] > 0, :2]


def _usable_images(entries: Sequence[Entry]) -> dict[int, CocoImage]:
    """The images by id, without those that cannot be used or have the id of another one."""
    images: dict[int, CocoImage] = {}
    ids = Counter(entry["id"] for entry in entries if is_integer(entry.get("id")))
    for entry in entries:
        try:
            image = parse_images([entry])
        except AnnotationProblem:
            continue
        images |= {image_id: value for image_id, value in image.items() if ids[image_id] == 1}
    return images


def _has_keypoints(entry: Entry) -> bool:
    """Whether the keypoints are numbers, three for each keypoint, and every visibility is 0, 1 or 2."""
    values = entry.get("keypoints")
    if not isinstance(values, list) or not values or len(values) % 3 or not all(map(_is_number, values)):
        return False
    return all(visibility in (0, 1, 2) for visibility in values[2::3])


def _fix_visibilities(annotations: Sequence[Entry], fixes: Counter[str]) -> None:
    lists = [entry["keypoints"] for entry in annotations if isinstance(entry.get("keypoints"), list)]
    for values in lists:
        for index in range(2, len(values), 3):
            if isinstance(values[index], bool):
                values[index] = 2 if values[index] else 0
                fixes[BOOLEANS] += 1
    with_keypoints = [entry["keypoints"] for entry in annotations if _has_keypoints(entry)]
    if {visibility for values in with_keypoints for visibility in values[2::3]} <= {0, 1}:
        for values in with_keypoints:
            for index in range(2, len(values), 3):
                if values[index] == 1:
                    values[index] = 2
                    fixes[ONLY_HIDDEN] += 1


def _fix_edge(entry: Entry, image: CocoImage, fixes: Counter[str]) -> None:
    if not _has_keypoints(entry):
        return
    values = entry["keypoints"]
    for start in range(0, len(values), 3):
        x, y, visibility = values[start : start + 3]
        moved = [min(max(x, 0), image.width), min(max(y, 0), image.height)]
        distance = max(abs(moved[0] - x), abs(moved[1] - y))
        if visibility > 0 and 0 < distance <= EDGE_MARGIN:
            values[start : start + 2] = moved
            fixes[EDGE] += 1


def _fix_box_and_area(entry: Entry, image: CocoImage | None, fixes: Counter[str]) -> None:
    needs_box = not _is_box(entry.get("bbox"))
    area = entry.get("area")
    needs_area = area is None or not _is_number(area) or area <= 0
    if not needs_box and not needs_area:
        return
    outline = _parse_outline(entry, image)
    if needs_box:
        box = _box_of_outline(outline, image)
        if box is not None:
            entry["bbox"] = box
            fixes[BOX_OF_OUTLINE] += 1
        elif (box := _box_of_points(labelled_points(entry))) is not None:
            entry["bbox"] = box
            fixes[BOX_OF_KEYPOINTS] += 1
    if needs_area:
        covered = _area_of_outline(outline, image)
        if covered > 0:
            entry["area"] = covered
            fixes[AREA_OF_OUTLINE] += 1
        elif _is_box(entry.get("bbox")) and min(entry["bbox"][2:]) > 0:
            product = float(entry["bbox"][2] * entry["bbox"][3])
            if 0 < product < MAX_NUMBER:
                entry["area"] = product
                fixes[AREA_OF_BOX] += 1


def _is_box(box: Any) -> bool:
    """Whether a box has a width and a height. Negative ones are left: they may be two corners."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return False
    return bool(box[2] * box[3] != 0 or min(box[2:]) < 0)


def _parse_outline(entry: Entry, image: CocoImage | None) -> _Outline:
    if image is None or image.height * image.width > MAX_PIXELS:
        return None
    try:
        return parse_segmentation(entry, image)
    except AnnotationProblem:
        return None


def _box_of_outline(outline: _Outline, image: CocoImage | None) -> list[float] | None:
    """x, y, width, height around an outline; None if it is empty."""
    if isinstance(outline, list):
        return _box_of_points(np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in outline]))
    if outline is None or image is None or not outline[1::2].any():
        return None
    columns = decode_columns(outline, image.height, image.width)  # (W, H)
    xs = np.flatnonzero(columns.any(axis=1))
    ys = np.flatnonzero(columns.any(axis=0))
    return [float(xs[0]), float(ys[0]), float(xs[-1] - xs[0] + 1), float(ys[-1] - ys[0] + 1)]


def _box_of_points(points: np.ndarray) -> list[float] | None:
    """x, y, width, height around (N, 2) points; None if it is empty."""
    if len(points) < 2:
        return None
    low = points.min(axis=0)
    width, height = (points.max(axis=0) - low).tolist()
    return [*low.tolist(), width, height] if width > 0 and height > 0 else None


def _area_of_outline(outline: _Outline, image: CocoImage | None) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas."""
    if outline is None or image is None:
        return 0.0
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, image.height, image.width).sum())
    return float(outline[1::2].sum())


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number that the readers accept; True and False are not numbers."""
    return type(value) in (int, float) and bool(abs(value) < MAX_NUMBER)

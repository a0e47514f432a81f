"""The annotations of a document as columns of the normal form: people, crowds and ignored regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.category_reader import Categories, canonical_id, number_ids
from posenet.annotations.coco import MAX_NUMBER, Entry, Mask, People
from posenet.annotations.coordinates import EDGE_MARGIN, convert_corners, convert_keypoints
from posenet.annotations.outlines import (
    Outline,
    boxes_around,
    decode_columns,
    estimate_areas,
    parse_outline,
    polygons_to_mask,
)
from posenet.images import MAX_PIXELS

UNLISTED = -1
"""Row of an image or category that is not listed."""
TINY_SHARE = 0.01
"""No object covers a smaller share of its box, but thin ones such as ropes, whose areas are above 1."""
FAR_OUTSIDE = 0.1
"""Distance from the image, relative to its longer side, from which a keypoint is not labelled. The head of a person
may well be above the image."""
RECTANGLE_CORNERS = 9
"""An outline of at most so many corners that fills its box is that box."""
CROWD_FLAGS = {None: False, 0: False, 1: True, "0": False, "1": True, "": False, "false": False, "true": True}
"""What ``iscrowd`` may be, in any spelling."""


def read_people(
    entries: Sequence[Entry],
    image_row_of: Mapping[object, int],
    is_kept: Mask,
    sizes: np.ndarray,
    categories: Categories,
    said: Adjustments,
) -> People:
    """Read the annotations of the images that ``is_kept``; ``sizes`` are (N, 2) height, width of all images."""
    image_rows = np.array([image_row_of.get(canonical_id(entry.get("image_id")), UNLISTED) for entry in entries], int)
    said.leave_out_few("no-image", image_rows == UNLISTED, [entry.get("id") for entry in entries])
    category_rows = _find_categories(entries, categories, said)
    is_read = (image_rows >= 0) & (category_rows >= 0)
    is_read[is_read] = is_kept[image_rows[is_read]]
    rows = np.flatnonzero(is_read).tolist()
    read = [entries[row] for row in rows]
    image_rows, category_rows = image_rows[rows], category_rows[rows]
    sizes = sizes[image_rows]
    raw = [canonical_id(entry.get("id")) for entry in read]
    ids = np.array(number_ids(raw), np.int64)
    is_new = [entry.get("id") is not None and old != new for entry, old, new in zip(read, raw, ids.tolist())]
    said.add_rows("derived", "annotation-id", np.array(is_new, bool), [entry.get("id") for entry in read])
    flags = [entry.get("iscrowd") for entry in read]
    flags = [flag.lower() if isinstance(flag, str) else flag for flag in flags]
    has_flag = np.array([not isinstance(flag, (list, dict)) and flag in CROWD_FLAGS for flag in flags], bool)
    people = People(
        entries=read,
        ids=ids,
        image_rows=image_rows,
        category_rows=category_rows,
        is_used=categories.is_used[category_rows] if read else np.zeros(0, bool),
        is_crowd=np.array([has and CROWD_FLAGS[flag] for has, flag in zip(has_flag, flags)], bool),
        keypoints=np.zeros((len(read), 0, 3)),
        boxes=_to_column([entry.get("bbox") for entry in read], 4),
        areas=_to_column([[entry.get("area")] for entry in read], 1)[:, 0].clip(min=0),
        outlines=[None] * len(read),
    )
    is_faulty = said.leave_out_few("crowd-flag", people.is_used & ~has_flag, ids)
    has_list = _read_keypoints(people, categories, said)
    is_person = people.is_used & ~people.is_crowd & ~is_faulty
    is_fraction = convert_keypoints(people.keypoints, people.boxes, is_person, sizes, said)
    people.keypoints[said.leave_out_few("normalised", is_fraction, ids)] = 0
    convert_corners(people.boxes, people.keypoints, is_person, sizes, said)
    _unlabel(people, is_person, sizes, said)
    _read_outlines(people, sizes, said)
    is_empty = _complete_boxes(people, sizes, said)
    said.add_rows("left out", "empty-annotation", is_empty, ids)
    _complete_areas(people, sizes, is_empty, said)
    counts = (people.keypoints[..., 2] > 0).sum(axis=1)
    stated = [entry.get("num_keypoints") for entry in read]
    differs = [value is not None and value != count for value, count in zip(stated, counts.tolist())]
    said.add_rows("derived", "num-keypoints", has_list & np.array(differs, bool), ids)
    is_copy = find_copies(people)
    said.add_rows("left out", "same-keypoints", is_copy, ids)
    return people.select(~(is_faulty | is_empty | is_copy))


def _find_categories(entries: Sequence[Entry], categories: Categories, said: Adjustments) -> np.ndarray:
    """(A,) the rows of the categories. An unlisted one is the first of those that are used if all have the same
    keypoints."""
    raw = [entry.get("category_id") for entry in entries]
    rows = np.array([categories.row_of.get(canonical_id(value), UNLISTED) for value in raw], int)
    is_unlisted = rows == UNLISTED
    used = np.flatnonzero(categories.is_used).tolist()
    if is_unlisted.any() and used and len({category.keypoints for category in categories.parsed}) == 1:
        said.add("derived", "same-category", {str(raw[row]): row for row in np.flatnonzero(is_unlisted).tolist()})
        rows[is_unlisted] = used[0]
    else:
        said.leave_out_few("no-such-category", is_unlisted, [entry.get("id") for entry in entries])
    return rows


def _to_numbers(values: Any) -> np.ndarray | None:
    """An array of float64, with NaN for null; None if it is not one of numbers."""
    try:
        return np.array(values, np.float64) if isinstance(values, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _to_column(lists: list[Any], width: int) -> np.ndarray:
    """(A, width) numbers; zeros for what has no such numbers."""
    column = _to_numbers(lists)  # the usual form, at once
    if column is None or column.shape != (len(lists), width):
        arrays = map(_to_numbers, lists)
        rows = [array if array is not None and array.shape == (width,) else np.zeros(width) for array in arrays]
        column = np.reshape(rows, (len(lists), width))
    column[~(abs(column) < MAX_NUMBER).all(axis=1)] = 0
    return column


def _read_keypoints(people: People, categories: Categories, said: Adjustments) -> Mask:
    """Fill ``people.keypoints``; (A,) bool: the annotation is used and has a list of them."""
    counts = np.array([len(category.keypoints) for category in categories.parsed] or [0], int)[people.category_rows]
    # HumanArt has the keypoints of its 21 names in ``keypoints_21``, beside COCO's.
    keys = [f"keypoints_{count}" for count in counts.tolist()]
    lists = [entry.get(key) or entry.get("keypoints") for entry, key in zip(people.entries, keys)]
    has_list = people.is_used & np.array([bool(values) for values in lists], bool)
    most = max((len(categories.parsed[row].keypoints) for row in np.flatnonzero(categories.is_used)), default=1)
    people.keypoints = np.zeros((len(lists), most, 3))
    is_wrong, is_pair = np.zeros(len(lists), bool), np.zeros(len(lists), bool)
    for count in np.unique(counts[has_list]).tolist():
        rows = np.flatnonzero(has_list & (counts == count))
        values = _to_numbers([lists[row] for row in rows])
        if values is not None and values.shape == (len(rows), 3 * count):  # the usual form, at once
            people.keypoints[rows, :count] = values.reshape(-1, count, 3)
            continue
        for row in rows.tolist():
            values = _to_numbers(lists[row])
            if values is None or values.shape not in ((3 * count,), (count, 3), (2 * count,), (count, 2)):
                is_wrong[row] = True
                continue
            is_pair[row] = values.size == 2 * count
            points = values.reshape(count, -1)
            people.keypoints[row, :count, : points.shape[1]] = points
            if is_pair[row]:
                people.keypoints[row, :count, 2] = np.where((points != 0).any(axis=1), 2, 0)
    said.leave_out_few("keypoint-values", is_wrong, people.ids)
    said.add_rows("derived", "no-visibility", is_pair, people.ids)
    is_number = np.asarray((abs(people.keypoints) < MAX_NUMBER).all(axis=2))
    said.add_rows("derived", "no-number", (~is_number).any(axis=1), people.ids)
    people.keypoints[~is_number] = 0
    visibility = people.keypoints[..., 2]
    is_other = ~np.isin(visibility, (0, 1, 2))
    said.add_rows("derived", "visibility", is_other.any(axis=1), people.ids)
    people.keypoints[..., 2] = np.where(is_other, 2 * (visibility > 0), visibility)
    for row, order in categories.orders.items():
        is_own = people.category_rows == row
        people.keypoints[is_own, : len(order)] = people.keypoints[is_own][:, order]
    return has_list


def _unlabel(people: People, is_person: Mask, sizes: np.ndarray, said: Adjustments) -> None:
    """Unlabel single keypoints that are far outside their image, or at (0, 0)."""
    points = people.keypoints[..., :2]
    is_at_zero = (people.keypoints[..., 2] > 0) & (points == 0).all(axis=2)
    said.add_rows("derived", "labelled-at-zero", is_at_zero.any(axis=1), people.ids)
    people.keypoints[is_at_zero] = 0
    is_labelled = people.keypoints[..., 2] > 0
    limits = sizes[:, None, ::-1]
    distance = np.maximum(-points, points - limits).max(axis=2)
    is_far = is_labelled & (distance > FAR_OUTSIDE * sizes.max(axis=1, keepdims=True, initial=1))
    # Far outside are only those that do not fit the image as displayed either; ``reader`` turns its size.
    turned = np.maximum(-points, points - limits[..., ::-1]).max(axis=2)
    far = is_far.any(axis=1) & ~(turned <= EDGE_MARGIN).all(axis=1, where=is_labelled)
    is_single = said.leave_out_few("outside", far, people.ids, int(is_person.sum()))
    people.keypoints[is_far & is_single[:, None]] = 0


def _read_outlines(people: People, sizes: np.ndarray, said: Adjustments) -> None:
    is_damaged = np.zeros(len(people.entries), bool)
    plain_sizes = sizes.tolist()
    for row in np.flatnonzero(people.is_used).tolist():
        segmentation = people.entries[row].get("segmentation")
        people.outlines[row], is_damaged[row] = parse_outline(segmentation, *plain_sizes[row])
    said.add_rows("derived", "damaged-outline", is_damaged, people.ids)


def _complete_boxes(people: People, sizes: np.ndarray, said: Adjustments) -> Mask:
    """Compute boxes that are missing or empty; (A,) bool: the annotation is used, and nothing determines one."""
    is_labelled = people.keypoints[..., 2] > 0
    lacks = people.is_used & ~(people.boxes[:, 2:] > 0).all(axis=1)
    people.boxes[lacks] = 0
    for row in np.flatnonzero(lacks).tolist():
        people.boxes[row] = _box_of_outline(people.outlines[row], *sizes[row].tolist())
        if not people.boxes[row].any() and is_labelled[row].any():
            points = people.keypoints[row, is_labelled[row], :2]
            low, sides = points.min(axis=0), np.ptp(points, axis=0)
            people.boxes[row] = *low, *(sides if sides.all() else sides.clip(min=1))
    has_box = people.boxes.any(axis=1)
    said.add_rows("derived", "no-box", lacks & has_box, people.ids)
    return lacks & ~has_box


def _box_of_outline(outline: Outline, height: int, width: int) -> np.ndarray:
    """x, y, width, height around an outline; zeros if it is empty."""
    if isinstance(outline, list):
        points = np.concatenate([np.reshape(polygon, (1, -1, 2)) for polygon in outline], axis=1, dtype=np.float64)
        return np.asarray(boxes_around(points, np.ones(points.shape[:2], bool))[0])
    if outline is None or not outline[1::2].any() or height * width > MAX_PIXELS:
        return np.zeros(4)
    return np.array(cv2.boundingRect(np.ascontiguousarray(decode_columns(outline, height, width).T)), np.float64)


def _complete_areas(people: People, sizes: np.ndarray, is_empty: Mask, said: Adjustments) -> None:
    """Compute areas that are missing, far too small, or those of whole boxes, from outlines or else from boxes."""
    box_areas = people.boxes[:, 2:].prod(axis=1)
    is_tiny = people.areas <= np.minimum(TINY_SHARE * box_areas, 1)
    is_whole = abs(people.areas / box_areas.clip(min=1e-9) - 1) < 1e-3
    lacks = people.is_used & ~is_empty & ((people.areas == 0) | ((is_tiny | is_whole) & ~people.is_crowd))
    estimates = estimate_areas(people.boxes, boxes_around(people.keypoints[..., :2], people.keypoints[..., 2] > 0))
    from_outline = np.zeros(len(lacks), bool)
    before = people.areas.copy()
    for row in np.flatnonzero(lacks).tolist():
        outline = people.outlines[row]
        area = _area_of_outline(outline, *sizes[row].tolist())
        is_box = isinstance(outline, list) and sum(map(len, outline)) <= 2 * RECTANGLE_CORNERS
        from_outline[row] = area > 0 and not (is_box and area > 0.95 * box_areas[row])
        people.areas[row] = area if from_outline[row] else estimates[row]
    lacks &= ~people.is_crowd & (people.areas != before)
    said.add_rows("derived", "outline-area", lacks & from_outline, people.ids)
    said.add_rows("derived", "box-area", lacks & ~from_outline, people.ids)


def _area_of_outline(outline: Outline, height: int, width: int) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas; 0 without one."""
    if outline is None or height * width > MAX_PIXELS:
        return 0.0
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, height, width).sum())
    return float(outline[1::2].sum())


def find_copies(people: People) -> Mask:
    """(A,) bool: people with exactly the keypoints of an earlier one in their image."""
    is_copy = np.zeros(len(people.entries), bool)
    is_person = people.is_used & ~people.is_crowd & (people.keypoints[..., 2] > 0).any(axis=1)
    seen: set[tuple[int, bytes]] = set()
    for row in np.flatnonzero(is_person).tolist():
        copy = int(people.image_rows[row]), people.keypoints[row].tobytes()
        is_copy[row] = copy in seen
        seen.add(copy)
    return is_copy

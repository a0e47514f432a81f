"""The annotations of a document as columns of the normal form: people, crowds and ignored regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.category_reader import canonical_id, number_ids
from posenet.annotations.coco import MAX_NUMBER, AnnotationColumns, Categories, Entry, Mask
from posenet.annotations.coordinates import FAR_OUTSIDE, convert_corners, convert_fractions
from posenet.annotations.image_reader import Images
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
RECTANGLE_CORNERS = 9
"""An outline of at most so many corners that fills its box is that box."""
CROWD_FLAGS = {"none": False, "": False, "0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""What ``iscrowd`` may be, as a text in lower case."""


def read_columns(
    entries: Sequence[Entry], images: Images, categories: Categories, said: Adjustments
) -> AnnotationColumns:
    """Read the annotations of the images that are kept: keypoints, boxes and areas as they are written."""
    image_rows = np.array([images.row_of.get(canonical_id(entry.get("image_id")), UNLISTED) for entry in entries], int)
    said.leave_out_few("no-image", image_rows == UNLISTED, [entry.get("id") for entry in entries])
    category_rows = _find_categories(entries, categories, said)
    is_read = (image_rows >= 0) & (category_rows >= 0)
    is_read[is_read] = images.is_kept[image_rows[is_read]]
    rows = np.flatnonzero(is_read).tolist()
    read = [entries[row] for row in rows]
    written = [entry.get("id") for entry in read]
    raw = list(map(canonical_id, written))
    ids = np.array(number_ids(raw), np.int64)
    is_new = [value is not None and old != new for value, old, new in zip(written, raw, ids.tolist())]
    said.add_rows("derived", "annotation-id", np.array(is_new, bool), written)
    crowds = [CROWD_FLAGS.get(str(entry.get("iscrowd")).lower()) for entry in read]
    has_flag = np.array([crowd is not None for crowd in crowds], bool)
    columns = AnnotationColumns(
        entries=read,
        ids=ids,
        image_rows=image_rows[rows],
        category_rows=category_rows[rows],
        is_used=categories.is_used[category_rows[rows]] if read else np.zeros(0, bool),
        is_crowd=np.array([bool(crowd) for crowd in crowds], bool),
        keypoints=np.zeros((len(read), 0, 3)),
        boxes=_to_column([entry.get("bbox") for entry in read], 4),
        areas=_to_column([[entry.get("area")] for entry in read], 1)[:, 0].clip(min=0),
        outlines=[None] * len(read),
    )
    columns = columns.select(~said.leave_out_few("crowd-flag", columns.is_used & ~has_flag, ids))
    _read_keypoints(columns, categories, said)
    return columns


def complete_columns(columns: AnnotationColumns, sizes: np.ndarray, said: Adjustments) -> AnnotationColumns:
    """Convert what is not in pixels of the images, and compute what is missing; leave out what nothing determines.

    ``sizes`` are (A, 2) height, width of the images.
    """
    convert_fractions(columns, sizes, said)
    convert_corners(columns, sizes, said)
    _unlabel(columns, sizes, said)
    parsed = [
        parse_outline(entry.get("segmentation"), *size) if is_used else (None, False)
        for entry, size, is_used in zip(columns.entries, sizes.tolist(), columns.is_used)
    ]
    columns.outlines = [outline for outline, _ in parsed]
    is_damaged = np.array([is_damaged for _, is_damaged in parsed], bool)
    said.add_rows("derived", "damaged-outline", is_damaged, columns.ids)
    is_empty = _complete_boxes(columns, sizes, said)
    said.add_rows("left out", "empty-annotation", is_empty, columns.ids)
    _complete_areas(columns, sizes, is_empty, said)
    stated = [entry.get("num_keypoints") for entry in columns.entries]
    counts = columns.num_labelled.tolist()
    differs = np.array([value is not None and value != count for value, count in zip(stated, counts)], bool)
    said.add_rows("derived", "num-keypoints", columns.is_used & differs, columns.ids)
    is_copy = find_copies(columns)
    said.add_rows("left out", "same-keypoints", is_copy, columns.ids)
    return columns.select(~(is_empty | is_copy))


def _find_categories(entries: Sequence[Entry], categories: Categories, said: Adjustments) -> np.ndarray:
    """(A,) the rows of the categories. An unlisted one is the first of those that are used if all have the same
    keypoints."""
    ids = [entry.get("category_id") for entry in entries]
    rows = np.array([categories.row_of.get(canonical_id(value), UNLISTED) for value in ids], int)
    is_unlisted = rows == UNLISTED
    if is_unlisted.any() and categories.is_used.any() and len({one.keypoints for one in categories.parsed}) == 1:
        said.add("derived", "same-category", dict.fromkeys(str(ids[row]) for row in np.flatnonzero(is_unlisted)))
        rows[is_unlisted] = np.flatnonzero(categories.is_used)[0]
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


def _read_keypoints(columns: AnnotationColumns, categories: Categories, said: Adjustments) -> None:
    counts = np.array([len(category.keypoints) for category in categories.parsed] or [0], int)[columns.category_rows]
    # HumanArt has the keypoints of its 21 names in ``keypoints_21``, beside COCO's.
    pairs = zip(columns.entries, counts.tolist())
    lists = [entry.get(f"keypoints_{count}") or entry.get("keypoints") for entry, count in pairs]
    has_list = columns.is_used & np.array([bool(values) for values in lists], bool)
    most = max(
        (len(one.keypoints) for one, is_used in zip(categories.parsed, categories.is_used) if is_used), default=1
    )
    columns.keypoints = np.zeros((len(lists), most, 3))
    is_wrong, is_pair = np.zeros(len(lists), bool), np.zeros(len(lists), bool)
    for count in np.unique(counts[has_list]).tolist():
        rows = np.flatnonzero(has_list & (counts == count))
        values = _to_numbers([lists[row] for row in rows])
        if values is not None and values.shape == (len(rows), 3 * count):  # the usual form, at once
            columns.keypoints[rows, :count] = values.reshape(-1, count, 3)
            continue
        for row in rows.tolist():
            values = _to_numbers(lists[row])
            if values is None or values.shape not in ((3 * count,), (count, 3), (2 * count,), (count, 2)):
                is_wrong[row] = True
                continue
            is_pair[row] = values.size == 2 * count
            points = values.reshape(count, -1)
            columns.keypoints[row, :count, : points.shape[1]] = points
            if is_pair[row]:
                columns.keypoints[row, :count, 2] = np.where((points != 0).any(axis=1), 2, 0)
    said.leave_out_few("keypoint-values", is_wrong, columns.ids)
    said.add_rows("derived", "no-visibility", is_pair, columns.ids)
    is_number = np.asarray((abs(columns.keypoints) < MAX_NUMBER).all(axis=2))
    said.add_rows("derived", "no-number", (~is_number).any(axis=1), columns.ids)
    columns.keypoints[~is_number] = 0
    visibility = columns.keypoints[..., 2]
    is_other = ~np.isin(visibility, (0, 1, 2))
    said.add_rows("derived", "visibility", is_other.any(axis=1), columns.ids)
    columns.keypoints[..., 2] = np.where(is_other, 2 * (visibility > 0), visibility)
    for row, order in categories.orders.items():
        is_own = columns.category_rows == row
        columns.keypoints[is_own, : len(order)] = columns.keypoints[is_own][:, order]


def _unlabel(columns: AnnotationColumns, sizes: np.ndarray, said: Adjustments) -> None:
    """Unlabel single keypoints that are far outside their image, or at (0, 0)."""
    points = columns.keypoints[..., :2]
    is_at_zero = columns.is_labelled & (points == 0).all(axis=2)
    said.add_rows("derived", "labelled-at-zero", is_at_zero.any(axis=1), columns.ids)
    columns.keypoints[is_at_zero] = 0
    distance = np.maximum(-points, points - sizes[:, None, ::-1]).max(axis=2)
    is_far = columns.is_labelled & (distance > FAR_OUTSIDE * sizes.max(axis=1, keepdims=True, initial=1))
    is_single = said.leave_out_few("outside", is_far.any(axis=1), columns.ids, int(columns.is_object.sum()))
    columns.keypoints[is_far & is_single[:, None]] = 0


def _complete_boxes(columns: AnnotationColumns, sizes: np.ndarray, said: Adjustments) -> Mask:
    """Compute boxes that are missing or empty; (A,) bool: the annotation is used, and nothing determines one."""
    lacks = columns.is_used & ~(columns.boxes[:, 2:] > 0).all(axis=1)
    columns.boxes[lacks] = 0
    for row in np.flatnonzero(lacks).tolist():
        columns.boxes[row] = _box_of_outline(columns.outlines[row], *sizes[row].tolist())
        points = columns.keypoints[row, columns.keypoints[row, :, 2] > 0, :2]
        if not columns.boxes[row].any() and len(points):
            low, sides = points.min(axis=0), np.ptp(points, axis=0)
            columns.boxes[row] = *low, *(sides if sides.all() else sides.clip(min=1))
    has_box = columns.boxes.any(axis=1)
    said.add_rows("derived", "no-box", lacks & has_box, columns.ids)
    return lacks & ~has_box


def _box_of_outline(outline: Outline, height: int, width: int) -> np.ndarray:
    """x, y, width, height around an outline; zeros if it is empty."""
    if isinstance(outline, list):
        points = np.concatenate([np.reshape(polygon, (1, -1, 2)) for polygon in outline], axis=1, dtype=np.float64)
        return np.asarray(boxes_around(points, np.ones(points.shape[:2], bool))[0])
    if outline is None or not outline[1::2].any() or height * width > MAX_PIXELS:
        return np.zeros(4)
    return np.array(cv2.boundingRect(np.ascontiguousarray(decode_columns(outline, height, width).T)), np.float64)


def _complete_areas(columns: AnnotationColumns, sizes: np.ndarray, is_empty: Mask, said: Adjustments) -> None:
    """Compute areas that are missing, far too small, or those of whole boxes, from outlines or else from boxes."""
    box_areas = columns.boxes[:, 2:].prod(axis=1)
    is_tiny = columns.areas <= np.minimum(TINY_SHARE * box_areas, 1)
    is_whole = abs(columns.areas / box_areas.clip(min=1e-9) - 1) < 1e-3
    lacks = columns.is_used & ~is_empty & ((columns.areas == 0) | ((is_tiny | is_whole) & ~columns.is_crowd))
    estimates = estimate_areas(columns.boxes, boxes_around(columns.keypoints[..., :2], columns.is_labelled))
    from_outline = np.zeros(len(lacks), bool)
    before = columns.areas.copy()
    for row in np.flatnonzero(lacks).tolist():
        outline = columns.outlines[row]
        area = _area_of_outline(outline, *sizes[row].tolist())
        is_box = isinstance(outline, list) and sum(map(len, outline)) <= 2 * RECTANGLE_CORNERS
        from_outline[row] = area > 0 and not (is_box and area > 0.95 * box_areas[row])
        columns.areas[row] = area if from_outline[row] else estimates[row]
    lacks &= ~columns.is_crowd & (columns.areas != before)
    said.add_rows("derived", "outline-area", lacks & from_outline, columns.ids)
    said.add_rows("derived", "box-area", lacks & ~from_outline, columns.ids)


def _area_of_outline(outline: Outline, height: int, width: int) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas; 0 without one."""
    if outline is None or height * width > MAX_PIXELS:
        return 0.0
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, height, width).sum())
    return float(outline[1::2].sum())


def find_copies(columns: AnnotationColumns) -> Mask:
    """(A,) bool: people with exactly the keypoints of an earlier one in their image."""
    is_copy = np.zeros(len(columns.entries), bool)
    seen: set[tuple[int, bytes]] = set()
    for row in np.flatnonzero(columns.is_labelled_person).tolist():
        copy = int(columns.image_rows[row]), columns.keypoints[row].tobytes()
        is_copy[row] = copy in seen
        seen.add(copy)
    return is_copy

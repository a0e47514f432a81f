"""The annotations of a document as columns of the normal form: people, crowds and ignored regions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import MAX_NUMBER, Category, Entry, Mask, People
from posenet.annotations.coordinates import convert_corners, convert_keypoints
from posenet.annotations.outlines import (
    SHARE_OF_BOX,
    SHARE_OF_KEYPOINT_BOX,
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
EDGE_MARGIN = 1.0
"""Pixels by which coordinates are outside the image because they are rounded."""
RECTANGLE_CORNERS = 9
"""An outline of at most so many corners that fills its box is that box."""


class Categories(NamedTuple):
    """The categories of a document."""

    entries: list[Entry]
    parsed: list[Category]
    ids: list[int]
    row_of: dict[object, int]
    is_used: Mask  # has the keypoints that are wanted
    orders: dict[int, list[int]]  # by row: for every keypoint its place in the lists of annotations, if that differs


def canonical_id(value: object) -> int | str | None:
    """An id as a whole number where it is one, as in "000123" or 1.0; another text as it is; None for no id."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else text
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else None


def number_ids(ids: Sequence[object]) -> list[int]:
    """Numbers in the place of ids: whole numbers that no earlier one has stay, the others get the next free ones."""
    free = itertools.count(1 + max((value for value in ids if isinstance(value, int)), default=0))
    seen: set[int] = set()
    numbers = []
    for value in ids:
        number = value if isinstance(value, int) and value not in seen else next(free)
        seen.add(number)
        numbers.append(number)
    return numbers


def guess_count(lists: Sequence[Any]) -> int:
    """How many keypoints most of some lists have, nested or flat; 0 if that is not clear."""
    lengths: Counter[int] = Counter()
    for values in lists:
        if not isinstance(values, list) or not values:
            continue
        if isinstance(values[0], list):
            lengths[len(values)] += 1
        elif len(values) % 3 == 0 and set(map(type, values[2::3])) <= {int, float} and max(values[2::3]) <= 2:
            lengths[len(values) // 3] += 1
        elif len(values) % 2 == 0:
            lengths[len(values) // 2] += 1
    return max(lengths, key=lambda count: lengths[count], default=0)


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
    ids = [entry.get("id") for entry in entries]
    remedy = "list the image, or delete the annotation"
    said.leave_out_few("no-image", "annotations of images that are not listed", remedy, image_rows == UNLISTED, ids)
    category_rows = _find_categories(entries, categories, said)
    is_read = (image_rows >= 0) & (category_rows >= 0)
    is_read[is_read] = is_kept[image_rows[is_read]]
    rows = np.flatnonzero(is_read).tolist()
    read = [entries[row] for row in rows]
    image_rows, category_rows = image_rows[rows], category_rows[rows]
    sizes = sizes[image_rows]
    numbers = [canonical_id(entry.get("id")) for entry in read]
    new_ids = np.array(number_ids(numbers), np.int64)
    is_other = np.array([entry.get("id") is not None and number != new for entry, number, new in
                         zip(read, numbers, new_ids.tolist())], bool)  # fmt: skip
    said.add_rows(
        "derived", "annotation-id", "annotations with an id that is a text or not their own", "numbered", is_other,
        [entry.get("id") for entry in read],
    )  # fmt: skip
    is_used = categories.is_used[category_rows] if len(read) else np.zeros(0, bool)
    is_crowd, has_flag = _read_crowds(read)
    people = People(
        entries=read,
        ids=new_ids,
        image_rows=image_rows,
        category_rows=category_rows,
        is_used=is_used,
        is_crowd=is_crowd,
        keypoints=np.zeros((len(read), 0, 3)),
        boxes=_read_boxes(read),
        areas=_read_areas(read),
        outlines=[None] * len(read),
    )
    is_faulty = said.leave_out_few(
        "crowd-flag", "annotations with an iscrowd other than 0 and 1", "write 0 or 1", is_used & ~has_flag, new_ids
    )
    has_list = _read_keypoints(people, categories, said)
    for row, order in categories.orders.items():
        is_own = people.category_rows == row
        people.keypoints[is_own, : len(order)] = people.keypoints[is_own][:, order]
    is_person = is_used & ~is_crowd & ~is_faulty
    is_fraction = convert_keypoints(people.keypoints, people.boxes, is_person, sizes, said)
    message, remedy = "annotations with keypoints between 0 and 1", "write pixels of the image"
    people.keypoints[said.leave_out_few("normalised", message, remedy, is_fraction, new_ids)] = 0
    convert_corners(people.boxes, people.keypoints, is_person, sizes, said)
    _unlabel(people, is_person, sizes, said)
    _read_outlines(people, sizes, said)
    is_empty = _complete_boxes(people, sizes, said)
    said.add_rows(
        "left out", "empty-annotation", "annotations without keypoints, box and outline", "nothing says where they are",
        is_empty, new_ids,
    )  # fmt: skip
    _complete_areas(people, sizes, is_empty, said)
    _compare_counts(people, has_list, said)
    is_copy = _find_copies(people)
    said.add_rows(
        "left out", "same-keypoints", "annotations with exactly the keypoints of another one in their image",
        "one of each is used", is_copy, new_ids,
    )  # fmt: skip
    return people.select(~(is_faulty | is_empty | is_copy))


def _find_categories(entries: Sequence[Entry], categories: Categories, said: Adjustments) -> np.ndarray:
    """(A,) the rows of the categories. An unlisted one is the first of those that are used if all have the same
    keypoints."""
    rows = np.array([categories.row_of.get(canonical_id(entry.get("category_id")), UNLISTED) for entry in entries], int)
    is_unlisted = rows == UNLISTED
    used = np.flatnonzero(categories.is_used).tolist()
    ids = [entry.get("category_id") for entry in entries]
    if is_unlisted.any() and used and len({category.keypoints for category in categories.parsed}) == 1:
        name = categories.parsed[used[0]].name
        places = dict.fromkeys(ids[row] for row in np.flatnonzero(is_unlisted).tolist())
        text = "ids of categories that are not listed"
        said.add("derived", "no-such-category", text, f"taken for {name}: all listed have its keypoints", places)
        rows[is_unlisted] = used[0]
        return rows
    remedy = "correct category_id, or list the category"
    said.leave_out_few(
        "no-such-category",
        "annotations of categories that are not listed",
        remedy,
        is_unlisted,
        [entry.get("id") for entry in entries],
    )
    return rows


def _read_crowds(entries: Sequence[Entry]) -> tuple[Mask, Mask]:
    """(A,) bool: iscrowd; and whether it is 0 or 1, in any spelling."""
    known = {None: False, 0: False, 1: True, "0": False, "1": True, "": False, "false": False, "true": True}
    flags = [entry.get("iscrowd") for entry in entries]
    flags = [flag.lower() if isinstance(flag, str) else flag for flag in flags]
    has_flag = np.array([isinstance(flag, (str, int, float, type(None))) and flag in known for flag in flags], bool)
    is_crowd = np.array([known[flag] if is_known else False for flag, is_known in zip(flags, has_flag)], bool)
    return is_crowd, has_flag


def _to_numbers(values: Any) -> np.ndarray | None:
    """An array of float64, with NaN for null; None if it is not one of numbers."""
    try:
        return np.array(values, np.float64) if isinstance(values, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _read_boxes(entries: Sequence[Entry]) -> np.ndarray:
    """(A, 4) boxes; zeros for what cannot be one."""
    lists = [entry.get("bbox") for entry in entries]
    boxes = _to_numbers(lists)
    if boxes is None or boxes.shape != (len(lists), 4):
        boxes = np.zeros((len(lists), 4))
        for row, values in enumerate(lists):
            box = _to_numbers(values)
            if box is not None and box.shape == (4,):
                boxes[row] = box
    boxes[~(abs(boxes) < MAX_NUMBER).all(axis=1)] = 0
    return boxes


def _read_areas(entries: Sequence[Entry]) -> np.ndarray:
    """(A,) areas; 0 for what cannot be one."""
    areas = _to_numbers([entry.get("area") for entry in entries])
    if areas is None or areas.shape != (len(entries),):
        areas = np.zeros(len(entries))
        for row, entry in enumerate(entries):
            area = _to_numbers([entry.get("area")])
            if area is not None and area.shape == (1,):
                areas[row] = area[0]
    return np.where((areas > 0) & (areas < MAX_NUMBER), areas, 0)


def _read_keypoints(people: People, categories: Categories, said: Adjustments) -> Mask:
    """Fill ``people.keypoints``; (A,) bool: the annotation is used and has a list of them."""
    lists = [_list_of(entry, categories.parsed[row]) for entry, row in zip(people.entries, people.category_rows)]
    counts = np.array([len(category.keypoints) for category in categories.parsed], int)
    most = max((int(counts[row]) for row in np.flatnonzero(categories.is_used)), default=1)
    has_list = people.is_used & np.array([bool(values) for values in lists], bool)
    people.keypoints = np.zeros((len(lists), most, 3))
    is_wrong = np.zeros(len(lists), bool)
    is_nested, is_flat_pair = (np.zeros(len(lists), bool) for _ in range(2))
    count_of_row = counts[people.category_rows] if len(lists) else np.zeros(0, int)
    for count in np.unique(count_of_row[has_list]).tolist():
        rows = np.flatnonzero(has_list & (count_of_row == count))
        values = _to_numbers([lists[row] for row in rows])
        if values is not None and values.shape == (len(rows), 3 * count):  # the usual form, at once
            people.keypoints[rows, :count] = values.reshape(-1, count, 3)
            continue
        for row in rows.tolist():
            values = _to_numbers(lists[row])
            shape = None if values is None else values.shape
            is_nested[row] = shape in ((count, 3), (count, 2))
            is_flat_pair[row] = shape in ((2 * count,), (count, 2))
            if values is None or shape not in ((3 * count,), (count, 3), (2 * count,), (count, 2)):
                is_wrong[row] = True
                continue
            points = values.reshape(count, -1)
            people.keypoints[row, :count, : points.shape[1]] = points
            if points.shape[1] == 2:
                people.keypoints[row, :count, 2] = np.where((points != 0).any(axis=1), 2, 0)
    said.leave_out_few(
        "keypoint-values", "annotations whose keypoints are not three numbers for each name of the category",
        "correct the names, or choose a skeleton", is_wrong, people.ids,
    )  # fmt: skip
    said.add_rows("derived", "nested", "annotations with nested lists of keypoints", "read", is_nested, people.ids)
    said.add_rows(
        "derived", "no-visibility", "annotations with keypoints of x and y only", "labelled unless they are 0, 0",
        is_flat_pair, people.ids,
    )  # fmt: skip
    is_number = np.asarray((abs(people.keypoints) < MAX_NUMBER).all(axis=2))
    said.add_rows(
        "derived", "no-number", "annotations with keypoints that are null or not finite", "these are not labelled",
        (~is_number).any(axis=1), people.ids,
    )  # fmt: skip
    people.keypoints[~is_number] = 0
    visibility = people.keypoints[..., 2]
    is_other = ~np.isin(visibility, (0, 1, 2))
    said.add_rows(
        "derived", "visibility", "annotations with a visibility other than 0, 1, 2, such as a confidence",
        "labelled where it is above 0", is_other.any(axis=1), people.ids,
    )  # fmt: skip
    people.keypoints[..., 2] = np.where(is_other, 2 * (visibility > 0), visibility)
    return has_list


def _list_of(entry: Entry, category: Category) -> Any:
    """The keypoints of an annotation: HumanArt has those of its 21 names in ``keypoints_21``, beside COCO's."""
    return entry.get(f"keypoints_{len(category.keypoints)}") or entry.get("keypoints")


def _unlabel(people: People, is_person: Mask, sizes: np.ndarray, said: Adjustments) -> None:
    """Unlabel single keypoints that are far outside their image, or at (0, 0)."""
    points = people.keypoints[..., :2]
    is_labelled = people.keypoints[..., 2] > 0
    is_at_zero = is_labelled & (points == 0).all(axis=2)
    said.add_rows(
        "derived", "labelled-at-zero", "annotations with labelled keypoints at (0, 0)", "these are not labelled",
        is_at_zero.any(axis=1), people.ids,
    )  # fmt: skip
    people.keypoints[is_at_zero] = 0
    limits = sizes[:, None, ::-1]
    distance = np.maximum(-points, points - limits).max(axis=2)
    is_far = is_labelled & ~is_at_zero & (distance > FAR_OUTSIDE * sizes.max(axis=1, keepdims=True, initial=1))
    far = is_far.any(axis=1)
    # Far outside are only those that do not fit the image as displayed either; ``reader`` turns its size.
    turned = np.maximum(-points, points - limits[..., ::-1]).max(axis=2)
    far &= ~(turned <= EDGE_MARGIN).all(axis=1, where=is_labelled)
    is_single = said.leave_out_few(
        "outside",
        "annotations with keypoints far outside their image",
        "these are not labelled; if images were made smaller, scale the annotations too",
        far,
        people.ids,
        int(is_person.sum()),
    )
    people.keypoints[is_far & is_single[:, None]] = 0


def _read_outlines(people: People, sizes: np.ndarray, said: Adjustments) -> None:
    is_damaged = np.zeros(len(people.entries), bool)
    plain_sizes = sizes.tolist()
    for row in np.flatnonzero(people.is_used).tolist():
        outline, is_damaged[row] = parse_outline(people.entries[row].get("segmentation"), *plain_sizes[row])
        people.outlines[row] = outline
    said.add_rows(
        "derived", "damaged-outline", "outlines that are damaged or of another image size", "their box is the mask",
        is_damaged, people.ids,
    )  # fmt: skip


def _complete_boxes(people: People, sizes: np.ndarray, said: Adjustments) -> Mask:
    """Compute boxes that are missing or empty; (A,) bool: the annotation is used, and nothing determines one."""
    is_labelled = people.keypoints[..., 2] > 0
    lacks = people.is_used & ~(people.boxes[:, 2:] > 0).all(axis=1)
    people.boxes[lacks] = 0
    from_outline, from_keypoints = (np.zeros(len(lacks), bool) for _ in range(2))
    around = boxes_around(people.keypoints[..., :2], is_labelled)
    for row in np.flatnonzero(lacks).tolist():
        box = _box_of_outline(people.outlines[row], *sizes[row].tolist())
        from_outline[row] = box.any()
        if not box.any() and is_labelled[row].any():
            points = people.keypoints[row, is_labelled[row], :2]
            low = points.min(axis=0)
            box = around[row] if around[row].any() else np.hstack([low, (points.max(axis=0) - low).clip(min=1)])
            from_keypoints[row] = True
        people.boxes[row] = box
    consequence = "they had none"
    said.add_rows("derived", "no-box", "boxes computed from outlines", consequence, from_outline, people.ids)
    message = "boxes computed around the keypoints"
    said.add_rows("derived", "box-of-keypoints", message, consequence, from_keypoints, people.ids)
    return lacks & ~from_outline & ~from_keypoints


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
    is_missing = people.areas == 0
    is_tiny = (people.areas <= np.minimum(TINY_SHARE * box_areas, 1)) & ~people.is_crowd
    is_whole = (abs(people.areas / box_areas.clip(min=1e-9) - 1) < 1e-3) & ~people.is_crowd
    lacks = people.is_used & ~is_empty & (is_missing | is_tiny | is_whole)
    estimates = estimate_areas(people.boxes, boxes_around(people.keypoints[..., :2], people.keypoints[..., 2] > 0))
    from_outline = np.zeros(len(lacks), bool)
    for row in np.flatnonzero(lacks).tolist():
        outline = people.outlines[row]
        area = _area_of_outline(outline, *sizes[row].tolist())
        is_box = isinstance(outline, list) and sum(map(len, outline)) <= 2 * RECTANGLE_CORNERS
        from_outline[row] = area > 0 and not (is_box and area > 0.95 * box_areas[row])
        people.areas[row] = area if from_outline[row] else estimates[row]
    lacks &= ~people.is_crowd
    whole = "whole boxes make the AP too high"
    said.add_rows("derived", "outline-area", "areas computed from outlines", whole, lacks & from_outline, people.ids)
    message = f"areas estimated as {SHARE_OF_BOX} of the box, {SHARE_OF_KEYPOINT_BOX} of that around keypoints"
    said.add_rows("derived", "box-area", message, whole, lacks & ~from_outline, people.ids)


def _area_of_outline(outline: Outline, height: int, width: int) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas; 0 without one."""
    if outline is None or height * width > MAX_PIXELS:
        return 0.0
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, height, width).sum())
    return float(outline[1::2].sum())


def _compare_counts(people: People, has_list: Mask, said: Adjustments) -> None:
    counts = (people.keypoints[..., 2] > 0).sum(axis=1)
    stated = [entry.get("num_keypoints") for entry in people.entries]
    differs = np.array([value is not None and value != count for value, count in zip(stated, counts.tolist())], bool)
    said.add_rows(
        "derived", "num-keypoints", "annotations with another num_keypoints than they have labelled ones", "counted",
        has_list & differs, people.ids,
    )  # fmt: skip


def _find_copies(people: People) -> Mask:
    is_copy = np.zeros(len(people.entries), bool)
    is_person = people.is_used & ~people.is_crowd & (people.keypoints[..., 2] > 0).any(axis=1)
    seen: set[tuple[int, bytes]] = set()
    for row in np.flatnonzero(is_person).tolist():
        copy = int(people.image_rows[row]), people.keypoints[row].tobytes()
        is_copy[row] = copy in seen
        seen.add(copy)
    return is_copy

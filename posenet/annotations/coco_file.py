"""Read COCO keypoint files and check their entries.

The store builder, the evaluator, the skeleton drafter and the linter all use these functions, so that every rule for
annotation files is written once. Each applies the checks that it needs: the evaluator, for instance, does not need the
ids of annotations. The ``parse`` and ``check`` functions raise ``AnnotationProblem``; see
``posenet.annotations.problems``.

Coordinates are pixels, as in the annotation file. For images with an EXIF orientation, see
``posenet.images.orientation``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

import numpy as np

from posenet.annotations.problems import AnnotationProblem, ProblemKind, error_kind
from posenet.annotations.run_lengths import parse_coco_text, validate_run_lengths
from posenet.errors import DataError
from posenet.messages import truncate_for_message
from posenet.skeleton import COCO, Skeleton

Entry = dict[str, Any]
"""One image, annotation or category as in the file."""

SECTIONS = ("images", "annotations", "categories")
COCO_CATEGORY: dict[str, Any] = {
    "supercategory": "person",
    "id": 1,
    "name": "person",
    "keypoints": list(COCO.file_names),
    "skeleton": [
        [16, 14], [14, 12], [17, 15], [15, 13], [12, 13], [6, 12], [7, 13], [6, 7], [6, 8], [7, 9], [8, 10], [9, 11],
        [2, 3], [1, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7],
    ],
}  # fmt: skip
"""The entry of ``categories`` in COCO's own keypoint files."""
MAX_SIDE = 65535
"""Largest height and width of an image, and largest coordinate of an outline. A JPEG cannot be larger."""
MAX_OUTLINE = 2e6
"""Largest perimeter of a polygon in pixels, as the sum of the distances along both axes."""
MAX_NUMBER = 1e12
"""Limit of coordinates and areas, so that sums of them are finite."""


_PLURALS = {"image": "images", "annotation": "annotations", "category": "categories"}
INVALID_ID = {
    noun: error_kind(f"{noun}-id", f"{plural} without a whole number as id", f"number the {plural}: 1, 2, 3 ...")
    for noun, plural in _PLURALS.items()
}
DUPLICATE_ID = {
    noun: error_kind(
        f"duplicate-{noun}-id",
        f"{noun} ids that appear more than once",
        f"give different {plural} different ids, and delete copies of the same one",
    )
    for noun, plural in _PLURALS.items()
}
FILE_NAME = error_kind(
    "file-name", "images without a file name in the image folder", "write the path relative to the folder, without .."
)
IMAGE_SIZE = error_kind(
    "image-size",
    "images without a width and a height in whole pixels",
    "write the size of the image in which the keypoints were placed",
)
NO_KEYPOINTS = error_kind(
    "no-keypoints", "no category has keypoints", 'give the category "keypoints": names in the order of the annotations'
)
NO_SUCH_KEYPOINTS = error_kind(
    "no-such-keypoints",
    "no category has the keypoints of the skeleton",
    "write the names as the skeleton spells and orders them, or use the skeleton of these annotations "
    "(--skeleton, or model.skeleton in the configuration)",
)
UNLISTED_IMAGE = error_kind(
    "no-image", "annotations of images that are not listed", "list the image, or delete the annotation"
)
UNLISTED_CATEGORY = error_kind(
    "no-such-category", "annotations of categories that are not listed", "correct category_id, or list the category"
)
KEYPOINT_COUNT = error_kind(
    "keypoint-count",
    "annotations without x, y, visibility for every keypoint of their category",
    "write three numbers for every keypoint of the category, 0, 0, 0 where it is not labelled",
)
NOT_A_NUMBER = error_kind(
    "not-a-number", "keypoints that are not finite numbers", "write 0, 0, 0 for a keypoint that is not labelled"
)
BOOLEAN_VISIBILITY = error_kind(
    "boolean-visibility",
    "annotations with true or false as the visibility of keypoints",
    "write 2 for visible, 1 for hidden, and 0, 0, 0 for not labelled",
)
VISIBILITY = error_kind(
    "visibility",
    "keypoints with a visibility other than 0, 1 and 2",
    "write 0 for not labelled, 1 for hidden, 2 for visible; a confidence is not a visibility",
)
NO_BOX = error_kind("no-box", "annotations without a box", "write bbox as x, y, width, height")
EMPTY_BOX = error_kind(
    "empty-box", "boxes without a width or a height", "write bbox as x, y, width, height, not as two corners"
)
NO_AREA = error_kind(
    "no-area",
    "annotations without an area",
    "write the area of the outline in square pixels, or of the box where there is no outline",
)
CROWD_FLAG = error_kind("crowd-flag", "annotations with an iscrowd other than 0 and 1", "write 0 or 1")
OUTLINE_NUMBER = error_kind(
    "outline-number", "outlines with a non-finite number", "correct the segmentation, or delete it and use the box"
)


@dataclass(frozen=True)
class CocoImage:
    """One entry of ``images``; sizes in pixels."""

    id: int
    file_name: str
    height: int
    width: int


@dataclass(frozen=True)
class Category:
    """One entry of ``categories``."""

    id: int
    name: str
    keypoints: tuple[str, ...]  # names in the order of the annotations; empty if the category has none
    edges: Any  # the ``skeleton`` of the category, not checked


def read_document(path: str | Path) -> Any:
    """Return the unchecked content of a JSON file; ``DataError`` if the file cannot be read or is not JSON."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"cannot read annotations {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); give a COCO keypoint file") from error


def read_sections(path: str | Path, required: Collection[str] = SECTIONS) -> dict[str, list[Entry]]:
    """Read a COCO file and return its three sections; their entries are not checked.

    Args:
        required: the sections that must be present. Others are empty if they are missing or null.

    Raises:
        DataError: the file cannot be read, is not JSON or is not a COCO file.
    """
    return select_sections(read_document(path), path, required)


def select_sections(document: Any, path: str | Path, required: Collection[str] = SECTIONS) -> dict[str, list[Entry]]:
    """Return the three sections of a COCO file's content; see ``read_sections``. ``path`` is for messages."""
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise DataError(f"{path}: the top level is a {kind}, not a COCO data set; give a COCO keypoint file")
    sections = {}
    for key in SECTIONS:
        entries = document.get(key)
        if entries is None and key not in required:
            entries = []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{path}: {key!r} is missing or not a list of objects; give a COCO keypoint file")
        sections[key] = entries
    return sections


class UniqueIds:
    """Checks the ids of the images, annotations or categories (``noun``): different whole numbers."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._seen: set[int] = set()

    def parse(self, entry: Entry) -> int:
        """Return the entry's id; ``AnnotationProblem`` if it is not a whole number or has appeared before."""
        entry_id = parse_id(entry, self.noun)
        if entry_id in self._seen:
            raise AnnotationProblem(DUPLICATE_ID[self.noun], entry_id, f"{self.noun} id {entry_id} appears twice")
        self._seen.add(entry_id)
        return entry_id


def parse_id(entry: Entry, noun: str) -> int:
    """Return the id of an image, annotation or category (``noun``)."""
    entry_id = entry.get("id")
    if not is_integer(entry_id):
        text = truncate_for_message(entry_id)
        raise AnnotationProblem(INVALID_ID[noun], entry_id, f"{noun} id {text} is not a whole number")
    return entry_id


def parse_images(entries: Sequence[Entry]) -> dict[int, CocoImage]:
    """Return the images by id, in file order."""
    ids = UniqueIds("image")
    images = {}
    for entry in entries:
        image_id = ids.parse(entry)
        images[image_id] = CocoImage(image_id, parse_file_name(entry), *parse_image_size(entry))
    return images


def parse_file_name(entry: Entry) -> str:
    """Return an image's file name: a printable path that stays inside the image folder on any system."""
    name = entry.get("file_name")
    if not isinstance(name, str) or not name:
        raise _problem(FILE_NAME, "image", entry, "has no file_name")
    windows = PureWindowsPath(name)
    posix = PurePosixPath(name)
    if ".." in posix.parts + windows.parts or posix.root or windows.anchor or not name.isprintable():
        detail = f"has file_name {truncate_for_message(name)}, which is not a path inside the image folder"
        raise _problem(FILE_NAME, "image", entry, detail)
    return name


def parse_image_size(entry: Entry) -> tuple[int, int]:
    """Return an image's (height, width)."""
    height = _parse_integer(entry, "height", "image", IMAGE_SIZE)
    width = _parse_integer(entry, "width", "image", IMAGE_SIZE)
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise _problem(IMAGE_SIZE, "image", entry, f"has the impossible size {width} x {height}")
    return height, width


def parse_category(entry: Entry) -> Category:
    """Return a category. Without keypoint names it has no keypoints."""
    names = entry.get("keypoints") or []
    if not isinstance(names, list):
        detail = f"has keypoints {truncate_for_message(names)}, which are not a list of names"
        raise _problem(NO_KEYPOINTS, "category", entry, detail)
    return Category(
        id=parse_id(entry, "category"),
        name=_text(entry.get("name", "")),
        keypoints=tuple(map(_text, names)),
        edges=entry.get("skeleton"),
    )


def require_keypoints(categories: Collection[Category]) -> list[Category]:
    """Return the categories with keypoints, of which there must be one."""
    found = [category for category in categories if category.keypoints]
    if not found:
        raise AnnotationProblem(NO_KEYPOINTS, None, NO_KEYPOINTS.message)
    return found


def require_skeleton(categories: Collection[Category], skeleton: Skeleton) -> list[Category]:
    """Return the categories with exactly the skeleton's keypoints, of which there must be one.

    Several, such as kinds of animals, are treated as one.
    """
    matching = [category for category in categories if category.keypoints == skeleton.file_names]
    if not matching:
        expected = ", ".join(skeleton.file_names)
        others = [list(category.keypoints) for category in categories if category.keypoints]
        found = truncate_for_message(others[0]) if others else "none"
        detail = f"no category has the keypoints {expected} (found: {found})"
        raise AnnotationProblem(NO_SUCH_KEYPOINTS, expected, detail)
    return matching


def parse_reference(entry: Entry, key: str, listed: Container[int] | None = None) -> int:
    """Return an annotation's ``image_id`` or ``category_id`` (``key``), one of the ``listed`` ids if they are given."""
    kind = UNLISTED_IMAGE if key == "image_id" else UNLISTED_CATEGORY
    reference = _parse_integer(entry, key, "annotation", kind)
    if listed is not None and reference not in listed:
        raise _problem(kind, "annotation", entry, f"has {key} {reference}, which is not listed")
    return reference


def parse_keypoints(entry: Entry, count: int) -> list[float]:
    """Return x, y, visibility of ``count`` keypoints, 3 * count numbers; zeros for an entry without ``keypoints``."""
    values = entry.get("keypoints", [0] * 3 * count)
    try:
        return _parse_numbers(entry, "keypoints", values, 3 * count, KEYPOINT_COUNT, NOT_A_NUMBER)
    except AnnotationProblem as problem:
        if problem.kind == NOT_A_NUMBER and bool in map(type, values[2::3]):
            detail = "has keypoints with true or false as visibility"
            raise _problem(BOOLEAN_VISIBILITY, "annotation", entry, detail) from problem
        raise


def check_visibility(keypoints: np.ndarray, entries: Sequence[Entry]) -> None:
    """Check that every visibility in the (P, K, 3) keypoints of P annotations is 0, 1 or 2."""
    visibility = keypoints[..., 2]
    valid = ((visibility == 0) | (visibility == 1) | (visibility == 2)).all(axis=1)  # (P,)
    if not valid.all():
        raise _problem(VISIBILITY, "annotation", entries[int(valid.argmin())], "has a visibility other than 0, 1 and 2")


def parse_box(entry: Entry) -> list[float]:
    """Return an annotation's box: x, y, width, height in pixels; width and height may be 0."""
    box = _parse_numbers(entry, "bbox", entry.get("bbox"), 4, NO_BOX, NO_BOX)
    if min(box[2:]) < 0:
        raise _problem(EMPTY_BOX, "annotation", entry, "has a box of negative size")
    return box


def parse_area(entry: Entry) -> float:
    """Return an annotation's area in square pixels."""
    if entry.get("area") is None:
        raise _problem(NO_AREA, "annotation", entry, "has no area")
    (area,) = _parse_numbers(entry, "area", [entry["area"]], 1, NO_AREA, NO_AREA)
    if area < 0:
        raise _problem(NO_AREA, "annotation", entry, "has a negative area")
    return area


def parse_crowd_flag(entry: Entry) -> bool:
    """Return whether ``iscrowd`` marks an annotation as a region of several people; False if it is missing."""
    flag = entry.get("iscrowd", 0)
    if flag not in (0, 1):
        detail = f"has iscrowd {truncate_for_message(flag)}, which is neither 0 nor 1"
        raise _problem(CROWD_FLAG, "annotation", entry, detail)
    return bool(flag)


def parse_segmentation(entry: Entry, image: CocoImage) -> list[list[float]] | np.ndarray | None:
    """Return an annotation's outline.

    Returns:
        Polygons, flat lists x, y, x, y, ...; or (runs,) int64 run lengths; or None if the outline is missing, damaged
        or that of an image of another size.
    """
    outline = entry.get("segmentation")
    if isinstance(outline, list):
        return [polygon for polygon in outline if _is_polygon(polygon, entry)] or None
    if not isinstance(outline, dict) or outline.get("size") != [image.height, image.width]:
        return None
    counts = outline.get("counts")
    num_pixels = image.height * image.width
    try:
        if isinstance(counts, str):
            return validate_run_lengths(parse_coco_text(counts.encode()), num_pixels)
        if isinstance(counts, list) and set(map(type, counts)) <= {int}:
            return validate_run_lengths(np.array(counts, np.int64), num_pixels)
    except (ValueError, OverflowError):
        pass
    return None


def is_flat_outline(outline: object) -> bool:
    """Whether a ``segmentation`` is one list of numbers instead of a list of polygons."""
    return isinstance(outline, list) and len(outline) > 0 and {type(value) for value in outline} <= {int, float}


def _is_polygon(polygon: Any, entry: Entry) -> bool:
    """Whether a list can be rasterised; ``AnnotationProblem`` if it contains a number that is not finite."""
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or set(map(type, polygon)) - {int, float}:
        return False
    try:
        finite = math.isfinite(sum(polygon))
    except OverflowError:  # a whole number that is too large for a float
        finite = False
    if not finite:
        raise _problem(OUTLINE_NUMBER, "annotation", entry, "has a segmentation with a number that is not finite")
    # Rasterising samples every edge: huge coordinates or long zigzags would need gigabytes of memory.
    low, high = min(polygon), max(polygon)
    if low < -MAX_SIDE or high > MAX_SIDE:
        return False
    if len(polygon) * (high - low) <= MAX_OUTLINE:  # no edge is longer than high - low on either axis
        return True
    corners = np.array(polygon).reshape(-1, 2)
    edges = corners - np.roll(corners, 1, axis=0)
    return bool(np.abs(edges).sum() <= MAX_OUTLINE)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that fits into the 64 bits of a store; True and False are not numbers."""
    return type(value) is int and abs(value) < 2**63


def _parse_integer(entry: Entry, key: str, noun: str, kind: ProblemKind) -> int:
    """Return ``entry[key]``; an ``AnnotationProblem`` of ``kind`` unless it is a whole number."""
    value = entry.get(key)
    if not is_integer(value):
        raise _problem(kind, noun, entry, f"has {key} {truncate_for_message(value)}, which is not a whole number")
    return value


def _parse_numbers(
    entry: Entry, key: str, values: Any, count: int, wrong_count: ProblemKind, not_finite: ProblemKind
) -> list[float]:
    """Return ``values``, the annotation's ``key``, if they are a list of ``count`` finite numbers."""
    if not isinstance(values, list) or len(values) != count:
        raise _problem(wrong_count, "annotation", entry, f"has no list of {count} numbers as {key}")
    if not set(map(type, values)) <= {int, float} or not all(abs(number) < MAX_NUMBER for number in values):
        detail = f"has a value in {key} that is not a finite number below {MAX_NUMBER:g}"
        raise _problem(not_finite, "annotation", entry, detail)
    return values


def _text(value: Any) -> str:
    """A string as it is; the shortened text of another value, which may be deeply nested."""
    return value if isinstance(value, str) else truncate_for_message(value)


def _problem(kind: ProblemKind, noun: str, entry: Entry, detail: str) -> AnnotationProblem:
    entry_id = entry.get("id")
    return AnnotationProblem(kind, entry_id, f"{noun} {truncate_for_message(entry_id)} {detail}")

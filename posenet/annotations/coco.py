"""COCO keypoint files, parsed once into columns.

A column is an array or a list with one row for every entry of ``images``, ``annotations`` or ``categories``. Values
that cannot be used are replaced by 0 or None, and a mask beside them says where. Nothing is refused here: the table
of ``rules`` finds the problems in the columns, for reading, linting and repair alike.

Coordinates are pixels, as in the annotation file. For images with an EXIF orientation, see ``posenet.images``.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np

from posenet.annotations.outlines import MAX_SIDE, Outline, parse_outline
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import read_input, require_regular_file, write_atomically
from posenet.images import (
    AnnotatedFrame,
    check_image,
    check_proportions,
    find_annotated_frame,
    oriented_size,
    read_image_file,
)
from posenet.messages import pluralize, truncate_for_message
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import noun_of
from posenet.threads import map_in_threads

Entry = dict[str, Any]
"""One image, annotation or category as in the file."""
Mask = Any
"""(rows,) bool array. NumPy's operators do not keep a more exact type."""
Names = tuple[str, ...]
"""The names of the keypoints of a category, in the order of the annotations."""

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
MAX_NUMBER = 1e12
"""Limit of coordinates and areas, so that sums of them are finite."""
_DRIVE = re.compile("[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")
UNLISTED = -1
"""Row of an image or category that an annotation refers to, if it is not listed."""
UNUSABLE = -2
"""Row of an image or category that an annotation refers to, if it is listed but has a problem of its own."""


@dataclass(frozen=True)
class CocoImage:
    """One entry of ``images``; sizes in pixels."""

    id: int
    file_name: str
    height: int
    width: int


class IdColumn(NamedTuple):
    """The ids of N entries, and where they are whole numbers of 64 bits that no earlier entry has."""

    values: list[Any]
    is_usable: Mask


class NumberColumn(NamedTuple):
    """Numbers of the annotations, in lists of the expected length."""

    values: np.ndarray  # (A, ...) float64, 0 where they cannot be used
    is_usable: Mask  # all are numbers, finite and below MAX_NUMBER


class OutlineColumn(NamedTuple):
    """The outlines of the annotations."""

    values: list[Outline]  # None where it cannot be used
    is_damaged: Mask  # the outline, or a part of it, cannot be used


class Category(NamedTuple):
    """One entry of ``categories``; ``keypoints`` is empty if it has none, None if they are not a list."""

    name: str
    keypoints: Names | None
    edges: Any  # its ``skeleton``, not checked
    flip_idx: Any = None  # as in YOLO-pose, not checked: for every keypoint the number, from 0, of its twin or its own


class FileCheck(NamedTuple):
    """What the file of an image shows: why it cannot be used, if so, its EXIF orientation and the annotated frame."""

    name: str
    problem: Literal["missing", "unreadable", "proportions", "size", ""]
    details: str = ""
    """More about the problem: what is wrong with the file, or its size."""
    orientation: int = 1
    frame: AnnotatedFrame = AnnotatedFrame(1, "no tag")


class AnnotationFile:
    """The content of a COCO keypoint file: the entries of its sections, and columns of N images, C categories and A
    annotations.

    Args:
        path: of the file, for messages.
        sections: ``images``, ``annotations`` and ``categories``.
        skeleton: the expected keypoints; None expects those of the categories in the file.
        folder: folder of the image files; None if it is not known.
        exif_frame: see ``posenet.images.find_annotated_frame``.

    Attributes:
        image_ids, category_ids, annotation_ids: the ids.
        file_names: printable paths that stay inside the image folder on any system; "" for others.
        image_sizes: (N, 2) int64 height, width; zeros for a size that is impossible or not a whole number.
        has_size, image_is_usable: (N,) bool: the size, or the id, the file name and the size can be used.
        parsed_categories: the categories.
        category_has_keypoints: (C,) bool: the id and the names of the keypoints can be used, and there are any.
        category_is_used: (C,) bool: has keypoints, and exactly those of the skeleton if there is one. Several
            categories with the same keypoints, such as kinds of animals, are treated as one.
        image_rows, category_rows: (A,) int64: what every annotation refers to, ``UNLISTED`` or ``UNUSABLE``.
        has_image, is_used: (A,) bool: the image is usable; the category is one of those that are used.
        sizes_of_annotations: (A, 2) int64 height, width of the images; zeros without a usable one.
        is_crowd: (A,) bool: ``iscrowd`` marks a region of several people.
        has_keypoints: (A,) bool: the annotation is used and has ``keypoints``, of any kind but not empty.
        keypoints, points: (A, K, 3) x, y, visibility; and (A, K, 2) x, y. Categories with fewer than K keypoints
            have zeros at the end.
        is_labelled, num_labelled: (A, K) bool: the visibility is above 0; and (A,) int64, how many are.
        is_labelled_person: (A,) bool: used, not a crowd, with labelled keypoints.
        boxes, has_box: (A, 4) x, y, width, height; and (A,) bool: it can be used, with width and height above 0.
        areas: (A,) square pixels.
    """

    def __init__(
        self,
        path: str | Path,
        sections: Mapping[str, list[Entry]],
        skeleton: Skeleton | None = None,
        folder: str | Path | None = None,
        exif_frame: ExifFrame = DataConfig.exif_frame,
    ) -> None:
        self.path = path
        self.sections = sections
        self.images = sections["images"]
        self.annotations = sections["annotations"]
        self.categories = sections["categories"]
        self.skeleton = skeleton
        self.folder = None if folder is None else Path(folder)
        self.exif_frame = exif_frame
        self._parse_images()
        self._parse_categories()
        self._parse_annotations()

    @classmethod
    def read(
        cls, path: str | Path, skeleton: Skeleton | None = None, required: Collection[str] = SECTIONS
    ) -> AnnotationFile:
        """Read a file; ``DataError`` if it is not a COCO file. See ``select_sections`` for ``required``."""
        return cls(path, select_sections(read_document(path), path, required), skeleton)

    def _parse_images(self) -> None:
        self.image_ids = _parse_ids(self.images)
        self.file_names = [_parse_file_name(entry.get("file_name")) for entry in self.images]
        self.image_sizes = np.zeros((len(self.images), 2), np.int64)
        for row, entry in enumerate(self.images):
            if is_side(entry.get("height")) and is_side(entry.get("width")):
                self.image_sizes[row] = entry["height"], entry["width"]
        self.has_size: Mask = self.image_sizes.all(axis=1)
        has_name = np.array([bool(name) for name in self.file_names], bool)
        self.image_is_usable: Mask = self.image_ids.is_usable & has_name & self.has_size

    def _parse_categories(self) -> None:
        self.category_ids = _parse_ids(self.categories)
        self.parsed_categories = [_parse_category(entry) for entry in self.categories]
        names = [category.keypoints for category in self.parsed_categories]
        is_usable = self.category_ids.is_usable
        self.category_has_keypoints: Mask = is_usable & np.array([bool(group) for group in names], bool)
        self.category_is_used = self.category_has_keypoints
        if self.skeleton is not None:
            fits = [group == self.skeleton.file_names for group in names]
            self.category_is_used = self.category_has_keypoints & np.array(fits, bool)

    def _parse_annotations(self) -> None:
        entries = self.annotations
        self.annotation_ids = _parse_ids(entries)
        self.image_rows = self._find_rows("image_id", self.image_ids, self.image_is_usable)
        has_names = np.array([category.keypoints is not None for category in self.parsed_categories], bool)
        self.category_rows = self._find_rows("category_id", self.category_ids, self.category_ids.is_usable & has_names)
        self.has_image: Mask = self.image_rows >= 0
        self.sizes_of_annotations: np.ndarray = select_rows(self.image_sizes, self.image_rows, 0)
        self.is_used: Mask = select_rows(self.category_is_used, self.category_rows, False)
        self.is_crowd: Mask = np.array([entry.get("iscrowd") == 1 for entry in entries], bool)
        has_list = np.array([entry.get("keypoints") not in (None, []) for entry in entries], bool)
        self.has_keypoints: Mask = self.is_used & has_list
        self.keypoints = self._parse_keypoints()
        self.points: np.ndarray = self.keypoints.values[..., :2]
        self.is_labelled: Mask = self.keypoints.values[..., 2] > 0
        self.num_labelled: np.ndarray = self.is_labelled.sum(axis=1)
        self.is_labelled_person: Mask = self.is_used & ~self.is_crowd & (self.num_labelled > 0)
        self.boxes = _parse_numbers([entry.get("bbox") for entry in entries], 4)
        self.has_box: Mask = self.boxes.is_usable & (self.boxes.values[:, 2:] > 0).all(axis=1)
        areas = _parse_numbers([[entry.get("area")] for entry in entries], 1)
        self.areas = areas._replace(values=areas.values[:, 0])

    def _parse_keypoints(self) -> NumberColumn:
        counts = [len(category.keypoints or ()) for category in self.parsed_categories]
        count_of_row = select_rows(np.array(counts, np.int64), self.category_rows, 0)
        most = max((counts[row] for row in np.flatnonzero(self.category_is_used).tolist()), default=1)
        values = np.zeros((len(self.annotations), most, 3))
        is_usable = np.zeros(len(self.annotations), bool)
        for count in np.unique(count_of_row[self.has_keypoints]).tolist():
            rows = np.flatnonzero(self.has_keypoints & (count_of_row == count))
            column = _parse_numbers([self.annotations[row]["keypoints"] for row in rows], 3 * count)
            values[rows, :count] = column.values.reshape(len(rows), count, 3)
            is_usable[rows] = column.is_usable
        return NumberColumn(values, is_usable)

    @cached_property
    def file_checks(self) -> dict[int, FileCheck]:
        """What the files of the usable images show, by row; empty without a folder. Every file is opened once."""
        if self.folder is None:
            return {}
        rows = np.flatnonzero(self.image_is_usable).tolist()
        workers = usable_cores()
        checks = map_in_threads(self._check_file, rows, workers=workers, ahead=2 * workers)
        return dict(zip(rows, progress_bar(checks, "images", len(rows))))

    def _check_file(self, row: int) -> FileCheck:
        name = self.file_names[row]
        height, width = self.image_sizes[row].tolist()
        path = (self.folder or Path()) / name
        try:
            header = check_image(read_image_file(path))
        except (OSError, ValueError) as error:
            if not os.path.exists(path):  # which is also false for a name that is too long
                return FileCheck(name, "missing")
            return FileCheck(name, "unreadable", re.split(r" \(|;", str(error))[0])
        frame = find_annotated_frame(header, height, width, self.exif_frame)
        size = oriented_size(*header.stored_size, frame.orientation)
        if size == (height, width):
            return FileCheck(name, "", "", header.orientation, frame)
        details = f"{size[1]} x {size[0]}, annotated {width} x {height}"
        try:
            check_proportions(path, size, (height, width))
        except DataError:
            return FileCheck(name, "proportions", details, header.orientation, frame)
        return FileCheck(name, "size", details, header.orientation, frame)

    @cached_property
    def outlines(self) -> OutlineColumn:
        """The outlines of the used annotations in usable images."""
        values: list[Outline] = [None] * len(self.annotations)
        is_damaged = np.zeros(len(self.annotations), bool)
        sizes = self.sizes_of_annotations.tolist()
        for row in np.flatnonzero(self.is_used & self.has_image).tolist():
            values[row], is_damaged[row] = parse_outline(self.annotations[row].get("segmentation"), *sizes[row])
        return OutlineColumn(values, is_damaged)

    def groups_of_names(self) -> dict[Names, Mask]:
        """For every list of keypoint names of the used categories: the (A,) bool of the annotations that have it."""
        names = [category.keypoints or () for category in self.parsed_categories]
        used = dict.fromkeys(names[row] for row in np.flatnonzero(self.category_is_used).tolist())
        return {
            group: self.is_used & select_rows(np.array([other == group for other in names]), self.category_rows, False)
            for group in used
        }

    def _find_rows(self, key: str, ids: IdColumn, is_usable: Mask) -> np.ndarray:
        """(A,) int64: the row that every annotation refers to by ``key``, ``UNLISTED`` or ``UNUSABLE``."""
        row_of_id = {ids.values[row]: row for row in np.flatnonzero(is_usable).tolist()}
        others = [ids.values[row] for row in np.flatnonzero(~is_usable).tolist()]
        unusable: set[object] = {value for value in others if isinstance(value, (str, int, float))}
        unusable -= row_of_id.keys()
        rows = np.full(len(self.annotations), UNLISTED, np.int64)
        for row, entry in enumerate(self.annotations):
            reference = entry.get(key)
            if is_integer(reference) and reference in row_of_id:
                rows[row] = row_of_id[reference]
            elif isinstance(reference, (str, int, float)) and reference in unusable:
                rows[row] = UNUSABLE
        return rows


def select_rows(values: np.ndarray, rows: np.ndarray, default: bool | int) -> Any:
    """``values[rows]``, and ``default`` for rows below 0."""
    if not len(values):
        return np.full((len(rows), *values.shape[1:]), default, values.dtype)
    selected = values[np.maximum(rows, 0)]
    selected[rows < 0] = default
    return selected


def require_annotation_file(path: str | Path) -> None:
    """Raise ``DataError`` unless a path is a file that can be read as an input; its content is not looked at."""
    try:
        require_regular_file(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: OSError) -> DataError:
    return DataError(f"cannot read annotations {path}: {error.strerror or error}; correct the path")


def read_document(path: str | Path) -> Any:
    """Return the unchecked content of a JSON file; ``DataError`` if the file cannot be read or is not JSON."""
    collects = gc.isenabled()
    gc.disable()  # a large file makes millions of lists, which are searched for cycles again and again
    try:
        return json.loads(read_input(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        if remedy := remedy_for_format(path):
            raise DataError(f"{path} is no JSON file of annotations; {remedy}") from error
        raise DataError(
            f"{path} is not valid JSON ({error}); give an annotation file, and copy or export it again if it is cut off"
        ) from error
    finally:
        if collects:
            gc.enable()


def remedy_for_format(path: str | Path) -> str:
    """What makes a COCO keypoint file of a file in another format, by its suffix; empty if that is not known."""
    suffix = Path(path).suffix.lower()
    if suffix in (".yaml", ".yml"):
        convert = f"posenet annotations import {path} --output train.json"
        return f"if it describes a YOLO-pose data set, convert that with {convert}"
    if suffix == ".zip":
        return (
            "unpack it, and give a file in it; CVAT exports one as COCO Keypoints 1.0, Label Studio as JSON, and "
            "Roboflow as COCO"
        )
    if suffix == ".xml":
        return "in CVAT, export the task as COCO Keypoints 1.0, unpack that, and give the .json in it"
    return ""


def write_output(path: Path, text: str) -> None:
    """Write a file completely or not at all; ``DataError`` if that fails."""
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; choose another output") from error


def describe_counts(document: Mapping[str, list[Entry]]) -> str:
    """How many images, and objects of which categories, the content of a COCO file has: "3 images, 5 x bird"."""
    names = {entry["id"]: _text(entry.get("name", "object")) for entry in document["categories"]}
    counts = Counter(names[entry["category_id"]] for entry in document["annotations"])
    objects = [f"{count} {noun_of(count, name)}" for name, count in counts.items()]
    return ", ".join([pluralize(len(document["images"]), "image"), *objects])


def select_sections(document: Any, path: str | Path, required: Collection[str] = SECTIONS) -> dict[str, list[Entry]]:
    """Return the three sections of a COCO file's content, whose entries are not checked; ``DataError`` if it is none.

    Sections that are not ``required`` are empty if they are missing or null. ``path`` is for messages.
    """
    if not isinstance(document, dict):
        raise DataError(
            f"{path}: the top level is a {type(document).__name__}, not a COCO data set; give a COCO keypoint file, or "
            "convert that of another tool with posenet annotations import"
        )
    refuse_labelme(document, path)
    sections = {}
    for key in SECTIONS:
        entries = document.get(key)
        if entries is None and key not in required:
            entries = []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{path}: {key!r} is missing or not a list of objects; give a COCO keypoint file")
        sections[key] = entries
    return sections


def refuse_labelme(document: Any, path: str | Path) -> None:
    """Raise ``DataError`` for the content of a file of Labelme, which has one for each image."""
    if isinstance(document, dict) and "shapes" in document and "imagePath" in document:
        raise DataError(
            f"{path} is a file of Labelme; convert the folder with posenet annotations import DIR --output train.json"
        )


def list_image_files(path: str | Path, folder: str | Path | None) -> Iterator[Path]:
    """The image files in ``folder`` that a COCO file lists, read when the first is asked for; none without a folder.

    ``DataError`` if the file cannot be read or is not a COCO file.
    """
    if folder is None:
        return
    for image in select_sections(read_document(path), path, ["images"])["images"]:
        name = image.get("file_name")
        if isinstance(name, str):
            yield Path(folder, name)


def is_file(folder: Path | None, name: str) -> bool:
    """Whether a file is in the folder; False without a folder."""
    try:
        return folder is not None and (folder / name).is_file()
    except (OSError, ValueError):  # a name that is too long or has a null character
        return False


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that fits into the 64 bits of a store; True and False are not numbers."""
    return type(value) is int and abs(value) < 2**63


def is_side(value: Any) -> TypeGuard[int]:
    """Whether a value is a possible height or width of an image."""
    return is_integer(value) and 0 < value <= MAX_SIDE


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all values are finite numbers below ``MAX_NUMBER``; True and False are not numbers."""
    try:
        # The sum is not below the limit either if a number is not finite.
        return set(map(type, values)) <= {int, float} and sum(map(abs, values)) < MAX_NUMBER
    except OverflowError:  # a whole number that is too large for a float
        return False


def _parse_ids(entries: Sequence[Entry]) -> IdColumn:
    values = [entry.get("id") for entry in entries]
    seen: set[int] = set()
    is_usable = np.zeros(len(values), bool)
    for row, value in enumerate(values):
        if is_integer(value) and value not in seen:
            is_usable[row] = True
            seen.add(value)
    return IdColumn(values, is_usable)


def _parse_file_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isprintable():
        return ""
    leaves_folder = name.startswith(("/", "\\")) or _DRIVE.match(name) or ".." in _SEPARATORS.split(name)
    return "" if leaves_folder else name


def _parse_category(entry: Entry) -> Category:
    names = entry.get("keypoints") or []
    keypoints = tuple(map(_text, names)) if isinstance(names, list) else None
    return Category(_text(entry.get("name", "")), keypoints, entry.get("skeleton"), entry.get("flip_idx"))


def category_edges(category: Category) -> list[tuple[str, str]]:
    """The edges of the category's ``skeleton`` as names; ``ValueError`` if they are not pairs of keypoint numbers.

    COCO counts keypoints from 1, some files from 0.
    """
    try:
        pairs = [(int(a), int(b)) for a, b in category.edges or []]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError("its skeleton is not a list of pairs of keypoint numbers") from error
    first = 0 if any(0 in pair for pair in pairs) else 1
    names = dict(enumerate(category.keypoints or (), first))
    if not all(a in names and b in names for a, b in pairs):
        raise ValueError("its skeleton joins keypoints that it does not have")
    # Two edges with the same keypoints become one.
    edges = {frozenset((a, b)): (names[a], names[b]) for a, b in pairs if a != b}
    return list(edges.values())


def _text(value: Any) -> str:
    """A string as it is; the shortened text of another value, which may be deeply nested."""
    return value if isinstance(value, str) else truncate_for_message(value)


def _parse_numbers(lists: Sequence[Any], count: int) -> NumberColumn:
    """Convert lists of ``count`` numbers to (N, count) float64, zeros for other lists."""
    is_usable = np.array([type(row) is list and len(row) == count and _are_numbers(row) for row in lists], bool)
    values = np.zeros((len(lists), count))
    rows = np.flatnonzero(is_usable).tolist()
    values[rows] = np.array([lists[row] for row in rows], np.float64).reshape(-1, count)
    return NumberColumn(values, is_usable)

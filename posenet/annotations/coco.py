"""COCO keypoint files: reading the JSON, and the columns of the normal form that ``reader`` makes of any of them.

A column is an array or a list with one row for every entry of ``images``, ``annotations`` or ``categories``.
Coordinates are pixels of the annotated size, in the displayed frame.
"""

import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.outlines import Outline
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import pluralize
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import noun_of

Entry = dict[str, Any]
"""One image, annotation or category as in the file."""
Mask = Any
"""(rows,) bool array. NumPy's operators do not keep a more exact type."""

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
OTHER_FORMATS = (
    "give a COCO keypoint file, complete and unpacked; posenet annotations import makes one of other formats"
)
"""What to give instead of a file that is none."""
MAX_NUMBER = 1e12
"""Limit of coordinates and areas, so that sums of them are finite."""


@dataclass(frozen=True)
class CocoImage:
    """One entry of ``images``; sizes in pixels."""

    id: int
    file_name: str
    height: int
    width: int


class Category(NamedTuple):
    """One entry of ``categories``; ``keypoints`` are in the order of the annotations, and empty if it has none."""

    name: str
    keypoints: tuple[str, ...]
    edges: tuple[tuple[int, int], ...] = ()  # pairs of numbers of keypoints, from 0
    flip_idx: Any = None  # as in YOLO-pose, not checked: for every keypoint the number, from 0, of its twin or its own


class Categories(NamedTuple):
    """Columns of the C categories.

    Those that are used have keypoints, and exactly those of the skeleton if there is one. Several with the same
    keypoints, such as kinds of animals, are treated as one.
    """

    entries: list[Entry]
    parsed: list[Category]
    ids: list[int]
    row_of: dict[object, int]  # by the id in the file
    is_used: Mask
    orders: dict[int, list[int]]  # by row: for every keypoint its place in the lists of annotations, if that differs


@dataclass
class AnnotationColumns:
    """Columns of the A annotations."""

    entries: list[Entry]  # as in the file, but polygons in pixels
    ids: np.ndarray  # (A,) int64, no two the same
    image_rows: np.ndarray  # (A,) int64
    category_rows: np.ndarray  # (A,) int64
    is_used: Mask  # the category is one of those that are used
    is_crowd: Mask  # a region of several people
    keypoints: np.ndarray  # (A, K, 3) x, y, visibility; zeros at the end for categories with fewer than K, or unused
    boxes: np.ndarray  # (A, 4) x, y, width, height; zeros without one, which only annotations that are not used have
    areas: np.ndarray  # (A,) square pixels
    outlines: list[Outline]  # None where the box takes its place

    @property
    def is_labelled(self) -> np.ndarray:
        """(A, K) bool: the visibility is above 0."""
        return np.asarray(self.keypoints[..., 2] > 0)

    @property
    def num_labelled(self) -> np.ndarray:
        """(A,) int64: how many keypoints are labelled."""
        return np.asarray(self.is_labelled.sum(axis=1))

    @property
    def is_object(self) -> Mask:
        """(A,) bool: used, not a crowd."""
        return self.is_used & ~self.is_crowd

    @property
    def is_labelled_person(self) -> Mask:
        """(A,) bool: used, not a crowd, with labelled keypoints."""
        return self.is_object & (self.num_labelled > 0)

    def select(self, is_kept: Mask) -> "AnnotationColumns":
        """Some of the rows."""
        columns: dict[str, Any] = {}
        for name, column in vars(self).items():
            columns[name] = [*itertools.compress(column, is_kept)] if isinstance(column, list) else column[is_kept]
        return AnnotationColumns(**columns)


@dataclass
class AnnotationFile:
    """The normal form of a file of annotations."""

    path: str | Path  # for messages
    others: dict[str, Any]  # what the file says beside the three sections, such as licences
    skeleton: Skeleton | None  # the expected keypoints; None expects those of the categories
    images: list[CocoImage]
    image_entries: list[Entry]
    categories: Categories
    columns: AnnotationColumns
    adjustments: Adjustments  # what the reader did, and what it found

    @property
    def sizes(self) -> np.ndarray:
        """(A, 2) int64 height, width of the image of every annotation."""
        sizes = np.array([(image.height, image.width) for image in self.images], np.int64).reshape(-1, 2)
        return np.asarray(sizes[self.columns.image_rows])

    def select(self, is_kept: Mask) -> "AnnotationFile":
        """The part with some of the rows of images."""
        columns = self.columns.select(is_kept[self.columns.image_rows])
        columns.image_rows = np.cumsum(is_kept)[columns.image_rows] - 1
        images = list(itertools.compress(self.images, is_kept))
        entries = list(itertools.compress(self.image_entries, is_kept))
        return replace(self, images=images, image_entries=entries, columns=columns)

    def groups_of_names(self) -> dict[tuple[str, ...], Mask]:
        """For every list of keypoint names of the used categories: the (A,) bool of the annotations that have it."""
        names = [category.keypoints for category in self.categories.parsed]
        used = dict.fromkeys(names[row] for row in np.flatnonzero(self.categories.is_used).tolist())
        rows = self.columns.category_rows
        return {group: np.array([other == group for other in names], bool)[rows] for group in used}

    def describe(self) -> str:
        """How many images, and objects of which categories: "3 images, 5 x bird"."""
        counts = Counter(self.categories.parsed[row].name for row in self.columns.category_rows.tolist())
        objects = [f"{count} {noun_of(count, name)}" for name, count in counts.items()]
        return ", ".join([pluralize(len(self.images), "image"), *objects])

    @property
    def document(self) -> dict[str, Any]:
        """The content of a COCO keypoint file in the normal form. Numbers that are whole are written so."""
        images = [entry | vars(image) for entry, image in zip(self.image_entries, self.images)]
        categories = []
        for entry, category, number in zip(self.categories.entries, self.categories.parsed, self.categories.ids):
            shape = {"keypoints": list(category.keypoints), "skeleton": [[a + 1, b + 1] for a, b in category.edges]}
            categories.append(entry | {"id": number, "name": category.name} | (shape if category.keypoints else {}))
        annotations = [self._write_annotation(row) for row in range(len(self.columns.ids))]
        return self.others | {"images": images, "annotations": annotations, "categories": categories}

    def _write_annotation(self, row: int) -> Entry:
        columns, category = self.columns, int(self.columns.category_rows[row])
        entry = columns.entries[row] | {
            "id": int(columns.ids[row]),
            "image_id": self.images[columns.image_rows[row]].id,
            "category_id": self.categories.ids[category],
        }
        if columns.is_used[row]:
            keypoints = columns.keypoints[row, : len(self.categories.parsed[category].keypoints)]
            outline = columns.outlines[row]
            entry |= {
                "keypoints": _whole(keypoints.ravel()),
                "num_keypoints": int((keypoints[:, 2] > 0).sum()),
                "bbox": _whole(columns.boxes[row]),
                "area": _whole(columns.areas[row : row + 1])[0],
                "iscrowd": int(columns.is_crowd[row]),
                "segmentation": entry["segmentation"] if isinstance(outline, np.ndarray) else outline or [],
            }
        return entry


def shape_of(names: Sequence[str], edges: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """What a category has of its keypoints: names, and edges by number, from 1; edges of other names are left out.

    Without edges, COCO's keypoints have those of COCO.
    """
    known = [[names.index(a) + 1, names.index(b) + 1] for a, b in edges if a in names and b in names]
    if not edges and tuple(names) == COCO.file_names:
        known = COCO_CATEGORY["skeleton"]
    return {"keypoints": list(names), "skeleton": known}


def _whole(values: np.ndarray) -> list[float | int]:
    return [int(value) if value.is_integer() else value for value in values.tolist()]


def read_document(path: str | Path) -> Any:
    """Return the unchecked content of a JSON file; ``DataError`` if the file cannot be read or is not JSON."""
    try:
        return json.loads(read_input(path))
    except OSError as error:
        raise DataError(f"cannot read annotations {path}: {error.strerror or error}; correct the path") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); {OTHER_FORMATS}") from error


def select_sections(document: Any, path: str | Path, required: Collection[str] = ()) -> dict[str, list[Entry]]:
    """Return the three sections of a COCO file's content, whose entries are not checked; ``DataError`` if it has none.

    Sections that are missing or null are empty, but those that are ``required``. ``path`` is for messages.
    """
    content = document if isinstance(document, dict) else {}
    sections = {key: [] if content.get(key) is None else content[key] for key in SECTIONS}
    is_coco = any(isinstance(content.get(key), list) for key in SECTIONS)
    for key, entries in sections.items():
        is_lacking = not is_coco or (key in required and content.get(key) is None)
        if is_lacking or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{path}: {key!r} is missing or not a list of objects; {OTHER_FORMATS}")
    return sections


def list_image_files(path: str | Path, folder: str | Path | None) -> Iterator[Path]:
    """The image files in ``folder`` that a COCO file lists, read when the first is asked for; none without a folder.

    ``DataError`` if the file cannot be read or is not a COCO file.
    """
    if folder is None:
        return
    for image in select_sections(read_document(path), path)["images"]:
        name = image.get("file_name")
        if isinstance(name, str):
            yield Path(folder, name)

"""The people of an annotation file that has been checked.

``read_annotations`` reads a file for a store, ``read_split`` for the COCO evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import AnnotationFile, CocoImage
from posenet.annotations.outlines import Outline, decode_mask, encode_mask
from posenet.annotations.rules import refuse_errors
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton

_RULES_OF_TEST_SETS = (
    "image-id", "category-id", "file-name", "image-size", "no-such-category",
)  # fmt: skip
"""The rules for files without names of keypoints, as those of test sets."""


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
        return People(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True)
class CocoDataset:
    """The images of an annotation file, and the people of every image id, both in file order."""

    images: list[CocoImage]
    people: dict[int, People]
    background: frozenset[int]  # ids of the images without any annotation, also of other categories


def read_annotations(path: str | Path, skeleton: Skeleton = COCO) -> CocoDataset:
    """Read a COCO keypoint file; ``DataError`` if it cannot be read or has an error (see ``rules.RULES``).

    Annotations of categories with other keypoints than the skeleton's are left out. A person without ``keypoints`` has
    no labelled ones.
    """
    file = AnnotationFile.read(path, skeleton)
    refuse_errors(file)
    rows = np.flatnonzero(file.is_used)  # annotations whose category has the skeleton's keypoints
    image_rows = file.image_rows[rows]
    rows = rows[np.argsort(image_rows, kind="stable")]
    people = People(
        ids=np.array([file.annotation_ids.values[row] for row in rows.tolist()], np.int64),
        keypoints=skeleton.to_network_order(file.keypoints.values[rows]),  # with derived keypoints, such as COCO's neck
        num_labelled=file.num_labelled[rows],
        boxes=file.boxes.values[rows].astype(np.float32),
        areas=file.areas.values[rows].astype(np.float32),
        is_crowd=file.is_crowd[rows],
        outlines=[file.outlines.values[row] for row in rows.tolist()],
    )
    images = _list_images(file)
    ends = np.bincount(image_rows, minlength=len(images)).cumsum().tolist()
    slices = map(slice, [0, *ends], ends)
    is_empty = np.bincount(file.image_rows[file.image_rows >= 0], minlength=len(images)) == 0
    background = frozenset(images[row].id for row in np.flatnonzero(is_empty).tolist())
    return CocoDataset(images, {image.id: people.select(part) for image, part in zip(images, slices)}, background)


@dataclass(frozen=True)
class Split:
    """The images to predict and the people in them.

    Predictions have one category: of those with the skeleton's keypoints, the one called "person", else the first. The
    annotations of all these categories are changed to it.
    """

    images: list[CocoImage]
    category: int  # id
    people: list[dict[str, Any]]  # COCO annotations; empty for a test set
    categories: frozenset[int]  # ids of all categories with the skeleton's keypoints

    @property
    def annotated(self) -> bool:
        """Whether there are people to compare predictions with."""
        return bool(self.people)


def read_split(path: str | Path, image_ids: Iterable[int] | None = None, skeleton: Skeleton = COCO) -> Split:
    """Read the annotation file of a split, or an image-info file without annotations; only ``image_ids`` if given,
    each once.

    ``DataError`` if it cannot be read or has an error, has no images, lacks an image, or has annotations without
    keypoints alone.
    """
    file = AnnotationFile.read(path, skeleton, required=["images"])
    names_keypoints = any(category.keypoints != () for category in file.parsed_categories)
    refuse_errors(file, None if names_keypoints else _RULES_OF_TEST_SETS)
    images = _list_images(file)
    if image_ids is not None:
        image_ids = [int(image_id) for image_id in image_ids]
        image_of_id = {image.id: image for image in images}
        if unknown := set(image_ids) - set(image_of_id):
            raise DataError(f"{path} has no image {min(unknown)}; correct the ids")
        if not image_ids:
            raise DataError("no image ids are given; give some, or none for all images")
        images = [image_of_id[image_id] for image_id in dict.fromkeys(image_ids)]
    if not images:
        raise DataError(f"{path} lists no images; give a file with images and annotations")
    used = np.flatnonzero(file.category_is_used).tolist() or list(range(len(file.categories)))
    if not used:
        return Split(images, 1, [], frozenset([1]))
    ids = file.category_ids.values
    chosen = max(used, key=lambda row: file.parsed_categories[row].name == "person")
    used = used if names_keypoints else [chosen]
    is_person = np.isin(file.category_rows, used)
    if is_person.any() and not file.has_keypoints.any():
        if any(entry.get("keypoints") for entry in file.annotations):
            refuse_errors(file, ["no-keypoints"])
        raise DataError(
            f"{path} has annotations without keypoints; give a file that has them, of COCO person_keypoints_*.json"
        )
    people = [
        {
            "image_id": file.annotations[row]["image_id"],
            "category_id": ids[chosen],
            "keypoints": file.keypoints.values[row].ravel().tolist(),
            "num_keypoints": int(file.num_labelled[row]),
            "bbox": file.boxes.values[row].tolist(),
            "area": float(file.areas.values[row]),
            "iscrowd": int(file.is_crowd[row]),
        }
        for row in np.flatnonzero(is_person).tolist()
    ]
    return Split(images, ids[chosen], people, frozenset(ids[row] for row in used))


def _list_images(file: AnnotationFile) -> list[CocoImage]:
    rows = zip(file.image_ids.values, file.file_names, file.image_sizes.tolist())
    return [CocoImage(image_id, name, *size) for image_id, name, size in rows]


def scale_people(people: People, size: tuple[int, int], new_size: tuple[int, int]) -> People:
    """People annotated in an image of (height, width) ``size``, in pixels of the same image in ``new_size``."""
    if size == new_size:
        return people
    zoom = np.array(new_size[::-1]) / np.array(size[::-1])  # of x and y
    # Keypoints count from the centre of the first pixel, boxes and outlines from its corner.
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

"""The people of an annotation file that has been checked.

``read_dataset`` reads a file for a store, ``read_split`` for the COCO evaluation.
"""

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import AnnotationFile, CocoImage, read_document, select_sections
from posenet.annotations.outlines import Outline, decode_columns, decode_mask, encode_mask, polygons_to_mask
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton

_log = logging.getLogger(__name__)
_TEST_SET_CODES = ("image-id", "category-id", "file-name", "image-size", "no-such-category")
"""The contradictions that matter in files without names of keypoints, as those of test sets."""
_KEYS = ("image_id", "keypoints", "num_keypoints", "bbox", "area", "iscrowd")
_LOGGED = ("keypoint-order", "exif-turned", "exif-by-setting", "outline-area", "box-area")
"""The adjustments that change what results are compared with, beside what is left out."""

MIN_AREA = 8 * 8
"""Smallest area of a main person in square pixels. Training enlarges main persons to a share of the network's input, so
that they are blurry and not small; one with fewer pixels than keypoints would show nothing. COCO labels the keypoints
of nobody below 32 x 32 pixels, the limit of the paper, so that its samples are the same."""
CLEAR_AREA = 32 * 32
"""An image is not made so small that a main person who has as many square pixels keeps fewer; one with fewer keeps
``MIN_AREA``."""
MIN_DISTANCE = 0.3
"""Smallest distance between main persons, relative to the longer box side of the earlier one."""


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


@dataclass(frozen=True)
class CocoDataset:
    """The images of an annotation file, and the people of every image id, both in file order."""

    path: str | Path  # of the annotations
    skeleton: Skeleton  # of the people
    images: list[CocoImage]
    people: dict[int, People]
    background: frozenset[int]  # ids of the images without any annotation, also of other categories
    adjustments: Adjustments  # what the reader did


def read_dataset(
    path: str | Path,
    skeleton: Skeleton = COCO,
    folder: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> CocoDataset:
    """Read the people of a file of annotations; see ``people_of``."""
    document = read_document(path)
    # Without its annotations, all images would count as images of nobody.
    select_sections(document, path, ["images", "annotations"])
    file = read_annotation_file(path, skeleton, folder=folder, exif_frame=exif_frame, document=document)
    return people_of(file, skeleton)


def people_of(file: AnnotationFile, skeleton: Skeleton) -> CocoDataset:
    """The people of a file in the normal form, which was read with the skeleton or has its keypoints alone.

    A person without ``keypoints`` has no labelled ones. ``DataError`` if the file contradicts itself.
    """
    file.adjustments.refuse(file.path)
    columns = file.columns
    rows = np.flatnonzero(columns.is_used)
    rows = rows[np.argsort(columns.image_rows[rows], kind="stable")]
    people = People(
        ids=columns.ids[rows],
        # With derived keypoints, such as COCO's neck.
        keypoints=skeleton.to_network_order(columns.keypoints[rows]),
        num_labelled=columns.num_labelled[rows],
        boxes=columns.boxes[rows].astype(np.float32),
        areas=columns.areas[rows].astype(np.float32),
        is_crowd=columns.is_crowd[rows],
        outlines=[columns.outlines[row] for row in rows.tolist()],
    )
    ends = np.bincount(columns.image_rows[rows], minlength=len(file.images)).cumsum().tolist()
    slices = map(slice, [0, *ends], ends)
    is_empty = np.bincount(columns.image_rows, minlength=len(file.images)) == 0
    background = frozenset(file.images[row].id for row in np.flatnonzero(is_empty).tolist())
    people_by_id = {
        image.id: People(**{name: column[part] for name, column in vars(people).items()})
        for image, part in zip(file.images, slices)
    }
    return CocoDataset(file.path, skeleton, file.images, people_by_id, background, file.adjustments)


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


def read_split(
    path: str | Path,
    image_ids: Iterable[int] | None = None,
    skeleton: Skeleton = COCO,
    folder: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> Split:
    """Read the annotation file of a split, or an image-info file without annotations; only ``image_ids`` if given,
    each once. Keypoints of the skeleton in another order or spelling, and those of the stored pixels of an image in
    ``folder``, are corrected, which a log message tells.

    ``DataError`` if it cannot be read or has an error, has no images, lacks an image, or has annotations without
    keypoints alone.
    """
    file = read_annotation_file(path, skeleton, folder=folder, exif_frame=exif_frame, compares_files=False)
    for adjustment in file.adjustments:
        if adjustment.code in _LOGGED or adjustment.kind == "left out":
            _log.warning("%s: %s", path, adjustment)
    names_keypoints = any(category.keypoints for category in file.categories.parsed)
    file.adjustments.refuse(path, None if names_keypoints else _TEST_SET_CODES)
    images = file.images
    if image_ids is not None:
        wanted = dict.fromkeys(map(int, image_ids))
        image_of_id = {image.id: image for image in images}
        if unknown := wanted.keys() - image_of_id.keys():
            raise DataError(f"{path} has no image {min(unknown)}; correct the ids")
        if not wanted:
            raise DataError("no image ids are given; give some, or none for all images")
        images = [image_of_id[image_id] for image_id in wanted]
    if not images:
        raise DataError(f"{path} lists no images; give a file with images and annotations")
    ids, columns = file.categories.ids, file.columns
    used = np.flatnonzero(file.categories.is_used).tolist() or list(range(len(ids)))
    if not used:
        return Split(images, 1, [], frozenset([1]))
    chosen = max(used, key=lambda row: file.categories.parsed[row].name == "person")
    used = used if names_keypoints else [chosen]
    is_person = np.isin(columns.category_rows, used)
    if is_person.any() and not any(entry.get("keypoints") for entry in columns.entries):
        raise DataError(
            f"{path} has annotations without keypoints; give a file that has them, of COCO person_keypoints_*.json"
        )
    people = [
        {key: entry[key] for key in _KEYS} | {"category_id": ids[chosen]}
        for entry in itertools.compress(file.document["annotations"], is_person & columns.is_used)
    ]
    return Split(images, ids[chosen], people, frozenset(ids[row] for row in used))


def scale_people(people: People, size: tuple[int, int], new_size: tuple[int, int]) -> People:
    """People annotated in an image of (height, width) ``size``, in pixels of the same image in ``new_size``."""
    if size == new_size:
        return people
    zoom = np.array(new_size[::-1]) / np.array(size[::-1])  # of x and y
    # Keypoints count from the centre of the first pixel, boxes and outlines from its corner.
    is_labelled = people.keypoints[..., 2:] > 0
    keypoints = people.keypoints.copy()
    keypoints[..., :2] = np.where(is_labelled, (keypoints[..., :2] + 0.5) * zoom - 0.5, 0)
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for old, new in zip(size, new_size))
    outlines: list[Outline] = []
    for outline in people.outlines:
        if isinstance(outline, np.ndarray):
            outlines.append(encode_mask(decode_mask(outline, *size)[rows][:, columns]))
        else:
            outlines.append(outline and [(np.reshape(one, (-1, 2)) * zoom).ravel().tolist() for one in outline])
    return replace(
        people,
        keypoints=keypoints,
        boxes=(people.boxes * np.tile(zoom, 2)).astype(np.float32),
        areas=(people.areas * zoom.prod()).astype(np.float32),
        outlines=outlines,
    )


def _are_large(people: People) -> np.ndarray:
    return np.asarray((people.areas >= MIN_AREA) & (people.boxes[:, 2:] >= 1).all(axis=1))


def select_main_persons(people: People, min_labelled: int = COCO.min_labelled_keypoints) -> list[int]:
    """Select one image's main persons, on each of whom a training sample is centred; return their rows in order.

    A main person

    - is not a crowd,
    - has at least ``min_labelled`` labelled keypoints (``Skeleton.min_labelled_keypoints``),
    - has an area of at least 8 x 8 pixels and a box of at least 1 x 1,
    - has a box centre farther from that of *every earlier* main person than 0.3 times the longer side of the earlier
      box. "Earlier" means file order, so that the selection depends only on the file.
    """
    candidates = np.flatnonzero(~people.is_crowd & (people.num_labelled >= min_labelled) & _are_large(people))
    centres = (people.boxes[:, :2] + people.boxes[:, 2:] / 2).tolist()
    distances = [MIN_DISTANCE * longer_side for longer_side in people.boxes[:, 2:].max(axis=1).tolist()]
    selected: list[int] = []
    for row in candidates.tolist():
        if all(math.dist(centres[earlier], centres[row]) > distances[earlier] for earlier in selected):
            selected.append(row)
    return selected


def count_others(people: People, min_labelled: int = COCO.min_labelled_keypoints) -> Counter[str]:
    """How many people of one image no sample is centred on, by reason; crowds are not counted."""
    reasons = {
        "without labelled keypoints": people.num_labelled == 0,
        f"with fewer than {min_labelled} labelled keypoints": people.num_labelled < min_labelled,
        "smaller than 8 x 8 pixels": ~_are_large(people),
        "too close to another one": np.ones(len(people), bool),
    }
    is_open = ~people.is_crowd
    is_open[select_main_persons(people, min_labelled)] = False
    counts: Counter[str] = Counter()
    for reason, has_it in reasons.items():
        counts[reason] = int((is_open & has_it).sum())
        is_open &= ~has_it
    return +counts


def describe_others(counts: Counter[str]) -> str:
    """The counts of ``count_others`` in a few words: "3 smaller than 8 x 8 pixels, 1 too close to another one"."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def person_masks(people: People, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the person mask and the supervision mask of one image.

    Crowds and people without labelled keypoints are ignored regions. Pixels of labelled people are supervised even
    inside an ignored region: their keypoints are known, and crowd outlines are coarse and often cover annotated people.
    The box replaces a missing or unusable outline.

    Returns:
        ``person_mask`` (H, W) uint8: 1 on any person, crowds included. ``mask_miss`` (H, W) uint8: 0 on ignored
        regions, 1 elsewhere. Both are Fortran-contiguous, the order of run lengths.
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
        else:  # the pixels that the box touches
            x, y, box_width, box_height = people.boxes[row].tolist()
            left, right = np.clip((math.floor(x), math.ceil(x + box_width)), 0, width).tolist()
            top, bottom = np.clip((math.floor(y), math.ceil(y + box_height)), 0, height).tolist()
            mask[top:bottom, left:right] = 1
    if polygons:
        mask |= polygons_to_mask(polygons, height, width)
    return mask

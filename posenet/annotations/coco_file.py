"""COCO keypoint annotations: strict reading, main persons.

Coordinates are pixels of the image as stored (EXIF orientation ignored), as in the annotation file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.errors import DataError
from posenet.messages import truncate_for_message
from posenet.skeleton import COCO, Skeleton

MIN_LABELLED = 5
"""Labelled keypoints that a main person of COCO has at least; ``Skeleton.least_labelled``."""
MIN_AREA = 32 * 32
"""Area in square pixels that a main person has at least."""
MIN_DISTANCE = 0.3
"""Main persons lie farther apart than this share of the earlier one's longer box side."""
MAX_SIDE = 65535
"""No image is larger and no outline reaches farther; JPEG cannot hold more."""
MAX_OUTLINE = 2e6
"""Pixels along the edges of a polygon, at most."""
MAX_NUMBER = 1e12
"""Coordinates and areas stay below it, so that sums of them stay finite."""


@dataclass(frozen=True)
class CocoImage:
    """One entry of ``images``; sizes in pixels."""

    id: int
    file_name: str
    height: int
    width: int


@dataclass(frozen=True, eq=False)
class PersonAnnotation:
    """One person or crowd region.

    Attributes:
        keypoints: (K, 3) float32 x, y, visibility in the skeleton's order, derived keypoints included.
        num_labelled: labelled keypoints among those that the file holds.
        box: (4,) float32 x, y, width, height.
        area: square pixels.
        crowd: the region covers several people.
        segmentation: polygons (flat lists x, y, x, y, ...), run lengths (int64, column by column, background
            first), or None where the file gives no usable outline; masks then take the box.
    """

    id: int
    keypoints: np.ndarray
    num_labelled: int
    box: np.ndarray
    area: float
    crowd: bool
    segmentation: list[list[float]] | np.ndarray | None

    @property
    def labelled(self) -> bool:
        """A single person with at least one labelled keypoint."""
        return self.num_labelled > 0 and not self.crowd


@dataclass(frozen=True)
class CocoDataset:
    """An annotation file: its images in file order and, for every image id, its people in file order."""

    path: Path
    images: tuple[CocoImage, ...]
    people: dict[int, list[PersonAnnotation]]


def read_annotations(path: str | Path, skeleton: Skeleton = COCO) -> CocoDataset:
    """Read a COCO keypoint file.

    Annotations of categories other than the one with the skeleton's keypoints are left out. Keypoints may lie
    outside the image and boxes may be empty; a person without ``keypoints`` is one without labelled keypoints.

    Raises:
        DataError: the file is missing, is not JSON or not COCO, describes other keypoints, or holds an entry
            that contradicts another or makes no sense.
    """
    path = Path(path)
    document = read_document(path)
    try:
        return _dataset(path, document, skeleton)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path}: {error}; repair or re-export the annotations") from error


def main_persons(people: Sequence[PersonAnnotation], least: int = MIN_LABELLED) -> list[int]:
    """Indices of one image's main persons, each of which gives a training sample.

    A main person has at least ``least`` labelled keypoints (``Skeleton.least_labelled``; 5 of COCO's), an area of at
    least 32 x 32 pixels, a box that is not empty, and a box centre farther than 0.3 times the longer side of *every
    earlier* main person's box from that box's centre. "Earlier" is file order, so that the choice does not depend on
    anything but the file. Crowds never are.
    """
    main: list[int] = []
    for row, person in enumerate(people):
        complete = person.num_labelled >= least and person.area >= MIN_AREA and min(person.box[2:]) >= 1
        if complete and not person.crowd and all(_apart(people[earlier].box, person.box) for earlier in main):
            main.append(row)
    return main


def read_document(path: Path) -> Any:
    """What an annotation file holds, unchecked; ``DataError`` where it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read annotations {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); give a COCO keypoint file") from error


def _dataset(path: Path, document: Any, skeleton: Skeleton) -> CocoDataset:
    if not isinstance(document, dict):
        raise ValueError(f"the top level is a {type(document).__name__}, not a COCO data set")
    for key in ("images", "annotations", "categories"):
        if not isinstance(document.get(key), list) or not all(isinstance(entry, dict) for entry in document[key]):
            raise ValueError(f"{key!r} is missing or not a list of objects, as COCO has it")
    images = {}
    for entry in document["images"]:
        image = checked_image(entry)
        if image.id in images:
            raise ValueError(f"image id {image.id} appears twice")
        images[image.id] = image
    entries = _person_entries(document, images, skeleton)
    count = len(skeleton.file_names)
    keypoints = np.array([checked_numbers(entry, "keypoints", 3 * count) for entry in entries], np.float32)
    keypoints = keypoints.reshape(len(entries), count, 3)
    known = np.isin(keypoints[..., 2], (0, 1, 2)).all(axis=1)
    if not known.all():
        raise ValueError(f"annotation {entries[known.argmin()]['id']} has a visibility other than 0, 1 and 2")
    labelled = np.count_nonzero(keypoints[..., 2], axis=1).tolist()
    people: dict[int, list[PersonAnnotation]] = {number: [] for number in images}
    for entry, joints, num_labelled in zip(entries, skeleton.from_file(keypoints), labelled):
        image = images[entry["image_id"]]
        people[image.id].append(_person(entry, joints, num_labelled, image))
    return CocoDataset(path, tuple(images.values()), people)


def _person_entries(document: dict[str, Any], images: dict[int, CocoImage], skeleton: Skeleton) -> list[dict[str, Any]]:
    """The annotations of the category that has the skeleton's keypoints, their ids checked."""
    categories = {
        checked_integer(entry, "id", "a category"): entry.get("keypoints") for entry in document["categories"]
    }
    wanted = {number for number, names in categories.items() if names == list(skeleton.file_names)}
    if not wanted:
        found = next((names for names in categories.values() if names), "none")
        raise ValueError(
            f"no category has the keypoints {', '.join(skeleton.file_names)} (found: {truncate_for_message(found)}); "
            "name another skeleton by --skeleton or model.skeleton"
        )
    seen: set[int] = set()
    for entry in document["annotations"]:
        number = checked_integer(entry, "id", "an annotation")
        if number in seen:
            raise ValueError(f"annotation id {number} appears twice")
        seen.add(number)
        if (image_id := checked_integer(entry, "image_id", f"annotation {number}")) not in images:
            raise ValueError(f"annotation {number} names image {image_id}, which is not listed")
        if (category := checked_integer(entry, "category_id", f"annotation {number}")) not in categories:
            raise ValueError(f"annotation {number} names category {category}, which is not listed")
    return [entry for entry in document["annotations"] if entry["category_id"] in wanted]


def lies_inside(name: str) -> bool:
    """Whether a file name, on any system, stays inside the folder it is relative to."""
    parts = PurePosixPath(name).parts + PureWindowsPath(name).parts
    return not (".." in parts or PurePosixPath(name).root or PureWindowsPath(name).anchor) and name.isprintable()


def checked_image(entry: dict[str, Any]) -> CocoImage:
    """An entry of ``images``; ``ValueError`` where it makes no sense or names a file outside the image folder."""
    number = checked_integer(entry, "id", "an image")
    name = entry.get("file_name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"image {number} has no file_name")
    if not lies_inside(name):
        raise ValueError(
            f"image {number} has file_name {truncate_for_message(name)}, which is not a path inside the image folder"
        )
    height, width = (checked_integer(entry, key, f"image {number}") for key in ("height", "width"))
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise ValueError(f"image {number} has the impossible size {width} x {height}")
    return CocoImage(number, name, height, width)


def _person(entry: dict[str, Any], joints: np.ndarray, num_labelled: int, image: CocoImage) -> PersonAnnotation:
    box, (area,) = checked_numbers(entry, "bbox", 4), checked_numbers(entry, "area", 1)
    if min(area, *box[2:]) < 0:
        raise ValueError(f"annotation {entry['id']} has a box or area of negative size")
    if (crowd := entry.get("iscrowd", 0)) not in (0, 1):
        raise ValueError(
            f"annotation {entry['id']} has iscrowd {truncate_for_message(crowd)}, which is neither 0 nor 1"
        )
    return PersonAnnotation(
        entry["id"], joints, num_labelled, box, float(area), bool(crowd), _segmentation(entry, image)
    )


def checked_integer(entry: dict[str, Any], key: str, owner: str) -> int:
    """``entry[key]``; ``ValueError`` where it is no whole number of 64 bits."""
    value = entry.get(key)
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"{owner} has no whole number as {key}: {truncate_for_message(value)}")
    return value


def checked_numbers(entry: dict[str, Any], key: str, count: int) -> np.ndarray:
    """(count,) float32 of ``entry[key]``; a person without keypoints has none labelled.

    Raises:
        ValueError: other than ``count`` finite numbers.
    """
    value = entry.get(key, [0] * count if key == "keypoints" else None)
    value = [value] if count == 1 else value
    if not isinstance(value, list) or len(value) != count or not set(map(type, value)) <= {int, float}:
        raise ValueError(f"annotation {entry['id']}: {key} must hold {count} number{'s'[: count > 1]}")
    if not all(abs(number) < MAX_NUMBER for number in value):
        raise ValueError(f"annotation {entry['id']}: {key} holds a number that is not finite or absurdly large")
    return np.array(value, np.float32)


def _segmentation(entry: dict[str, Any], image: CocoImage) -> list[list[float]] | np.ndarray | None:
    """A checked outline, or None where there is none, it is damaged or it fits another size."""
    outline = entry.get("segmentation")
    if isinstance(outline, list):
        return [polygon for polygon in outline if _is_polygon(polygon, entry["id"])] or None
    if not isinstance(outline, dict) or outline.get("size") != [image.height, image.width]:
        return None
    counts, total = outline.get("counts"), image.height * image.width
    try:
        if isinstance(counts, str):
            return rle.check(rle.parse(counts.encode()), total)
        if isinstance(counts, list) and set(map(type, counts)) <= {int}:
            return rle.check(np.array(counts, np.int64), total)
    except (ValueError, OverflowError):
        pass
    return None


def _is_polygon(polygon: Any, owner: int) -> bool:
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2 or set(map(type, polygon)) - {int, float}:
        return False
    if not math.isfinite(sum(polygon)):
        raise ValueError(f"annotation {owner}: segmentation holds a number that is not finite")
    # The rasteriser walks along every edge, so that absurd coordinates or zigzags would cost gigabytes.
    low, high = min(polygon), max(polygon)
    if high > MAX_SIDE or low < -MAX_SIDE:
        return False
    if len(polygon) * (high - low) <= MAX_OUTLINE:  # no edge goes farther than that on both axes
        return True
    corners = np.array(polygon).reshape(-1, 2)
    return np.abs(corners - np.roll(corners, 1, axis=0)).sum() <= MAX_OUTLINE


def _apart(earlier: np.ndarray, later: np.ndarray) -> bool:
    """Whether the box centres are farther apart than the earlier box demands."""
    distance = math.dist(earlier[:2] + earlier[2:] / 2, later[:2] + later[2:] / 2)
    return distance > MIN_DISTANCE * max(earlier[2:])

"""The images and people of a COCO keypoint file, as the store builder reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posenet.annotations.coco_file import (
    CocoImage,
    Entry,
    UniqueIds,
    check_visibility,
    parse_area,
    parse_box,
    parse_category,
    parse_crowd_flag,
    parse_images,
    parse_keypoints,
    parse_reference,
    parse_segmentation,
    read_sections,
    require_skeleton,
)
from posenet.annotations.problems import problems_as_data_errors
from posenet.skeleton import COCO, Skeleton


@dataclass(frozen=True, eq=False)
class PersonAnnotation:
    """One person or crowd region.

    Attributes:
        keypoints: (K, 3) float32 x, y, visibility in the skeleton's order, derived keypoints included.
        num_labelled: labelled keypoints among those in the file.
        box: (4,) float32 x, y, width, height.
        area: square pixels.
        crowd: the region covers several people.
        segmentation: polygons, flat lists x, y, x, y, ...; or (runs,) int64 run lengths; or None where the file has
            no usable outline, and the box stands in for it.
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
        """Whether this is a single person with at least one labelled keypoint."""
        return self.num_labelled > 0 and not self.crowd


@dataclass(frozen=True)
class CocoDataset:
    """An annotation file: its images in file order and, for every image id, its people in file order."""

    path: Path
    images: tuple[CocoImage, ...]
    people: dict[int, list[PersonAnnotation]]


def read_annotations(path: str | Path, skeleton: Skeleton = COCO) -> CocoDataset:
    """Read a COCO keypoint file.

    Annotations of categories with other keypoints than the skeleton's are left out. Keypoints may lie outside the
    image and boxes may be empty. A person without ``keypoints`` has no labelled ones.

    Raises:
        DataError: the file is missing, is not JSON or not COCO, describes other keypoints, or breaks a rule of
            ``posenet.annotations.coco_file``.
    """
    with problems_as_data_errors(path):
        sections = read_sections(path)
        images = parse_images(sections["images"])
        entries = _person_entries(sections, images, skeleton)
        people = _parse_people(entries, images, skeleton)
    return CocoDataset(Path(path), tuple(images.values()), people)


def _person_entries(
    sections: Mapping[str, list[Entry]], images: Mapping[int, CocoImage], skeleton: Skeleton
) -> list[Entry]:
    """The annotations of the categories with the skeleton's keypoints; the ids of all annotations are checked."""
    categories = [parse_category(entry) for entry in sections["categories"]]
    listed = {category.id for category in categories}
    wanted = {category.id for category in require_skeleton(categories, skeleton)}
    ids = UniqueIds("annotation")
    chosen = []
    for entry in sections["annotations"]:
        ids.parse(entry)
        parse_reference(entry, "image_id", images)
        if parse_reference(entry, "category_id", listed) in wanted:
            chosen.append(entry)
    return chosen


def _parse_people(
    entries: list[Entry], images: Mapping[int, CocoImage], skeleton: Skeleton
) -> dict[int, list[PersonAnnotation]]:
    """The people of every image. Arrays are made for all annotations at once, which is many times faster."""
    count = len(skeleton.file_names)
    keypoints = np.array([parse_keypoints(entry, count) for entry in entries], np.float32).reshape(-1, count, 3)
    check_visibility(keypoints, entries)
    joints = skeleton.to_network_order(keypoints)
    num_labelled = np.count_nonzero(keypoints[..., 2], axis=1).tolist()
    boxes = np.array([parse_box(entry) for entry in entries], np.float32).reshape(-1, 4)
    areas = np.array([parse_area(entry) for entry in entries], np.float32).tolist()
    people: dict[int, list[PersonAnnotation]] = {number: [] for number in images}
    for index, entry in enumerate(entries):
        image = images[entry["image_id"]]
        person = PersonAnnotation(
            id=entry["id"],
            keypoints=joints[index],
            num_labelled=num_labelled[index],
            box=boxes[index],
            area=areas[index],
            crowd=parse_crowd_flag(entry),
            segmentation=parse_segmentation(entry, image),
        )
        people[image.id].append(person)
    return people

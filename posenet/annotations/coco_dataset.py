"""The images and people of a COCO keypoint file, as the store builder reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posenet.annotations import coco_file
from posenet.annotations.coco_file import CocoImage, Entry
from posenet.annotations.problems import problems_as_data_errors
from posenet.skeleton import COCO, Skeleton


@dataclass(frozen=True, eq=False)
class PersonAnnotation:
    """One person or crowd region."""

    id: int
    keypoints: np.ndarray  # (K, 3) float32 x, y, visibility in channel order, derived keypoints included
    num_labelled: int  # labelled keypoints in the file, without derived ones
    box: np.ndarray  # (4,) float32 x, y, width, height
    area: float  # square pixels
    crowd: bool  # whether the region covers several people
    segmentation: list[list[float]] | np.ndarray | None  # see ``coco_file.parse_segmentation``; None: use the box

    @property
    def labelled(self) -> bool:
        """Whether this is a single person with at least one labelled keypoint."""
        return self.num_labelled > 0 and not self.crowd


@dataclass(frozen=True)
class CocoDataset:
    """The images of an annotation file, and the people of every image id, both in file order."""

    path: Path
    images: tuple[CocoImage, ...]
    people: dict[int, list[PersonAnnotation]]


def read_annotations(path: str | Path, skeleton: Skeleton = COCO) -> CocoDataset:
    """Read a COCO keypoint file.

    Annotations of categories with other keypoints than the skeleton's are left out. Keypoints may be outside the image,
    and boxes may be empty. A person without ``keypoints`` has no labelled ones.

    Raises:
        DataError: the file is missing, is not a COCO file, has other keypoints, or fails a check of
            ``posenet.annotations.coco_file``.
    """
    with problems_as_data_errors(path):
        sections = coco_file.read_sections(path)
        images = coco_file.parse_images(sections["images"])
        entries = _person_entries(sections, images, skeleton)
        people = _parse_people(entries, images, skeleton)
    return CocoDataset(Path(path), tuple(images.values()), people)


def _person_entries(
    sections: Mapping[str, list[Entry]], images: Mapping[int, CocoImage], skeleton: Skeleton
) -> list[Entry]:
    """Select the annotations of the categories with the skeleton's keypoints; check the ids of all annotations."""
    categories = [coco_file.parse_category(entry) for entry in sections["categories"]]
    listed = {category.id for category in categories}
    wanted = {category.id for category in coco_file.require_skeleton(categories, skeleton)}
    ids = coco_file.UniqueIds("annotation")
    chosen = []
    for entry in sections["annotations"]:
        ids.parse(entry)
        coco_file.parse_reference(entry, "image_id", images)
        if coco_file.parse_reference(entry, "category_id", listed) in wanted:
            chosen.append(entry)
    return chosen


def _parse_people(
    entries: list[Entry], images: Mapping[int, CocoImage], skeleton: Skeleton
) -> dict[int, list[PersonAnnotation]]:
    """The people of every image. Numbers of all annotations are converted together, which is many times faster."""
    count = len(skeleton.file_names)
    keypoints = np.array([coco_file.parse_keypoints(entry, count) for entry in entries], np.float32).reshape(
        -1, count, 3
    )
    coco_file.check_visibility(keypoints, entries)
    joints = skeleton.to_network_order(keypoints)
    num_labelled = np.count_nonzero(keypoints[..., 2], axis=1).tolist()
    boxes = np.array([coco_file.parse_box(entry) for entry in entries], np.float32).reshape(-1, 4)
    areas = np.array([coco_file.parse_area(entry) for entry in entries], np.float32).tolist()
    people: dict[int, list[PersonAnnotation]] = {image_id: [] for image_id in images}
    for index, entry in enumerate(entries):
        image_id = entry["image_id"]
        person = PersonAnnotation(
            id=entry["id"],
            keypoints=joints[index],
            num_labelled=num_labelled[index],
            box=boxes[index],
            area=areas[index],
            crowd=coco_file.parse_crowd_flag(entry),
            segmentation=coco_file.parse_segmentation(entry, images[image_id]),
        )
        people[image_id].append(person)
    return people

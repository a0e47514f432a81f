"""The images of a split that a network is evaluated on, and the people in them as pycocotools reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenet.annotations.coco_file import (
    Category,
    CocoImage,
    Entry,
    parse_area,
    parse_box,
    parse_category,
    parse_crowd_flag,
    parse_images,
    parse_keypoints,
    parse_reference,
    read_sections,
    require_skeleton,
)
from posenet.annotations.problems import problems_as_data_errors
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton


@dataclass(frozen=True)
class Split:
    """The images to predict and the people in them.

    Attributes:
        category: id of the category that predictions are written for. Of several with the skeleton's keypoints it is
            the one called "person", else the first.
        people: COCO annotations of all categories with the skeleton's keypoints, as if of ``category``; empty for a
            test set.
    """

    images: list[CocoImage]
    category: int
    people: list[dict[str, Any]]

    @property
    def annotated(self) -> bool:
        """Whether there are people to compare predictions with."""
        return bool(self.people)


def read_split(path: str | Path, image_ids: Collection[int] | None = None, skeleton: Skeleton = COCO) -> Split:
    """Read the annotation file of a split, or an image-info file without annotations.

    Args:
        image_ids: take only these images.

    Raises:
        DataError: the file is not COCO, has no images or people without keypoints, or an image id is not in it.
    """
    with problems_as_data_errors(path):
        sections = read_sections(path, required=["images"])
        images = parse_images(sections["images"])
        categories = _person_categories([parse_category(entry) for entry in sections["categories"]], skeleton)
        category_ids = {category.id for category in categories}
        entries = [entry for entry in sections["annotations"] if parse_reference(entry, "category_id") in category_ids]
        if entries and not any("keypoints" in entry for entry in entries):
            raise DataError(f"{path} holds people without keypoints; use person_keypoints_*.json")
        # Several categories with the same keypoints, such as kinds of animals, count as one.
        category = max(categories, key=lambda category: category.name == "person").id
        people = [_ground_truth(entry, category, len(skeleton.file_names)) for entry in entries]
    if image_ids is not None:
        if unknown := set(image_ids) - set(images):
            raise DataError(f"{path} has no image {min(unknown)}; correct --image-ids")
        images = {number: images[number] for number in image_ids}
    if not images:
        raise DataError(f"{path} lists no images; use person_keypoints_*.json")
    return Split(list(images.values()), category, people)


def _person_categories(categories: Sequence[Category], skeleton: Skeleton) -> list[Category]:
    """The categories with the skeleton's keypoints; in a file without any keypoints the one called person."""
    if any(category.keypoints for category in categories):
        return require_skeleton(categories, skeleton)
    called_person = [category for category in categories if category.name == "person"]
    return (called_person or [*categories, Category(1, "person", (), None)])[:1]


def _ground_truth(entry: Entry, category: int, count: int) -> dict[str, Any]:
    """The fields of an annotation that the COCO evaluation reads, checked.

    Without keypoints, as crowds often are, all are unlabelled. Visibilities are not checked: pycocotools counts every
    value above 0 as labelled.
    """
    keypoints = [0.0] * 3 * count
    if entry.get("keypoints"):
        keypoints = parse_keypoints(entry, count)
    return {
        "image_id": parse_reference(entry, "image_id"),
        "category_id": category,
        "keypoints": keypoints,
        "num_keypoints": sum(visibility > 0 for visibility in keypoints[2::3]),
        "bbox": parse_box(entry),
        "area": parse_area(entry),
        "iscrowd": int(parse_crowd_flag(entry)),
    }

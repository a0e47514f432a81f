"""The images of a split for the COCO evaluation, and the annotated people in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenet.annotations import coco_file
from posenet.annotations.coco_file import Category, CocoImage, Entry
from posenet.annotations.problems import problems_as_data_errors
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton


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


def read_split(path: str | Path, image_ids: Collection[int] | None = None, skeleton: Skeleton = COCO) -> Split:
    """Read the annotation file of a split, or an image-info file without annotations; only ``image_ids`` if given.

    Raises:
        DataError: the file is not a COCO file, has no images, has only people without keypoints, or lacks an image.
    """
    with problems_as_data_errors(path):
        sections = coco_file.read_sections(path, required=["images"])
        images = coco_file.parse_images(sections["images"])
        categories = _person_categories([coco_file.parse_category(entry) for entry in sections["categories"]], skeleton)
        category_ids = {category.id for category in categories}
        entries = [
            entry
            for entry in sections["annotations"]
            if coco_file.parse_reference(entry, "category_id") in category_ids
        ]
        if entries and not any("keypoints" in entry for entry in entries):
            raise DataError(f"{path} contains people without keypoints; use person_keypoints_*.json")
        category = max(categories, key=lambda category: category.name == "person").id
        people = [_ground_truth(entry, category, len(skeleton.file_names)) for entry in entries]
    if image_ids is not None:
        if unknown := set(image_ids) - set(images):
            raise DataError(f"{path} has no image {min(unknown)}; correct --image-ids")
        images = {image_id: images[image_id] for image_id in image_ids}
    if not images:
        raise DataError(f"{path} lists no images; use person_keypoints_*.json")
    return Split(list(images.values()), category, people, frozenset(category_ids))


def _person_categories(categories: Sequence[Category], skeleton: Skeleton) -> list[Category]:
    """The categories with the skeleton's keypoints; in a file without any keypoints the one called person, if any."""
    if any(category.keypoints for category in categories):
        return coco_file.require_skeleton(categories, skeleton)
    by_name = sorted(categories, key=lambda category: category.name != "person")
    return by_name[:1] or [Category(1, "person", (), None)]


def _ground_truth(entry: Entry, category: int, count: int) -> dict[str, Any]:
    """The fields of an annotation that the COCO evaluation reads, checked.

    In an annotation without keypoints, as crowds often are, all are unlabelled. Visibilities are not checked:
    pycocotools counts every value above 0 as labelled.
    """
    keypoints = coco_file.parse_keypoints(entry, count) if entry.get("keypoints") else [0.0] * 3 * count
    return {
        "image_id": coco_file.parse_reference(entry, "image_id"),
        "category_id": category,
        "keypoints": keypoints,
        "num_keypoints": sum(visibility > 0 for visibility in keypoints[2::3]),
        "bbox": coco_file.parse_box(entry),
        "area": coco_file.parse_area(entry),
        "iscrowd": int(coco_file.parse_crowd_flag(entry)),
    }

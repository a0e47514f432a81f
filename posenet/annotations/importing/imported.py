"""A data set of another format as COCO annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
from posenet.annotations.people import box_of_points, estimate_area
from posenet.errors import DataError
from posenet.images import read_header
from posenet.messages import to_single_line
from posenet.skeleton import COCO

DECIMALS = 3
"""Decimals of coordinates and areas."""


class ImportedPerson(NamedTuple):
    """A person in shares of the displayed image, in which the other formats annotate."""

    category_id: int
    keypoints: np.ndarray  # (K, 3) x, y and visibility
    box: Sequence[float] | None  # x, y, width, height; None for that around the labelled keypoints


class ImportedAnnotations(NamedTuple):
    """The result of an import."""

    document: dict[str, list[Entry]]
    folder: Path  # the file names of the images are relative to it
    notes: tuple[str, ...]  # what was left out, and other remarks: one line each


def to_coco(
    people_of: Mapping[Path, Sequence[ImportedPerson]],
    categories: Mapping[int, str],
    keypoints: Sequence[str],
    whole: float,
    notes: Sequence[str],
    flip_idx: Sequence[int] | None = None,
) -> ImportedAnnotations:
    """Convert the people of all images to COCO annotations in pixels. Areas are estimated (see ``estimate_area``).

    Args:
        people_of: by image; the innermost folder that holds all images becomes that of the data set.
        categories: their names by id.
        keypoints: names of the keypoints of all categories; COCO's names get COCO's connections.
        whole: the share that is the whole image: 1 for fractions, 100 for percentages.
        flip_idx: for every keypoint the number of its twin on the other side, or its own; None if that is not known.

    Raises:
        DataError: an image cannot be read, or its name cannot be written to JSON and read again.
    """
    folder = Path(os.path.commonpath([path.parent for path in people_of]))
    edges = COCO_CATEGORY["skeleton"] if tuple(keypoints) == COCO.file_names else []
    shape = {"keypoints": list(keypoints), "skeleton": edges}
    if flip_idx is not None:
        shape["flip_idx"] = list(flip_idx)
    images: list[Entry] = []
    annotations: list[Entry] = []
    for image_id, (path, people) in enumerate(people_of.items(), start=1):
        name = path.relative_to(folder).as_posix()
        if not name.isprintable():
            raise DataError(f"the name of {to_single_line(str(path))} is not UTF-8 or not printable; rename the file")
        height, width = read_header(path).displayed_size
        images.append({"id": image_id, "file_name": name, "height": height, "width": width})
        for person in people:
            ids = {"id": len(annotations) + 1, "image_id": image_id, "category_id": person.category_id}
            annotations.append(ids | _annotation(person, np.array([width, height]) / whole))
    document = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number, "name": name} | shape for number, name in categories.items()],
    }
    return ImportedAnnotations(document, folder, tuple(notes))


def _annotation(person: ImportedPerson, scale: np.ndarray) -> dict[str, Any]:
    """The annotation without ids; ``scale`` is (2,) pixels for one unit of x and y. The area is estimated."""
    labelled = person.keypoints[:, 2] > 0
    points = person.keypoints[:, :2] * scale
    box = box_of_points(points[labelled]) or [0.0, 0.0, 0.0, 0.0]
    if person.box is not None:
        box = (np.array(person.box) * np.tile(scale, 2)).tolist()
    keypoints = np.where(labelled[:, None], np.column_stack([points, person.keypoints[:, 2]]), 0)
    values: list[float] = []
    for x, y, visibility in keypoints.tolist():
        values += [round(x, DECIMALS), round(y, DECIMALS), int(visibility) if visibility.is_integer() else visibility]
    return {
        "keypoints": values,
        "num_keypoints": int(labelled.sum()),
        "bbox": [round(value, DECIMALS) for value in box],
        "area": round(estimate_area(box, points[labelled]), DECIMALS),
        "iscrowd": 0,
        "segmentation": [],
    }

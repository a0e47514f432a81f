"""A data set in COCO's format while it is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
from posenet.errors import DataError
from posenet.images import read_header
from posenet.messages import to_single_line
from posenet.skeleton import COCO

DECIMALS = 3
"""Decimals of coordinates and areas."""


class ImportedAnnotations(NamedTuple):
    """The result of an import."""

    document: dict[str, list[Entry]]
    folder: Path
    """The file names of the images are relative to this folder."""
    notes: tuple[str, ...]
    """What was left out, and other remarks: one line each."""


class ImportedDataset:
    """Collects images and annotations, and numbers them.

    Args:
        paths: the images; the innermost folder that holds all of them becomes that of the data set.
        categories: names of the categories by id.
        keypoints: names of the keypoints of all categories; COCO's names get COCO's connections.
    """

    def __init__(self, paths: Sequence[Path], categories: dict[int, str], keypoints: Sequence[str]) -> None:
        self.folder = Path(os.path.commonpath([path.parent for path in paths]))
        edges = COCO_CATEGORY["skeleton"] if tuple(keypoints) == COCO.file_names else []
        shape = {"keypoints": list(keypoints), "skeleton": edges}
        self.document: dict[str, list[Entry]] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": number, "name": name} | shape for number, name in categories.items()],
        }

    def add_image(self, path: Path) -> tuple[int, int]:
        """Add an image, to which the annotations that follow belong.

        Returns:
            (height, width) of the displayed image, in which the other formats annotate.

        Raises:
            DataError: the file cannot be read, or its name cannot be written to JSON and read again.
        """
        name = path.relative_to(self.folder).as_posix()
        if not name.isprintable():
            raise DataError(f"the name of {to_single_line(str(path))} is not UTF-8 or not printable; rename the file")
        height, width = read_header(path).displayed_size
        images = self.document["images"]
        images.append({"id": len(images) + 1, "file_name": name, "height": height, "width": width})
        return height, width

    def add_annotation(self, category_id: int, keypoints: np.ndarray, box: Sequence[float]) -> None:
        """Add an annotation of the last image.

        Args:
            keypoints: (K, 3) x, y in pixels and visibility. Those that are not labelled are written as zeros.
            box: x, y, width, height in pixels. Its area becomes that of the annotation, as there is no outline.
        """
        labelled = keypoints[:, 2] > 0
        values: list[float] = []
        for x, y, visibility in np.where(labelled[:, None], keypoints, 0).tolist():
            whole = int(visibility) if visibility.is_integer() else visibility
            values += [round(x, DECIMALS), round(y, DECIMALS), whole]
        annotations = self.document["annotations"]
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": len(self.document["images"]),
                "category_id": category_id,
                "keypoints": values,
                "num_keypoints": int(labelled.sum()),
                "bbox": [round(float(value), DECIMALS) for value in box],
                "area": round(float(box[2] * box[3]), DECIMALS),
                "iscrowd": 0,
                "segmentation": [],
            }
        )

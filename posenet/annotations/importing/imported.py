"""The result of an import, and what the importers share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.coco_file import COCO_CATEGORY, Entry
from posenet.skeleton import COCO

DECIMALS = 3
"""Decimals of coordinates and areas."""


class ImportedAnnotations(NamedTuple):
    """A data set in COCO's format."""

    document: dict[str, list[Entry]]
    folder: Path
    """The file names of the images are relative to this folder."""
    notes: tuple[str, ...]
    """What was left out, and other remarks: one line each."""


def make_category(category_id: int, name: str, keypoints: Sequence[str]) -> Entry:
    """An entry of ``categories``; keypoints with COCO's names get COCO's connections."""
    connections = COCO_CATEGORY["skeleton"] if tuple(keypoints) == COCO.file_names else []
    return {"id": category_id, "name": name, "keypoints": list(keypoints), "skeleton": connections}


def make_annotation(image_id: int, category_id: int, keypoints: np.ndarray, box: Sequence[float]) -> dict[str, Any]:
    """An entry of ``annotations`` without its id.

    Args:
        keypoints: (K, 3) x, y in pixels and visibility. Those that are not labelled are written as zeros.
        box: x, y, width, height in pixels. Its area becomes that of the annotation, as there is no outline.
    """
    labelled = keypoints[:, 2] > 0
    values: list[float] = []
    for x, y, visibility in np.where(labelled[:, None], keypoints, 0).tolist():
        values += [round(x, DECIMALS), round(y, DECIMALS), int(visibility) if visibility.is_integer() else visibility]
    return {
        "image_id": image_id,
        "category_id": category_id,
        "keypoints": values,
        "num_keypoints": int(labelled.sum()),
        "bbox": [round(float(value), DECIMALS) for value in box],
        "area": round(float(box[2] * box[3]), DECIMALS),
        "iscrowd": 0,
        "segmentation": [],
    }


def common_folder(paths: Sequence[Path]) -> Path:
    """The innermost folder that holds all of some files."""
    return Path(os.path.commonpath([path.parent for path in paths]))

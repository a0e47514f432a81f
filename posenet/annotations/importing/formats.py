"""Annotations in any format that is known, as a COCO-shaped document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posenet.annotations.coco import read_document, select_sections
from posenet.annotations.importing.find_images import find_images
from posenet.annotations.importing.imported import ImportedAnnotations
from posenet.annotations.importing.label_studio import import_label_studio
from posenet.annotations.importing.yolo_pose import import_yolo_pose
from posenet.errors import DataError


def read_annotations(
    path: str | Path,
    *,
    images: str | Path | None = None,
    split: str = "train",
    keypoints: Sequence[str] | None = None,
) -> ImportedAnnotations:
    """Read a data set as a COCO-shaped document, with the folder of its images and remarks.

    ``DataError`` if the format is not known, a file is damaged, or no image is found.
    """
    path = Path(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        if images is not None:
            raise DataError(f"{path} names the folders of its images; leave out images=DIR")
        return import_yolo_pose(path, split, keypoints, number_unnamed=True)
    content = read_document(path)
    if isinstance(content, dict):
        sections = select_sections(content, path, ["images"])
        folder = find_images(path, sections["images"]) if images is None else Path(images)
        return ImportedAnnotations(content, folder, ())
    if not (isinstance(content, list) and all(isinstance(task, dict) and "data" in task for task in content)):
        raise DataError(
            f"{path} has no annotations: a file of COCO keypoints has images, annotations and categories, and the "
            "JSON export of Label Studio (not JSON-MIN) is a list of tasks; results are not annotations"
        )
    beside = path.parent / "images"
    return import_label_studio(path, images or (beside if beside.is_dir() else path.parent), keypoints)

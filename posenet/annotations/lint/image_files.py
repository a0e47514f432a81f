"""Checks of the image files that an annotation file lists: presence, size, and the frame of their annotations."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations.coco_file import CocoImage
from posenet.annotations.lint.findings import Findings
from posenet.annotations.problems import error_kind, warning_kind
from posenet.devices.background import map_in_background
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images.headers import exif_orientation
from posenet.images.image_files import read_annotated_image
from posenet.images.orientation import AnnotatedFrame
from posenet.progress import progress_bar
from posenet.settings import ExifFrame

MISSING_FILE = error_kind(
    "missing-file",
    "images without a file in the image folder",
    "restore the files, or delete the images and annotations",
)
UNREADABLE_FILE = error_kind(
    "unreadable-file", "files that cannot be decoded", "save them again as JPEG or PNG, or delete the images"
)
WRONG_SIZE = error_kind(
    "wrong-size",
    "images of another size than annotated",
    "correct width and height to those of the file; if the image was resized, scale the annotations too",
)
EXIF_BY_SIZE = warning_kind(
    "exif-by-size",
    "images with an EXIF orientation, annotated in the frame that their width and height show",
    "nothing: all tools follow the size; keep width and height as they are, and the files too",
)
EXIF_BY_SETTING = warning_kind(
    "exif-by-setting",
    "images with an EXIF orientation, of a size that fits both frames: --exif-frame decides",
    "look at some with posenet build-hdf5 --preview; if the keypoints are wrong, use the other --exif-frame in all "
    "tools and as data.exif_frame; do not change the coordinates",
)


class _FileCheck(NamedTuple):
    """What is known of an image file; all None if it cannot be decoded."""

    size: tuple[int, int] | None = None
    """(height, width) in the frame of the annotations."""
    frame: AnnotatedFrame | None = None
    orientation: int | None = None
    """The EXIF orientation of the file, 1-8."""


def check_files(
    images: Collection[CocoImage], folder: Path, exif_frame: ExifFrame, findings: Findings
) -> frozenset[int]:
    """Check that every image has a file that can be decoded and has the annotated size.

    Returns:
        Ids of the images that have the size of their stored pixels, but would be displayed with height and width
        swapped. If their keypoints are outside, only the size is wrong.
    """
    workers = usable_cores()
    checks = map_in_background(
        lambda image: _check_file(folder / image.file_name, image, exif_frame),
        images,
        workers=workers,
        ahead=2 * workers,
    )
    displayed_sideways = set()
    for image, check in progress_bar(zip(images, checks), "images", len(images)):
        if check.frame is None:
            is_present = (folder / image.file_name).is_file()
            if is_present or "\\" not in image.file_name:  # a backslash is a finding already
                findings.add(UNREADABLE_FILE if is_present else MISSING_FILE, image.file_name)
        elif check.size != (image.height, image.width):
            findings.add(WRONG_SIZE, image.file_name)
        elif check.frame.reason != "no tag":
            kind = EXIF_BY_SIZE if check.frame.reason == "size" else EXIF_BY_SETTING
            findings.add(kind, f"{image.file_name} (orientation {check.orientation}, {check.frame})")
            if check.frame == AnnotatedFrame(1, "size"):
                displayed_sideways.add(image.id)
    return frozenset(displayed_sideways)


def _check_file(path: Path, image: CocoImage, exif_frame: ExifFrame) -> _FileCheck:
    try:
        pixels, frame = read_annotated_image(path, image.height, image.width, exif_frame)
    except DataError:
        return _FileCheck()
    height, width = pixels.shape[:2]
    orientation = None if frame.reason == "no tag" else exif_orientation(np.fromfile(path, np.uint8))
    return _FileCheck((height, width), frame, orientation)

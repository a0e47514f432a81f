"""The images on which the ranges of an 8-bit network are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.images import read_image
from posenet.inference.letterbox import Letterbox
from posenet.synthetic.dataset import render_image

CALIBRATION_IMAGES = 64
"""Number of calibration images by default. More change the ranges little."""

MakeLetterbox = Callable[[tuple[int, int]], Letterbox]
"""How an image of (height, width) is resized and padded; ``Predictor.letterbox``."""


def choose_calibration_files(files: Sequence[Path], limit: int) -> list[Path]:
    """At most ``limit`` files, at equal distances in the list, so that they come from all of its parts."""
    if len(files) <= limit:
        return list(files)
    positions = np.linspace(0, len(files) - 1, limit).round().astype(int)
    return [files[position] for position in positions]


def read_calibration_images(files: Sequence[Path], letterbox: MakeLetterbox) -> list[np.ndarray]:
    """Read images, and resize and pad them as for prediction.

    Returns:
        (H, W, 3) uint8 BGR each, H and W multiples of 64.

    Raises:
        DataError: a file cannot be read.
    """
    images = (read_image(file) for file in files)
    return [letterbox(image.shape[:2]).apply(image) for image in images]


def draw_calibration_images(count: int, letterbox: MakeLetterbox, seed: int = 0) -> list[np.ndarray]:
    """Draw people, and resize and pad the drawings as ``read_calibration_images`` does.

    They serve to measure the speed of an 8-bit network. For its accuracy, calibrate on images like those to predict.
    """
    drawings = (render_image(seed, "train", index)[0] for index in range(count))
    return [letterbox(drawing.shape[:2]).apply(drawing) for drawing in drawings]


def find_calibrated(files: Sequence[Path], folder: Path, images: Sequence[CocoImage]) -> set[int]:
    """The ids of the images of a split that are among the calibration files, as the same file or as an equal one.

    Args:
        folder: folder of the split's images. Images that are missing there are not compared.
    """
    paths = {file.resolve() for file in files}
    sizes = {file.stat().st_size for file in files}
    digests = {_digest(file) for file in files}

    def is_calibrated(path: Path) -> bool:
        if path.resolve() in paths:
            return True
        # Files of different sizes are different, so that most files need not be read.
        return path.is_file() and path.stat().st_size in sizes and _digest(path) in digests

    return {image.id for image in images if is_calibrated(folder / image.file_name)}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()

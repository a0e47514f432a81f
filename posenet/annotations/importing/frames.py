"""Frames of videos as images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.images import write_image


def write_frames(video: Path, numbers: Sequence[int], folder: Path) -> dict[int, Path]:
    """Write frames of a video to images in a folder, unless they are there; ``DataError`` if one cannot be read.

    The frames are read in order, because seeking is not exact in all formats.
    """
    capture = cv2.VideoCapture(str(video))
    position = 0

    def read(number: int) -> np.ndarray:
        nonlocal position
        is_there = True
        while is_there and position <= number:
            is_there = capture.grab()
            position += 1
        is_read, image = capture.retrieve() if is_there else (False, None)
        if not is_read:
            raise DataError(f"frame {number} of {video} cannot be read; give the video that was labelled, complete")
        return np.asarray(image)

    try:
        return write_images(video.stem, sorted(numbers), folder, read)
    finally:
        capture.release()


def write_images(stem: str, numbers: Sequence[int], folder: Path, read: Callable[[int], np.ndarray]) -> dict[int, Path]:
    """Write numbered images to a folder, unless they are there; ``DataError`` if that fails."""
    paths = {number: folder / f"{stem}_{number:06d}.png" for number in numbers}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {folder} for frames: {error.strerror or error}") from error
    for number, path in paths.items():
        if not path.exists():
            write_image(path, read(number))
    return paths

"""One image of a store and its people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from posenet.data import rle
from posenet.data.picture import declared_size
from posenet.errors import DataError


@dataclass(frozen=True, eq=False)
class Record:
    """One image and its P people; coordinates are pixels of the stored picture, EXIF orientation ignored.

    Attributes:
        source: what errors name, the store's path.
        jpeg: (bytes,) uint8, the file's original bytes, of whatever format OpenCV reads.
        joints: (P, K, 3) float32 x, y, visibility.
        boxes: (P, 4) float32 x, y, width, height.
        areas: (P,) float32 square pixels.
        annotation_ids: (P,) int64.
        mask_all_rle, mask_miss_rle: COCO's compressed run lengths.
    """

    source: Path
    image_id: int
    file_name: str
    height: int
    width: int
    jpeg: np.ndarray
    joints: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    annotation_ids: np.ndarray
    mask_all_rle: bytes
    mask_miss_rle: bytes

    def decode_image(self) -> np.ndarray:
        """(H, W, 3) BGR uint8; ``DataError`` where the bytes are damaged or the size is not the annotated one."""
        try:
            return decode_picture(self.jpeg, self.height, self.width)
        except ValueError as error:
            raise self.fault(str(error)) from error

    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """``mask_all`` and ``mask_miss``, (H, W) uint8 of 0 and 1; ``DataError`` where they are damaged."""
        try:
            return (rle.decode(self.mask_all_rle, self.height, self.width),
                    rle.decode(self.mask_miss_rle, self.height, self.width))
        except ValueError as error:
            raise self.fault(f"has masks with {error}") from error

    def fault(self, what: str) -> DataError:
        """An error that names the store and the image."""
        return DataError(f"{self.source}: image {self.image_id} ({self.file_name}) {what}; "
                         "restore the picture and build the store anew")


def decode_picture(data: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W, 3) BGR uint8 of a picture file's bytes, EXIF orientation ignored as in COCO's annotations.

    Raises:
        ValueError: OpenCV cannot decode the bytes, or the picture is not ``height`` by ``width`` pixels.
    """
    if (size := declared_size(data)) not in (None, (height, width)):
        raise ValueError(f"is {size[1]} x {size[0]} pixels, annotated as {width} x {height}")
    try:
        image = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:  # no bytes, or a picture beyond OpenCV's limits
        image = None
    if image is None:
        raise ValueError("cannot be decoded")
    if image.shape[:2] != (height, width):
        raise ValueError(f"is {image.shape[1]} x {image.shape[0]} pixels, annotated as {width} x {height}")
    return image

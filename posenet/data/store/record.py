"""One image of a store and its people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.errors import DataError
from posenet.images.decoding import JPEG_START, decode_image_bytes


@dataclass(frozen=True, eq=False)
class Record:
    """One image and its P people; coordinates are pixels of the stored image, EXIF orientation ignored.

    Attributes:
        source: what errors name, the store's path.
        jpeg: (bytes,) uint8, the file's original bytes, of whatever format OpenCV reads.
        joints: (P, K, 3) float32 x, y, visibility.
        boxes: (P, 4) float32 x, y, width, height.
        areas: (P,) float32 square pixels.
        annotation_ids: (P,) int64.
        mask_all_rle, mask_miss_rle: run lengths as ``rle`` stores them.
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

    @property
    def is_jpeg(self) -> bool:
        return self.jpeg[:2].tobytes() == JPEG_START

    def decode_image(self, reduction: int = 1) -> np.ndarray:
        """(H, W, 3) BGR uint8; ``DataError`` where the bytes are damaged or the size is not the annotated one.

        Args:
            reduction: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, rounded up, in less time.
        """
        try:
            return decode_image_bytes(self.jpeg, self.height, self.width, reduction)
        except ValueError as error:
            raise self.fault(str(error)) from error

    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """``mask_all`` and ``mask_miss``, (H, W) uint8 of 0 and 1; ``DataError`` where they are damaged."""
        all_runs, miss_runs = self.mask_runs()
        return rle.fill(all_runs, self.height, self.width), rle.fill(miss_runs, self.height, self.width)

    def mask_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Run lengths of ``mask_all`` and ``mask_miss``; ``DataError`` where they are damaged."""
        try:
            all_runs, miss_runs = (
                rle.check(rle.unpack(counts), self.height * self.width)
                for counts in (self.mask_all_rle, self.mask_miss_rle)
            )
        except ValueError as error:
            raise self.fault(f"has masks with {error}") from error
        return all_runs, miss_runs

    def fault(self, what: str) -> DataError:
        """An error that names the store and the image."""
        return DataError(
            f"{self.source}: image {self.image_id} ({self.file_name}) {what}; "
            "restore the image and build the store anew"
        )

"""One image of a store and its people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.errors import DataError
from posenet.images.decoding import decode_annotated_image
from posenet.images.headers import JPEG_START


class Supervision(NamedTuple):
    """The part of a network's output that the annotations of a data set supervise."""

    set_index: int
    """Number of the data set among those of a training run."""
    channels: np.ndarray | None
    """(2, C) uint8: 1 for the output channels that are supervised, as annotated and for a mirrored image; None if all
    data sets of the run supervise all channels."""


@dataclass(frozen=True, eq=False)
class Record:
    """One image and its P people. Sizes and coordinates are pixels in the frame of the annotations."""

    source: Path
    """Path of the store, for error messages."""
    image_id: int
    file_name: str
    height: int
    width: int
    image_bytes: np.ndarray
    """(bytes,) uint8, the original bytes of the image file, in any format that OpenCV reads."""
    joints: np.ndarray
    """(P, K, 3) float32: x, y, visibility of every keypoint."""
    boxes: np.ndarray
    """(P, 4) float32: x, y, width, height."""
    areas: np.ndarray
    """(P,) float32, in square pixels."""
    annotation_ids: np.ndarray
    """(P,) int64."""
    mask_all_rle: bytes
    """Packed run lengths of the mask that is 1 on people."""
    mask_miss_rle: bytes
    """Packed run lengths of the mask that is 1 where the loss supervises."""
    orientation: int = 1
    """The EXIF orientation, 1-8, by which the decoded pixels are turned; see ``AnnotatedFrame``."""
    supervision: Supervision | None = None
    """None if this is not one of several data sets."""

    @property
    def is_jpeg(self) -> bool:
        return self.image_bytes[:2].tobytes() == JPEG_START

    def allows_reduction(self, reduction: int) -> bool:
        """Whether decoding at a reduced size is faster, and pixel (0, 0) of the result starts at that of the image.

        The last row and column of a reduced JPEG may lie partly outside the image. Turning can make them the first.
        """
        is_exact = self.height % reduction == 0 and self.width % reduction == 0
        return self.is_jpeg and (self.orientation == 1 or is_exact)

    def decode_image(self, reduction: int = 1) -> np.ndarray:
        """Decode the image to (H, W, 3) BGR uint8; ``DataError`` if it is damaged or does not have the annotated size.

        A reduction of 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up, in less time.
        """
        try:
            return decode_annotated_image(self.image_bytes, self.height, self.width, reduction, self.orientation)
        except ValueError as error:
            raise self.damage_error(str(error)) from error

    def decode_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """``mask_all`` and ``mask_miss`` as (H, W) uint8 of 0 and 1; ``DataError`` if they are damaged."""
        all_runs, miss_runs = self.mask_runs()
        return rle.decode_mask(all_runs, self.height, self.width), rle.decode_mask(miss_runs, self.height, self.width)

    def mask_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Run lengths of ``mask_all`` and ``mask_miss``; ``DataError`` if they are damaged."""
        pixels = self.height * self.width
        try:
            all_runs = rle.validate_run_lengths(rle.unpack_run_lengths(self.mask_all_rle), pixels)
            miss_runs = rle.validate_run_lengths(rle.unpack_run_lengths(self.mask_miss_rle), pixels)
        except ValueError as error:
            raise self.damage_error(f"has masks with {error}") from error
        return all_runs, miss_runs

    def damage_error(self, problem: str) -> DataError:
        """An error that names the store and the image."""
        return DataError(
            f"{self.source}: image {self.image_id} ({self.file_name}) {problem}; "
            "restore the image and rebuild the store"
        )

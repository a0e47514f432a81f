"""Applying an augmentation: warping images, masks and keypoints, and shifting colours."""

from __future__ import annotations

import math

import cv2
import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.data.augmentation import Augmentation
from posenet.skeleton import COCO, Skeleton

BORDER_COLOUR = (124, 127, 127)
"""BGR fill where the warped image ends."""


def warp_image(
    image: np.ndarray,
    augmentation: Augmentation,
    matrix: np.ndarray,
    size: tuple[int, int],
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Recolour and warp a (H, W, 3) BGR uint8 image to network input of ``size`` (width, height).

    Args:
        out: C-contiguous array to write to; None makes one.
    """
    if out is None:
        out = np.empty((size[1], size[0], 3), np.uint8)
    part, from_part = crop_visible(image, matrix, size)
    return warp_bgra(recolour(part, augmentation.jitter), from_part, size, out)


def recolour(image: np.ndarray, jitter: tuple[float, float, float] | None) -> np.ndarray:
    """(H, W, 4) BGRA of a BGR image, after the jitter; an empty image comes back as it is."""
    if not image.size:
        return image
    return cv2.cvtColor(image, cv2.COLOR_BGR2BGRA) if jitter is None else _jitter(image, jitter)


def warp_bgra(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int], out: np.ndarray) -> np.ndarray:
    """Warp a BGRA image to BGR in ``out``. OpenCV warps four channels in half the time of three."""
    if not image.size:
        out[:] = BORDER_COLOUR
        return out
    warped = cv2.warpAffine(
        image, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(*BORDER_COLOUR, 255)
    )
    return cv2.cvtColor(warped, cv2.COLOR_BGRA2BGR, dst=out)


def crop_visible(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The part of an image that a warp to ``size`` (width, height) reads, and the warp from there.

    Most people fill a small part of their image; the rest need not be recoloured or copied. The part is a view,
    empty where the warp shows nothing of the image.
    """
    (a, b, dx), (c, d, dy) = matrix.tolist()
    determinant = a * d - b * c
    corners = [(x - dx, y - dy) for x in (-1, size[0]) for y in (-1, size[1])]
    height, width = image.shape[:2]
    left, right = _reached([(d * x - b * y) / determinant for x, y in corners], width)
    top, bottom = _reached([(a * y - c * x) / determinant for x, y in corners], height)
    part = matrix.copy()
    part[:, 2] = a * left + b * top + dx, c * left + d * top + dy
    return image[top:bottom, left:right], part


def _reached(places: list[float], side: int) -> tuple[int, int]:
    """The pixels that a warp reads on one axis: interpolation takes the next one, too; one more for rounding."""
    low, high = (min(max(place, -2.0), side + 2.0) for place in (min(places), max(places)))
    return max(math.floor(low) - 1, 0) if low < side else side, min(math.ceil(high) + 2, side) if high > -2 else 0


def warp_mask(
    runs: np.ndarray,
    shape: tuple[int, int],
    matrix: np.ndarray,
    size: tuple[int, int],
    border: int,
    stride: int = 4,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Warp a mask straight from its run lengths to the maps' cells.

    Args:
        runs: lengths of its runs, down the columns, the first of 0; see ``rle``.
        shape: its height and width.
        matrix: image pixels to network-input pixels, (2, 3).
        size: (width, height) of the network input.
        border: value, 0 or 1, outside the image.
        out: C-contiguous array to write to; None makes one.

    Returns:
        (height / stride, width / stride) uint8, 0-255 for 0-1, sampled at the cell centres.
    """
    if out is None:
        out = np.empty((size[1] // stride, size[0] // stride), np.uint8)
    if not runs[1 - border :: 2].any():  # all of it like the border, as most supervision masks are
        out[:] = 255 * border
        return out
    # Cell i is centred on input pixel stride * i + (stride - 1) / 2. The mask lies with its columns as rows.
    to_cells = matrix[:, [1, 0, 2]] / stride
    to_cells[:, 2] -= (stride - 1) / 2 / stride
    return cv2.warpAffine(
        rle.columns(runs, *shape, value=255),
        to_cells,
        out.shape[::-1],
        dst=out,
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=255 * border,
    )


def warp_joints(
    joints: np.ndarray, augmentation: Augmentation, matrix: np.ndarray, skeleton: Skeleton = COCO
) -> np.ndarray:
    """(P, K, 3) joints in image pixels to network-input pixels; a flip swaps left and right.

    Labelled keypoints that the warp moves outside stay labelled: their maps reach in.
    """
    warped = joints.astype(np.float32)
    warped[..., :2] = joints[..., :2] @ matrix[:, :2].T + matrix[:, 2]
    warped[joints[..., 2] <= 0] = 0
    return warped[:, skeleton.flip_keypoints] if augmentation.flip else warped


def reduction(matrix: np.ndarray) -> int:
    """The largest of 1, 2, 4 and 8 by which an image may be reduced without the warp then enlarging it."""
    (a, b, _), (c, d, _) = matrix.tolist()
    zoom = math.sqrt(abs(a * d - b * c))
    return next((by for by in (8, 4, 2) if zoom * by <= 1), 1)


def from_reduced(matrix: np.ndarray, by: int) -> np.ndarray:
    """The warp of an image as one of the same image reduced: pixel i of it is centred on ``by * i + (by - 1) / 2``."""
    if by == 1:
        return matrix
    return np.column_stack([matrix[:, :2] * by, matrix @ ((by - 1) / 2, (by - 1) / 2, 1)])


def _jitter(image: np.ndarray, shifts: tuple[float, float, float]) -> np.ndarray:
    """(H, W, 4) BGRA of a BGR image."""
    by, *others = (round(s) for s in shifts)
    # One plane at a time: a table of three columns, by OpenCV's LUT, takes more than twice as long.
    hue, *planes = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
    # It stops at 0 and 255. As one row: OpenCV takes four pixels in a column and four numbers for two images to add.
    planes = [
        cv2.add(plane.reshape(1, -1), (shift, 0, 0, 0)).reshape(plane.shape) for plane, shift in zip(planes, others)
    ]
    # Hue is an angle of 0 to 179, so it wraps around there; bytes wrap at 256, 76 later.
    by %= 180
    hue += (hue >= 180 - by).view(np.uint8) * np.uint8(76) + np.uint8(by)
    return cv2.cvtColor(cv2.merge([hue, *planes]), cv2.COLOR_HSV2BGR, dstCn=4)

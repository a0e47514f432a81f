"""Random augmentation: drawn first, applied later, so that image, masks and points always agree."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.settings.sections import AugmentConfig
from posenet.skeleton.skeleton import COCO, Skeleton

BORDER_COLOUR = (124, 127, 127)
"""BGR fill where the warped image ends."""


DRAWS = 10
"""Random numbers of one augmentation."""


def draws(*key: int) -> list[float]:
    """``DRAWS`` uniform numbers in [0, 1) that depend on ``key`` alone, 32 random bits each.

    They are a hash of it: seeding one of NumPy's generators for so few takes longer than warping the masks.
    """
    text = repr(tuple(map(int, key)))  # NumPy's integers have a text of their own
    words = struct.unpack(f"<{DRAWS}I", hashlib.blake2b(text.encode(), digest_size=4 * DRAWS).digest())
    return [word / 2**32 for word in words]


@dataclass(frozen=True)
class Augmentation:
    """One draw of all random numbers of a sample; the default changes nothing.

    Attributes:
        flip: mirror the image and swap left and right keypoints.
        degrees: rotation; positive turns the x axis towards negative y.
        shift: x, y in network-input pixels, after everything else.
        scale: factor on top of the framing's own.
        jitter: added to OpenCV's hue (0-180), saturation and value (0-255); None leaves colours alone.
        person_height: share of the input height that the framed person fills at scale 1.
    """

    flip: bool = False
    degrees: float = 0.0
    shift: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0
    jitter: tuple[float, float, float] | None = None
    person_height: float = 0.6

    @classmethod
    def sample(cls, numbers: Sequence[float], config: AugmentConfig) -> Augmentation:
        """One augmentation.

        Args:
            numbers: ``DRAWS`` of them, uniform in [0, 1), such as ``draws`` gives.
        """
        c = config
        jittered, hue, saturation, value, scaled, scale, turn, dx, dy, flip = numbers
        jitter = _within(c.jitter_hue, hue), _within(c.jitter_saturation, saturation), _within(c.jitter_value, value)
        return cls(
            jitter=jitter if jittered < c.jitter_probability else None,
            scale=_within(c.scale, scale) if scaled < c.scale_probability else 1.0,
            degrees=_within((-c.degrees, c.degrees), turn),
            shift=(_within((-c.shift, c.shift), dx), _within((-c.shift, c.shift), dy)),
            flip=flip < c.flip_probability,
            person_height=c.person_height,
        )

    def matrix(self, center: tuple[float, float], person_scale: float, size: tuple[int, int]) -> np.ndarray:
        """The warp that frames one person.

        Args:
            center: x, y of the person's box centre, in pixels of the image.
            person_scale: height of the person's box over the height of the network input.
            size: (width, height) of the network input.

        Returns:
            (2, 3) float64: image pixels to network-input pixels.
        """
        height = size[1]
        return self._matrix(center, self.person_height / (person_scale * height / (height - 1)), size)

    def image_matrix(self, image_size: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
        """The warp that frames a whole image at the largest scale that fits; sizes are (width, height)."""
        fit = min(size[0] / image_size[0], size[1] / image_size[1])
        return self._matrix(((image_size[0] - 1) / 2, (image_size[1] - 1) / 2), fit, size)

    def _matrix(self, center: tuple[float, float], zoom: float, size: tuple[int, int]) -> np.ndarray:
        # Plain numbers: as arrays these few cost more time than reading the record does.
        angle, zoom, mirror = math.radians(self.degrees), zoom * self.scale, -1.0 if self.flip else 1.0
        cos, sin = zoom * math.cos(angle), zoom * math.sin(angle)
        rows = []
        for x, y, side, shift in (
            (mirror * cos, mirror * sin, size[0], self.shift[0]),
            (-sin, cos, size[1], self.shift[1]),
        ):
            rows.append((x, y, (side - 1) / 2 + shift - x * center[0] - y * center[1]))
        return np.array(rows)


def _within(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * share


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

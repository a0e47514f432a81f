"""Augmentation of a sample: its random numbers, the warp that they define, and applying it.

Sizes are (width, height), as in OpenCV. A matrix is (2, 3) and maps (x, y, 1) in image pixels to network-input pixels.
"""

import hashlib
import math
import struct
from dataclasses import dataclass

import cv2
import numpy as np

from posenet.annotations.outlines import decode_columns
from posenet.images import REDUCTIONS
from posenet.settings import MAP_STRIDE, AugmentConfig
from posenet.skeleton import Skeleton

BORDER_COLOUR = (124, 127, 127)
"""BGR colour of the network input outside the image."""
JITTER = (-10.0, 10.0), (-20.0, 60.0), (-20.0, 40.0)
"""The published ranges of the shifts of hue (0-180), saturation and value (0-255)."""
CUTOUT = 0.1, 0.3
"""Range of the side of a covered square, as a share of the shorter side of the input: about a limb, not a person."""


def random_numbers(seed: int, epoch: int, index: int) -> list[float]:
    """The ten random numbers of a sample, uniform in [0, 1), each with 32 random bits: a hash of the arguments.

    Runs of earlier versions are repeated to the bit, so these numbers stay as they are and their count too. A new kind
    of augmentation draws from ``random_generator``.
    """
    key = repr((int(seed), int(epoch), int(index)))  # int, because the repr of NumPy's integers differs
    digest = hashlib.blake2b(key.encode(), digest_size=40).digest()
    return [number / 2**32 for number in struct.unpack("<10I", digest)]


def random_generator(seed: int, epoch: int, index: int, kind: str) -> np.random.Generator:
    """The random numbers of a kind of augmentation that ``random_numbers`` does not serve, from the arguments alone.

    So another kind changes none of the others.
    """
    return np.random.default_rng((seed, epoch, index, *kind.encode()))


@dataclass(frozen=True)
class Augmentation:
    """The parameters of one augmentation. The default changes nothing."""

    flip: bool = False  # mirror the image and swap left and right keypoints
    degrees: float = 0.0  # rotation; positive turns the x axis towards negative y
    shift: tuple[float, float] = (0.0, 0.0)  # x, y in network-input pixels, applied last
    scale: float = 1.0  # factor on top of the scale of the framing
    jitter: tuple[float, float, float] | None = None  # shifts of hue (OpenCV's 0-180), saturation and value (0-255)
    person_height: float = AugmentConfig.person_height  # share of the input height, before ``scale``
    # A covered square: x and y of its centre as shares of the input's width and height, its side of the shorter one.
    cutout: tuple[float, float, float] | None = None

    @classmethod
    def draw(cls, config: AugmentConfig, seed: int, epoch: int, index: int) -> "Augmentation":
        """The augmentation of a sample, which depends on the arguments alone."""
        jitter, *colours, rescale, scale, degrees, shift_x, shift_y, flip = random_numbers(seed, epoch, index)
        hue, saturation, value = map(_interpolate, JITTER, colours)
        shift_range = (-config.shift, config.shift)
        cutout = None
        if config.cutout_probability:
            chance, x, y, side = random_generator(seed, epoch, index, "cutout").random(4).tolist()
            cutout = (x, y, _interpolate(CUTOUT, side)) if chance < config.cutout_probability else None
        return cls(
            flip=flip < config.flip_probability,
            degrees=_interpolate((-config.degrees, config.degrees), degrees),
            shift=(_interpolate(shift_range, shift_x), _interpolate(shift_range, shift_y)),
            scale=_interpolate(config.scale, scale) if rescale < config.scale_probability else 1.0,
            jitter=(hue, saturation, value) if jitter < config.jitter_probability else None,
            person_height=config.person_height,
            cutout=cutout,
        )

    def matrix(self, center: tuple[float, float], person_scale: float, size: tuple[int, int]) -> np.ndarray:
        """Compute the warp that frames one person.

        For a network input of W x H pixels it is

            M = T((W - 1) / 2 + shift_x, (H - 1) / 2 + shift_y) · diag(m, 1) · f · R · T(-center)

            f = person_height / (person_scale · H / (H - 1)) · scale
            m = -1 if flip else 1
            R = [[cos a, sin a], [-sin a, cos a]],  a = degrees in radians

        where T(x, y) is a translation: the centre of the person moves to the centre of the input, and the person's
        height becomes the share ``person_height · scale`` of the input height.

        Args:
            center: x, y of the centre of the person's box, in image pixels.
            person_scale: height of the person's box divided by H.
            size: (W, H).
        """
        height = size[1]
        return self._matrix(center, self.person_height / (person_scale * height / (height - 1)), size)

    def image_matrix(self, image_size: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
        """Compute the warp that frames a whole image, of (width, height) ``image_size``, as large as possible.

        The formula is that of ``matrix`` with the image's centre and
        f = min(W / image width, H / image height) · scale.
        """
        image_center = ((image_size[0] - 1) / 2, (image_size[1] - 1) / 2)
        return self._matrix(image_center, min(size[0] / image_size[0], size[1] / image_size[1]), size)

    def _matrix(self, center: tuple[float, float], framing_scale: float, size: tuple[int, int]) -> np.ndarray:
        # Plain Python numbers: the same few operations on NumPy arrays take longer than reading the record.
        angle = math.radians(self.degrees)
        factor = framing_scale * self.scale
        cos = factor * math.cos(angle)
        sin = factor * math.sin(angle)
        mirror = -1.0 if self.flip else 1.0
        x_row = (mirror * cos, mirror * sin)
        y_row = (-sin, cos)
        x_offset = (size[0] - 1) / 2 + self.shift[0] - x_row[0] * center[0] - x_row[1] * center[1]
        y_offset = (size[1] - 1) / 2 + self.shift[1] - y_row[0] * center[0] - y_row[1] * center[1]
        return np.array([(*x_row, x_offset), (*y_row, y_offset)])


def _interpolate(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * share


def warp_image(image: np.ndarray, augmentation: Augmentation, matrix: np.ndarray, out: np.ndarray) -> None:
    """Shift the colours of an (H, W, 3) BGR uint8 image, and warp it to ``out``, which is C-contiguous."""
    size = (out.shape[1], out.shape[0])
    visible, visible_matrix = crop_visible(image, matrix, size)
    if not visible.size:
        out[:] = BORDER_COLOUR
        return
    # OpenCV warps four channels in half the time of three.
    bgra = jitter_to_bgra(visible, augmentation.jitter)
    border = (*BORDER_COLOUR, 255)
    warped = cv2.warpAffine(
        bgra, visible_matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=border
    )
    cv2.cvtColor(warped, cv2.COLOR_BGRA2BGR, dst=out)


def cover_square(image: np.ndarray, cutout: tuple[float, float, float]) -> None:
    """Cover a square of an (H, W, 3) network input; see ``Augmentation.cutout``.

    The keypoints in it stay labelled, so that the network learns to tell where hidden keypoints are.
    """
    x, y, side = cutout
    size = np.array(image.shape[:2])
    corners = np.outer((-0.5, 0.5), (side, side)) * size.min() + (y, x) * size
    (top, left), (bottom, right) = np.clip(np.rint(corners), 0, size).astype(int).tolist()
    image[top:bottom, left:right] = BORDER_COLOUR


def crop_visible(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Crop an image to the pixels that a warp reads: most people fill a small part of their image.

    Returns the crop, which is a view and is empty if the warp reads no pixel, and the matrix that warps it.
    """
    (a, b, dx), (c, d, dy) = matrix.tolist()
    determinant = a * d - b * c
    # The corners of the network input, relative to the image's origin in it.
    corners = [(x - dx, y - dy) for x in (-1, size[0]) for y in (-1, size[1])]
    height, width = image.shape[:2]
    left, right = _pixels_read([(d * x - b * y) / determinant for x, y in corners], width)
    top, bottom = _pixels_read([(a * y - c * x) / determinant for x, y in corners], height)
    crop_matrix = matrix.copy()
    crop_matrix[:, 2] = a * left + b * top + dx, c * left + d * top + dy
    return image[top:bottom, left:right], crop_matrix


def _pixels_read(positions: list[float], length: int) -> tuple[int, int]:
    """The range of pixels that a warp reads along an axis on which the input's corners have ``positions``."""
    # Interpolation also reads the next pixel; another one allows for rounding.
    low = min(max(min(positions), -2.0), length + 2.0)
    high = min(max(max(positions), -2.0), length + 2.0)
    start = max(math.floor(low) - 1, 0) if low < length else length
    stop = min(math.ceil(high) + 2, length) if high > -2 else 0
    return start, stop


def warp_mask(runs: np.ndarray, image_size: tuple[int, int], matrix: np.ndarray, border: int, out: np.ndarray) -> None:
    """Warp a mask of ``image_size`` from its run lengths directly to map cells, sampled at the cell centres.

    It is 0 or 1, as ``border`` outside the image. The result, 0-255, is written to ``out``, (height / 4, width / 4)
    uint8, which is C-contiguous.
    """
    # The runs are of 0 and 1 in turn. In most supervision masks, all is like the border.
    if not runs[1 - border :: 2].any():
        out[:] = 255 * border
        return
    # ``decode_columns`` returns the transposed mask, so the matrix takes y before x.
    to_cells = matrix[:, [1, 0, 2]] / MAP_STRIDE
    # Cell i is centred on input pixel stride * i + (stride - 1) / 2.
    to_cells[:, 2] -= (MAP_STRIDE - 1) / 2 / MAP_STRIDE
    cv2.warpAffine(
        decode_columns(runs, *image_size[::-1], value=255),
        to_cells,
        out.shape[::-1],
        dst=out,
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=255 * border,
    )


def warp_joints(joints: np.ndarray, augmentation: Augmentation, matrix: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Warp (P, K, 3) joints; a flip swaps left and right keypoints.

    Labelled keypoints that the warp moves outside stay labelled, because their maps reach into the input. Unlabelled
    ones become 0.
    """
    warped = joints.astype(np.float32)
    warped[..., :2] = joints[..., :2] @ matrix[:, :2].T + matrix[:, 2]
    warped[joints[..., 2] <= 0] = 0
    return warped[:, skeleton.flip_keypoints] if augmentation.flip else warped


def largest_reduction(matrix: np.ndarray) -> int:
    """The largest of 1, 2, 4 and 8 by which an image may be reduced without the warp enlarging it."""
    (a, b, _), (c, d, _) = matrix.tolist()
    scale = math.sqrt(abs(a * d - b * c))
    return next((reduction for reduction in REDUCTIONS if scale * reduction <= 1), 1)


def matrix_for_reduced_image(matrix: np.ndarray, reduction: int) -> np.ndarray:
    """The warp of an image, as a warp of the same image decoded at 1 / ``reduction`` of its size.

    Pixel i of the reduced image is centred on pixel r·i + (r - 1) / 2 of the image, with r the reduction.
    """
    if reduction == 1:
        return matrix
    offset = (reduction - 1) / 2
    return np.column_stack([matrix[:, :2] * reduction, matrix @ (offset, offset, 1)])


def jitter_to_bgra(image: np.ndarray, jitter: tuple[float, float, float] | None) -> np.ndarray:
    """Shift hue, saturation and value of a BGR image unless ``jitter`` is None; returns (H, W, 4) BGRA."""
    if jitter is None:
        return cv2.cvtColor(image, cv2.COLOR_BGR2BGRA)
    hue, saturation, value = (round(shift) for shift in jitter)
    levels = np.arange(256)
    # OpenCV stores the hue, 0 to 360 degrees, as a byte from 0 to 179.
    tables = [(levels + hue) % 180, np.clip(levels + saturation, 0, 255), np.clip(levels + value, 0, 255)]
    shifted = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), np.stack(tables, axis=1)[:, None].astype(np.uint8))
    return cv2.cvtColor(shifted, cv2.COLOR_HSV2BGR, dstCn=4)

"""Random augmentation of a sample: its random numbers, its parameters and the warp they define.

Nothing is applied here. ``warping`` applies the same parameters and the same warp to the image, the masks and the
keypoints, so that these always agree.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posenet.settings import AugmentConfig


class RandomNumbers(NamedTuple):
    """The random numbers of one augmentation, uniform in [0, 1)."""

    jitter: float
    """Decides whether the colours are shifted."""
    hue: float
    saturation: float
    value: float
    rescale: float
    """Decides whether the sample is rescaled."""
    scale: float
    degrees: float
    shift_x: float
    shift_y: float
    flip: float
    """Decides whether the sample is mirrored."""


def random_numbers(seed: int, epoch: int, index: int) -> RandomNumbers:
    """The random numbers of a sample, each with 32 random bits: a hash of the arguments.

    Seeding a generator of NumPy for ten numbers would take longer than warping the masks.
    """
    key = repr((int(seed), int(epoch), int(index)))  # int, because the repr of NumPy's integers differs
    count = len(RandomNumbers._fields)
    digest = hashlib.blake2b(key.encode(), digest_size=4 * count).digest()
    return RandomNumbers(*(number / 2**32 for number in struct.unpack(f"<{count}I", digest)))


@dataclass(frozen=True)
class Augmentation:
    """The parameters of one augmentation. The default changes nothing."""

    flip: bool = False
    """Mirror the image and swap left and right keypoints."""
    degrees: float = 0.0
    """Rotation; positive turns the x axis towards negative y."""
    shift: tuple[float, float] = (0.0, 0.0)
    """x, y in network-input pixels, applied last."""
    scale: float = 1.0
    """Factor on top of the scale of the framing."""
    jitter: tuple[float, float, float] | None = None
    """Shifts of hue (OpenCV's 0-180), saturation and value (0-255); None leaves the colours unchanged."""
    person_height: float = AugmentConfig.person_height
    """Share of the input height that the framed person fills at scale 1."""

    @classmethod
    def from_random_numbers(cls, numbers: RandomNumbers, config: AugmentConfig) -> Augmentation:
        """Map random numbers to the configured ranges and probabilities."""
        jitter = None
        if numbers.jitter < config.jitter_probability:
            jitter = (
                _interpolate(config.jitter_hue, numbers.hue),
                _interpolate(config.jitter_saturation, numbers.saturation),
                _interpolate(config.jitter_value, numbers.value),
            )
        is_rescaled = numbers.rescale < config.scale_probability
        shift_range = (-config.shift, config.shift)
        return cls(
            flip=numbers.flip < config.flip_probability,
            degrees=_interpolate((-config.degrees, config.degrees), numbers.degrees),
            shift=(_interpolate(shift_range, numbers.shift_x), _interpolate(shift_range, numbers.shift_y)),
            scale=_interpolate(config.scale, numbers.scale) if is_rescaled else 1.0,
            jitter=jitter,
            person_height=config.person_height,
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

        Returns:
            (2, 3) float64: maps (x, y, 1) in image pixels to network-input pixels.
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
    """The value at a share of the way between two bounds."""
    return bounds[0] + (bounds[1] - bounds[0]) * share

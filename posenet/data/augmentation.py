"""Random augmentation: drawn first, applied later, so that image, masks and points always agree."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenet.settings import AugmentConfig

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

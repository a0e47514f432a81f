"""An image that records which part of which person each pixel shows, and the shapes to paint on it.

Points are (x, y) in pixels, x right, y down; the centre of the first pixel is (0, 0). Colours are BGR, 0-255.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import cv2
import numpy as np

Colour = tuple[float, float, float]
Numbers = Sequence[float] | np.ndarray

OUTLINE_SHADE = 0.5
"""Brightness of a shape's outline, relative to the shape."""

_SHIFT = 4  # OpenCV accepts coordinates in units of 1 / 2^4 pixel
_ANGLES = np.linspace(0, 2 * np.pi, 20, endpoint=False)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
_CAP = _CIRCLE[np.arange(5, -6, -1)]
"""Half of the unit circle, from (0, 1) over (1, 0) to (0, -1): the rounded end of a limb."""


class Canvas:
    """A BGR image and, for every pixel, its ``owner``: the code of the part painted there last; 0 is the background."""

    def __init__(self, image: np.ndarray) -> None:
        self.image = image
        self.owner = np.zeros(image.shape[:2], np.int32)

    def fill(self, polygon: np.ndarray, colour: Colour, code: int | None = None, outline: float = 0.0) -> None:
        """Fill an (N, 2) polygon, with a darker edge of ``outline`` pixels; ``code`` None keeps the pixels' owners."""
        points = [np.rint(polygon * (1 << _SHIFT)).astype(np.int32)]
        if outline:
            thickness = max(1, round(2 * outline))
            cv2.polylines(self.image, points, True, shade(colour, OUTLINE_SHADE), thickness, cv2.LINE_AA, _SHIFT)
        cv2.fillPoly(self.image, points, colour, cv2.LINE_AA, _SHIFT)
        if code is not None:
            cv2.fillPoly(self.owner, points, code, cv2.LINE_8, _SHIFT)


def shade(colour: Colour, factor: float) -> Colour:
    """Make a colour darker (factor below 1) or lighter (above 1)."""
    blue, green, red = colour
    return min(255.0, blue * factor), min(255.0, green * factor), min(255.0, red * factor)


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """BGR of a hue, saturation and value, each 0-1; the hue wraps around."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return 255 * blue, 255 * green, 255 * red


def ellipse(centre: Numbers, radii: Numbers) -> np.ndarray:
    """(20, 2) polygon of an upright ellipse."""
    return np.asarray(centre + _CIRCLE * np.asarray(radii) * (1, -1))


def limb(start: np.ndarray, end: np.ndarray, widths: tuple[float, float]) -> np.ndarray:
    """(22, 2) polygon of a straight band with rounded ends, given their centres and half-widths."""
    along = end - start
    length = max(float(np.hypot(*along)), 1e-6)
    frame = np.array([along, (-along[1], along[0])]) / length
    return np.concatenate([end + widths[1] * _CAP @ frame, start - widths[0] * _CAP @ frame])


def hull(*shapes: np.ndarray) -> np.ndarray:
    """(N, 2) convex hull of several polygons."""
    return cv2.convexHull(np.concatenate(shapes).astype(np.float32))[:, 0].astype(np.float64)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """(4, 2) polygon of an upright rectangle."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float64)

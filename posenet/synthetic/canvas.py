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

_SHIFT = 4
"""OpenCV accepts coordinates in units of 1 / 2^4 pixel."""
_CAP = np.exp(1j * np.linspace(np.pi / 2, -np.pi / 2, 7))
"""Half of the unit circle as complex numbers: the rounded end of a ribbon."""
_NO_POINTS = np.empty(0, complex)
_ANGLES = np.linspace(0, 2 * np.pi, 20, endpoint=False)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)


class Canvas:
    """An image and, for every pixel, the code of the part that was painted there last.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        owner: (H, W) int32; 0 is the background.
    """

    def __init__(self, image: np.ndarray) -> None:
        self.image = image
        self.owner = np.zeros(image.shape[:2], np.int32)

    def fill(self, polygon: np.ndarray, colour: Colour, code: int | None = None) -> None:
        """Fill an (N, 2) polygon. Without a ``code`` the pixels keep their owner."""
        points = [_to_fixed_point(polygon)]
        cv2.fillPoly(self.image, points, colour, cv2.LINE_AA, _SHIFT)
        if code is not None:
            cv2.fillPoly(self.owner, points, code, cv2.LINE_8, _SHIFT)

    def fill_outlined(self, polygon: np.ndarray, colour: Colour, code: int | None, width: float) -> None:
        """Fill a polygon and add a darker edge, ``width`` pixels wide, around it."""
        self.trace(polygon, shade(colour, OUTLINE_SHADE), code, max(1, round(2 * width)))
        self.fill(polygon, colour, code)

    def trace(self, polygon: np.ndarray, colour: Colour, code: int | None = None, thickness: int = 1) -> None:
        """Draw the edge of a polygon, ``thickness`` pixels wide."""
        points = [_to_fixed_point(polygon)]
        cv2.polylines(self.image, points, True, colour, thickness, cv2.LINE_AA, _SHIFT)
        if code is not None:
            cv2.polylines(self.owner, points, True, code, thickness, cv2.LINE_8, _SHIFT)

    def darken_ellipse(self, centre: Numbers, radii: Numbers, strength: float) -> None:
        """Darken an ellipse, at its centre by the share ``strength``, less towards its edge. Owners do not change."""
        height, width = self.image.shape[:2]
        x, y = centre
        radius_x, radius_y = radii
        left = int(np.clip(x - radius_x, 0, width))
        right = int(np.clip(x + radius_x + 1, 0, width))
        top = int(np.clip(y - radius_y, 0, height))
        bottom = int(np.clip(y + radius_y + 1, 0, height))
        if left >= right or top >= bottom:
            return
        across = (np.arange(left, right) - x) / radius_x
        down = (np.arange(top, bottom) - y) / radius_y
        weight = np.clip(1 - across**2 - down[:, None] ** 2, 0, 1) * strength
        patch = self.image[top:bottom, left:right]
        patch[:] = (patch * (1 - weight[..., None])).astype(np.uint8)


def _to_fixed_point(polygon: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.rint(polygon * (1 << _SHIFT))
    return rounded.astype(np.int32)


def shade(colour: Colour, factor: float) -> Colour:
    """Make a colour darker (factor below 1) or lighter (above 1)."""
    blue, green, red = colour
    return min(255.0, blue * factor), min(255.0, green * factor), min(255.0, red * factor)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Mix ``share`` of the second colour into the first."""
    blue, green, red = (a + (b - a) * share for a, b in zip(first, second))
    return blue, green, red


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """BGR of a hue, saturation and value, each 0-1; the hue wraps around."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return 255 * blue, 255 * green, 255 * red


def ellipse(centre: np.ndarray, radii: Numbers, up: np.ndarray | None = None) -> np.ndarray:
    """(20, 2) polygon of an ellipse; ``up`` is the unit vector along the second radius, None for an upright ellipse."""
    across, along = radii
    if up is None:
        upright: np.ndarray = centre + _CIRCLE * (across, along)
        return upright
    right = np.array([-up[1], up[0]])
    turned: np.ndarray = centre + _CIRCLE[:, :1] * across * right + _CIRCLE[:, 1:] * along * up
    return turned


def ribbon(start: np.ndarray, end: np.ndarray, widths: Numbers, spread: float = 0.0) -> np.ndarray:
    """(2 * len(widths) + 10, 2) polygon of a straight band with rounded ends.

    Args:
        start, end: centres of the first and the last cross-section.
        widths: half-widths of equally spaced cross-sections from start to end, at least two.
        spread: added to every half-width.
    """
    # In complex numbers: place the ribbon along the real axis, then rotate it and move it to its start.
    along = complex(end[0] - start[0], end[1] - start[1])
    length = abs(along)
    direction = along / length if length > 1e-6 else 1j
    half = np.asarray(widths) + spread
    side = _NO_POINTS  # most ribbons have two cross-sections, both at the ends
    if len(half) > 2:
        side = np.linspace(0, length, len(half))[1:-1] + 1j * half[1:-1]
    outline = np.concatenate([_CAP * half[-1] + length, side[::-1].conj(), _CAP * -half[0], side])
    turned = outline * direction + complex(start[0], start[1])
    return turned.view(np.float64).reshape(-1, 2)


def hull(*shapes: np.ndarray) -> np.ndarray:
    """(N, 2) convex hull of several polygons."""
    return cv2.convexHull(np.concatenate(shapes).astype(np.float32))[:, 0].astype(np.float64)


def smooth(polygon: np.ndarray, rounds: int = 2) -> np.ndarray:
    """Round the corners of a closed polygon by cutting them (Chaikin, 1974); doubles its points each round."""
    for _ in range(rounds):
        following = np.roll(polygon, -1, axis=0)
        cut = np.stack([0.75 * polygon + 0.25 * following, 0.25 * polygon + 0.75 * following], axis=1)
        polygon = cut.reshape(-1, 2)
    return polygon


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """(4, 2) polygon of an upright rectangle."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float64)

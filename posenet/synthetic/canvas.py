"""An image that remembers who painted each pixel, and the few shapes that everything is drawn from.

Points are (x, y) in pixels, x right, y down, the centre of the first pixel at (0, 0). Colours are BGR, 0-255.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import cv2
import numpy as np

Colour = tuple[float, float, float]

OUTLINE = 0.5
"""How dark the edge of a shape is, relative to the shape."""

_SHIFT = 4  # OpenCV draws at sixteenths of a pixel
_CAP = np.exp(1j * np.linspace(np.pi / 2, -np.pi / 2, 7))
_NONE = np.empty(0, complex)
_TURN = np.linspace(0, 2 * np.pi, 20, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)


class Canvas:
    """An image and, for every pixel, the code of whatever was painted there last.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        owner: (H, W) int32; 0 is the background.
    """

    def __init__(self, image: np.ndarray) -> None:
        self.image = image
        self.owner = np.zeros(image.shape[:2], np.int32)

    def fill(self, polygon: np.ndarray, colour: Colour, code: int | None = None) -> None:
        """Fill an (N, 2) polygon; without a ``code`` the pixels keep their owner (decoration)."""
        points = [_fixed_point(polygon)]
        cv2.fillPoly(self.image, points, colour, cv2.LINE_AA, _SHIFT)
        if code is not None:
            cv2.fillPoly(self.owner, points, code, cv2.LINE_8, _SHIFT)

    def outlined(self, polygon: np.ndarray, colour: Colour, code: int | None, width: float) -> None:
        """Fill a polygon and trace its edge in a darker tone, ``width`` pixels to the outside."""
        self.trace(polygon, shade(colour, OUTLINE), code, max(1, round(2 * width)))
        self.fill(polygon, colour, code)

    def trace(self, polygon: np.ndarray, colour: Colour, code: int | None = None, thickness: int = 1) -> None:
        """Draw the edge of a polygon, ``thickness`` pixels wide in all."""
        points = [_fixed_point(polygon)]
        cv2.polylines(self.image, points, True, colour, thickness, cv2.LINE_AA, _SHIFT)
        if code is not None:
            cv2.polylines(self.owner, points, True, code, thickness, cv2.LINE_8, _SHIFT)

    def shadow(self, centre: Sequence[float], radii: Sequence[float], strength: float) -> None:
        """Darken an ellipse by the share ``strength``; who owns the pixels does not change."""
        height, width = self.image.shape[:2]
        (x, y), (rx, ry) = centre, radii
        left, right = (int(np.clip(v, 0, width)) for v in (x - rx, x + rx + 1))
        top, bottom = (int(np.clip(v, 0, height)) for v in (y - ry, y + ry + 1))
        if left >= right or top >= bottom:
            return
        across = (np.arange(left, right) - x) / rx
        down = (np.arange(top, bottom) - y) / ry
        weight = np.clip(1 - across**2 - down[:, None] ** 2, 0, 1) * strength
        patch = self.image[top:bottom, left:right]
        patch[:] = (patch * (1 - weight[..., None])).astype(np.uint8)


def _fixed_point(polygon: np.ndarray) -> np.ndarray:
    return np.rint(polygon * (1 << _SHIFT)).astype(np.int32)


def shade(colour: Colour, factor: float) -> Colour:
    """The colour made darker (factor below 1) or lighter (above 1)."""
    return tuple(min(255.0, channel * factor) for channel in colour)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """``share`` of the second colour in the first."""
    return tuple(a + (b - a) * share for a, b in zip(first, second))


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """BGR of a hue, saturation and value, each 0-1 (the hue wraps)."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return 255 * blue, 255 * green, 255 * red


def ellipse(centre: np.ndarray, radii: Sequence[float], up: np.ndarray | None = None) -> np.ndarray:
    """(20, 2) polygon of an ellipse; ``up``, a unit vector, is the direction of its second radius."""
    across, along = radii
    if up is None:
        return centre + _CIRCLE * (across, along)
    return centre + _CIRCLE[:, :1] * across * np.array([-up[1], up[0]]) + _CIRCLE[:, 1:] * along * up


def ribbon(start: np.ndarray, end: np.ndarray, widths: Sequence[float], spread: float = 0.0) -> np.ndarray:
    """A straight band with rounded ends.

    Args:
        start, end: middle of the first and the last cross-section.
        widths: half-widths of equally spaced cross-sections from start to end, at least two.
        spread: added to every half-width.

    Returns:
        (2 * len(widths) + 10, 2) polygon.
    """
    along = complex(end[0] - start[0], end[1] - start[1])
    length = abs(along)
    turn = along / length if length > 1e-6 else 1j
    half = np.asarray(widths) + spread
    sides = np.linspace(0, length, len(half))[1:-1] + 1j * half[1:-1] if len(half) > 2 else _NONE
    outline = np.concatenate([_CAP * half[-1] + length, sides[::-1].conj(), _CAP * -half[0], sides])
    return (outline * turn + complex(start[0], start[1])).view(np.float64).reshape(-1, 2)


def hull(*shapes: np.ndarray) -> np.ndarray:
    """(N, 2) convex outline of several polygons together."""
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

"""A head with hair and a face: a ball with features on it, stretched to an egg in the image.

Positions on the ball are in the head's frame: x to the person's left, y up, z forward, radius 1. The ball is rotated
into the viewer's frame, and its disc is stretched to the egg.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posenet.synthetic.canvas import Canvas, ellipse, mix, ribbon, shade, smooth
from posenet.synthetic.wardrobe import HeadLook

BallPoint = tuple[float, float, float]

FEATURES: dict[str, BallPoint] = {
    "nose": (0, -0.16, 1.06),
    "Leye": (0.38, 0.08, 0.92),
    "Reye": (-0.38, 0.08, 0.92),
    "Lear": (1.06, -0.10, -0.12),
    "Rear": (-1.06, -0.10, -0.12),
}
"""The keypoints of the face."""

_MIN_DEPTHS = {"nose": 0.0, "Leye": 0.1, "Reye": 0.1, "Lear": -0.5, "Rear": -0.5}
"""A feature with a smaller depth is turned away from the viewer."""


class Cap(NamedTuple):
    """The part of the ball on one side of a plane: all points with ``normal @ point > offset``."""

    normal: BallPoint
    offset: float


_HAIRLINES = {
    "short": Cap((0, 0.70, -0.72), 0.16),
    "fringe": Cap((0, 0.93, -0.36), 0.34),
    "receding": Cap((0, 0.56, -0.83), 0.24),
    "beanie": Cap((0, 0.97, -0.25), 0.30),
    "cap": Cap((0, 0.99, -0.12), 0.36),
    "scarf": Cap((0, 0.25, -0.97), -0.42),
}
"""The part of the ball under hair or a hat; every other style has the hairline of short hair."""
_BEARD = Cap((0, -0.90, 0.44), 0.60)
_LONG_HAIR = np.array([[-0.85, 0.9], [0.85, 0.9], [1.25, -0.2], [1.3, -1.5], [0, -1.65], [-1.3, -1.5], [-1.25, -0.2]])
"""Outline of long hair or a scarf around the centre of the head: right and up, in radii."""
_JAW = 0.22
"""The chin is narrower than the temples by this share."""
_DISC = ellipse(np.zeros(2), (1, 1))


class Head:
    """One head in one image.

    Args:
        centre: (2,) pixel.
        radii: half-width and half-height in pixels.
        frame: (3, 3) rotation from the head's frame to the viewer's (x right, y up, z towards the viewer).
        codes: the canvas codes of skin and hair.

    Attributes:
        up: (2,) unit vector in the image from the chin to the top of the head.
        from_behind: whether the viewer sees the back of the head.
    """

    def __init__(
        self, centre: np.ndarray, radii: tuple[float, float], frame: np.ndarray, look: HeadLook, codes: tuple[int, int]
    ) -> None:
        self.centre = centre
        self.radii = radii
        self.look = look
        self.skin_code, self.hair_code = codes
        self.from_behind = bool(frame[2, 2] < 0)
        up = frame[:2, 1] / max(np.hypot(*frame[:2, 1]), 1e-6)
        axes = np.array([[up[1], -up[0]], up])
        # (3, 3): from the head's frame to right and up of the upright egg, and depth.
        self._to_egg = np.concatenate([axes @ frame[:2], frame[2:]])
        self.up = up * (1, -1)
        self._across = np.array([-self.up[1], self.up[0]])

    def locate(self, point: BallPoint) -> tuple[np.ndarray, float]:
        """Pixel and depth of a point on the ball; depth 1 is nearest to the viewer, depths below 0 are the far side."""
        right, up, depth = (self._to_egg @ point).tolist()
        right *= self.radii[0] * (1 - _JAW * max(-up, 0) ** 1.5)
        return self.centre + right * self._across + up * self.radii[1] * self.up, depth

    def averted(self) -> set[str]:
        """Names of the features turned away from the viewer, which an annotator would not mark."""
        return {name for name, point in FEATURES.items() if self.locate(point)[1] < _MIN_DEPTHS[name]}

    def paint_behind(self, canvas: Canvas) -> None:
        """Paint long hair or a scarf, which is behind the trunk and the neck if the viewer sees the face."""
        if self.look.style in ("long", "scarf") and not self.from_behind:
            self._paint_length(canvas)

    def paint(self, canvas: Canvas, line: float) -> None:
        """Paint the rest of the head, from back to front; ``line`` is the width of outlines in pixels."""
        knot = self._knot()
        if knot is not None and knot[1] < 0:
            canvas.fill_outlined(knot[0], self.look.hair, self.hair_code, line)
        if self.look.style == "afro":
            width, height = self.radii
            cloud = ellipse(self.centre + self.up * height * 0.35, (1.5 * width, 1.15 * height), self.up)
            canvas.fill_outlined(cloud, self.look.hair, self.hair_code, line)
        self._paint_ears(canvas, line, far=True)
        canvas.fill_outlined(self._to_pixels(_DISC), self.look.skin, self.skin_code, line)
        self._paint_hair(canvas, line)
        if self.look.style != "scarf":
            self._paint_ears(canvas, line, far=False)
        if not self.from_behind:
            self._paint_face(canvas)
        if knot is not None and knot[1] >= 0:
            canvas.fill_outlined(knot[0], self.look.hair, self.hair_code, line)

    def _to_pixels(self, disc: np.ndarray) -> np.ndarray:
        """Convert (N, 2) points of the ball's disc (right, up) to pixels."""
        right = disc[:, :1]
        up = disc[:, 1:]
        right = right * self.radii[0] * (1 - _JAW * np.maximum(-up, 0) ** 1.5)
        pixels: np.ndarray = self.centre + right * self._across + up * self.radii[1] * self.up
        return pixels

    def _cap_polygon(self, cap: Cap, swell: float) -> np.ndarray:
        """Polygon of the visible part of a cap.

        It consists of an arc of the ball's silhouette around the direction of the cap's normal, ``swell`` times as
        large as the ball, and the near half of the circle in which the plane cuts the ball.
        """
        normal, offset = cap
        seen = self._to_egg @ normal / np.linalg.norm(normal)
        flat, depth = seen[:2], seen[2]
        length = max(np.hypot(*flat), 1e-6)
        # The arc: all directions within half_angle of that of the normal.
        middle_angle = np.arctan2(flat[1], flat[0])
        half_angle = np.arccos(np.clip(offset / length, -1, 1))
        arc = middle_angle + np.linspace(-half_angle, half_angle, 18)
        silhouette = np.stack([np.cos(arc), np.sin(arc)], axis=1) * swell
        # The circle around offset * normal, from one intersection with the silhouette to the other.
        radius = np.sqrt(1 - offset**2)
        start = np.arcsin(np.clip(-depth * offset / (radius * length), -1, 1))
        turn = np.linspace(start, np.pi - start, 14)[:, None]
        across = np.array([-flat[1], flat[0]]) / length
        cut = flat * offset + radius * (np.cos(turn) * across - np.sin(turn) * depth * flat / length)
        return self._to_pixels(np.concatenate([silhouette, cut]))

    def _paint_hair(self, canvas: Canvas, line: float) -> None:
        """Paint the beard, and the hair or the hat on it."""
        style = self.look.style
        if self.look.beard and not self.from_behind:
            canvas.fill(self._cap_polygon(_BEARD, 1.03), shade(self.look.hair, 1.1), self.skin_code)
        if style == "bald":
            return
        colour = self.look.cloth if style in ("beanie", "cap", "scarf") else self.look.hair
        if style in ("beanie", "cap", "fringe"):
            canvas.fill(self._cap_polygon(_HAIRLINES["short"], 1.04), self.look.hair, self.hair_code)
        hairline = _HAIRLINES.get(style, _HAIRLINES["short"])
        canvas.fill_outlined(self._cap_polygon(hairline, 1.12), colour, self.hair_code, line)
        if style == "cap" and not self.from_behind:
            peak, _ = self.locate((0, 0.46, 1.15))
            brim = ellipse(peak, (self.radii[0] * 0.85, self.radii[1] * 0.17), self.up)
            canvas.fill_outlined(brim, shade(colour, 0.8), self.hair_code, line)
        if style in ("long", "scarf") and self.from_behind:
            self._paint_length(canvas)

    def _paint_length(self, canvas: Canvas) -> None:
        """Paint long hair or a scarf."""
        width, height = self.radii
        colour = self.look.hair if self.look.style == "long" else self.look.cloth
        back, _ = self.locate((0, 0.1, -0.55))
        shape = back + _LONG_HAIR[:, :1] * width * self._across + _LONG_HAIR[:, 1:] * height * self.up
        canvas.fill_outlined(smooth(shape), shade(colour, 0.85), self.hair_code, 1)

    def _knot(self) -> tuple[np.ndarray, float] | None:
        """Polygon and depth of tied-up hair."""
        width = self.radii[0]
        if self.look.style == "bun":
            centre, depth = self.locate((0, 0.95, -0.75))
            return ellipse(centre, (width * 0.5, width * 0.45)), depth
        if self.look.style == "ponytail":
            root, depth = self.locate((0, 0.45, -1.1))
            tip, _ = self.locate((0.25, -1.2, -1.5))
            return ribbon(root, tip, (width * 0.28, width * 0.42, width * 0.15)), depth
        return None

    def _paint_ears(self, canvas: Canvas, line: float, far: bool) -> None:
        """Paint the ears that the head partly covers (``far``), or the others."""
        width, height = self.radii
        for name in ("Lear", "Rear"):
            centre, depth = self.locate(FEATURES[name])
            if (depth < 0.25) != far:
                continue
            shape = ellipse(centre, (width * (0.15 + 0.09 * max(depth, 0)), height * 0.19), self.up)
            canvas.fill_outlined(shape, shade(self.look.skin, 0.93), self.skin_code, line)

    def _paint_face(self, canvas: Canvas) -> None:
        width, height = self.radii
        hidden = self.averted()
        for name, side in (("Leye", 1), ("Reye", -1)):
            if name not in hidden:
                self._paint_eye(canvas, name, side)
        if "nose" not in hidden:
            tip, _ = self.locate(FEATURES["nose"])
            nose = ellipse(tip, (width * 0.13, height * 0.10), self.up)
            canvas.fill(nose, shade(self.look.skin, 0.78), self.skin_code)
        corners = [self.locate((side * 0.28, -0.52, 0.85)) for side in (1, -1)]
        if max(depth for _, depth in corners) > 0.2:
            lip, _ = self.locate((0, -0.62, 0.86))
            near = [pixel for pixel, depth in corners if depth > 0]
            mouth = np.array([*near, lip - self.up * height * 0.03, lip + self.up * height * 0.06])
            canvas.fill(mouth, (70, 60, 165))

    def _paint_eye(self, canvas: Canvas, name: str, side: int) -> None:
        """Paint one eye with its brow, glasses and cheek; ``side`` is 1 for the left one, -1 for the right one."""
        width, height = self.radii
        centre, depth = self.locate(FEATURES[name])
        narrow = max(depth, 0.35)
        brow, _ = self.locate((side * 0.38, 0.34, 0.88))
        canvas.fill(ellipse(brow, (width * 0.22 * narrow, height * 0.045), self.up), shade(self.look.hair, 0.7))
        canvas.fill(ellipse(centre, (width * 0.19 * narrow, height * 0.125), self.up), (245, 245, 245))
        canvas.fill(ellipse(centre, (width * 0.11 * narrow, height * 0.105), self.up), (30, 25, 25))
        if self.look.glasses:
            rim = ellipse(centre, (width * 0.28 * narrow, height * 0.19), self.up)
            canvas.trace(rim, (40, 35, 35))
        if not self.look.beard:
            cheek, _ = self.locate((side * 0.55, -0.32, 0.80))
            blush = mix(self.look.skin, (110, 110, 235), 0.25)
            canvas.fill(ellipse(cheek, (width * 0.16 * narrow, height * 0.08)), blush)

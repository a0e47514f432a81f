"""A head with hair and a face, drawn as an egg whose features sit on a ball behind it.

Positions on the ball are in the head's own frame: x to the person's left, y up, z forward, radius 1.
"""

from __future__ import annotations

import numpy as np

from posenet.synthetic.canvas import Canvas, ellipse, mix, ribbon, shade, smooth
from posenet.synthetic.wardrobe import HeadLook

FEATURES = {
    "nose": (0, -0.16, 1.06),
    "Leye": (0.38, 0.08, 0.92),
    "Reye": (-0.38, 0.08, 0.92),
    "Lear": (1.06, -0.10, -0.12),
    "Rear": (-1.06, -0.10, -0.12),
}
"""The labelled points of the face."""

# Hair ends where (normal . point) = offset: the cut of a plane through the ball.
_HAIRLINES = {
    "short": ((0, 0.70, -0.72), 0.16),
    "fringe": ((0, 0.93, -0.36), 0.34),
    "receding": ((0, 0.56, -0.83), 0.24),
    "beanie": ((0, 0.97, -0.25), 0.30),
    "cap": ((0, 0.99, -0.12), 0.36),
    "scarf": ((0, 0.25, -0.97), -0.42),
}
_JAW = 0.22
_DISC = ellipse(np.zeros(2), (1, 1))


class Head:
    """One head in one image.

    Args:
        centre: (2,) pixel.
        radii: half-width and half-height in pixels.
        frame: (3, 3) viewer's directions (x right, y up, z towards the viewer) of the head's own axes, in columns.
        look: its colours.
        codes: what the canvas calls skin and hair.
    """

    def __init__(
        self, centre: np.ndarray, radii: tuple[float, float], frame: np.ndarray, look: HeadLook, codes: tuple[int, int]
    ) -> None:
        self.centre, self.radii, self.look, self.codes = centre, radii, look, codes
        up = frame[:2, 1] / max(np.hypot(*frame[:2, 1]), 1e-6)
        axes = np.array([[up[1], -up[0]], up])
        self._seen = np.concatenate([axes @ frame[:2], frame[2:]])
        self.up = up * (1, -1)
        self._across = np.array([-self.up[1], self.up[0]])
        self.from_behind = bool(frame[2, 2] < 0)

    def locate(self, point: tuple[float, float, float]) -> tuple[np.ndarray, float]:
        """Pixel and depth (1: nearest to the viewer, below 0: on the far side) of a point on the ball."""
        right, up, depth = (self._seen @ point).tolist()
        right *= self.radii[0] * (1 - _JAW * max(-up, 0) ** 1.5)
        return self.centre + right * self._across + up * self.radii[1] * self.up, depth

    def averted(self) -> set[str]:
        """Face points on the side turned away, which an annotator would not mark."""
        margins = {"nose": 0.0, "Leye": 0.1, "Reye": 0.1, "Lear": -0.5, "Rear": -0.5}
        return {name for name, point in FEATURES.items() if self.locate(point)[1] < margins[name]}

    def paint_behind(self, canvas: Canvas) -> None:
        """What lies behind the trunk and the neck when the face is seen: the length of long hair."""
        if self.look.style in ("long", "scarf") and not self.from_behind:
            self._paint_length(canvas)

    def paint(self, canvas: Canvas, line: float) -> None:
        """Everything else, from back to front; ``line`` is the width of outlines in pixels."""
        skin, hair = self.codes
        knot = self._knot()
        if knot is not None and knot[1] < 0:
            canvas.outlined(knot[0], self.look.hair, hair, line)
        if self.look.style == "afro":
            wide, high = self.radii
            cloud = ellipse(self.centre + self.up * high * 0.35, (1.5 * wide, 1.15 * high), self.up)
            canvas.outlined(cloud, self.look.hair, hair, line)
        self._paint_ears(canvas, line, far=True)
        canvas.outlined(self._to_pixels(_DISC), self.look.skin, skin, line)
        self._paint_hair(canvas, line)
        if self.look.style != "scarf":
            self._paint_ears(canvas, line, far=False)
        if not self.from_behind:
            self._paint_face(canvas)
        if knot is not None and knot[1] >= 0:
            canvas.outlined(knot[0], self.look.hair, hair, line)

    def _to_pixels(self, ball: np.ndarray) -> np.ndarray:
        """(N, 2) points of the ball's disc (right and up of the upright head) to pixels; the jaw is narrower."""
        right, up = ball[:, :1], ball[:, 1:]
        right = right * self.radii[0] * (1 - _JAW * np.maximum(-up, 0) ** 1.5)
        return self.centre + right * self._across + up * self.radii[1] * self.up

    def _cap(self, normal: tuple[float, float, float], offset: float, swell: float) -> np.ndarray:
        """Polygon of the seen part of the ball with ``normal . point > offset``, ``swell`` times as large outside.

        Its border is an arc of the ball's silhouette, about the direction of the normal, closed by the near half
        of the circle in which the plane cuts the ball.
        """
        seen = self._seen @ normal / np.linalg.norm(normal)
        flat, depth = seen[:2], seen[2]
        length = max(np.hypot(*flat), 1e-6)
        middle, half = np.arctan2(flat[1], flat[0]), np.arccos(np.clip(offset / length, -1, 1))
        arc = middle + np.linspace(-half, half, 18)
        radius = np.sqrt(1 - offset**2)
        start = np.arcsin(np.clip(-depth * offset / (radius * length), -1, 1))
        turn = np.linspace(start, np.pi - start, 14)[:, None]
        across = np.array([-flat[1], flat[0]]) / length
        cut = flat * offset + radius * (np.cos(turn) * across - np.sin(turn) * depth * flat / length)
        return self._to_pixels(np.concatenate([np.stack([np.cos(arc), np.sin(arc)], axis=1) * swell, cut]))

    def _paint_hair(self, canvas: Canvas, line: float) -> None:
        style, skin, hair = self.look.style, *self.codes
        if self.look.beard and not self.from_behind:
            canvas.fill(self._cap((0, -0.90, 0.44), 0.60, 1.03), shade(self.look.hair, 1.1), skin)
        if style == "bald":
            return
        colour = self.look.cloth if style in ("beanie", "cap", "scarf") else self.look.hair
        if style in ("beanie", "cap", "fringe"):
            canvas.fill(self._cap(*_HAIRLINES["short"], 1.04), self.look.hair, hair)
        canvas.outlined(self._cap(*_HAIRLINES.get(style, _HAIRLINES["short"]), 1.12), colour, hair, line)
        if style == "cap" and not self.from_behind:
            peak, _ = self.locate((0, 0.46, 1.15))
            brim = ellipse(peak, (self.radii[0] * 0.85, self.radii[1] * 0.17), self.up)
            canvas.outlined(brim, shade(colour, 0.8), hair, line)
        if style in ("long", "scarf") and self.from_behind:
            self._paint_length(canvas)

    def _paint_length(self, canvas: Canvas) -> None:
        wide, high = self.radii
        colour = self.look.hair if self.look.style == "long" else self.look.cloth
        back, _ = self.locate((0, 0.1, -0.55))
        corners = np.array(
            [[-0.85, 0.9], [0.85, 0.9], [1.25, -0.2], [1.3, -1.5], [0, -1.65], [-1.3, -1.5], [-1.25, -0.2]]
        )
        shape = back + corners[:, :1] * wide * self._across + corners[:, 1:] * high * self.up
        canvas.outlined(smooth(shape), shade(colour, 0.85), self.codes[1], 1)

    def _knot(self) -> tuple[np.ndarray, float] | None:
        """Polygon and depth of tied-up hair."""
        wide = self.radii[0]
        if self.look.style == "bun":
            centre, depth = self.locate((0, 0.95, -0.75))
            return ellipse(centre, (wide * 0.5, wide * 0.45)), depth
        if self.look.style == "ponytail":
            root, depth = self.locate((0, 0.45, -1.1))
            tip, _ = self.locate((0.25, -1.2, -1.5))
            return ribbon(root, tip, (wide * 0.28, wide * 0.42, wide * 0.15)), depth
        return None

    def _paint_ears(self, canvas: Canvas, line: float, far: bool) -> None:
        """Those that the head partly covers (``far``), or those that lie on it."""
        wide, high = self.radii
        for name in ("Lear", "Rear"):
            centre, depth = self.locate(FEATURES[name])
            if (depth < 0.25) != far:
                continue
            shape = ellipse(centre, (wide * (0.15 + 0.09 * max(depth, 0)), high * 0.19), self.up)
            canvas.outlined(shape, shade(self.look.skin, 0.93), self.codes[0], line)

    def _paint_face(self, canvas: Canvas) -> None:
        skin, hair, (wide, high) = self.look.skin, self.look.hair, self.radii
        hidden = self.averted()
        for side, name in ((1, "Leye"), (-1, "Reye")):
            if name in hidden:
                continue
            centre, depth = self.locate(FEATURES[name])
            narrow = max(depth, 0.35)
            brow, _ = self.locate((side * 0.38, 0.34, 0.88))
            canvas.fill(ellipse(brow, (wide * 0.22 * narrow, high * 0.045), self.up), shade(hair, 0.7))
            canvas.fill(ellipse(centre, (wide * 0.19 * narrow, high * 0.125), self.up), (245, 245, 245))
            canvas.fill(ellipse(centre, (wide * 0.11 * narrow, high * 0.105), self.up), (30, 25, 25))
            if self.look.glasses:
                rim = ellipse(centre, (wide * 0.28 * narrow, high * 0.19), self.up)
                canvas.trace(rim, (40, 35, 35))
            if not self.look.beard:
                cheek, _ = self.locate((side * 0.55, -0.32, 0.80))
                canvas.fill(ellipse(cheek, (wide * 0.16 * narrow, high * 0.08)), mix(skin, (110, 110, 235), 0.25))
        if "nose" not in hidden:
            tip, _ = self.locate(FEATURES["nose"])
            canvas.fill(ellipse(tip, (wide * 0.13, high * 0.10), self.up), shade(skin, 0.78), self.codes[0])
        left, right = (self.locate((side * 0.28, -0.52, 0.85)) for side in (1, -1))
        if max(left[1], right[1]) > 0.2:
            lip = self.locate((0, -0.62, 0.86))[0]
            near = [point for point, depth in (left, right) if depth > 0]
            canvas.fill(np.array([*near, lip - self.up * high * 0.03, lip + self.up * high * 0.06]), (70, 60, 165))

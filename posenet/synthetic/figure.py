"""One dressed person: drawing the parts from back to front, and which part shows which keypoint."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial

import numpy as np

from posenet.synthetic.canvas import OUTLINE, Canvas, Colour, box, ellipse, hull, ribbon, shade, smooth
from posenet.synthetic.head import FEATURES, Head
from posenet.synthetic.pose import SIDES, Body, Posture
from posenet.synthetic.wardrobe import Look


class Part(IntEnum):
    """What a person's pixel belongs to; codes on the canvas count in steps of ``len(Part)``."""

    HEAD = 0
    HAIR = 1
    TRUNK = 2
    SKIRT = 3
    LEFT_ARM = 4
    RIGHT_ARM = 5
    LEFT_LEG = 6
    RIGHT_LEG = 7


_ARM = {"L": Part.LEFT_ARM, "R": Part.RIGHT_ARM}
_LEG = {"L": Part.LEFT_LEG, "R": Part.RIGHT_LEG}

# The trunk at a few levels (0 the hips, 1 the shoulders): half-width and half-depth in shoulder half-widths.
_LEVELS = np.array([-0.20, 0, 0.40, 0.75, 0.97, 1.10])
_WIDTHS = np.array([1.16, 1.08, 0.90, 1.04, 1.12, 0.45])
_DEPTHS = np.array([0.72, 0.72, 0.62, 0.70, 0.58, 0.40])

# Radii at both ends and the joint between, shares of the standing height.
_BARE_ARM, _SLEEVE = (0.034, 0.028, 0.020), (0.038, 0.034, 0.027)
_BARE_LEG, _TROUSERS = (0.050, 0.038, 0.025), (0.056, 0.044, 0.034)
_ARMPIT = 0.35
"""Share of the upper arm whose edge the trunk hides, so that shirt and sleeve are one piece."""


class Figure:
    """One person in one image.

    Args:
        body, posture, look: who it is.
        height: of the standing person, pixels.
        ground: (2,) pixel of the ground below the pelvis.
        code: the canvas codes of this person's parts are ``code + Part``.

    Attributes:
        at: name to (2,) pixel of every joint of the posture and of the face's keypoints.
    """

    def __init__(self, body: Body, posture: Posture, look: Look, height: float, ground: np.ndarray, code: int) -> None:
        self.posture, self.look, self.height, self.code = posture, look, height, code
        self.at = {name: ground + height * point[:2] * (1, -1) for name, point in posture.joints.items()}
        self.head = Head(
            self.at["head"],
            (body.head[0] * height, body.head[1] * height),
            posture.head,
            look.head,
            (code + Part.HEAD, code + Part.HAIR),
        )
        self.at |= {name: self.head.locate(point)[0] for name, point in FEATURES.items()}
        self._line = max(0.5, 0.004 * height)
        self._stout = height * (0.55 + 0.45 * body.girth)
        self._chest = body.shoulder * height * (0.75 + 0.25 * body.girth)

    def averted(self) -> set[str]:
        """Face keypoints on the side turned away from the viewer."""
        return self.head.averted()

    def codes_showing(self, name: str) -> list[int]:
        """Canvas codes on which the keypoint can be seen."""
        if name in FEATURES:
            return [self.code + Part.HEAD]
        side, joint = name[0], name[1:]
        parts = [_ARM[side] if joint in ("sho", "elb", "wri") else _LEG[side]]
        behind_trunk = SIDES[side] * self.posture.chest[2, 0] < -0.6
        if joint in ("sho", "hip") and not behind_trunk:
            parts += [Part.TRUNK, Part.SKIRT]
        return [self.code + part for part in parts]

    def paint(self, canvas: Canvas) -> None:
        """Draw every part, far ones first."""
        if self.posture.seated:
            self._paint_seat(canvas)
        for _, paint in sorted(self._layers(), key=lambda layer: layer[0]):
            paint(canvas)

    def _layers(self) -> list[tuple[float, Callable[[Canvas], None]]]:
        """What to paint and how near it is: the trunk at 0, whole limbs behind or before it."""
        depth = {name: point[2] for name, point in self.posture.joints.items()}
        bowed_away = depth["head"] < depth["chest"] - 0.06
        layers = [
            (-4.0, self.head.paint_behind),
            (0.0, self._paint_trunk),
            (-1.5 if bowed_away else 1.0, partial(self.head.paint, line=self._line)),
        ]
        lap = False
        for side in SIDES:
            forward = depth[side + "kne"] - depth["pelvis"]
            raised = forward > 0.12
            lap |= raised
            layers.append((0.1 * forward + (0.5 if raised else -2), partial(self._paint_leg, side=side)))
            reach = (depth[side + "elb"] + depth[side + "wri"] - depth["pelvis"] - depth["chest"]) / 2
            before = reach > -0.045
            layers.append((reach + (3 if before else -3), partial(self._paint_arm, side=side)))
            if before:
                layers.append((-0.5, partial(self._paint_armpit, side=side)))
        skirt = self.look.bottoms in ("skirt", "dress")
        layers.append((0.8 if skirt and lap else -1.0, self._paint_skirt if skirt else self._paint_hips))
        return layers

    def _paint_armpit(self, canvas: Canvas, side: str) -> None:
        """The outer edge of the upper arm, which the trunk then covers where the two join."""
        radii, colour = (_SLEEVE, self.look.shirt) if self.look.sleeve else (_BARE_ARM, self.look.head.skin)
        self._paint_limb(canvas, self._joints(side, "sho", "elb", "wri"), radii, colour, _ARM[side], cover=0.5)

    def _paint_arm(self, canvas: Canvas, side: str) -> None:
        skin, part = self.look.head.skin, _ARM[side]
        points = shoulder, elbow, wrist = self._joints(side, "sho", "elb", "wri")
        hand = self.at[side + "hand"]
        palm = ribbon(wrist, hand, np.array((0.018, 0.025, 0.019)) * self.height)
        along = hand - wrist
        inward = np.array([-along[1], along[0]]) * SIDES[side] * (-0.5 if self.head.from_behind else 0.5)
        thumb = ribbon(wrist, wrist + 0.55 * along + inward, (0.011 * self.height, 0.009 * self.height))
        for shape in (thumb, palm):
            canvas.outlined(shape, skin, self.code + part, self._line)
        if self.look.sleeve < 2:
            self._paint_limb(canvas, points, _BARE_ARM, skin, part, edge=_ARMPIT)
        if self.look.sleeve:
            self._paint_limb(canvas, points, _SLEEVE, self.look.shirt, part, cover=self.look.sleeve, edge=_ARMPIT)
        canvas.fill(palm, skin, self.code + part)

    def _paint_leg(self, canvas: Canvas, side: str) -> None:
        points, part, bottoms = self._joints(side, "hip", "kne", "ank"), _LEG[side], self.look.bottoms
        if bottoms != "trousers":
            self._paint_limb(canvas, points, _BARE_LEG, self.look.head.skin, part)
        self._paint_shoe(canvas, side)
        if bottoms in ("trousers", "shorts"):
            cover = 1.93 if bottoms == "trousers" else 0.72
            self._paint_limb(canvas, points, _TROUSERS, self.look.cloth, part, cover=cover)

    def _paint_shoe(self, canvas: Canvas, side: str) -> None:
        (heel, toe, ankle), code = self._joints(side, "heel", "toe", "ank"), self.code + _LEG[side]
        widths, thickness = (0.022 * self.height, 0.024 * self.height), np.array([0, 0.010 * self.height])
        canvas.outlined(
            ribbon(heel + thickness, toe + thickness, widths), shade(self.look.shoes, 0.6), code, self._line
        )
        upper = hull(ribbon(heel, toe, widths), ellipse(ankle, (0.026 * self.height, 0.026 * self.height)))
        canvas.fill(upper, self.look.shoes, code)

    def _paint_limb(
        self,
        canvas: Canvas,
        points: list[np.ndarray],
        radii: tuple[float, float, float],
        colour: Colour,
        part: Part,
        cover: float = 2.0,
        edge: float = 0.0,
    ) -> None:
        """Two tapered segments, or as much of them as ``cover`` (0-2) says, under one outline.

        The outline begins at the share ``edge`` of the first segment.
        """
        pieces = []
        for k in range(2):
            share = min(max(cover - k, 0), 1)
            if share:
                widths = [self._stout * radii[k], self._stout * (radii[k] + share * (radii[k + 1] - radii[k]))]
                step = share * (points[k + 1] - points[k])
                pieces.append((points[k], points[k] + (0 if k else edge) * step, points[k] + step, widths))
        for _, inner, end, widths in pieces:
            canvas.fill(ribbon(inner, end, widths, spread=2 * self._line), shade(colour, OUTLINE), self.code + part)
        for start, _, end, widths in pieces:
            canvas.fill(ribbon(start, end, widths), colour, self.code + part)
        for _, inner, end, widths in pieces:
            lit = np.array([-0.3 * widths[0], 0])
            canvas.fill(ribbon(inner + lit, end + lit, [0.5 * width for width in widths]), shade(colour, 1.1))

    def _paint_seat(self, canvas: Canvas) -> None:
        """A stool below the pelvis; its pixels are nobody's."""
        (x, pelvis), wide = self.at["pelvis"], 0.13 * self.height
        top, ground = pelvis + 0.045 * self.height, max(self.at["Lheel"][1], self.at["Rheel"][1])
        for leg in (-0.8, 0.65):
            shape = box(x + leg * wide, top, x + (leg + 0.15) * wide, max(ground - 0.01 * self.height, top))
            canvas.outlined(shape, (60, 85, 120), 0, self._line)
        canvas.outlined(box(x - wide, top, x + wide, top + 0.045 * self.height), (80, 120, 165), 0, self._line)

    def _paint_hips(self, canvas: Canvas) -> None:
        canvas.outlined(hull(*self._hips()), self.look.cloth, self.code + Part.TRUNK, self._line)

    def _paint_skirt(self, canvas: Canvas) -> None:
        hems = []
        for side in SIDES:
            hip, knee = self._joints(side, "hip", "kne")
            hems.append(ellipse(hip + 0.72 * (knee - hip), (0.085 * self._stout, 0.030 * self._stout)))
        canvas.outlined(hull(*self._hips(), *hems), self.look.cloth, self.code + Part.SKIRT, self._line)

    def _hips(self) -> list[np.ndarray]:
        return [ellipse(self.at[side + "hip"], (0.052 * self._stout, 0.050 * self._stout)) for side in SIDES]

    def _paint_trunk(self, canvas: Canvas) -> None:
        code, look, chest, head = self.code + Part.TRUNK, self.look, self.at["chest"], self.at["head"]
        canvas.outlined(smooth(self._band(-0.20, 1.10)), look.shirt, code, self._line)
        canvas.fill(smooth(self._band(-0.17, 0.95, (0.45, 0.95))), shade(look.shirt, 0.88))
        if look.pattern == "stripes":
            for level in np.arange(-0.1, 0.95, 0.22):
                canvas.fill(self._band(level, level + 0.10), look.accent)
        elif look.pattern == "band":
            canvas.fill(self._band(0.55, 0.82), look.accent)
        front, facing = self.posture.chest[:2, 2] * (0.6, -0.6) * self._chest, self.posture.chest[2, 2]
        throat = 0.03 * self._stout
        if facing > 0.3:
            self._paint_front(canvas, front, facing)
        if facing > 0:
            neckline = ellipse(chest + 0.5 * front - (0, 0.01 * self.height), (1.5 * throat, throat))
            canvas.fill(neckline, look.head.skin, code)
        neck = ribbon(chest + 0.15 * (head - chest), head, (throat, throat))
        canvas.outlined(neck, shade(look.head.skin, 0.88), code, self._line)

    def _paint_front(self, canvas: Canvas, front: np.ndarray, facing: float) -> None:
        """What is on the front of a shirt, ``front`` pixels from the spine."""
        pelvis, chest, size = self.at["pelvis"] + front, self.at["chest"] + front, 0.035 * self.height
        if self.look.pattern == "jacket":
            canvas.fill(ribbon(pelvis, chest, (0.75 * size, 0.75 * size)), self.look.accent)
        elif self.look.pattern == "emblem":
            canvas.fill(ellipse(pelvis + 0.68 * (chest - pelvis), (size * facing, size)), self.look.accent)

    def _band(self, low: float, high: float, sides: tuple[float, float] = (-1.0, 1.0)) -> np.ndarray:
        """Polygon of the trunk between two levels (0 hips, 1 shoulders) and two sides (-1 left edge, 1 right edge)."""
        levels = np.array([low, *_LEVELS[(low < _LEVELS) & (high > _LEVELS)], high])
        spine = self.at["chest"] - self.at["pelvis"]
        up = spine / max(np.hypot(*spine), 1e-6)
        across = np.array([-up[1], up[0]])
        lateral, frontal = across @ (self.posture.chest[:2, ::2] * [[1], [-1]])
        half = np.hypot(np.interp(levels, _LEVELS, _WIDTHS) * lateral, np.interp(levels, _LEVELS, _DEPTHS) * frontal)
        half *= np.interp(levels, (0, 0.4, 0.8), (1, self.look.waist, 1)) * self._chest
        middle, edge = self.at["pelvis"] + levels[:, None] * spine, half[:, None] * across
        return np.concatenate([middle + sides[0] * edge, (middle + sides[1] * edge)[::-1]])

    def _joints(self, side: str, *names: str) -> list[np.ndarray]:
        return [self.at[side + name] for name in names]

"""One dressed person: painting the parts from back to front, and the parts that show each keypoint."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from posenet.synthetic.canvas import OUTLINE_SHADE, Canvas, Colour, box, ellipse, hull, ribbon, shade, smooth
from posenet.synthetic.head import FEATURES, Head
from posenet.synthetic.pose import SIDES, Body, Posture
from posenet.synthetic.wardrobe import Look


class Part(IntEnum):
    """The part of a person that a pixel shows; people have canvas codes in steps of ``len(Part)``."""

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

_TRUNK_LEVELS = np.array([-0.20, 0, 0.40, 0.75, 0.97, 1.10])
"""Heights on the trunk: 0 at the hips, 1 at the shoulders."""
_TRUNK_WIDTHS = np.array([1.16, 1.08, 0.90, 1.04, 1.12, 0.45])
"""Half-width of the trunk at these levels, in shoulder half-widths."""
_TRUNK_DEPTHS = np.array([0.72, 0.72, 0.62, 0.70, 0.58, 0.40])
"""Half-depth of the trunk at these levels, in shoulder half-widths."""

_LimbRadii = tuple[float, float, float]
"""Radii of a limb at its start, its joint and its end, as shares of the standing height."""
_BARE_ARM: _LimbRadii = (0.034, 0.028, 0.020)
_SLEEVE: _LimbRadii = (0.038, 0.034, 0.027)
_BARE_LEG: _LimbRadii = (0.050, 0.038, 0.025)
_TROUSERS: _LimbRadii = (0.056, 0.044, 0.034)
_ARMPIT = 0.35
"""Share of the upper arm without an outline, so that shirt and sleeve look like one piece."""
_STOOL_LEG: Colour = (60, 85, 120)
_STOOL_TOP: Colour = (80, 120, 165)


class _Segment(NamedTuple):
    """One of a limb's two segments, as far as it is painted."""

    start: np.ndarray  # (2,) pixel
    outline_start: np.ndarray  # (2,) pixel between start and end, at which the outline starts
    end: np.ndarray  # (2,) pixel
    widths: list[float]  # half-widths at start and end, pixels


class Figure:
    """One person in one image.

    Args:
        height: height of the standing person, pixels.
        ground: (2,) pixel of the ground below the pelvis.
        code: the canvas codes of this person's parts are ``code + Part``.

    Attributes:
        at: (2,) pixels of all joints of the posture and all keypoints of the face, by name.
    """

    def __init__(self, body: Body, posture: Posture, look: Look, height: float, ground: np.ndarray, code: int) -> None:
        self.posture = posture
        self.look = look
        self.height = height
        self.code = code
        self.at = {name: ground + height * point[:2] * (1, -1) for name, point in posture.joints.items()}
        half_width, half_height = body.head
        self.head = Head(
            centre=self.at["head"],
            radii=(half_width * height, half_height * height),
            frame=posture.head,
            look=look.head,
            codes=(code + Part.HEAD, code + Part.HAIR),
        )
        self.at |= {name: self.head.locate(point)[0] for name, point in FEATURES.items()}
        self._line = max(0.5, 0.004 * height)  # width of outlines
        self._thickness = height * (0.55 + 0.45 * body.girth)  # scale of radii
        self._chest = body.shoulder * height * (0.75 + 0.25 * body.girth)  # scale of the trunk's widths and depths

    def codes_showing(self, name: str) -> list[int]:
        """Canvas codes of the parts that can show the keypoint."""
        if name in FEATURES:
            return [self.code + Part.HEAD]
        side, joint = name[0], name[1:]
        parts = [_ARM[side] if joint in ("sho", "elb", "wri") else _LEG[side]]
        behind_trunk = SIDES[side] * self.posture.chest[2, 0] < -0.6
        if joint in ("sho", "hip") and not behind_trunk:
            parts += [Part.TRUNK, Part.SKIRT]
        return [self.code + part for part in parts]

    def paint(self, canvas: Canvas) -> None:
        """Paint all parts, the farthest one first."""
        if self.posture.seated:
            self._paint_seat(canvas)
        for _, paint in sorted(self._layers(), key=lambda layer: layer[0]):
            paint(canvas)

    def _layers(self) -> list[tuple[float, Callable[[Canvas], None]]]:
        """The order of each part, from far to near, and the function that paints it. The trunk is at 0."""
        depth = {name: float(point[2]) for name, point in self.posture.joints.items()}
        bowed_away = depth["head"] < depth["chest"] - 0.06
        layers: list[tuple[float, Callable[[Canvas], None]]] = [
            (-4.0, self.head.paint_behind),
            (0.0, self._paint_trunk),
            (-1.5 if bowed_away else 1.0, partial(self.head.paint, line=self._line)),
        ]
        any_leg_raised = False
        for side in SIDES:
            forward = depth[side + "kne"] - depth["pelvis"]
            leg_raised = forward > 0.12
            any_leg_raised |= leg_raised
            layers.append((0.1 * forward + (0.5 if leg_raised else -2), partial(self._paint_leg, side=side)))
            reach = (depth[side + "elb"] + depth[side + "wri"] - depth["pelvis"] - depth["chest"]) / 2
            arm_in_front = reach > -0.045
            layers.append((reach + (3 if arm_in_front else -3), partial(self._paint_arm, side=side)))
            if arm_in_front:
                layers.append((-0.5, partial(self._paint_armpit, side=side)))
        if self.look.bottoms in ("skirt", "dress"):
            layers.append((0.8 if any_leg_raised else -1.0, self._paint_skirt))
        else:
            layers.append((-1.0, self._paint_hips))
        return layers

    def _paint_armpit(self, canvas: Canvas, side: str) -> None:
        """Paint the upper arm, of which the trunk then covers the inner edge."""
        points = self._joints(side, "sho", "elb", "wri")
        radii, colour = (_SLEEVE, self.look.shirt) if self.look.sleeve else (_BARE_ARM, self.look.head.skin)
        self._paint_limb(canvas, points, radii, colour, _ARM[side], cover=0.5)

    def _paint_arm(self, canvas: Canvas, side: str) -> None:
        skin = self.look.head.skin
        part = _ARM[side]
        points = self._joints(side, "sho", "elb", "wri")
        wrist = points[2]
        hand = self.at[side + "hand"]
        palm = ribbon(wrist, hand, np.array((0.018, 0.025, 0.019)) * self.height)
        along = hand - wrist
        inward = np.array([-along[1], along[0]]) * SIDES[side] * (-0.5 if self.head.from_behind else 0.5)
        thumb = ribbon(wrist, wrist + 0.55 * along + inward, (0.011 * self.height, 0.009 * self.height))
        for shape in (thumb, palm):
            canvas.fill_outlined(shape, skin, self.code + part, self._line)
        if self.look.sleeve < 2:
            self._paint_limb(canvas, points, _BARE_ARM, skin, part, hidden_edge=_ARMPIT)
        if self.look.sleeve:
            cover = self.look.sleeve
            self._paint_limb(canvas, points, _SLEEVE, self.look.shirt, part, cover=cover, hidden_edge=_ARMPIT)
        canvas.fill(palm, skin, self.code + part)

    def _paint_leg(self, canvas: Canvas, side: str) -> None:
        points = self._joints(side, "hip", "kne", "ank")
        part = _LEG[side]
        if self.look.bottoms != "trousers":
            self._paint_limb(canvas, points, _BARE_LEG, self.look.head.skin, part)
        self._paint_shoe(canvas, side)
        if self.look.bottoms in ("trousers", "shorts"):
            cover = 1.93 if self.look.bottoms == "trousers" else 0.72
            self._paint_limb(canvas, points, _TROUSERS, self.look.cloth, part, cover=cover)

    def _paint_shoe(self, canvas: Canvas, side: str) -> None:
        heel, toe, ankle = self._joints(side, "heel", "toe", "ank")
        code = self.code + _LEG[side]
        widths = (0.022 * self.height, 0.024 * self.height)
        down = np.array([0, 0.010 * self.height])
        sole = ribbon(heel + down, toe + down, widths)
        canvas.fill_outlined(sole, shade(self.look.shoes, 0.6), code, self._line)
        upper = hull(ribbon(heel, toe, widths), ellipse(ankle, (0.026 * self.height, 0.026 * self.height)))
        canvas.fill(upper, self.look.shoes, code)

    def _paint_limb(
        self,
        canvas: Canvas,
        points: list[np.ndarray],
        radii: _LimbRadii,
        colour: Colour,
        part: Part,
        cover: float = 2.0,
        hidden_edge: float = 0.0,
    ) -> None:
        """Paint the two tapered segments of a limb under one outline.

        Args:
            points: start, joint and end of the limb.
            cover: part of the limb to paint: 1 to the joint, 2 to the end.
            hidden_edge: share of the first segment, from its start, without an outline.
        """
        segments = []
        for k in range(2):
            share = min(max(cover - k, 0), 1)
            if share:
                start = points[k]
                step = share * (points[k + 1] - start)
                skipped = hidden_edge if k == 0 else 0
                widths = [self._thickness * radii[k], self._thickness * (radii[k] + share * (radii[k + 1] - radii[k]))]
                segments.append(_Segment(start, start + skipped * step, start + step, widths))
        outline = shade(colour, OUTLINE_SHADE)
        for segment in segments:
            shape = ribbon(segment.outline_start, segment.end, segment.widths, spread=2 * self._line)
            canvas.fill(shape, outline, self.code + part)
        for segment in segments:
            canvas.fill(ribbon(segment.start, segment.end, segment.widths), colour, self.code + part)
        for segment in segments:
            # A lighter stripe, because the light comes from the left.
            left = np.array([-0.3 * segment.widths[0], 0])
            widths = [0.5 * width for width in segment.widths]
            canvas.fill(ribbon(segment.outline_start + left, segment.end + left, widths), shade(colour, 1.1))

    def _paint_seat(self, canvas: Canvas) -> None:
        """Paint a stool below the pelvis. Its pixels belong to the background."""
        x, pelvis = self.at["pelvis"]
        half_width = 0.13 * self.height
        top = pelvis + 0.045 * self.height
        ground = max(self.at["Lheel"][1], self.at["Rheel"][1])
        for leg in (-0.8, 0.65):
            left = x + leg * half_width
            right = x + (leg + 0.15) * half_width
            shape = box(left, top, right, max(ground - 0.01 * self.height, top))
            canvas.fill_outlined(shape, _STOOL_LEG, 0, self._line)
        seat = box(x - half_width, top, x + half_width, top + 0.045 * self.height)
        canvas.fill_outlined(seat, _STOOL_TOP, 0, self._line)

    def _paint_hips(self, canvas: Canvas) -> None:
        canvas.fill_outlined(hull(*self._hip_shapes()), self.look.cloth, self.code + Part.TRUNK, self._line)

    def _paint_skirt(self, canvas: Canvas) -> None:
        hems = []
        for side in SIDES:
            hip, knee = self._joints(side, "hip", "kne")
            hems.append(ellipse(hip + 0.72 * (knee - hip), (0.085 * self._thickness, 0.030 * self._thickness)))
        canvas.fill_outlined(hull(*self._hip_shapes(), *hems), self.look.cloth, self.code + Part.SKIRT, self._line)

    def _hip_shapes(self) -> list[np.ndarray]:
        radii = (0.052 * self._thickness, 0.050 * self._thickness)
        return [ellipse(self.at[side + "hip"], radii) for side in SIDES]

    def _paint_trunk(self, canvas: Canvas) -> None:
        """Paint the shirt with its pattern, and the neck."""
        code = self.code + Part.TRUNK
        look = self.look
        canvas.fill_outlined(smooth(self._band(-0.20, 1.10)), look.shirt, code, self._line)
        canvas.fill(smooth(self._band(-0.17, 0.95, (0.45, 0.95))), shade(look.shirt, 0.88))
        if look.pattern == "stripes":
            for level in np.arange(-0.1, 0.95, 0.22):
                canvas.fill(self._band(level, level + 0.10), look.accent)
        elif look.pattern == "band":
            canvas.fill(self._band(0.55, 0.82), look.accent)
        chest = self.at["chest"]
        head = self.at["head"]
        front = self.posture.chest[:2, 2] * (0.6, -0.6) * self._chest  # from the spine to the front of the shirt
        facing = self.posture.chest[2, 2]
        throat = 0.03 * self._thickness
        if facing > 0.3:
            self._paint_front(canvas, front, facing)
        if facing > 0:
            neckline = ellipse(chest + 0.5 * front - (0, 0.01 * self.height), (1.5 * throat, throat))
            canvas.fill(neckline, look.head.skin, code)
        neck = ribbon(chest + 0.15 * (head - chest), head, (throat, throat))
        canvas.fill_outlined(neck, shade(look.head.skin, 0.88), code, self._line)

    def _paint_front(self, canvas: Canvas, front: np.ndarray, facing: float) -> None:
        """Paint the opening of the jacket or the emblem, shifted by ``front`` pixels from the spine."""
        pelvis = self.at["pelvis"] + front
        chest = self.at["chest"] + front
        size = 0.035 * self.height
        if self.look.pattern == "jacket":
            canvas.fill(ribbon(pelvis, chest, (0.75 * size, 0.75 * size)), self.look.accent)
        elif self.look.pattern == "emblem":
            canvas.fill(ellipse(pelvis + 0.68 * (chest - pelvis), (size * facing, size)), self.look.accent)

    def _band(self, low: float, high: float, sides: tuple[float, float] = (-1.0, 1.0)) -> np.ndarray:
        """Polygon of the trunk between two levels (0 hips, 1 shoulders) and two sides (-1 left edge, 1 right edge).

        A horizontal cut through the trunk is an ellipse with the level's half-width w and half-depth d. Its half-width
        in the image is sqrt((w a)^2 + (d b)^2), where a and b are the projections of the trunk's left and forward
        directions to the direction across the spine.
        """
        levels = np.array([low, *_TRUNK_LEVELS[(low < _TRUNK_LEVELS) & (high > _TRUNK_LEVELS)], high])
        spine = self.at["chest"] - self.at["pelvis"]
        up = spine / max(np.hypot(*spine), 1e-6)
        across = np.array([-up[1], up[0]])
        lateral, frontal = across @ (self.posture.chest[:2, ::2] * [[1], [-1]])
        half = np.hypot(
            np.interp(levels, _TRUNK_LEVELS, _TRUNK_WIDTHS) * lateral,
            np.interp(levels, _TRUNK_LEVELS, _TRUNK_DEPTHS) * frontal,
        )
        half *= np.interp(levels, (0, 0.4, 0.8), (1, self.look.waist, 1)) * self._chest
        middle = self.at["pelvis"] + levels[:, None] * spine
        edge = half[:, None] * across
        left, right = sides
        return np.concatenate([middle + left * edge, (middle + right * edge)[::-1]])

    def _joints(self, side: str, *names: str) -> list[np.ndarray]:
        return [self.at[side + name] for name in names]

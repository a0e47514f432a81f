"""One dressed person: the look, painting the parts from back to front, and the parts that show each keypoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np

from posenet.synthetic.body_and_posture import SIDES, Body, Posture
from posenet.synthetic.canvas import Canvas, Colour, Numbers, ellipse, hsv, hull, limb, shade


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


_ARM = {"left": Part.LEFT_ARM, "right": Part.RIGHT_ARM}
_LEG = {"left": Part.LEFT_LEG, "right": Part.RIGHT_LEG}

FACE = {
    "nose": ((0, -0.16, 1.06), 0.0),
    "left_eye": ((0.38, 0.08, 0.92), 0.1),
    "right_eye": ((-0.38, 0.08, 0.92), 0.1),
    "left_ear": ((1.06, -0.10, -0.12), -0.5),
    "right_ear": ((-1.06, -0.10, -0.12), -0.5),
}
"""The keypoints of the face: the position on the head, a ball of radius 1 with x to the person's left, y up and z
forward; and the depth below which the keypoint is turned away from the viewer."""

_Radii = tuple[float, float, float]
"""Radii of a limb at its start, its joint and its end, as shares of the standing height."""
_BARE_ARM: _Radii = (0.034, 0.028, 0.020)
_SLEEVE: _Radii = (0.038, 0.034, 0.027)
_BARE_LEG: _Radii = (0.050, 0.038, 0.025)
_TROUSERS: _Radii = (0.056, 0.044, 0.034)

_SKIN_COLOURS: tuple[Colour, ...] = (
    (196, 219, 246), (170, 200, 238), (125, 165, 214), (98, 140, 195), (72, 110, 168), (40, 62, 102),
)  # fmt: skip
_HAIR_COLOURS: tuple[Colour, ...] = (
    (28, 24, 26), (32, 48, 74), (40, 66, 104), (60, 104, 160), (96, 160, 214), (60, 90, 190), (205, 208, 210),
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The look of a person."""

    skin: Colour
    hair: Colour
    hair_style: str  # short, long, bald or hat
    shirt: Colour
    pattern: str  # of the shirt: plain, stripes or emblem
    accent: Colour  # of the pattern and of a hat
    sleeve: float  # length of the sleeves: 0 none, 1 to the elbow, 2 to the wrist
    bottoms: str  # trousers, shorts or skirt
    cloth: Colour  # of trousers or skirt
    shoes: Colour


def random_look(rng: np.random.Generator) -> Look:
    """Choose a random look."""
    shirt = _cloth_colour(rng)
    return Look(
        skin=shade(_SKIN_COLOURS[rng.integers(len(_SKIN_COLOURS))], rng.uniform(0.94, 1.04)),
        hair=shade(_HAIR_COLOURS[rng.integers(len(_HAIR_COLOURS))], rng.uniform(0.9, 1.1)),
        hair_style=str(rng.choice(("short", "long", "bald", "hat"), p=(0.5, 0.25, 0.1, 0.15))),
        shirt=shirt,
        pattern=str(rng.choice(("plain", "stripes", "emblem"))),
        accent=_cloth_colour(rng),
        sleeve=float(rng.choice((0, 0.5, 2), p=(0.15, 0.5, 0.35))),
        bottoms=str(rng.choice(("trousers", "shorts", "skirt"), p=(0.55, 0.25, 0.20))),
        cloth=shirt if rng.random() < 0.15 else _cloth_colour(rng),
        shoes=_cloth_colour(rng),
    )


def _cloth_colour(rng: np.random.Generator) -> Colour:
    """A random colour of cloth; three in ten are almost black, grey or white."""
    if rng.random() < 0.3:
        return hsv(rng.random(), rng.uniform(0, 0.12), rng.choice((0.22, 0.35, 0.6, 0.92)))
    return hsv(rng.random(), rng.uniform(0.35, 0.85), rng.uniform(0.35, 0.95))


class Figure:
    """One person in one image.

    Args:
        height: height of the standing person, pixels.
        ground: (2,) pixel of the ground below the pelvis.
        code: the canvas codes of this person's parts are ``code + Part``.

    Attributes:
        at: (2,) pixels of all joints of the posture and all keypoints of the face, by name.
        averted: the keypoints of the face that are turned away from the viewer, which an annotator would not mark.
    """

    def __init__(self, body: Body, posture: Posture, look: Look, height: float, ground: np.ndarray, code: int) -> None:
        self.posture = posture
        self.look = look
        self.height = height
        self.ground = ground
        self.code = code
        self.at = {name: ground + height * point[:2] * (1, -1) for name, point in posture.joints.items()}
        self._head_radii = np.array(body.head) * height
        face = {name: self._locate(point) for name, (point, _) in FACE.items()}
        self.at |= {name: pixel for name, (pixel, _) in face.items()}
        self.averted = {name for name, (_, depth) in face.items() if depth < FACE[name][1]}
        self._line = max(0.5, 0.004 * height)  # width of outlines
        self._thickness = height * (0.55 + 0.45 * body.girth)  # scale of radii
        self._breadth = body.shoulder * height * (0.75 + 0.25 * body.girth)  # half-width of the trunk

    def codes_showing(self, name: str) -> list[int]:
        """Canvas codes of the parts that can show the keypoint."""
        if name in FACE:
            return [self.code + Part.HEAD]
        side, joint = name.split("_")
        parts = [_ARM[side] if joint in ("shoulder", "elbow", "wrist") else _LEG[side]]
        is_behind_trunk = SIDES[side] * self.posture.chest[2, 0] < -0.6
        if joint in ("shoulder", "hip") and not is_behind_trunk:
            parts += [Part.TRUNK, Part.SKIRT]
        return [self.code + part for part in parts]

    def paint(self, canvas: Canvas) -> None:
        """Paint a shadow on the ground and all parts, the farthest one first."""
        _darken_ellipse(canvas.image, self.ground, (0.20 * self.height, 0.035 * self.height))
        depth = {name: float(point[2]) for name, point in self.posture.joints.items()}
        is_bowed_away = depth["head"] < depth["chest"] - 0.06
        layers: list[tuple[float, Callable[[Canvas], None]]] = [
            (0.0, self._paint_trunk),  # the depth of the others is relative to the trunk
            (-1.5 if is_bowed_away else 1.0, self._paint_head),
        ]
        is_raised = {side: depth[f"{side}_knee"] - depth["pelvis"] > 0.12 for side in SIDES}
        for side in SIDES:
            forward = depth[f"{side}_knee"] - depth["pelvis"]
            layers.append((0.1 * forward + (0.5 if is_raised[side] else -2), partial(self._paint_leg, side=side)))
            reach = (depth[f"{side}_elbow"] + depth[f"{side}_wrist"] - depth["pelvis"] - depth["chest"]) / 2
            layers.append((reach + (3 if reach > -0.045 else -3), partial(self._paint_arm, side=side)))
        if self.look.hair_style == "long":
            layers.append((-4.0 if self.posture.head[2, 2] > 0 else 0.9, self._paint_long_hair))
        layers.append((0.8 if any(is_raised.values()) else -1.0, self._paint_hips))
        for _, paint in sorted(layers, key=lambda layer: layer[0]):
            paint(canvas)

    def _fill(self, canvas: Canvas, shape: np.ndarray, colour: Colour, part: Part) -> None:
        canvas.fill(shape, colour, self.code + part, self._line)

    def _paint_limb(
        self, canvas: Canvas, points: list[np.ndarray], radii: _Radii, colour: Colour, part: Part, cover: float = 2.0
    ) -> None:
        """Paint the two tapered segments of a limb, from its start as far as ``cover``: 1 to the joint, 2 to the end.

        The outlines of both are painted first, so that there is none at the joint.
        """
        segments = []
        for k in range(2):
            share = min(max(cover - k, 0), 1)
            if share:
                end = points[k] + share * (points[k + 1] - points[k])
                end_radius = radii[k] + share * (radii[k + 1] - radii[k])
                segments.append((points[k], end, (self._thickness * radii[k], self._thickness * end_radius)))
        for segment in segments:
            self._fill(canvas, limb(*segment), colour, part)
        for start, end, (start_width, end_width) in segments:
            canvas.fill(limb(start, end, (start_width, end_width)), colour)
            # A lighter stripe, because the light comes from the left.
            left = np.array([-0.3 * start_width, 0])
            canvas.fill(limb(start + left, end + left, (0.5 * start_width, 0.5 * end_width)), shade(colour, 1.1))

    def _paint_arm(self, canvas: Canvas, side: str) -> None:
        points = [self.at[f"{side}_{name}"] for name in ("shoulder", "elbow", "wrist")]
        hand = limb(points[2], self.at[f"{side}_hand"], (0.022 * self.height, 0.018 * self.height))
        self._fill(canvas, hand, self.look.skin, _ARM[side])
        if self.look.sleeve < 2:
            self._paint_limb(canvas, points, _BARE_ARM, self.look.skin, _ARM[side])
        if self.look.sleeve:
            self._paint_limb(canvas, points, _SLEEVE, self.look.shirt, _ARM[side], self.look.sleeve)

    def _paint_leg(self, canvas: Canvas, side: str) -> None:
        points = [self.at[f"{side}_{name}"] for name in ("hip", "knee", "ankle")]
        if self.look.bottoms != "trousers":
            self._paint_limb(canvas, points, _BARE_LEG, self.look.skin, _LEG[side])
        shoe = limb(self.at[f"{side}_heel"], self.at[f"{side}_toe"], (0.025 * self.height, 0.022 * self.height))
        self._fill(canvas, hull(shoe, ellipse(points[2], (0.026 * self.height,) * 2)), self.look.shoes, _LEG[side])
        if self.look.bottoms != "skirt":
            cover = 1.93 if self.look.bottoms == "trousers" else 0.72
            self._paint_limb(canvas, points, _TROUSERS, self.look.cloth, _LEG[side], cover)

    def _paint_hips(self, canvas: Canvas) -> None:
        """Paint the seat of the trousers, or the skirt."""
        radius = 0.052 * self._thickness
        shapes = [ellipse(self.at[f"{side}_hip"], (radius, radius)) for side in SIDES]
        part = Part.SKIRT if self.look.bottoms == "skirt" else Part.TRUNK
        if part == Part.SKIRT:
            for side in SIDES:
                hem = self.at[f"{side}_hip"] + 0.72 * (self.at[f"{side}_knee"] - self.at[f"{side}_hip"])
                shapes.append(ellipse(hem, (0.085 * self._thickness, 0.030 * self._thickness)))
        self._fill(canvas, hull(*shapes), self.look.cloth, part)

    def _paint_trunk(self, canvas: Canvas) -> None:
        """Paint the shirt with its pattern, and the neck. Only the front has a neckline and an emblem."""
        look = self.look
        pelvis, chest, head = (self.at[name] for name in ("pelvis", "chest", "head"))
        self._fill(canvas, hull(*(self._section(level) for level in (-0.18, 0.1, 0.75, 0.97))), look.shirt, Part.TRUNK)
        if look.pattern == "stripes":
            for level in np.arange(-0.05, 0.9, 0.22):
                canvas.fill(hull(self._section(level, 0.9), self._section(level + 0.08, 0.9)), look.accent)
        throat = 0.032 * self._thickness
        facing = self.posture.chest[2, 2]
        if facing > 0:
            front = self.posture.chest[:2, 2] * (0.4, -0.4) * self._breadth  # from the spine to the front
            canvas.fill(ellipse(chest + front, (1.5 * throat, throat)), look.skin, self.code + Part.TRUNK)
            if look.pattern == "emblem" and facing > 0.3:
                size = 0.035 * self.height
                canvas.fill(ellipse(pelvis + front + 0.66 * (chest - pelvis), (size * facing, size)), look.accent)
        neck = limb(chest + 0.15 * (head - chest), head, (throat, throat))
        self._fill(canvas, neck, shade(look.skin, 0.88), Part.TRUNK)

    def _section(self, level: float, share: float = 1.0) -> np.ndarray:
        """Ellipse of the trunk at a level between hips (0) and shoulders (1), ``share`` as wide as the trunk.

        A horizontal cut through the trunk is an ellipse, whose half-width in the image is sqrt((w a)^2 + (d b)^2) with
        its half-width w, its half-depth d, and the projections a and b of left and forward to the image's x axis.
        """
        width = np.interp(level, (0, 0.4, 0.97), (1.02, 0.92, 1.05))
        depth = np.interp(level, (0, 0.97), (0.72, 0.62))
        lateral, frontal = self.posture.chest[0, ::2]
        half = share * self._breadth * float(np.hypot(width * lateral, depth * frontal))
        centre = self.at["pelvis"] + level * (self.at["chest"] - self.at["pelvis"])
        return ellipse(centre, (half, 0.02 * self.height))

    def _locate(self, point: Numbers) -> tuple[np.ndarray, float]:
        """Pixel and depth of a point on the head's ball; depth 1 is nearest to the viewer, below 0 is the far side."""
        right, up, depth = (self.posture.head @ point).tolist()
        return self.at["head"] + (right, -up) * self._head_radii, depth

    def _paint_long_hair(self, canvas: Canvas) -> None:
        """Paint the hair that falls on the back, which is behind the trunk if the viewer sees the face."""
        back, _ = self._locate((0, -0.6, -0.4))
        shape = ellipse(back, self._head_radii * (1.2, 1.1))
        self._fill(canvas, shape, shade(self.look.hair, 0.85), Part.HAIR)

    def _paint_head(self, canvas: Canvas) -> None:
        """Paint a skull of hair, or skin, with a face on its near side."""
        look = self.look
        centre = self.at["head"]
        radii = self._head_radii
        forward_x, forward_y, forward = self.posture.head[:, 2].tolist()
        for name in ("left_ear", "right_ear"):
            if name not in self.averted:
                self._fill(canvas, ellipse(self.at[name], radii * (0.22, 0.2)), shade(look.skin, 0.93), Part.HEAD)
        is_bald = look.hair_style == "bald"
        skull = ellipse(centre, radii * (1.05, 1.0))
        self._fill(canvas, skull, look.skin if is_bald else look.hair, Part.HEAD if is_bald else Part.HAIR)
        if forward > -0.3:
            # The face is a disc of the ball, seen at an angle.
            middle = centre + (0.3 * forward_x * radii[0], (0.16 - 0.3 * forward_y) * radii[1])
            width = 0.55 + 0.4 * max(forward, 0)
            canvas.fill(ellipse(middle, radii * (width, 0.86)), look.skin, self.code + Part.HEAD)
        if look.hair_style == "hat":
            brim, _ = self._locate((0, 0.45, 0.35))
            self._fill(canvas, ellipse(centre - (0, 0.62 * radii[1]), radii * (1.0, 0.5)), look.accent, Part.HAIR)
            canvas.fill(ellipse(brim, radii * (1.15, 0.14)), shade(look.accent, 0.8), self.code + Part.HAIR)
        self._paint_face(canvas)

    def _paint_face(self, canvas: Canvas) -> None:
        radii = self._head_radii
        for name, (point, _) in FACE.items():
            _, depth = self._locate(point)
            narrow = max(depth, 0.35)
            if name in self.averted:
                continue
            if name.endswith("eye"):
                canvas.fill(ellipse(self.at[name], radii * (0.19 * narrow, 0.125)), (245, 245, 245))
                canvas.fill(ellipse(self.at[name], radii * (0.11 * narrow, 0.105)), (30, 25, 25))
            elif name == "nose":
                canvas.fill(ellipse(self.at[name], radii * (0.13, 0.10)), shade(self.look.skin, 0.75))
            elif depth > 0.1 and self.look.hair_style != "long":
                ear = ellipse(self.at[name], radii * (0.16 + 0.09 * depth, 0.2))
                self._fill(canvas, ear, shade(self.look.skin, 0.93), Part.HEAD)
        mouth, depth = self._locate((0, -0.55, 0.85))
        if depth > 0.2:
            canvas.fill(ellipse(mouth, radii * (0.28 * depth, 0.06)), (70, 60, 165))


def _darken_ellipse(image: np.ndarray, centre: Numbers, radii: tuple[float, float]) -> None:
    """Darken an ellipse of an image, by half at its centre and less towards its edge."""
    height, width = image.shape[:2]
    left, top = np.clip(np.subtract(centre, radii), 0, (width, height)).astype(int)
    right, bottom = np.clip(np.add(centre, radii) + 1, 0, (width, height)).astype(int)
    across = (np.arange(left, right) - centre[0]) / radii[0]
    down = (np.arange(top, bottom) - centre[1]) / radii[1]
    weight = np.clip(1 - across**2 - down[:, None] ** 2, 0, 1) / 2
    patch = image[top:bottom, left:right]
    patch[:] = (patch * (1 - weight[..., None])).astype(np.uint8)

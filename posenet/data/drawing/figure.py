"""One dressed person: drawing the parts from back to front, and which part shows which keypoint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from posenet.data.drawing.canvas import Canvas, Colour, box, ellipse, hsv, hull, ribbon, shade, smooth
from posenet.data.drawing.head import FEATURES, HAIRSTYLES, Head, HeadLook
from posenet.data.drawing.pose import SIDES, Body, Posture


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

SHOWN_BY: dict[str, tuple[Part, ...]] = {name: (Part.HEAD,) for name in FEATURES}
"""Keypoint name to the parts of the same person on which it can be seen."""
for _side in SIDES:
    SHOWN_BY |= {_side + "sho": (Part.TRUNK, _ARM[_side]), _side + "elb": (_ARM[_side],),
                 _side + "wri": (_ARM[_side],), _side + "hip": (Part.TRUNK, Part.SKIRT, _LEG[_side]),
                 _side + "kne": (_LEG[_side],), _side + "ank": (_LEG[_side],)}

_SKINS = ((196, 219, 246), (170, 200, 238), (150, 184, 228), (125, 165, 214), (98, 140, 195), (72, 110, 168),
          (52, 82, 132), (40, 62, 102))
_HAIRS = ((28, 24, 26), (36, 34, 44), (32, 48, 74), (40, 66, 104), (60, 104, 160), (96, 160, 214), (60, 90, 190),
          (150, 150, 155), (205, 208, 210), (150, 70, 130))

# Half-width and half-depth of the trunk, shares of the shoulders' half-width, from the hem to the neck.
_LEVELS = np.array([-.20, 0, .40, .75, .97, 1.10])
_WIDTHS = np.array([1.16, 1.08, .90, 1.04, 1.12, .45])
_DEPTHS = np.array([.72, .72, .62, .70, .58, .40])


@dataclass(frozen=True)
class Look:
    """What a person wears."""

    head: HeadLook
    shirt: Colour
    accent: Colour
    pattern: str
    sleeve: float
    """Share of the arm that is covered, 0-2: 1 is down to the elbow."""
    bottoms: str
    cloth: Colour
    shoes: Colour
    waist: float


def draw_look(rng: np.random.Generator) -> Look:
    """Random clothes, skin and hair."""
    skin = _vary(rng, _SKINS[rng.integers(len(_SKINS))])
    style = str(rng.choice(HAIRSTYLES))
    head = HeadLook(skin, _vary(rng, _HAIRS[rng.integers(len(_HAIRS))]), style, _garment(rng),
                    glasses=rng.random() < .15, beard=style in ("short", "receding", "bald") and rng.random() < .35)
    bottoms = str(rng.choice(("trousers", "shorts", "skirt", "dress"), p=(.55, .23, .12, .10)))
    shirt = _garment(rng)
    cloth = shirt if bottoms == "dress" else _garment(rng)
    return Look(head, shirt, _garment(rng), str(rng.choice(("plain", "stripes", "band", "emblem", "jacket"))),
                float(rng.choice((0, 0.5, 0.62, 1.9))), bottoms, cloth, _garment(rng), float(rng.uniform(.85, 1.08)))


class Figure:
    """One person in one picture.

    Args:
        body, posture, look: who it is.
        height: of the standing person, pixels.
        ground: (2,) pixel of the ground below the pelvis.
        code: the canvas codes of this person's parts are ``code + Part``.
    """

    def __init__(self, body: Body, posture: Posture, look: Look, height: float, ground: np.ndarray,
                 code: int) -> None:
        self.body, self.posture, self.look, self.height, self.code = body, posture, look, height, code
        self.line = max(0.5, 0.004 * height)
        self.at = {name: ground + height * point[:2] * (1, -1) for name, point in posture.joints.items()}
        self.depth = {name: point[2] for name, point in posture.joints.items()}
        radii = (body.head[0] * height, body.head[1] * height)
        self.head = Head(self.at["head"], radii, posture.head, look.head, (code + Part.HEAD, code + Part.HAIR))
        self.at |= {name: self.head.locate(point)[0] for name, point in FEATURES.items()}

    def unlabelled(self) -> set[str]:
        """Face points turned away from the viewer."""
        return self.head.hidden_features()

    def codes_showing(self, name: str) -> list[int]:
        """Canvas codes on which the keypoint can be seen: not the trunk, where it lies behind the trunk."""
        parts = SHOWN_BY[name]
        if name[1:] in ("sho", "hip"):
            sideways = SIDES[name[0]] * self.posture.chest[2, 0]
            parts = tuple(part for part in parts if sideways > -.6 or part not in (Part.TRUNK, Part.SKIRT))
        return [self.code + part for part in parts]

    def paint(self, canvas: Canvas) -> None:
        """Draw every part, far ones first."""
        if self.posture.seated:
            self._paint_seat(canvas)
        layers = [(-4.0, self._paint_back_hair), (0.0, self._paint_trunk),
                  (1.0 if self.depth["head"] > self.depth["chest"] - .06 else -1.5, self._paint_head)]
        legs = {side: self.depth[side + "kne"] - self.depth["pelvis"] for side in SIDES}
        wraps = self.look.bottoms in ("skirt", "dress") and max(legs.values()) > .12
        layers.append((.8 if wraps else -1.0, self._paint_hips))
        middle = (self.depth["pelvis"] + self.depth["chest"]) / 2
        for side in SIDES:
            reach = (self.depth[side + "elb"] + self.depth[side + "wri"]) / 2 - middle
            if reach > -.045:
                layers += [(3.0 + reach, self._arm_painter(side)), (-.5, self._armpit_painter(side))]
            else:
                layers.append((-3.0 + reach, self._arm_painter(side)))
            layers.append((.1 * legs[side] + (.5 if legs[side] > .12 else -2), self._leg_painter(side)))
        for _, paint in sorted(layers, key=lambda layer: layer[0]):
            paint(canvas)

    def _armpit_painter(self, side: str):
        def paint(canvas: Canvas) -> None:
            points = [self.at[side + name] for name in ("sho", "elb", "wri")]
            colour = self.look.shirt if self.look.sleeve else self.look.head.skin
            self._paint_limb(canvas, points, (.038, .034, .027), colour, self.code + _ARM[side], .5)
        return paint

    def _arm_painter(self, side: str):
        return lambda canvas: self._paint_arm(canvas, side)

    def _leg_painter(self, side: str):
        return lambda canvas: self._paint_leg(canvas, side)

    def _paint_back_hair(self, canvas: Canvas) -> None:
        self.head.paint_behind(canvas)

    def _paint_head(self, canvas: Canvas) -> None:
        self.head.paint(canvas, self.line)

    def _paint_arm(self, canvas: Canvas, side: str) -> None:
        code = self.code + _ARM[side]
        points = [self.at[side + name] for name in ("sho", "elb", "wri")]
        hand = ribbon(self.at[side + "wri"], self.at[side + "hand"], np.array((.018, .025, .019)) * self.height)
        self._paint_thumb(canvas, side, code)
        canvas.outlined(hand, self.look.head.skin, code, self.line)
        self._paint_limb(canvas, points, (.034, .028, .020), self.look.head.skin, code, edge=.35)
        if self.look.sleeve:
            self._paint_limb(canvas, points, (.038, .034, .027), self.look.shirt, code, self.look.sleeve, edge=.35)
        canvas.fill(hand, self.look.head.skin, code)

    def _paint_thumb(self, canvas: Canvas, side: str, code: int) -> None:
        wrist, hand, skin, size = self.at[side + "wri"], self.at[side + "hand"], self.look.head.skin, self.height
        across = np.array([-(hand - wrist)[1], (hand - wrist)[0]]) * SIDES[side] * (-.5 if self.head.from_behind else .5)
        thumb = ribbon(wrist, wrist + .55 * (hand - wrist) + across, (.011 * size, .009 * size))
        canvas.outlined(thumb, skin, code, self.line)

    def _paint_leg(self, canvas: Canvas, side: str) -> None:
        code = self.code + _LEG[side]
        points = [self.at[side + name] for name in ("hip", "kne", "ank")]
        self._paint_limb(canvas, points, (.050, .038, .025), self.look.head.skin, code)
        self._paint_shoe(canvas, side, code)
        if self.look.bottoms in ("trousers", "shorts"):
            cover = 1.93 if self.look.bottoms == "trousers" else .72
            self._paint_limb(canvas, points, (.056, .044, .034), self.look.cloth, code, cover)

    def _paint_shoe(self, canvas: Canvas, side: str, code: int) -> None:
        heel, toe, ankle = (self.at[side + name] for name in ("heel", "toe", "ank"))
        size, down = self.height, np.array([0, .010 * self.height])
        sole = ribbon(heel + down, toe + down, np.array((.022, .024)) * size)
        canvas.outlined(sole, shade(self.look.shoes, .6), code, self.line)
        canvas.fill(hull(ribbon(heel, toe, np.array((.022, .024)) * size), ellipse(ankle, (.026 * size, .026 * size))),
                    self.look.shoes, code)

    def _paint_limb(self, canvas: Canvas, points: list[np.ndarray], radii: tuple[float, float, float], colour: Colour,
                    code: int, cover: float = 2.0, edge: float = 0.0) -> None:
        """Two tapered segments, or as much of them as ``cover`` (0-2) says, under one outline from ``edge`` on."""
        radii = np.array(radii) * self.height * (0.55 + 0.45 * self.body.girth)
        pieces = []
        for k in range(2):
            share = np.clip(cover - k, 0, 1)
            if share > 0:
                end = points[k] + share * (points[k + 1] - points[k])
                pieces.append((points[k], end, (radii[k], radii[k] + share * (radii[k + 1] - radii[k]))))
        for start, end, widths in pieces:
            first = start + edge * (end - start) if start is points[0] else start
            canvas.fill(ribbon(first, end, widths, spread=2 * self.line), shade(colour, .5), code)
        for start, end, widths in pieces:
            canvas.fill(ribbon(start, end, widths), colour, code)
        for start, end, widths in pieces:
            first = start + edge * (end - start) if start is points[0] else start
            lit = np.array([.30 * widths[0], 0])
            canvas.fill(ribbon(first - lit, end - lit, np.array(widths) * .5), shade(colour, 1.10))

    def _paint_hips(self, canvas: Canvas) -> None:
        size = self.height * (0.55 + 0.45 * self.body.girth)
        hips = [ellipse(self.at[side + "hip"], (.052 * size, .050 * size)) for side in SIDES]
        if self.look.bottoms in ("trousers", "shorts"):
            canvas.outlined(hull(*hips), self.look.cloth, self.code + Part.TRUNK, self.line)
            return
        hems = [ellipse(self.at[side + "hip"] + .72 * (self.at[side + "kne"] - self.at[side + "hip"]),
                        (.085 * size, .030 * size)) for side in SIDES]
        canvas.outlined(hull(*hips, *hems), self.look.cloth, self.code + Part.SKIRT, self.line)

    def _paint_seat(self, canvas: Canvas) -> None:
        """A stool below the pelvis; its pixels are nobody's."""
        (x, top), size = self.at["pelvis"], self.height
        top, ground = top + .045 * size, max(self.at["Lheel"][1], self.at["Rheel"][1]) - .01 * size
        wide = .13 * size
        for foot in (-.8, .65):
            canvas.outlined(box(x + foot * wide, top, x + (foot + .15) * wide, ground), (60, 85, 120), 0, self.line)
        canvas.outlined(box(x - wide, top, x + wide, top + .045 * size), (80, 120, 165), 0, self.line)

    def _paint_trunk(self, canvas: Canvas) -> None:
        code, look = self.code + Part.TRUNK, self.look
        canvas.outlined(smooth(self._band(-.20, 1.10)), look.shirt, code, self.line)
        canvas.fill(smooth(self._band(-.17, .95, (.45, .95))), shade(look.shirt, .88))
        if look.pattern == "stripes":
            for level in np.arange(-.1, .95, .22):
                canvas.fill(self._band(level, level + .10), look.accent)
        if look.pattern == "band":
            canvas.fill(self._band(.55, .82), look.accent)
        front = self.posture.chest[:2, 2] * (1, -1) * self.body.shoulder * .6 * self.height
        if self.posture.chest[2, 2] > .3:
            self._paint_front(canvas, front)
        neck = self.at["chest"] + .15 * (self.at["head"] - self.at["chest"])
        width = .030 * self.height * (0.5 + 0.5 * self.body.girth)
        if self.posture.chest[2, 2] > 0:
            canvas.fill(ellipse(self.at["chest"] + .5 * front - (0, .01 * self.height), (1.5 * width, width)), look.head.skin, code)
        canvas.outlined(ribbon(neck, self.at["head"], (width, width)), shade(look.head.skin, .88), code, self.line)

    def _paint_front(self, canvas: Canvas, front: np.ndarray) -> None:
        pelvis, chest = self.at["pelvis"] + front, self.at["chest"] + front
        if self.look.pattern == "jacket":
            strip = ribbon(pelvis, chest, np.full(2, .026 * self.height))
            canvas.fill(strip, self.look.accent)
        if self.look.pattern == "emblem":
            centre = pelvis + .68 * (chest - pelvis)
            canvas.fill(ellipse(centre, (.035 * self.height * self.posture.chest[2, 2], .035 * self.height)), self.look.accent)

    def _band(self, low: float, high: float, sides: tuple[float, float] = (-1.0, 1.0)) -> np.ndarray:
        """Polygon of the trunk between two levels (0 hips, 1 shoulders) and two sides (-1 left edge, 1 right edge)."""
        levels = np.unique(np.concatenate([[low], _LEVELS[(_LEVELS > low) & (_LEVELS < high)], [high]]))
        spine = self.at["chest"] - self.at["pelvis"]
        up = spine / max(np.hypot(*spine), 1e-6)
        across = np.array([-up[1], up[0]])
        flat = self.posture.chest[:2] * [[1], [-1]]
        lateral, frontal = across @ flat[:, 0], across @ flat[:, 2]
        unit = self.body.shoulder * self.height * (0.75 + 0.25 * self.body.girth)
        waist = np.interp(levels, (0, .4, .8), (1, self.look.waist, 1))
        half = np.hypot(np.interp(levels, _LEVELS, _WIDTHS) * lateral, np.interp(levels, _LEVELS, _DEPTHS) * frontal)
        side = (half * waist * unit)[:, None] * across
        middle = self.at["pelvis"] + levels[:, None] * spine
        return np.concatenate([middle + sides[0] * side, (middle + sides[1] * side)[::-1]])


def _vary(rng: np.random.Generator, colour: Colour) -> Colour:
    return tuple(float(np.clip(channel * rng.uniform(.93, 1.07), 0, 255)) for channel in colour)


def _garment(rng: np.random.Generator) -> Colour:
    """A colour for cloth: mostly coloured, sometimes near black, grey or white."""
    if rng.random() < .3:
        return hsv(rng.random(), rng.uniform(0, .12), rng.choice((.22, .35, .6, .92)))
    return hsv(rng.random(), rng.uniform(.35, .85), rng.uniform(.35, .95))

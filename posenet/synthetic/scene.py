"""Images of drawn people, and the labels that an annotator would give them.

A person is posed in three dimensions: x to the person's left, y up, z forward; lengths are shares of the standing
height. The body is turned, so that x is to the right of the image and z towards the viewer, and painted from back to
front on a ``Canvas``, which knows what every pixel shows. Pixels are (x, y), the centre of the first one is (0, 0).
"""

import colorsys
from typing import Any, NamedTuple

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from posenet.skeleton import COCO

Colour = tuple[float, float, float]
"""BGR, 0-255."""

PARTS = ("head", "trunk", "left_arm", "right_arm", "left_leg", "right_leg")
_CODES = len(PARTS)
"""Codes of the canvas for each person: ``_CODES * number + PARTS.index(part)``, numbers from 1; 0 shows nobody."""

# Directions (outward, up, forward) of the upper arm and the forearm; the more frequent ones are repeated.
_HANGING_ARM = ((0.25, -1, 0), (0.12, -1, 0.1))
_ARMS = (
    _HANGING_ARM,
    _HANGING_ARM,
    ((0.5, -1, 0), (0.35, -1, 0.1)),  # away from the body
    ((0.8, -0.75, -0.1), (-0.75, -0.65, 0.25)),  # hand on the hip
    ((0.5, 0.9, 0), (0.2, 1, 0.1)),  # raised
    ((0.95, -0.1, 0.1), (0.3, 1, 0.15)),  # waving
    ((1, 0, 0), (1, 0.1, 0.1)),  # stretched out
    ((0.3, -0.95, 0.15), (-0.6, 0.2, 0.6)),  # hand on the chest
)
# The same of the thighs and the shins of both legs.
_STRAIGHT_LEG = ((0.08, -1, 0), (0.02, -1, -0.03))
_LEGS = (
    (_STRAIGHT_LEG, _STRAIGHT_LEG),
    (((0.22, -1, 0), (0.16, -1, 0)),) * 2,  # apart
    (_STRAIGHT_LEG, ((0.3, -1, 0.15), (0.1, -1, -0.15))),  # one leg relaxed
    (((0.04, -1, 0.5), (0.02, -1, 0.05)), ((0.05, -1, -0.3), (0.03, -1, -0.6))),  # walking
    (((0.5, -1, 0), (0.4, -1, 0)),) * 2,  # jumping jack
    (_STRAIGHT_LEG, ((0.6, -0.8, 0.3), (0.5, -0.85, 0.1))),  # kicking
)
_FACE = {
    "nose": (0, -0.15, 1.0),
    "left_eye": (0.38, 0.1, 0.9),
    "right_eye": (-0.38, 0.1, 0.9),
    "left_ear": (1.0, -0.1, -0.05),
    "right_ear": (-1.0, -0.1, -0.05),
}
"""Positions on the head, which is a ball of radius 1."""
_LIMB_OF = {"shoulder": "arm", "elbow": "arm", "wrist": "arm", "hip": "leg", "knee": "leg", "ankle": "leg"}

_SKIN = ((196, 219, 246), (170, 200, 238), (125, 165, 214), (98, 140, 195), (72, 110, 168), (40, 62, 102))
_HAIR = ((28, 24, 26), (32, 48, 74), (40, 66, 104), (60, 104, 160), (96, 160, 214), (60, 90, 190), (205, 208, 210))

_CIRCLE = np.stack([axis(np.linspace(0, 2 * np.pi, 24, endpoint=False)) for axis in (np.cos, np.sin)], axis=1)
_SHIFT = 4  # OpenCV accepts coordinates in units of 1 / 2^4 pixel

_BARELY_SEEN = 0.1  # nothing is labelled in a person of whom at most this share is visible
_HEAVILY_HIDDEN = 0.4  # hidden keypoints are not labelled in a person of whom less than this share is visible


class Canvas:
    """An (H, W, 3) uint8 BGR image and, for every pixel, its ``owner``: the code of what was painted there last."""

    def __init__(self, image: np.ndarray) -> None:
        self.image = image
        self.owner: np.ndarray = np.zeros(image.shape[:2], np.int32)

    def paint(self, *shapes: tuple[np.ndarray, Colour], code: int = 0, outline: float = 0.0) -> None:
        """Fill (N, 2) polygons, with a darker edge of the width ``outline``, if that is not 0, around all of them."""
        polygons = [(np.rint(polygon * (1 << _SHIFT)).astype(np.int32), colour) for polygon, colour in shapes]
        for polygon, colour in polygons if outline else ():
            width = max(1, round(outline))
            cv2.polylines(self.image, [polygon], True, _shade(colour, 0.5), width, cv2.LINE_AA, _SHIFT)
        for polygon, colour in polygons:
            cv2.fillPoly(self.image, [polygon], colour, cv2.LINE_AA, _SHIFT)
            cv2.fillPoly(self.owner, [polygon], code, cv2.LINE_8, _SHIFT)


class Figure(NamedTuple):
    """A painted person."""

    number: int
    at: dict[str, np.ndarray]  # (2,) pixels of joints; those on the averted side of the head are not there
    painted: int  # number of pixels before others were painted over them


def render_scene(rng: np.random.Generator, longest: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Paint people in a room or in the open: an (H, W, 3) uint8 BGR image, and its COCO annotations without ids.

    The longer side has 85 to 100 % of ``longest`` pixels.
    """
    longer = round(longest * rng.uniform(0.85, 1))
    shorter = round(longer / rng.choice((1.0, 1.25, 4 / 3, 1.5)))
    height, width = (longer, shorter) if rng.random() < 0.15 else (shorter, longer)
    horizon = height * rng.uniform(0.3, 0.5)
    # The feet of a person of h pixels are camera * h pixels below the horizon.
    camera = rng.uniform(0.8, 1.0)
    canvas = Canvas(_backdrop(rng, width, height, horizon))
    annotations = []
    if rng.random() < 0.1:  # a group of small people in the distance; all of them have the number 1
        small, centre = rng.uniform(0.1, 0.16) * height, rng.uniform(0.25, 0.75) * width
        for row in np.sort(horizon + camera * small + rng.normal(0, 0.1 * small, rng.integers(8, 15))):
            paint_person(rng, canvas, small, np.array([rng.normal(centre, 0.12 * width), row]), 1)
        annotations.append(_annotation(canvas.owner > 0, [0] * 51, is_crowd=True))
    canvas.image = cv2.GaussianBlur(canvas.image, (0, 0), rng.uniform(0.3, 0.8) * height / 360)

    count = int(rng.choice((1, 2, 3, 4), p=(0.25, 0.35, 0.28, 0.12)))
    usual = min(rng.uniform(0.5, 0.9), max(1.5 * width / (height * count), 0.4))
    from_far_to_near = np.sort(np.clip(usual * np.exp(rng.normal(0, 0.12, count)), 0.35, 0.95)) * height
    columns = (rng.permutation(count) + 0.5 + rng.normal(0, 0.15, count)) * width / count
    figures = []
    for number, (size, column) in enumerate(zip(from_far_to_near, columns, strict=True), start=2):
        row = np.clip(horizon + camera * size, 1.03 * size, max(0.985 * height, 1.03 * size))
        if rng.random() < 0.06:  # the lower border hides the legs
            row += rng.uniform(0.1, 0.4) * size
        figures.append(paint_person(rng, canvas, size, np.array([column, row]), number))
    if rng.random() < 0.25:
        _paint_object(rng, canvas, rng.uniform(0, width), height * rng.uniform(0.95, 1.05), 0.6 * height)
    annotations += [
        label_person(figure, canvas.owner) for figure in figures if _mask(figure.number, canvas.owner).any()
    ]
    # A camera has another exposure and tint, and grain.
    curves = np.clip(np.arange(256)[:, None] * rng.uniform(0.8, 1.1) * rng.uniform(0.95, 1.05, 3), 0, 255)
    grain = rng.integers(0, int(rng.integers(2, 10)), (height, width), dtype=np.uint8)
    return cv2.add(cv2.LUT(canvas.image, curves.astype(np.uint8)[:, None]), cv2.merge([grain] * 3)), annotations


def _shade(colour: Colour, factor: float) -> Colour:
    blue, green, red = colour
    return min(255.0, blue * factor), min(255.0, green * factor), min(255.0, red * factor)


def _hsv(hue: float, saturation: float, value: float) -> Colour:
    """BGR of a hue, saturation and value, each 0-1."""
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return 255 * blue, 255 * green, 255 * red


def _ellipse(centre: Any, radii: Any) -> np.ndarray:
    return np.asarray(centre + _CIRCLE * radii)


def _box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def _hull(*balls: tuple[np.ndarray, float]) -> np.ndarray:
    """(N, 2) outline around balls, given by their centres and radii: a limb around two."""
    points = np.concatenate([_ellipse(centre, radius) for centre, radius in balls])
    return cv2.convexHull(points.astype(np.float32))[:, 0].astype(np.float64)


def _backdrop(rng: np.random.Generator, width: int, height: int, horizon: float) -> np.ndarray:
    """Paint a wall or a sky, windows or pictures, a floor, and objects on it."""
    above = _hsv(rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.45, 1))
    below = _hsv(rng.random(), rng.uniform(0, 0.5), rng.uniform(0.35, 0.8))
    rows = np.arange(height)[:, None]
    brightness = 1 + (rows / height - 0.5) * rng.uniform(-0.35, 0.35)
    colours = np.minimum(np.where(rows < horizon, [above], [below]) * brightness, 255).astype(np.uint8)
    canvas = Canvas(np.repeat(colours[:, None], width, axis=1))
    for x in np.linspace(-width, 2 * width, 9):  # floorboards or slabs
        far = np.array([width / 2 + 0.3 * (x - width / 2), horizon])
        canvas.paint((_hull((far, 0.5), (np.array([x, height]), 1.5)), _shade(below, 0.8)))
    for _ in range(rng.integers(0, 7)):
        x, y = rng.uniform(0, width), horizon * rng.uniform(0.05, 0.6)
        wide, high = rng.uniform(0.04, 0.12) * width, rng.uniform(0.15, 0.35) * horizon
        canvas.paint((_box(x, y, x + 2 * wide, y + high), (225, 225, 220)))
        canvas.paint((_box(x + 3, y + 3, x + 2 * wide - 3, y + high - 3), _hsv(rng.random(), 0.4, rng.uniform(0.3, 1))))
    for _ in range(rng.integers(0, 5)):
        _paint_object(rng, canvas, rng.uniform(0, width), horizon + rng.uniform(0, 0.1) * height, 0.5 * height)
    large = rng.standard_normal((6, 8), dtype=np.float32) * rng.uniform(3, 12)
    blotches = cv2.resize(large, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.add(canvas.image, cv2.merge([blotches] * 3), dtype=cv2.CV_8U)


def _paint_object(rng: np.random.Generator, canvas: Canvas, x: float, y: float, size: float) -> None:
    """Paint a bush, a post or a table that stands on (x, y); ``size`` is the height of a person there."""
    colour = _hsv(rng.random(), rng.uniform(0.1, 0.6), rng.uniform(0.3, 0.85))
    kind = rng.integers(3)
    if kind == 0:
        leaves = _hsv(rng.uniform(0.2, 0.42), rng.uniform(0.35, 0.75), rng.uniform(0.25, 0.65))
        for _ in range(8):
            centre = np.array([x + rng.uniform(-0.2, 0.2) * size, y - rng.uniform(0, 0.35) * size])
            canvas.paint((_ellipse(centre, 0.1 * size), _shade(leaves, rng.uniform(0.75, 1.15))))
    elif kind == 1:
        half = rng.uniform(0.02, 0.04) * size
        canvas.paint((_box(x - half, y - rng.uniform(0.6, 1.6) * size, x + half, y), colour))
    else:
        wide, high = rng.uniform(0.15, 0.4) * size, rng.uniform(0.25, 0.45) * size
        for side in (-0.85, 0.75):
            canvas.paint((_box(x + side * wide, y - high, x + (side + 0.1) * wide, y), _shade(colour, 0.7)))
        canvas.paint((_box(x - wide, y - high, x + wide, y - rng.uniform(0.3, 0.8) * high), colour))


def _pose(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Choose a pose and a heading: the (3,) positions of the joints, and the (3, 3) rotation of the head."""
    heading = rng.choice((rng.normal(0, 12), 180 + rng.normal(0, 10), rng.choice((-1, 1)) * rng.uniform(30, 80)),
                         p=(0.74, 0.13, 0.13))  # fmt: skip
    lean = _rotation(0, 0, rng.normal(0, 4))
    legs = _LEGS[rng.integers(len(_LEGS))]
    breadth = rng.uniform(0.95, 1.15)
    chest = lean @ (0, 0.285, 0)
    joints = {"pelvis": np.zeros(3), "chest": chest, "head": chest + lean @ (0, 0.138, 0.012)}
    for side, sign, leg in zip(("left", "right"), (1, -1), legs if rng.random() < 0.5 else legs[::-1], strict=True):
        directions = np.array(_ARMS[rng.integers(len(_ARMS))] + leg) + rng.normal(0, 0.05, (4, 3))
        directions *= np.array([sign, 1, 1]) / np.linalg.norm(directions, axis=1, keepdims=True)
        upper_arm, forearm, thigh, shin = directions
        shoulder = chest + lean @ (sign * 0.108 * breadth, 0, 0)
        elbow = shoulder + 0.165 * lean @ upper_arm
        wrist = elbow + 0.140 * lean @ forearm
        hip = np.array([sign * 0.065 * breadth, 0, 0])
        knee = hip + 0.243 * thigh
        ankle = knee + 0.235 * shin
        joints |= {
            f"{side}_shoulder": shoulder, f"{side}_elbow": elbow, f"{side}_wrist": wrist,
            f"{side}_hand": wrist + 0.04 * lean @ forearm, f"{side}_hip": hip, f"{side}_knee": knee,
            f"{side}_ankle": ankle, f"{side}_toe": ankle + (0.025 * sign, -0.03, 0.085),
        }  # fmt: skip
    ground = min(point[1] for point in joints.values()) - 0.02
    turn = _rotation(0, heading, 0)
    head = _rotation(0, heading + rng.uniform(-20, 20), 0)
    return {name: turn @ (point - (0, ground, 0)) for name, point in joints.items()}, head


def _rotation(*degrees: float) -> np.ndarray:
    return np.asarray(cv2.Rodrigues(np.radians(degrees))[0])  # (3, 3), by a vector along its axis


def paint_person(rng: np.random.Generator, canvas: Canvas, size: float, ground: np.ndarray, number: int) -> Figure:
    """Paint a person of a standing height of ``size`` pixels, with the feet on ``ground``."""
    joints, head = _pose(rng)
    at = {name: ground + size * point[:2] * (1, -1) for name, point in joints.items()}
    girth = size * rng.uniform(0.95, 1.3)
    skin, hair = _SKIN[rng.integers(len(_SKIN))], _HAIR[rng.integers(len(_HAIR))]
    shirt, trousers, shoes = (_hsv(rng.random(), rng.uniform(0, 0.85), rng.uniform(0.3, 0.95)) for _ in range(3))
    sleeve, leg = (cloth if rng.random() < 0.5 else skin for cloth in (shirt, trousers))
    trunk = _hull(*[(at[f"{side}_{end}"], radius * girth) for end, radius in (("shoulder", 0.035), ("hip", 0.04))
                    for side in ("left", "right")])  # fmt: skip
    waist = _hull(*[(at[f"{side}_hip"], 0.046 * girth) for side in ("left", "right")])
    neck = _hull((at["chest"], 0.028 * girth), (at["head"], 0.028 * girth))
    shapes = [(0.0, "trunk", [(neck, skin), (waist, trousers), (trunk, shirt)])]
    limbs = (
        ("arm", (("wrist", 0.021, "hand", 0.024, skin), ("elbow", 0.028, "wrist", 0.021, sleeve),
                 ("shoulder", 0.036, "elbow", 0.030, shirt))),
        ("leg", (("ankle", 0.026, "toe", 0.024, shoes), ("knee", 0.038, "ankle", 0.026, leg),
                 ("hip", 0.052, "knee", 0.041, trousers))),
    )  # fmt: skip
    for side in ("left", "right"):
        # Arms are before the trunk and legs behind it, unless they are far from it.
        depths = {"arm": joints[f"{side}_wrist"][2] + 0.06, "leg": joints[f"{side}_knee"][2] - 0.2}
        for limb, segments in limbs:
            polygons = [
                (_hull((at[f"{side}_{start}"], first * girth), (at[f"{side}_{end}"], second * girth)), colour)
                for start, first, end, second, colour in segments
            ]
            shapes.append((depths[limb], f"{side}_{limb}", polygons))
    for _, part, polygons in sorted(shapes, key=lambda shape: shape[0]):
        canvas.paint(*polygons, code=_CODES * number + PARTS.index(part), outline=0.012 * size)
    face = _paint_head(canvas, at["head"], head, size * rng.uniform(1.0, 1.15), (skin, hair), _CODES * number)
    return Figure(number, at | face, int(np.count_nonzero(_mask(number, canvas.owner))))


def _paint_head(
    canvas: Canvas, centre: np.ndarray, head: np.ndarray, size: float, colours: tuple[Colour, Colour], code: int
) -> dict[str, np.ndarray]:
    """Paint a head; return the pixel of each keypoint of the face that is not turned away from the viewer."""
    skin, hair = colours
    radii = np.array([0.072, 0.088]) * size
    face = {}
    for name, position in _FACE.items():
        x, y, z = head @ position
        if z >= (-0.45 if "ear" in name else 0.1):
            face[name] = centre + radii * (x, -y)
    canvas.paint((_ellipse(centre, radii), hair), code=code, outline=0.012 * size)
    x, _, z = head[:, 2]  # where the face looks
    if z > -0.2:
        canvas.paint((_ellipse(centre + radii * (0.25 * x, 0.16), radii * (0.72 + 0.13 * z, 0.84)), skin), code=code)
        mouth = _ellipse(centre + radii * (0.95 * x, 0.55), radii * (0.1 + 0.2 * max(z, 0), 0.07))
        canvas.paint((mouth, (60, 60, 150)), code=code)
    ear, nose = _shade(skin, 0.9), _shade(skin, 0.75)
    features = [("left_ear", 0.2, ear), ("right_ear", 0.2, ear), ("nose", 0.12, nose)]
    for eye in ("left_eye", "right_eye"):
        features += [(eye, 0.19, (250, 250, 250)), (eye, 0.1, (40, 30, 30))]
    for name, radius, colour in features:
        if name in face:
            canvas.paint((_ellipse(face[name], radius * radii), colour), code=code)
    return face


def _mask(number: int, owner: np.ndarray) -> np.ndarray:
    """(H, W) bool, the visible pixels of a person."""
    return np.asarray(owner // _CODES == number)


def label_person(figure: Figure, owner: np.ndarray) -> dict[str, Any]:
    """The annotation of a person: a keypoint is visible if its pixel shows the part that it belongs to, else hidden.

    Not labelled are those outside the image, on the averted side of a head, or of people who are hidden too much.
    """
    height, width = owner.shape
    mask = _mask(figure.number, owner)
    seen = np.count_nonzero(mask) / figure.painted
    keypoints: list[float] = []
    for name in COCO.file_keypoints:
        x, y = figure.at[name].round(1).tolist() if name in figure.at else (-1, -1)
        visibility = 0
        if 0 <= x <= width - 1 and 0 <= y <= height - 1 and seen > _BARELY_SEEN:
            side, _, joint = name.rpartition("_")
            parts = [f"{side}_{_LIMB_OF[joint]}" if joint in _LIMB_OF else "head"]
            parts += ["trunk"] * (joint in ("shoulder", "hip"))
            codes = [_CODES * figure.number + PARTS.index(part) for part in parts]
            visibility = 2 if owner[round(y), round(x)] in codes else int(seen >= _HEAVILY_HIDDEN)
        keypoints += [x, y, visibility] if visibility else [0, 0, 0]
    return _annotation(mask, keypoints)


def _annotation(mask: np.ndarray, keypoints: list[float], is_crowd: bool = False) -> dict[str, Any]:
    """An entry in COCO's form, with an outline as compressed run lengths."""
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {
        "segmentation": {"size": list(mask.shape), "counts": rle["counts"].decode("ascii")},
        "num_keypoints": int(np.count_nonzero(keypoints[2::3])),
        "area": int(coco_mask.area(rle)),
        "iscrowd": int(is_crowd),
        "keypoints": keypoints,
        "bbox": coco_mask.toBbox(rle).tolist(),
        "category_id": 1,
    }

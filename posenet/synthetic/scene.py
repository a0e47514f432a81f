"""An image of people in a setting: the backdrop, choosing their positions, and painting them from far to near."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import cv2
import numpy as np

from posenet.synthetic.body_and_posture import random_body, random_posture
from posenet.synthetic.canvas import Canvas, Colour, box, ellipse, hsv, limb, shade
from posenet.synthetic.dressed_person import Figure, Part, random_look

ActorKind = Literal["person", "distant", "crowd"]

OBSTACLE_CODE = 1
"""Canvas code of what hides people."""
_NUM_PEOPLE = (1, 2, 3, 4, 5, 6)
_NUM_PEOPLE_SHARES = (0.12, 0.26, 0.26, 0.19, 0.11, 0.06)
_ASPECTS = (4 / 3, 4 / 3, 3 / 2, 1.25, 1.6, 1.0)
_MARGIN = 1.01  # feet are at least this many person heights below the upper border, so that the head is in the image


@dataclass(frozen=True)
class Actor:
    """A painted person or crowd."""

    kind: ActorKind  # a person to label, a distant person without labelled keypoints, or a distant crowd
    slot: int  # the first canvas code of the actor is ``slot * len(Part)``
    figures: tuple[Figure, ...]  # one person, or all people of a crowd
    painted: int  # number of pixels before other actors were painted over them


@dataclass(frozen=True)
class Scene:
    """A painted image and the actors in it."""

    image: np.ndarray  # (H, W, 3) uint8 BGR
    owner: np.ndarray  # (H, W) int32 canvas codes (see ``Figure``); codes below ``len(Part)`` are not people
    actors: tuple[Actor, ...]  # in the order of painting

    def mask(self, actor: Actor) -> np.ndarray:
        """(H, W) uint8: 1 on visible pixels of the actor."""
        return np.asarray(self.owner // len(Part) == actor.slot, np.uint8)


_Spot = tuple[float, np.ndarray]
"""Standing height of a person in pixels, and the (2,) pixel of the ground below the pelvis."""


def random_size(rng: np.random.Generator, longest: int) -> tuple[int, int]:
    """A random (width, height): one in five is upright, and the longer side is 85-100 % of ``longest``."""
    side = longest * rng.uniform(0.85, 1)
    longer = round(side)
    shorter = round(side / rng.choice(_ASPECTS))
    return (shorter, longer) if rng.random() < 0.2 else (longer, shorter)


def paint_backdrop(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, float]:
    """Paint an empty street or room; return the (H, W, 3) uint8 BGR image and the first row of the ground."""
    horizon = height * rng.uniform(0.28, 0.52)
    is_street = rng.random() < 0.5
    above = hsv(rng.uniform(0.52, 0.62) if is_street else rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.5, 1))
    below = hsv(rng.uniform(0.03, 0.33), rng.uniform(0, 0.6), rng.uniform(0.35, 0.75))
    rows = np.arange(height)[:, None]
    brightness = 1 + (rows / height - 0.5) * rng.uniform(-0.35, 0.35)
    colours = np.where(rows < horizon, [above], [below]) * brightness
    canvas = Canvas(np.repeat(np.minimum(colours, 255).astype(np.uint8)[:, None], width, axis=1))
    for x in np.linspace(-width, 2 * width, 9):  # slabs or floorboards
        start = np.array([width / 2 + 0.3 * (x - width / 2), horizon])
        canvas.fill(limb(start, np.array([x, height]), (0.5, 1.5)), shade(below, 0.8))
    paint = _paint_house if is_street else _paint_picture
    for x in np.arange(-rng.uniform(0, 0.2), 1, 0.25 if is_street else 0.3):
        paint(canvas, rng, x * width, horizon, above)
    for _ in range(rng.integers(0, 5)):
        base = (rng.uniform(0, width), horizon + rng.uniform(0, 0.12) * height)
        paint_obstacle(canvas, rng, base, height * rng.uniform(0.3, 0.7), None)
    large = rng.standard_normal((8, 8), dtype=np.float32) * rng.uniform(3, 12)
    small = rng.standard_normal((64, 64), dtype=np.float32) * rng.uniform(1, 6)
    blotches = cv2.resize(cv2.resize(large, (64, 64)) + small, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.add(canvas.image, cv2.merge([blotches] * 3), dtype=cv2.CV_8U), horizon


def _paint_house(canvas: Canvas, rng: np.random.Generator, left: float, bottom: float, _: Colour) -> None:
    width = canvas.image.shape[1]
    right = left + rng.uniform(0.14, 0.34) * width
    top = bottom * rng.uniform(-0.1, 0.6)
    colour = hsv(rng.random(), rng.uniform(0.05, 0.45), rng.uniform(0.35, 0.85))
    canvas.fill(box(left, top, right, bottom), colour, outline=0.5)
    pane = shade(colour, rng.choice((0.55, 1.5)))
    step = width * rng.uniform(0.035, 0.06)
    for x in np.arange(left + 0.3 * step, right - 0.7 * step, step):
        for y in np.arange(top + 0.4 * step, bottom - step, step * 1.4):
            canvas.fill(box(x, y, x + 0.5 * step, y + 0.8 * step), pane)


def _paint_picture(canvas: Canvas, rng: np.random.Generator, left: float, bottom: float, wall: Colour) -> None:
    """Paint a strip of wallpaper and a framed picture on it."""
    width = canvas.image.shape[1]
    wide, high = rng.uniform(0.06, 0.2) * width, rng.uniform(0.25, 0.5) * bottom
    top = rng.uniform(0.02, 0.4) * bottom
    canvas.fill(box(left, 0, left + 0.15 * width, bottom), shade(wall, rng.uniform(0.92, 0.97)))
    canvas.fill(box(left, top, left + wide, top + high), (225, 225, 220), outline=1.5)
    inner = hsv(rng.random(), rng.uniform(0.1, 0.6), rng.uniform(0.5, 1))
    canvas.fill(box(left + 3, top + 3, left + wide - 3, top + high - 3), inner)
    canvas.fill(ellipse((left + wide / 2, top + 0.6 * high), (wide * 0.25, high * 0.2)), shade(inner, 0.7))


def paint_obstacle(
    canvas: Canvas, rng: np.random.Generator, base: tuple[float, float], size: float, code: int | None
) -> None:
    """Paint a bush or tree, a post, or a piece of furniture.

    It stands on ``base``; ``size`` is the height of a person there, and ``code`` the new owner of the pixels.
    """
    x, y = base
    colour = hsv(rng.random(), rng.uniform(0.1, 0.6), rng.uniform(0.3, 0.85))
    kind = rng.integers(3)
    if kind == 0:
        leaves = hsv(rng.uniform(0.2, 0.42), rng.uniform(0.35, 0.75), rng.uniform(0.25, 0.65))
        stem = rng.choice((0.0, 0.5)) * size
        canvas.fill(box(x - 0.03 * size, y - stem - 1, x + 0.03 * size, y), shade(leaves, 0.6), code)
        for _ in range(8):
            centre = np.array([x, y - stem]) + (rng.uniform(-0.2, 0.2) * size, -rng.uniform(0.02, 0.22) * size)
            canvas.fill(ellipse(centre, (0.10 * size, 0.09 * size)), shade(leaves, rng.uniform(0.75, 1.15)), code)
    elif kind == 1:
        half = rng.uniform(0.02, 0.05) * size
        canvas.fill(box(x - half, y - rng.uniform(0.6, 1.7) * size, x + half, y), colour, code, 0.7)
    else:
        wide, high = rng.uniform(0.12, 0.4) * size, rng.uniform(0.25, 0.45) * size
        for side in (-0.85, 0.75):
            canvas.fill(box(x + side * wide, y - high, x + (side + 0.1) * wide, y), shade(colour, 0.7), code, 0.7)
        canvas.fill(box(x - wide, y - high, x + wide, y - rng.uniform(0.3, 0.8) * high), colour, code, 0.7)


def render_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """Paint a random setting and its people, the far ones first."""
    image, horizon = paint_backdrop(rng, width, height)
    painter = _Painter(rng, Canvas(image), horizon)
    painter.paint_distance()
    painter.paint_people()
    return Scene(_photograph(rng, painter.canvas.image), painter.canvas.owner, tuple(painter.actors))


class _Painter:
    """Paints people on the ground of one image.

    The height of the camera is ``eye`` times that of every person, so that the feet of a person of ``h`` pixels are
    ``eye * h`` pixels below the row ``horizon``.
    """

    def __init__(self, rng: np.random.Generator, canvas: Canvas, horizon: float) -> None:
        self.rng = rng
        self.canvas = canvas
        self.height, self.width = canvas.image.shape[:2]
        self.horizon = horizon
        self.eye = rng.uniform(0.75, 1.0)
        self.tilt = rng.uniform(2, 12)
        self.actors: list[Actor] = []

    def paint_distance(self) -> None:
        """Paint crowds and small people in the background, a little out of focus."""
        rng = self.rng
        if rng.random() < 0.1:
            centre = self.width * rng.uniform(0.25, 0.75)
            size = rng.uniform(0.09, 0.16) * self.height
            spread = (rng.uniform(0.05, 0.22) * self.width, 0.12 * size)
            points = rng.normal((centre, self.horizon + self.eye * size), spread, (rng.integers(9, 18), 2))
            from_far_to_near = points[points[:, 1].argsort()]
            self._add("crowd", [(size * rng.uniform(0.9, 1.1), point) for point in from_far_to_near])
        for _ in range(rng.choice(3, p=(0.76, 0.2, 0.04))):
            size = rng.uniform(0.13, 0.25) * self.height
            ground = np.array([rng.uniform(0, self.width), self.horizon + self.eye * size])
            self._add("distant", [(size, ground)])
        self.canvas.image = cv2.GaussianBlur(self.canvas.image, (0, 0), rng.uniform(0.3, 1.1) * self.height / 360)

    def paint_people(self) -> None:
        """Paint the people to label and the obstacles among them, from far to near."""
        rng = self.rng
        spots = self._choose_spots()
        queue: list[tuple[float, Callable[[], None]]] = []
        for size, ground in spots:
            queue.append((ground[1], partial(self._add, "person", [(size, ground)])))
        if rng.random() < 0.35:
            _, (_, floor) = spots[rng.integers(len(spots))]
            for _ in range(rng.integers(1, 3)):
                row = rng.uniform(floor, max(floor, self.height) * 1.06)
                size = min(row - self.horizon, 0.7 * self.height) / self.eye
                base = (rng.uniform(0, self.width), row)
                queue.append((row, partial(paint_obstacle, self.canvas, rng, base, size, OBSTACLE_CODE)))
        for _, paint in sorted(queue, key=lambda item: item[0]):
            paint()

    def _choose_spots(self) -> list[_Spot]:
        """Choose the positions of the people to label."""
        rng = self.rng
        count = rng.choice(_NUM_PEOPLE, p=_NUM_PEOPLE_SHARES)
        usual_size = min(rng.uniform(0.45, 0.85), max(2 * self.width / (self.height * count), 0.33))
        columns = (rng.permutation(count) + 0.5 + rng.normal(0, 0.2, count)) / count  # shares of the width
        if rng.random() < 0.2:  # close together
            columns = rng.uniform(0.35, 0.65) + 0.65 * (columns - 0.5)
        spots = []
        for column in columns:
            size = float(np.clip(usual_size * np.exp(rng.normal(0, 0.15)), 0.30, 0.95)) * self.height
            lowest = max(0.985 * self.height, _MARGIN * size)
            row = np.clip(self.horizon + self.eye * size, _MARGIN * size, lowest)
            if rng.random() < 0.08:  # the lower border hides the legs
                row += rng.uniform(0.05, 0.4) * size
            if rng.random() < 0.05:  # the left or right border hides a side
                column = rng.choice((0, 1)) + rng.normal(0, 0.03)
            spots.append((size, np.array([column * self.width, row])))
        return spots

    def _add(self, kind: ActorKind, spots: list[_Spot]) -> None:
        """Paint one actor: a random figure at each spot."""
        slot = len(self.actors) + 1
        figures = []
        for size, ground in spots:
            body = random_body(self.rng)
            posture = random_posture(self.rng, body, self.tilt)
            figure = Figure(body, posture, random_look(self.rng), size, ground, slot * len(Part))
            figure.paint(self.canvas)
            figures.append(figure)
        painted = int(np.count_nonzero(self.canvas.owner // len(Part) == slot))
        self.actors.append(Actor(kind, slot, tuple(figures), painted))


def _photograph(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Add the effects of a camera: a little blur, another exposure and tint, grain."""
    image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.25, 0.6))
    grain = int(rng.integers(1, 7))
    gain = rng.uniform(0.8, 1.15) * rng.uniform(0.95, 1.05, 3)
    bias = rng.uniform(-12, 12) - grain
    curves = np.clip(np.arange(256)[:, None] * gain + bias, 0, 255).astype(np.uint8)
    noise = rng.integers(0, 2 * grain, image.shape[:2], dtype=np.uint8, endpoint=True)
    return cv2.add(cv2.LUT(image, curves[:, None]), cv2.merge([noise] * 3))

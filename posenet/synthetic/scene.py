"""An image of people in a place: who stands where, who hides whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import cv2
import numpy as np

from posenet.synthetic.canvas import Canvas
from posenet.synthetic.figure import Figure, Part
from posenet.synthetic.pose import draw_body, draw_posture
from posenet.synthetic.scenery import draw_backdrop, draw_obstacle
from posenet.synthetic.wardrobe import draw_look

_OBSTACLE = 1
_PEOPLE = (1, 2, 3, 4, 5, 6)
_PEOPLE_SHARES = (0.12, 0.26, 0.26, 0.19, 0.11, 0.06)
_ASPECTS = (4 / 3, 4 / 3, 3 / 2, 1.25, 1.6, 1.0)


@dataclass(frozen=True)
class Actor:
    """A person, or a crowd, that has been painted.

    Attributes:
        kind: a person to label, a distant one whose keypoints nobody would mark, or a distant crowd.
        slot: the actor owns the canvas codes from ``slot * len(Part)`` on.
        figures: one, or the many of a crowd.
        painted: pixels that the actor covered before others were painted over it.
    """

    kind: Literal["person", "distant", "crowd"]
    slot: int
    figures: tuple[Figure, ...]
    painted: int


@dataclass(frozen=True)
class Scene:
    """What was painted.

    Attributes:
        image: (H, W, 3) uint8 BGR.
        owner: (H, W) int32 canvas codes (see ``Figure``); below ``len(Part)`` is no person.
        actors: in the order of painting.
    """

    image: np.ndarray
    owner: np.ndarray
    actors: tuple[Actor, ...]

    def mask(self, actor: Actor) -> np.ndarray:
        """(H, W) uint8, 1 where the actor is seen."""
        return (self.owner // len(Part) == actor.slot).astype(np.uint8)


def draw_size(rng: np.random.Generator, longest: int) -> tuple[int, int]:
    """A random (width, height), one in five upright, the longer side 85-100 % of ``longest``."""
    side = longest * rng.uniform(0.85, 1)
    width, height = round(side), round(side / rng.choice(_ASPECTS))
    return (height, width) if rng.random() < 0.2 else (width, height)


def draw_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """Paint a random place and its people, the far ones first."""
    image, horizon = draw_backdrop(rng, width, height)
    painter = _Painter(rng, Canvas(image), horizon)
    painter.paint_distance()
    painter.paint_people()
    return Scene(_photographed(rng, painter.canvas.image), painter.canvas.owner, tuple(painter.actors))


class _Painter:
    """Places people on the ground of one image: a person ``h`` pixels tall stands ``eye * h`` below the horizon."""

    def __init__(self, rng: np.random.Generator, canvas: Canvas, horizon: float) -> None:
        self.rng, self.canvas, self.horizon = rng, canvas, horizon
        self.eye = rng.uniform(0.75, 1.0)
        self.tilt = rng.uniform(2, 12)
        self.actors: list[Actor] = []

    def paint_distance(self) -> None:
        """Crowds and small people in the background, a little out of focus."""
        rng, (height, width) = self.rng, self.canvas.owner.shape
        crowds = rng.choice(3, p=(0.90, 0.08, 0.02))
        for k in range(crowds):
            centre = width * (k + rng.uniform(0.25, 0.75)) / crowds
            spread, size = rng.uniform(0.10, 0.22) * width / crowds, rng.uniform(0.09, 0.16) * height
            places = rng.normal((centre, 0), (spread, 0.12 * size), (rng.integers(9, 18), 2))
            places[:, 1] += self.horizon + self.eye * size
            self._add("crowd", [(size * rng.uniform(0.9, 1.1), place) for place in places[places[:, 1].argsort()]])
        for _ in range(rng.choice(4, p=(0.76, 0.19, 0.04, 0.01))):
            size = rng.uniform(0.13, 0.25) * height
            self._add("distant", [(size, np.array([rng.uniform(0, width), self.horizon + self.eye * size]))])
        self.canvas.image = cv2.GaussianBlur(self.canvas.image, (0, 0), rng.uniform(0.3, 1.1) * height / 360)

    def paint_people(self) -> None:
        """The people to label, and what stands between them and the viewer."""
        rng, (height, width) = self.rng, self.canvas.owner.shape
        people = self._places()
        queue = [(ground[1], partial(self._add, "person", [(size, ground)])) for size, ground in people]
        if rng.random() < 0.35:
            floor = people[rng.integers(len(people))][1][1]
            for _ in range(rng.integers(1, 3)):
                row = rng.uniform(floor, max(floor, height) * 1.06)
                size = min(row - self.horizon, 0.7 * height) / self.eye
                base = (rng.uniform(0, width), row)
                queue.append((row, partial(draw_obstacle, self.canvas, rng, base, size, _OBSTACLE)))
        for _, paint in sorted(queue, key=lambda item: item[0]):
            paint()

    def _places(self) -> list[tuple[float, np.ndarray]]:
        """Standing height and ground point of everybody, pixels."""
        rng, (height, width) = self.rng, self.canvas.owner.shape
        count = rng.choice(_PEOPLE, p=_PEOPLE_SHARES)
        usual = min(rng.uniform(0.45, 0.85), max(2 * width / (height * count), 0.33))
        order = (rng.permutation(count) + 0.5 + rng.normal(0, 0.2, count)) / count
        if rng.random() < 0.2:
            order = rng.uniform(0.35, 0.65) + 0.65 * (order - 0.5)
        places = []
        for across in order:
            size = float(np.clip(usual * np.exp(rng.normal(0, 0.15)), 0.30, 0.95)) * height
            row = np.clip(self.horizon + self.eye * size, 1.01 * size, max(0.985 * height, 1.01 * size))
            if rng.random() < 0.08:
                row += rng.uniform(0.05, 0.4) * size
            if rng.random() < 0.05:
                across = rng.choice((0, 1)) + rng.normal(0, 0.03)
            places.append((size, np.array([across * width, row])))
        return places

    def _add(self, kind: Literal["person", "distant", "crowd"], places: list[tuple[float, np.ndarray]]) -> None:
        rng, slot, figures = self.rng, len(self.actors) + 1, []
        for size, ground in places:
            body = draw_body(rng)
            figure = Figure(body, draw_posture(rng, body, self.tilt), draw_look(rng), size, ground, slot * len(Part))
            self.canvas.shadow(ground, (0.20 * size, 0.035 * size), 0.5)
            figure.paint(self.canvas)
            figures.append(figure)
        painted = np.count_nonzero(self.canvas.owner // len(Part) == slot)
        self.actors.append(Actor(kind, slot, tuple(figures), painted))


def _photographed(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """What a camera adds: a little blur, another exposure and tint, grain."""
    image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.25, 0.6))
    grain = int(rng.integers(1, 7))
    gain, bias = rng.uniform(0.8, 1.15) * rng.uniform(0.95, 1.05, 3), rng.uniform(-12, 12) - grain
    curves = np.clip(np.arange(256)[:, None] * gain + bias, 0, 255).astype(np.uint8)
    noise = rng.integers(0, 2 * grain, image.shape[:2], dtype=np.uint8, endpoint=True)
    return cv2.add(cv2.LUT(image, curves[:, None]), cv2.merge([noise] * 3))

"""Let people walk: their positions over time, and how their limbs move.

Positions on the ground are (x, depth) in standing heights: x to the right of the camera's axis, depth away from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from posenet.synthetic.pose import SIDES, Body, Posture, body_joints, rotation

STRIDE = 0.85
"""Length of two steps, in standing heights."""
_ACCELERATION = 1.5
"""Heights per second squared."""
_TURN = 300.0
"""Degrees per second."""
_ARRIVED = 0.25
"""A goal is reached at this distance, in heights."""
_LEG_SWING = 27.0
_ARM_SWING = 24.0
_KNEE_BEND = 50.0
"""Largest angles of a fast walk, in degrees."""


class Goal(NamedTuple):
    """A point that a person walks to."""

    position: np.ndarray
    """(x, depth) on the ground."""
    pause: float
    """How long the person stays there, in seconds."""


class Step(NamedTuple):
    """A walking person at one time."""

    position: np.ndarray
    """(x, depth) on the ground."""
    heading: float
    """In degrees; 0 faces the camera, 90 the right of the image."""
    phase: float
    """Of the gait, in radians; a stride is 2 pi."""
    effort: float
    """0 for standing, 1 for walking fast."""


def random_goals(rng: np.random.Generator, depth: float, half_width: float) -> Iterator[Goal]:
    """Yield random goals at about this depth, without end: most are beyond a side of the image, the others inside.

    Args:
        half_width: from the camera's axis to the side of the image at this depth, in heights.
    """
    side = rng.choice((-1.0, 1.0))
    while True:
        if rng.random() < 0.65:
            side = -side
            goal = Goal(np.array([side * (half_width + 0.4), depth]), rng.uniform(0, 2))
        else:
            x = rng.uniform(-0.8, 0.8) * half_width
            goal = Goal(np.array([x, depth]), rng.uniform(0.5, 3))
        goal.position[1] += rng.normal(0, 0.05)
        yield goal


def walk(rng: np.random.Generator, depth: float, half_width: float, interval: float) -> Iterator[Step]:
    """Walk from goal to goal without end; yield a step every ``interval`` seconds."""
    goals = random_goals(rng, depth, half_width)
    speed = rng.uniform(0.6, 1.1)
    position = np.array([rng.uniform(-1.3, 1.3) * half_width, depth])
    velocity = np.zeros(2)
    heading = rng.uniform(-90, 90)
    phase = rng.uniform(0, 2 * np.pi)
    goal = next(goals)
    waited = 0.0
    while True:
        way = goal.position - position
        distance = np.hypot(*way)
        wanted = way / max(distance, 1e-9) * speed if distance > _ARRIVED else np.zeros(2)
        change = wanted - velocity
        velocity = velocity + change * min(1.0, _ACCELERATION * interval / max(np.hypot(*change), 1e-9))
        position = position + velocity * interval
        moved = np.hypot(*velocity)
        phase += 2 * np.pi * moved * interval / STRIDE
        if moved > 0.1:
            turn = (np.degrees(np.arctan2(velocity[0], -velocity[1])) - heading + 180) % 360 - 180
            heading += np.clip(turn, -_TURN * interval, _TURN * interval)
        yield Step(position, heading, phase, min(1.0, moved))
        if distance <= _ARRIVED:
            waited += interval
            if waited > goal.pause:
                goal = next(goals)
                waited = 0.0


def walking_posture(body: Body, step: Step, tilt: float) -> Posture:
    """The posture of a walking person: the legs swing against each other, and each arm against its leg.

    Args:
        tilt: how far the camera looks down, degrees.
    """
    limbs = {}
    for side, sign in SIDES.items():
        swing = step.effort * np.sin(step.phase + (0 if sign > 0 else np.pi))
        bend = step.effort * max(0.0, np.cos(step.phase + (0 if sign > 0 else np.pi)))  # the leg that moves forward
        thigh = _LEG_SWING * swing
        arm = -_ARM_SWING * swing
        angles = np.radians([arm, arm + 10 + 15 * step.effort, thigh, thigh - 3 - _KNEE_BEND * bend])
        outward = sign * np.array([0.18, 0.08, 0.05, 0.02])
        directions = np.stack([outward, -np.cos(angles), np.sin(angles)], axis=1)
        limbs[side] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    chest = rotation(3 * step.effort, 0, 0)
    view = rotation(tilt, 0, 0) @ rotation(0, 0, step.heading)
    joints = {name: view @ point for name, point in body_joints(body, limbs, chest, 0.0).items()}
    return Posture(joints, chest=view @ chest, head=view @ chest, seated=False)

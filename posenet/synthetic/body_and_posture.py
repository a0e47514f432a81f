"""Bodies and postures: proportions, standing and sitting people, and the positions of their joints.

Lengths are shares of the person's standing height. There are two frames:

- the body's: origin on the ground below the pelvis, x to the person's left, y up, z forward;
- the viewer's, rotated by the person's heading and the camera's tilt: x to the right of the image, y up, z towards the
  viewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Vector = tuple[float, float, float]

SIDES = {"left": 1.0, "right": -1.0}
"""The sides of a body, with the signs of their x in the body's frame."""

# Directions (outward, up, forward) of the upper arm and the forearm.
_ARM_POSES: dict[str, tuple[Vector, Vector]] = {
    "hanging": ((0.20, -1, 0), (0.10, -1, 0.15)),
    "away": ((0.50, -1, 0), (0.35, -1, 0.10)),
    "akimbo": ((0.75, -0.75, -0.20), (-0.75, -0.65, 0.25)),
    "raised": ((0.50, 0.90, 0), (0.20, 1, 0.10)),
    "waving": ((0.95, -0.10, 0.10), (0.30, 1, 0.15)),
    "out": ((1, 0, 0.05), (1, 0.10, 0.10)),
    "crossed": ((0.25, -0.95, 0.20), (-0.90, 0.15, 0.45)),
    "holding": ((0.25, -0.95, 0.05), (-0.20, -0.10, 1)),
    "pointing": ((0.85, 0.05, 0.35), (1, 0.20, 0.30)),
    "on knee": ((0.20, -0.90, 0.35), (0.05, -0.65, 0.75)),
    "forward": ((0.15, -0.85, 0.45), (-0.10, -0.40, 0.85)),
    "back": ((0.25, -0.80, -0.50), (0.10, -0.80, 0.20)),
}

# Directions (outward, up, forward) of the thigh and the shin.
_LEG_POSES: dict[str, tuple[Vector, Vector]] = {
    "straight": ((0.07, -1, 0), (0.02, -1, -0.03)),
    "apart": ((0.26, -1, 0), (0.18, -1, -0.05)),
    "relaxed": ((0.25, -1, 0.15), (0.10, -1, -0.15)),
    "stepping": ((0.04, -1, 0.45), (0.02, -1, 0.05)),
    "trailing": ((0.05, -1, -0.30), (0.03, -1, -0.60)),
    "knee up": ((0.08, -0.60, 0.85), (0.02, -1, -0.25)),
    "seated": ((0.22, -0.15, 1), (0.08, -1, 0.02)),
    "squatting": ((0.55, 0.05, 1), (0.12, -1, -0.45)),
    "star": ((0.55, -1, 0), (0.45, -1, 0)),
    "kick": ((0.15, -0.60, 0.85), (0.10, -0.55, 0.85)),
}


class _Stance(NamedTuple):
    """One kind of posture."""

    weight: float  # relative frequency
    legs: tuple[str, str]  # poses of the two legs; which one is the left one is random
    arms: tuple[Sequence[str], Sequence[str]]  # possible poses of the arms on the same sides
    pitch: float = 1.0  # forward bend of the trunk, degrees; it varies by a third
    roll: float = 2.5  # standard deviation of the sideways bend, degrees


_ANY_ARM = ("hanging", "hanging", "hanging", "away", "akimbo", "akimbo", "raised", "waving", "waving", "out", "crossed",
            "holding", "pointing")  # fmt: skip
_RESTING_ARM = ("on knee", "on knee", "hanging", "holding", "crossed", "waving")
_STANCES = (
    _Stance(6, ("straight", "straight"), (_ANY_ARM, _ANY_ARM)),
    _Stance(4, ("apart", "apart"), (_ANY_ARM, _ANY_ARM)),
    _Stance(4, ("straight", "relaxed"), (_ANY_ARM, _ANY_ARM)),
    _Stance(4, ("stepping", "trailing"), (("back",), ("forward", "forward", "waving", "holding"))),
    _Stance(2, ("knee up", "trailing"), (("back",), ("forward",)), pitch=12),
    _Stance(1.5, ("apart", "straight"), (_ANY_ARM, _ANY_ARM), pitch=8, roll=11),
    _Stance(2, ("seated", "seated"), (_RESTING_ARM, _RESTING_ARM), pitch=5),
    _Stance(1, ("squatting", "squatting"), (_RESTING_ARM, _RESTING_ARM), pitch=20),
    _Stance(1, ("star", "star"), (("raised", "out", "waving"), ("raised", "out"))),
    _Stance(0.7, ("kick", "straight"), (("away", "out"), ("out", "waving", "away")), pitch=-4),
)


@dataclass(frozen=True)
class Body:
    """The proportions of a person, as shares of the standing height."""

    thigh: float
    shin: float
    trunk: float
    upper_arm: float
    forearm: float
    shoulder: float
    hip: float
    neck: float
    head: tuple[float, float]  # half-width and half-height
    girth: float  # factor of all thicknesses


@dataclass(frozen=True)
class Posture:
    """A posed body in the viewer's frame, before it has a size and a position in the image.

    The joints are the keypoints below the head, with the names of ``posenet.skeleton.COCO``, and pelvis, chest, head,
    left_hand, left_toe, left_heel, right_hand, right_toe, right_heel.
    """

    joints: dict[str, np.ndarray]  # (3,) positions by name
    chest: np.ndarray  # (3, 3) rotation of the trunk; its columns are the directions of its left, up and forward
    head: np.ndarray  # the same for the head


def random_body(rng: np.random.Generator) -> Body:
    """Choose the proportions of a person; one in eight is a child."""
    girth = float(np.clip(rng.normal(1.08, 0.15), 0.8, 1.5))
    legs, trunk, arms, shoulders, hips = rng.normal(1, 0.04, 5)
    head = rng.uniform(1.3, 1.55) if rng.random() < 0.125 else rng.uniform(1.02, 1.22)
    legs *= 1.0 if head < 1.3 else 0.9
    breadth = 0.7 + 0.3 * girth
    return Body(
        thigh=0.243 * legs,
        shin=0.235 * legs,
        trunk=0.285 * trunk,
        upper_arm=0.165 * arms,
        forearm=0.140 * arms,
        shoulder=0.105 * shoulders * breadth,
        hip=0.062 * hips * breadth,
        neck=0.038 + 0.074 * head,
        head=(0.066 * head, 0.080 * head),
        girth=girth,
    )


def random_posture(rng: np.random.Generator, body: Body, tilt: float) -> Posture:
    """Choose a pose and a heading: 70 % seen from the front, 15 % from behind, 15 % from a side.

    The camera looks down by ``tilt`` degrees.
    """
    weights = np.array([stance.weight for stance in _STANCES])
    stance = _STANCES[rng.choice(len(_STANCES), p=weights / weights.sum())]
    pitch = stance.pitch * rng.uniform(0.67, 1.33)
    chest = rotation(pitch, rng.normal(0, stance.roll), rng.normal(0, 4))
    heading = rng.choice((np.clip(rng.normal(0, 11), -25, 25), 180 + rng.normal(0, 10), rng.choice((-1, 1))
                          * rng.uniform(35, 95)), p=(0.70, 0.15, 0.15))  # fmt: skip
    head = rotation(0.4 * pitch + rng.normal(3, 4), rng.normal(0, 5), np.clip(rng.normal(0, 12), -25, 25))
    return _posed(body, _random_limbs(rng, stance), chest, head, heading, tilt)


def _random_limbs(rng: np.random.Generator, stance: _Stance) -> dict[str, np.ndarray]:
    """For each side, the (4, 3) directions of upper arm, forearm, thigh and shin: outward, up, forward."""
    arms = [rng.choice(choices) for choices in stance.arms]
    if rng.random() < 0.4 and arms[0] in stance.arms[1]:
        arms[1] = arms[0]
    noise = np.array([[0.07], [0.07], [0.042], [0.042]])
    order = ("left", "right") if rng.random() < 0.5 else ("right", "left")
    return {
        side: np.array(_ARM_POSES[arm] + _LEG_POSES[leg]) + rng.normal(0, noise, (4, 3))
        for side, arm, leg in zip(order, arms, stance.legs)
    }


def rotation(pitch: float, roll: float, yaw: float) -> np.ndarray:
    """(3, 3) rotation by angles in degrees: first y towards z (forward), then x towards y, then z towards x."""
    cos_pitch, cos_roll, cos_yaw = np.cos(np.radians((pitch, roll, yaw)))
    sin_pitch, sin_roll, sin_yaw = np.sin(np.radians((pitch, roll, yaw)))
    forward = np.array([[1, 0, 0], [0, cos_pitch, -sin_pitch], [0, sin_pitch, cos_pitch]])
    sideways = np.array([[cos_roll, -sin_roll, 0], [sin_roll, cos_roll, 0], [0, 0, 1]])
    turn = np.array([[cos_yaw, 0, sin_yaw], [0, 1, 0], [-sin_yaw, 0, cos_yaw]])
    return np.asarray(turn @ sideways @ forward)


def _posed(
    body: Body, limbs: dict[str, np.ndarray], chest: np.ndarray, head: np.ndarray, heading: float, tilt: float
) -> Posture:
    """Compute the joints of a body from the directions of ``_random_limbs`` and rotations in the body's frame.

    A ``heading`` of 0 degrees faces the camera, 90 the right of the image; the camera looks down by ``tilt`` degrees.
    """
    joints = {"pelvis": np.zeros(3), "chest": chest @ (0, body.trunk, 0)}
    joints["head"] = joints["chest"] + chest @ (0, body.neck, 0.012)
    for side, sign in SIDES.items():
        directions = limbs[side] / np.linalg.norm(limbs[side], axis=1, keepdims=True) * (sign, 1, 1)
        upper_arm, forearm, thigh, shin = directions
        shoulder = joints["chest"] + chest @ (sign * body.shoulder, 0, 0)
        elbow = shoulder + body.upper_arm * (chest @ upper_arm)
        wrist = elbow + body.forearm * (chest @ forearm)
        hip = np.array([sign * body.hip, 0, 0])
        knee = hip + body.thigh * thigh
        ankle = knee + body.shin * shin
        # The foot points forward and a little outward, at a right angle to the shin.
        foot = np.array([sign * 0.3, 0, 1])
        foot = foot - (foot @ shin) * shin
        heel = ankle + 0.030 * shin
        positions = {
            "shoulder": shoulder, "elbow": elbow, "wrist": wrist, "hand": wrist + 0.042 * (chest @ forearm),
            "hip": hip, "knee": knee, "ankle": ankle, "heel": heel, "toe": heel + 0.09 * foot / np.linalg.norm(foot),
        }  # fmt: skip
        joints |= {f"{side}_{name}": point for name, point in positions.items()}
    ground = min(point[1] for point in joints.values()) - 0.020
    view = rotation(tilt, 0, 0) @ rotation(0, 0, heading)
    joints = {name: view @ (point - (0, ground, 0)) for name, point in joints.items()}
    return Posture(joints, chest=view @ chest, head=view @ head)

"""Choose a random posture of a person, such as standing, walking or sitting, and compute the positions of the joints.

Lengths are shares of the person's standing height. There are two frames:

- the body's: origin on the ground below the pelvis, x to the person's left, y up, z forward;
- the viewer's, rotated by the person's heading and the camera's tilt: x to the right of the image, y up, z towards the
  viewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Vector = tuple[float, float, float]

SIDES = {"L": 1.0, "R": -1.0}
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
    "thinking": ((0.20, -0.85, 0.45), (-0.35, 0.95, 0.25)),
    "behind head": ((0.90, 0.50, 0), (-0.70, 0.70, -0.15)),
    "pointing": ((0.85, 0.05, 0.35), (1, 0.20, 0.30)),
    "on knee": ((0.20, -0.90, 0.35), (0.05, -0.65, 0.75)),
    "swung forward": ((0.15, -0.95, 0.40), (0.02, -0.75, 0.65)),
    "swung back": ((0.20, -0.90, -0.40), (0.12, -1, -0.05)),
    "pumped forward": ((0.15, -0.85, 0.45), (-0.15, 0.35, 0.90)),
    "pumped back": ((0.30, -0.60, -0.75), (0.05, -0.75, 0.60)),
}

# Directions (outward, up, forward) of the thigh and the shin.
_LEG_POSES: dict[str, tuple[Vector, Vector]] = {
    "straight": ((0.07, -1, 0), (0.02, -1, -0.03)),
    "apart": ((0.26, -1, 0), (0.18, -1, -0.05)),
    "relaxed": ((0.25, -1, 0.15), (0.10, -1, -0.15)),
    "stepping": ((0.04, -1, 0.45), (0.02, -1, 0.05)),
    "trailing": ((0.05, -1, -0.30), (0.03, -1, -0.60)),
    "knee up": ((0.08, -0.60, 0.85), (0.02, -1, -0.25)),
    "pushing off": ((0.05, -1, -0.30), (0.02, -0.50, -0.95)),
    "seated": ((0.22, -0.15, 1), (0.08, -1, 0.02)),
    "squatting": ((0.55, 0.05, 1), (0.12, -1, -0.45)),
    "kneeling": ((0.10, -1, 0.05), (0.05, -0.20, -1)),
    "star": ((0.55, -1, 0), (0.45, -1, 0)),
    "kick": ((0.15, -0.60, 0.85), (0.10, -0.55, 0.85)),
}


@dataclass(frozen=True)
class Stance:
    """One kind of posture."""

    weight: float  # relative frequency
    legs: tuple[str, str]  # poses of the two legs; which one is the left one is random
    arms: tuple[Sequence[str], Sequence[str]]  # possible poses of the arms on the same sides
    pitch: float = 1.0  # forward bend of the trunk, degrees; it varies by a third
    roll: float = 2.5  # standard deviation of the sideways bend, degrees
    lift: float = 0.0  # height of a jump
    seated: bool = False


_FREE_ARMS = (
    "hanging", "hanging", "hanging", "away", "akimbo", "akimbo", "raised", "waving", "waving", "out", "crossed",
    "holding", "thinking", "behind head", "pointing",
)  # fmt: skip
_RESTING_ARMS = ("on knee", "on knee", "hanging", "holding", "crossed", "thinking", "waving")
_STANCES = (
    Stance(6, ("straight", "straight"), (_FREE_ARMS, _FREE_ARMS)),
    Stance(4, ("apart", "apart"), (_FREE_ARMS, _FREE_ARMS)),
    Stance(4, ("straight", "relaxed"), (_FREE_ARMS, _FREE_ARMS)),
    Stance(4, ("stepping", "trailing"), (("swung back",), ("swung forward", "swung forward", "waving", "holding"))),
    Stance(2, ("knee up", "pushing off"), (("pumped back",), ("pumped forward",)), pitch=12),
    Stance(1.5, ("apart", "straight"), (_FREE_ARMS, _FREE_ARMS), roll=11),
    Stance(1, ("straight", "relaxed"), (("hanging", "holding", "on knee"), ("hanging", "akimbo", "away")), pitch=28),
    Stance(2, ("seated", "seated"), (_RESTING_ARMS, _RESTING_ARMS), pitch=5, seated=True),
    Stance(1, ("squatting", "squatting"), (_RESTING_ARMS, _RESTING_ARMS), pitch=20),
    Stance(0.7, ("seated", "kneeling"), (_RESTING_ARMS, _RESTING_ARMS), pitch=6),
    Stance(1, ("star", "star"), (("raised", "out", "waving"), ("raised", "out")), lift=0.06),
    Stance(0.7, ("kick", "straight"), (("away", "out"), ("out", "waving", "away")), pitch=-4),
)


@dataclass(frozen=True)
class Body:
    """The proportions of a person, as shares of the standing height."""

    thigh: float = 0.243
    shin: float = 0.235
    trunk: float = 0.285
    upper_arm: float = 0.165
    forearm: float = 0.140
    shoulder: float = 0.105
    hip: float = 0.062
    neck: float = 0.112
    head: tuple[float, float] = (0.066, 0.080)  # half-width and half-height
    girth: float = 1.0  # factor of all thicknesses


@dataclass(frozen=True)
class Posture:
    """A posed body in the viewer's frame, before it has a size and a position in the image.

    The joints are the keypoints below the head, with the names of ``posenet.skeleton.COCO``, and pelvis, chest, head,
    Lhand, Ltoe, Lheel, Rhand, Rtoe, Rheel.
    """

    joints: dict[str, np.ndarray]  # (3,) positions by name
    chest: np.ndarray  # (3, 3) rotation of the trunk; its columns are the directions of its left, up and forward
    head: np.ndarray  # the same for the head
    seated: bool  # whether there is a seat below the pelvis


def random_body(rng: np.random.Generator) -> Body:
    """Choose the proportions of a person; one in eight is a child."""
    girth = float(np.clip(rng.normal(1.08, 0.15), 0.8, 1.5))
    slack = rng.normal(1, 0.04, size=6)
    head_scale = rng.uniform(1.3, 1.55) if rng.random() < 0.125 else rng.uniform(1.02, 1.22)
    legs = (1.0 if head_scale < 1.3 else 0.9) * slack[0]
    return Body(
        thigh=0.243 * legs,
        shin=0.235 * legs,
        trunk=0.285 * slack[1],
        upper_arm=0.165 * slack[2],
        forearm=0.140 * slack[2],
        shoulder=0.105 * slack[3] * (0.7 + 0.3 * girth),
        hip=0.062 * slack[4] * (0.7 + 0.3 * girth),
        neck=0.038 + 0.074 * head_scale,
        head=(0.066 * head_scale * slack[5], 0.080 * head_scale),
        girth=girth,
    )


def random_posture(rng: np.random.Generator, body: Body, tilt: float) -> Posture:
    """Choose a pose and a heading: 70 % seen from the front, 15 % from behind, 15 % from a side.

    The camera looks down by ``tilt`` degrees.
    """
    weights = np.array([stance.weight for stance in _STANCES])
    stance = _STANCES[rng.choice(len(_STANCES), p=weights / weights.sum())]
    limbs = _random_limbs(rng, stance)
    pitch = stance.pitch * rng.uniform(0.67, 1.33)
    chest = rotation(pitch, rng.normal(0, stance.roll), rng.normal(0, 4))
    seen_from = ("front", "behind", "side")[rng.choice(3, p=(0.70, 0.15, 0.15))]
    side = rng.choice((-1.0, 1.0))
    # Random numbers are used for all three headings, so that the following ones do not depend on the choice.
    headings = {
        "front": float(np.clip(rng.normal(0, 11), -25, 25)),
        "behind": 180 + rng.normal(0, 10),
        "side": side * rng.uniform(35, 95),
    }
    glance = np.clip(rng.normal(0, 12), -25, 25) * (0.5 if seen_from == "behind" else 1.0)
    head = rotation(0.4 * pitch + rng.normal(3, 4), rng.normal(0, 5), glance)
    view = rotation(tilt, 0, 0) @ rotation(0, 0, headings[seen_from])
    joints = {name: view @ point for name, point in body_joints(body, limbs, chest, stance.lift).items()}
    return Posture(joints, chest=view @ chest, head=view @ head, seated=stance.seated)


def rotation(pitch: float, roll: float, yaw: float) -> np.ndarray:
    """(3, 3) rotation by angles in degrees: first y towards z (forward), then x towards y, then z towards x."""
    cos_pitch, cos_roll, cos_yaw = np.cos(np.radians((pitch, roll, yaw)))
    sin_pitch, sin_roll, sin_yaw = np.sin(np.radians((pitch, roll, yaw)))
    forward = np.array([[1, 0, 0], [0, cos_pitch, -sin_pitch], [0, sin_pitch, cos_pitch]])
    sideways = np.array([[cos_roll, -sin_roll, 0], [sin_roll, cos_roll, 0], [0, 0, 1]])
    turn = np.array([[cos_yaw, 0, sin_yaw], [0, 1, 0], [-sin_yaw, 0, cos_yaw]])
    combined: np.ndarray = turn @ sideways @ forward
    return combined


def _random_limbs(rng: np.random.Generator, stance: Stance) -> dict[str, np.ndarray]:
    """For each side, the (4, 3) unit directions of upper arm, forearm, thigh and shin in the body's frame."""
    order = "LR" if rng.random() < 0.5 else "RL"
    arms = [rng.choice(choices) for choices in stance.arms]
    if rng.random() < 0.4 and arms[0] in stance.arms[1]:
        arms[1] = arms[0]
    noise_scale = [[1], [1], [0.6], [0.6]]
    limbs = {}
    for side, arm, leg in zip(order, arms, stance.legs):
        directions = np.array(_ARM_POSES[arm] + _LEG_POSES[leg]) + rng.normal(0, 0.07, (4, 3)) * noise_scale
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        limbs[side] = directions * (SIDES[side], 1, 1)
    return limbs


def body_joints(body: Body, limbs: dict[str, np.ndarray], chest: np.ndarray, lift: float) -> dict[str, np.ndarray]:
    """The joints of a posed body in the body's frame, by name."""
    joints = {"pelvis": np.zeros(3), "chest": chest @ (0, body.trunk, 0)}
    joints["head"] = joints["chest"] + chest @ (0, body.neck, 0.012)
    for side, sign in SIDES.items():
        upper_arm, forearm, thigh, shin = limbs[side]
        shoulder = joints["chest"] + chest @ (sign * body.shoulder, 0, 0)
        elbow = shoulder + body.upper_arm * (chest @ upper_arm)
        wrist = elbow + body.forearm * (chest @ forearm)
        hip = np.array([sign * body.hip, 0, 0])
        knee = hip + body.thigh * thigh
        ankle = knee + body.shin * shin
        # The foot points forward and a little outward, at a right angle to the shin.
        outward = np.array([sign * 0.3, 0, 1])
        foot = outward - (outward @ shin) * shin
        foot /= np.linalg.norm(foot)
        heel = ankle + 0.030 * shin - 0.022 * foot
        joints[side + "sho"] = shoulder
        joints[side + "elb"] = elbow
        joints[side + "wri"] = wrist
        joints[side + "hand"] = wrist + 0.042 * (chest @ forearm)
        joints[side + "hip"] = hip
        joints[side + "kne"] = knee
        joints[side + "ank"] = ankle
        joints[side + "heel"] = heel
        joints[side + "toe"] = heel + 0.105 * foot
    ground = min(point[1] for point in joints.values()) - 0.020 - lift
    return {name: point - (0, ground, 0) for name, point in joints.items()}

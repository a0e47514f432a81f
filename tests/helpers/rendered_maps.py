"""Maps for the decoder: of standing people, and with single cells."""

import numpy as np
import torch

from posenet.data.targets import TargetRenderer
from posenet.person import Person
from posenet.settings import TargetsConfig
from posenet.skeleton import COCO

STANDING = {
    "nose": (0, -90), "right_eye": (-6, -97), "left_eye": (6, -97), "right_ear": (-14, -93), "left_ear": (14, -93),
    "neck": (0, -62), "right_shoulder": (-26, -62), "left_shoulder": (26, -62), "right_elbow": (-40, -25),
    "left_elbow": (40, -25), "right_wrist": (-44, 12), "left_wrist": (44, 12), "right_hip": (-17, 15),
    "left_hip": (17, 15), "right_knee": (-20, 70), "left_knee": (20, 70), "right_ankle": (-22, 125),
    "left_ankle": (22, 125),
}  # fmt: skip
"""x, y of the keypoints of a standing person, in pixels."""


def standing_person(x: float, y: float, size: float = 1.0, degrees: float = 0.0) -> np.ndarray:
    """(18, 3) joints of a person who stands at (x, y), in network-input pixels."""
    angle = np.deg2rad(degrees)
    matrix = size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = np.array([STANDING[name] for name in COCO.keypoints]) @ matrix.T + (x, y)
    return np.concatenate([points, np.ones((18, 1))], axis=1).astype(np.float32)


def person_at(x: float, y: float = 200.0, size: float = 0.5, noise: np.ndarray | float = 0.0) -> Person:
    """A person with all keypoints who stands at (x, y); ``noise`` is added to the positions."""
    keypoints = standing_person(x, y, size)
    keypoints[:, :2] += noise
    return Person(keypoints, 0.9)


def render_people(*people: np.ndarray, size: tuple[int, int] = (96, 128)) -> np.ndarray:
    """(50, h, w) target maps of people."""
    joints = torch.from_numpy(np.stack(people))[None]
    return TargetRenderer(TargetsConfig(), COCO)(joints, torch.zeros(1, *size))[0].numpy()


def maps_with_cells(*cells: tuple[str, int, int, float]) -> np.ndarray:
    """(50, 32, 40) maps that are 0 but for single cells (keypoint, row, column, value); all body parts are 1."""
    maps = np.zeros((50, 32, 40), np.float32)
    maps[COCO.part_channels] = 1
    for name, row, column, value in cells:
        maps[COCO.num_parts + COCO.index(name), row, column] = value
    return maps

"""The built-in skeleton: the 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

from __future__ import annotations

from posenet.skeleton.skeleton import Skeleton

_KEYPOINTS = "nose neck Rsho Relb Rwri Lsho Lelb Lwri Rhip Rkne Rank Lhip Lkne Lank Reye Leye Rear Lear"

_FILE_KEYPOINTS = "nose Leye Reye Lear Rear Lsho Rsho Lelb Relb Lwri Rwri Lhip Rhip Lkne Rkne Lank Rank"
_FILE_NAMES = """
    nose left_eye right_eye left_ear right_ear left_shoulder right_shoulder left_elbow right_elbow left_wrist
    right_wrist left_hip right_hip left_knee right_knee left_ankle right_ankle
"""

_PARTS = """
    neck-nose neck-Reye neck-Leye neck-Rear neck-Lear nose-Reye nose-Leye Reye-Rear Leye-Lear
    neck-Rsho Rsho-Relb Relb-Rwri neck-Lsho Lsho-Lelb Lelb-Lwri neck-Rhip Rhip-Rkne Rkne-Rank neck-Lhip Lhip-Lkne
    Lkne-Lank nose-Rsho nose-Lsho Rsho-Rhip Rhip-Lkne Lsho-Lhip Lhip-Rkne Rear-Rsho Lear-Lsho Rhip-Lhip
"""

_DRAWN_PARTS = """
    nose-Reye nose-Leye Reye-Rear Leye-Lear neck-nose neck-Rsho neck-Lsho Rsho-Relb Relb-Rwri Lsho-Lelb Lelb-Lwri
    Rsho-Rhip Lsho-Lhip Rhip-Lhip Rhip-Rkne Rkne-Rank Lhip-Lkne Lkne-Lank
"""
"""The parts that outline a body. The others only help to group keypoints."""

_OKS_SIGMAS = {
    "nose": 0.026, "eye": 0.025, "ear": 0.035, "sho": 0.079, "elb": 0.072, "wri": 0.062, "hip": 0.107, "kne": 0.087,
    "ank": 0.089,
}  # fmt: skip
"""The constants of the COCO keypoint challenge, the same for left and right."""

_LAYOUT = {
    "nose": (-1.35, 0.12), "eye": (-1.4, 0.13), "ear": (-1.37, 0.22), "neck": (-1.0, 0.15), "sho": (-1.0, 0.4),
    "elb": (-0.5, 0.6), "wri": (-0.3, 0.7), "hip": (0.0, 0.3), "kne": (0.65, 0.4), "ank": (1.35, 0.5),
}  # fmt: skip
"""Height and spread (see ``Skeleton.layout``), measured on 331 people with nine or more labelled keypoints in a small
sample of COCO, and rounded."""


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """(a, b) of every word ``a-b``."""
    return tuple((first, second) for first, _, second in (word.partition("-") for word in text.split()))


COCO = Skeleton(
    keypoints=tuple(_KEYPOINTS.split()),
    parts=_pairs(_PARTS),
    left_right=tuple((name, "R" + name[1:]) for name in _KEYPOINTS.split() if name[0] == "L"),
    derived={"neck": ("Rsho", "Lsho")},
    file_keypoints=tuple(_FILE_KEYPOINTS.split()),
    file_names=tuple(_FILE_NAMES.split()),
    sigmas=tuple(_OKS_SIGMAS[name.lstrip("LR")] for name in _FILE_KEYPOINTS.split()),
    layout={name: _LAYOUT[name.lstrip("LR")] for name in _KEYPOINTS.split()},
    drawn=_pairs(_DRAWN_PARTS),
)
"""The 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

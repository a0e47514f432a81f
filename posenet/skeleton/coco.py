"""The built-in skeleton: the 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

from __future__ import annotations

from posenet.skeleton.skeleton import Skeleton

_KEYPOINTS = "nose neck Rsho Relb Rwri Lsho Lelb Lwri Rhip Rkne Rank Lhip Lkne Lank Reye Leye Rear Lear"

_PARTS = """
    neck-nose neck-Reye neck-Leye neck-Rear neck-Lear nose-Reye nose-Leye Reye-Rear Leye-Lear
    neck-Rsho Rsho-Relb Relb-Rwri neck-Lsho Lsho-Lelb Lelb-Lwri neck-Rhip Rhip-Rkne Rkne-Rank neck-Lhip Lhip-Lkne
    Lkne-Lank nose-Rsho nose-Lsho Rsho-Rhip Rhip-Lkne Lsho-Lhip Lhip-Rkne Rear-Rsho Lear-Lsho Rhip-Lhip
"""

_DRAWN_PARTS = """
    nose-Reye nose-Leye Reye-Rear Leye-Lear neck-nose neck-Rsho neck-Lsho Rsho-Relb Relb-Rwri Lsho-Lelb Lelb-Lwri
    Rsho-Rhip Lsho-Lhip Rhip-Lhip Rhip-Rkne Rkne-Rank Lhip-Lkne Lkne-Lank
"""
"""The outline of a human body. The other parts only help to link keypoints."""

_OKS_SIGMAS = {
    "nose": 0.026, "eye": 0.025, "ear": 0.035, "sho": 0.079, "elb": 0.072, "wri": 0.062, "hip": 0.107, "kne": 0.087,
    "ank": 0.089,
}  # fmt: skip
"""The constants of the COCO keypoint challenge, in the order of its keypoints."""

_LAYOUT = {
    "nose": (-1.35, 0.12), "eye": (-1.4, 0.13), "ear": (-1.37, 0.22), "neck": (-1.0, 0.15), "sho": (-1.0, 0.4),
    "elb": (-0.5, 0.6), "wri": (-0.3, 0.7), "hip": (0.0, 0.3), "kne": (0.65, 0.4), "ank": (1.35, 0.5),
}  # fmt: skip
"""Height and spread of every keypoint (see ``Skeleton.layout``), measured on 331 people of a small sample of COCO with
nine or more labelled keypoints, and rounded."""

_COCO_NAMES = {
    "nose": "nose", "eye": "eye", "ear": "ear", "sho": "shoulder", "elb": "elbow", "wri": "wrist", "hip": "hip",
    "kne": "knee", "ank": "ankle",
}  # fmt: skip


def _kind(name: str) -> str:
    """``sho`` of ``Lsho`` and ``Rsho``; ``nose`` of ``nose``."""
    return name[1:] if name[0] in "LR" else name


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """(a, b) of every word ``a-b``."""
    return tuple((first, second) for first, _, second in (word.partition("-") for word in text.split()))


def _build() -> Skeleton:
    keypoints = tuple(_KEYPOINTS.split())
    file_keypoints = ["nose"]
    file_names = ["nose"]
    for kind in list(_OKS_SIGMAS)[1:]:  # COCO's order: from the eyes to the ankles, the left one first
        for letter, side in (("L", "left"), ("R", "right")):
            file_keypoints.append(letter + kind)
            file_names.append(f"{side}_{_COCO_NAMES[kind]}")
    return Skeleton(
        keypoints=keypoints,
        parts=_pairs(_PARTS),
        left_right=tuple((name, "R" + name[1:]) for name in keypoints if name[0] == "L"),
        derived={"neck": ("Rsho", "Lsho")},
        file_keypoints=tuple(file_keypoints),
        file_names=tuple(file_names),
        sigmas=tuple(_OKS_SIGMAS[_kind(name)] for name in file_keypoints),
        layout={name: _LAYOUT[_kind(name)] for name in keypoints},
        drawn=_pairs(_DRAWN_PARTS),
    )


COCO = _build()
"""The 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

"""A data set of people whose faces are not annotated."""

from pathlib import Path

from posenet.data.store import NewImage, Store, write_store
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import KeypointMapping
from posenet.skeleton.skeleton_file import skeleton_from_table

_JOINTS = ("shoulder", "elbow", "wrist", "hip", "knee", "ankle")
_BONES = [
    ("shoulder", "elbow"), ("elbow", "wrist"), ("shoulder", "hip"), ("hip", "knee"), ("knee", "ankle"),
]  # fmt: skip

FACELESS: Skeleton = skeleton_from_table(
    {
        "keypoints": [f"{side}_{joint}" for joint in _JOINTS for side in ("left", "right")],
        "left_right": [[f"left_{joint}", f"right_{joint}"] for joint in _JOINTS],
        "parts": [
            ["left_hip", "right_hip"],
            *([f"{side}_{a}", f"{side}_{b}"] for a, b in _BONES for side in ("left", "right")),
        ],
    }
)
"""COCO's keypoints without the five of the face, under their names in COCO's files."""


def write_store_with_skeleton(source: Path, path: Path, skeleton: Skeleton) -> Path:
    """Write a copy of a store with the keypoints of another skeleton."""
    with Store(source) as store:
        mapping = KeypointMapping(store.skeleton, skeleton)
        images = []
        for row in range(store.num_images):
            record = store.read_record(row)
            main_rows = store.samples[store.samples[:, 0] == row, 1].tolist()
            images.append(NewImage(record._replace(joints=mapping.map_joints(record.joints)), main_rows))
        write_store(path, images, store.num_image_bytes, skeleton)
    return path


def write_faceless_store(source: Path, path: Path) -> Path:
    """Write a copy of a store with the keypoints of ``FACELESS``."""
    return write_store_with_skeleton(source, path, FACELESS)

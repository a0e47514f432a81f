"""What a network predicts: keypoints, body parts and output channels, built in or read from a TOML file."""

from posenet.skeleton.coco import COCO
from posenet.skeleton.skeleton import Skeleton
from posenet.skeleton.skeleton_file import load_skeleton

__all__ = ["COCO", "Skeleton", "load_skeleton"]

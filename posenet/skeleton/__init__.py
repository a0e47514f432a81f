"""What a network predicts: keypoints, body parts and output channels, read from a TOML file."""

from posenet.skeleton.skeleton import Skeleton
from posenet.skeleton.skeleton_file import COCO, load_skeleton

__all__ = ["COCO", "Skeleton", "load_skeleton"]

"""Poses of the layout, and groups of their keypoints as the decoder's arrays."""

import numpy as np

from posenet.inference.decoder.pose_model import PoseModel
from posenet.skeleton import COCO

MODEL = PoseModel(COCO)
ALL = np.arange(COCO.num_keypoints)

FOREARM = [COCO.index("left_elbow"), COCO.index("left_wrist")]


def upright(x, y, torso, turn=0.0):
    """(K,) complex positions of a person as in the layout, with the spread to the sides and the head above."""
    side = np.array([name.startswith("left") - name.startswith("right") for name in COCO.keypoints])
    return x + 1j * y + torso * np.exp(1j * turn) * (1j * MODEL.height + side * MODEL.spread)


def groups(position, keypoint, label, score=None):
    """(G, K) positions and scores of N keypoints with a group each; 0 where a group lacks the keypoint."""
    shape = np.max(label) + 1, COCO.num_keypoints
    z, scores = np.zeros(shape, complex), np.zeros(shape)
    z[label, keypoint] = position
    scores[label, keypoint] = 1.0 if score is None else score
    return z, scores

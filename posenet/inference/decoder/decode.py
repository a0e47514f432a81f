"""``decode``: from the maps of one image to its people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from posenet.inference.decoder.candidates import MAX_PEAKS, find_keypoints, find_limbs
from posenet.inference.decoder.people import MIN_KEYPOINTS, MIN_SCORE, assemble_people
from posenet.inference.person import Person
from posenet.settings import MAP_STRIDE, InferenceConfig
from posenet.skeleton import COCO, Skeleton

if TYPE_CHECKING:
    from torch import Tensor


def decode(
    maps: np.ndarray | Tensor,
    *,
    stride: int = MAP_STRIDE,
    keypoint_threshold: float = InferenceConfig.keypoint_threshold,
    part_threshold: float = InferenceConfig.part_threshold,
    max_peaks: int = MAX_PEAKS,
    min_keypoints: int = MIN_KEYPOINTS,
    min_score: float = MIN_SCORE,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people in the maps of one image.

    Args:
        maps: (C, h, w) output of the network. NaN counts as 0.
        stride: network-input pixels per cell. Cell i is centred on pixel ``stride * i + (stride - 1) / 2``.
        keypoint_threshold: lowest peak of a keypoint map that becomes a candidate, above 0.
        part_threshold: a limb needs a higher response than this on the map of its body part.
        max_peaks: number of candidates of each keypoint, the strongest ones.
        min_keypoints: people with fewer keypoints are dropped.
        min_score: people with a lower score are dropped; limbs to other people, which lower it further, do not count.
        skeleton: meaning of the channels.

    Returns:
        People, highest score first, with keypoints in pixels of the network input. The score of a person is the mean
        score of the keypoints found times the square root of the share of keypoints found, and less if limbs lead from
        them to other people. If the skeleton has a layout, keypoints with low scores are moved from their peak towards
        where the rest of their person suggests.

    Raises:
        ValueError: the shape of the maps does not fit the skeleton.
    """
    if hasattr(maps, "detach"):  # a tensor; this module works without PyTorch
        maps = maps.detach().float().cpu().numpy()
    maps = np.asarray(maps, np.float32)
    if maps.ndim != 3 or len(maps) != skeleton.num_channels:
        raise ValueError(f"maps must be ({skeleton.num_channels}, h, w), not {maps.shape}")
    candidates = find_keypoints(maps[skeleton.keypoint_channels], keypoint_threshold, max_peaks)
    limbs = find_limbs(maps[skeleton.part_channels], candidates, part_threshold, skeleton)
    return assemble_people(
        candidates, limbs, stride=stride, min_keypoints=min_keypoints, min_score=min_score, skeleton=skeleton
    )

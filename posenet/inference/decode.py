"""Maps to people: peaks of the keypoint maps, limbs between peaks, limbs joined best first."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from torch import Tensor

from posenet.inference.person import Person
from posenet.skeleton import COCO, Skeleton

SAMPLES = 20
"""Points at which a limb candidate is compared with its body-part map."""
SUPPORT = 0.8
"""Share of the samples that must lie above the threshold."""
LONG = 0.5
"""Limbs longer than this share of the maps' height lose score."""
CEILING = 2.0
"""Scores are meant to lie in 0-1; larger ones are cut here, so that an infinity stays harmless."""


@dataclass(frozen=True)
class Peaks:
    """Keypoint candidates, sorted by keypoint and then by falling score.

    Attributes:
        keypoint: (N,) int, which keypoint.
        xy: (N, 2) float32, in map cells.
        score: (N,) float32.
    """

    keypoint: np.ndarray
    xy: np.ndarray
    score: np.ndarray


def decode(maps: np.ndarray | Tensor, *, stride: int = 4, keypoint_threshold: float = 0.1, part_threshold: float = 0.1,
           max_peaks: int = 100, min_keypoints: int = 2, min_mean: float = 0.2,
           skeleton: Skeleton = COCO) -> list[Person]:
    """Find the people in one picture's maps.

    Args:
        maps: (C, h, w) output of the network. NaN counts as 0.
        stride: network-input pixels per cell; cell i is centred on pixel ``stride * i + (stride - 1) / 2``.
        keypoint_threshold: smallest peak that counts, above 0.
        part_threshold: smallest sample along a limb that counts as support.
        max_peaks: candidates looked at of each keypoint, the strongest first.
        min_keypoints: people with fewer are dropped.
        min_mean: people are dropped whose keypoints score less than this on average.

    Returns:
        People by falling score, keypoints in pixels of the network input. A person's score is the mean over
        all keypoints, those not found counting 0.

    Raises:
        ValueError: maps that do not fit the skeleton.
    """
    maps = maps.detach().float().cpu().numpy() if isinstance(maps, Tensor) else np.asarray(maps, np.float32)
    if maps.ndim != 3 or len(maps) != skeleton.num_channels:
        raise ValueError(f"maps must be ({skeleton.num_channels}, h, w), not {maps.shape}")
    # Of a number and NaN, fmax and fmin choose the number.
    maps = np.fmin(np.fmax(maps[:skeleton.mask_channel], 0), CEILING)
    peaks = find_peaks(maps[skeleton.keypoint_channels], keypoint_threshold, max_peaks)
    limbs = find_limbs(maps[skeleton.part_channels], peaks, part_threshold, skeleton)
    groups = [group for group in join_limbs(peaks.keypoint, limbs)
              if len(group) >= min_keypoints and peaks.score[group].mean() >= min_mean]
    people = [_person(peaks, group, stride, skeleton) for group in groups]
    return sorted(people, key=lambda person: -person.score)


def find_peaks(maps: np.ndarray, threshold: float, limit: int) -> Peaks:
    """Local maxima of (K, h, w) keypoint maps, at most ``limit`` of each keypoint.

    Equal neighbours form one plateau and give one peak, in its middle.
    """
    # All maps go on one sheet, kept apart by a border of zeros.
    count, height, width = maps.shape[0], maps.shape[1] + 2, maps.shape[2] + 2
    sheet = np.pad(maps, ((0, 0), (1, 1), (1, 1))).reshape(count * height, width)
    maxima = (sheet >= threshold) & (sheet == cv2.dilate(sheet, np.ones((3, 3), np.uint8)))
    boxes = _outlines(maxima)
    centres = boxes[:, :2] + (boxes[:, 2:] - 1) / 2
    column, row = np.rint(centres).astype(np.int64).T
    score = sheet[row, column]

    keypoint = row // height
    order = np.lexsort((-score, keypoint))
    order = order[score[order] >= threshold]                    # a ring's middle need not be high
    rank = np.arange(len(order)) - np.searchsorted(keypoint[order], keypoint[order])
    order = order[rank < limit]

    keypoint, column, row, score = keypoint[order], column[order], row[order], score[order]
    shift = np.stack([_shift(sheet[row, column - 1], score, sheet[row, column + 1]),
                      _shift(sheet[row - 1, column], score, sheet[row + 1, column])], axis=1)
    border = np.stack([np.ones_like(keypoint), keypoint * height + 1], axis=1)
    xy = centres[order] - border + np.where(boxes[order, 2:] == 1, shift, 0)
    return Peaks(keypoint, xy.astype(np.float32), score)


def _outlines(mask: np.ndarray) -> np.ndarray:
    """(N, 4) int64: left, top, width and height of every 8-connected region of a (h, w) mask."""
    # RETR_CCOMP tells holes, which have a parent, from regions. Far cheaper here than labelling every cell.
    contours, tree = cv2.findContours(mask.view(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boundingRect(contour) for contour, links in zip(contours, tree[0]) if links[3] < 0] if contours else []
    return np.array(boxes, np.int64).reshape(-1, 4)


def _shift(before: np.ndarray, peak: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Where a Gaussian through three neighbouring cells is highest: -0.5 to 0.5 cells from the middle one.

    The logarithm of a Gaussian is a parabola. Beside a cell without a value, such as one beyond the map's
    border, the peak stays on its cell.
    """
    known = (before > 0) & (after > 0)
    before, peak, after = (np.log(np.where(known, value, 1)) for value in (before, peak, after))
    curve = 2 * peak - before - after
    return np.clip(np.divide(after - before, 2 * curve, out=np.zeros_like(curve), where=curve > 0), -0.5, 0.5)


def find_limbs(maps: np.ndarray, peaks: Peaks, threshold: float, skeleton: Skeleton) -> np.ndarray:
    """Pairs of peaks that the (B, h, w) body-part maps support: (M, 2) rows of ``peaks``, the best pair first.

    A pair's score is the mean of the samples between its ends, less a penalty for great length; it ranks by
    that times the scores of both ends.
    """
    height, width = maps.shape[1:]
    first = np.searchsorted(peaks.keypoint, np.arange(skeleton.num_keypoints + 1))
    pairs = [np.mgrid[first[a]:first[a + 1], first[b]:first[b + 1]].reshape(2, -1).T for a, b in skeleton.part_ends]
    part = np.repeat(np.arange(skeleton.num_parts), [len(p) for p in pairs])
    ends = np.concatenate(pairs)

    start, stop = peaks.xy[ends[:, 0]], peaks.xy[ends[:, 1]]
    steps = np.linspace(0, 1, SAMPLES, dtype=np.float32)[:, None]
    cells = np.rint(start[:, None] + (stop - start)[:, None] * steps).astype(np.int64)          # (M, SAMPLES, 2)
    column, row = np.clip(cells[..., 0], 0, width - 1), np.clip(cells[..., 1], 0, height - 1)
    samples = maps[part[:, None], row, column]

    length = np.hypot(*(stop - start).T)
    score = samples.mean(axis=1) - np.maximum(1 - LONG * height / np.maximum(length, 1e-6), 0)
    supported = (samples > threshold).mean(axis=1) >= SUPPORT
    good = np.flatnonzero(supported & (score > 0))
    # A network answers weakly in many wrong places, and a true part often runs by: both ends must be sure as well.
    rank = score * peaks.score[ends].prod(axis=1)
    return ends[good[np.argsort(-rank[good], kind="stable")]]


def join_limbs(keypoint: np.ndarray, limbs: np.ndarray) -> list[list[int]]:
    """Group peaks into people by joining limbs in the order given, across all body parts.

    A limb joins the people at its two ends, at first single peaks, unless they have a keypoint in common.

    Args:
        keypoint: (N,) which keypoint each peak is.
        limbs: (M, 2) rows of ``keypoint``, the best first.

    Returns:
        The rows of every group, single peaks included.
    """
    groups = [{kind: row} for row, kind in enumerate(keypoint.tolist())]
    for a, b in limbs.tolist():
        if groups[a].keys().isdisjoint(groups[b]):
            groups[a].update(groups[b])
            for row in groups[b].values():
                groups[row] = groups[a]
    return [list(group.values()) for group in {id(group): group for group in groups}.values()]


def _person(peaks: Peaks, rows: list[int], stride: int, skeleton: Skeleton) -> Person:
    keypoints = np.zeros((skeleton.num_keypoints, 3), np.float32)
    keypoints[peaks.keypoint[rows], :2] = peaks.xy[rows] * stride + (stride - 1) / 2
    keypoints[peaks.keypoint[rows], 2] = peaks.score[rows]
    return Person(keypoints, float(keypoints[:, 2].mean()), skeleton)

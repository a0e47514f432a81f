"""Maps to people: peaks of the keypoint maps, limbs between peaks, groups of limbs, strays given back."""

from __future__ import annotations

import cv2
import numpy as np
from torch import Tensor

from posenet.inference.decoder.people import (
    CEILING,
    MAX_LIMBS,
    MAX_PEAKS,
    PROBES,
    SAMPLES,
    Limbs,
    Peaks,
    assemble,
    unrivalled,
)
from posenet.inference.person import Person
from posenet.skeleton import COCO, Skeleton


def decode(
    maps: np.ndarray | Tensor,
    *,
    stride: int = 4,
    keypoint_threshold: float = 0.1,
    part_threshold: float = 0.1,
    max_peaks: int = MAX_PEAKS,
    min_keypoints: int = 1,
    min_score: float = 0.05,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people in one image's maps.

    Args:
        maps: (C, h, w) output of the network. NaN counts as 0.
        stride: network-input pixels per cell; cell i is centred on pixel ``stride * i + (stride - 1) / 2``.
        keypoint_threshold: smallest peak that counts, above 0.
        part_threshold: a limb needs more support than this.
        max_peaks: candidates looked at of each keypoint, the strongest first.
        min_keypoints: people with fewer are dropped.
        min_score: people who score less are dropped.

    Returns:
        People by falling score, keypoints in pixels of the network input. A person's score is the mean over the
        keypoints found times the square root of the share of keypoints found.

    Raises:
        ValueError: maps that do not fit the skeleton.
    """
    maps = maps.detach().float().cpu().numpy() if isinstance(maps, Tensor) else np.asarray(maps, np.float32)
    if maps.ndim != 3 or len(maps) != skeleton.num_channels:
        raise ValueError(f"maps must be ({skeleton.num_channels}, h, w), not {maps.shape}")
    peaks = find_peaks(maps[skeleton.keypoint_channels], keypoint_threshold, max_peaks)
    limbs = find_limbs(maps[skeleton.part_channels], peaks, part_threshold, skeleton)
    return assemble(peaks, limbs, stride=stride, min_keypoints=min_keypoints, min_score=min_score, skeleton=skeleton)


def find_peaks(maps: np.ndarray, threshold: float, limit: int) -> Peaks:
    """Local maxima of (K, h, w) keypoint maps, at most ``limit`` of each keypoint.

    Equal neighbours form one plateau and give one peak, in its middle.
    """
    # All maps go on one sheet, kept apart by a border of zeros. Of a number and NaN, fmax chooses the number.
    kinds, height, width = maps.shape[0], maps.shape[1] + 2, maps.shape[2] + 2
    sheet = np.zeros((kinds, height, width), np.float32)
    np.fmax(maps, 0, out=sheet[:, 1:-1, 1:-1])
    sheet = sheet.reshape(kinds * height, width)
    maxima = (sheet >= threshold) & (sheet == cv2.dilate(sheet, np.ones((3, 3), np.uint8)))
    centres, alone = _middles(maxima)
    column, row = np.rint(centres).astype(np.int64).T
    score = sheet[row, column]

    keypoint = row // height
    order = np.lexsort((-score, keypoint))
    order = order[score[order] >= threshold]  # a ring's middle need not be high
    rank = np.arange(len(order)) - np.searchsorted(keypoint[order], keypoint[order])
    order = order[rank < limit]

    keypoint, column, row, score = keypoint[order], column[order], row[order], np.minimum(score[order], CEILING)
    shift = np.stack(
        [
            _shift(sheet[row, column - 1], score, sheet[row, column + 1]),
            _shift(sheet[row - 1, column], score, sheet[row + 1, column]),
        ],
        axis=1,
    )
    border = np.stack([np.ones_like(keypoint), keypoint * height + 1], axis=1)
    xy = centres[order] - border + np.where(alone[order], shift, 0)
    return Peaks(keypoint, xy.astype(np.float32), score)


def _middles(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2) x, y of the middle of every 8-connected region of a (h, w) mask; (N, 2) whether it is one cell wide."""
    cell = np.flatnonzero(mask)
    width = mask.shape[1]
    flat = mask.ravel()
    if not any(flat[cell + step].any() for step in (1, width - 1, width, width + 1)):
        return np.stack([cell % width, cell // width], axis=1), np.ones((len(cell), 2), bool)
    # Only rows with cells are labelled, and the next ones, which keep regions apart.
    rows = np.flatnonzero(np.bincount(cell // width, minlength=len(mask)))
    rows = np.union1d(rows, rows + 1)
    boxes = cv2.connectedComponentsWithStats(mask[rows].view(np.uint8), connectivity=8)[2][1:, :4]
    boxes[:, 1] = rows[boxes[:, 1]]
    return boxes[:, :2] + (boxes[:, 2:] - 1) / 2, boxes[:, 2:] == 1


def _shift(before: np.ndarray, peak: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Where a Gaussian through three neighbouring cells is highest: -0.5 to 0.5 cells from the middle one.

    The logarithm of a Gaussian is a parabola. Beside a cell without a value, such as one beyond the map's
    border, the peak stays on its cell.
    """
    known = (before > 0) & (after > 0)
    before, peak, after = (np.log(np.where(known, np.minimum(value, CEILING), 1)) for value in (before, peak, after))
    curve = 2 * peak - before - after
    return np.clip(np.divide(after - before, 2 * curve, out=np.zeros_like(curve), where=curve > 0), -0.5, 0.5)


def find_limbs(maps: np.ndarray, peaks: Peaks, threshold: float, skeleton: Skeleton) -> Limbs:
    """Pairs of peaks that the (B, h, w) body-part maps support.

    A pair's support is half the mean of the samples between its ends and half the second lowest: other parts run
    by the ends of a wrong limb, but hardly by all of it. A network answers weakly in many wrong places, so support
    beyond the threshold counts as far as both ends are sure, by the power 3/2 of the product of their scores.
    """
    part, ends = _pairs(peaks.keypoint, skeleton)
    first, second = ends.T
    weight = peaks.score**1.5
    sure = weight[first] * weight[second]
    probes = _nearest(maps, part, *_between(peaks.xy, first, second, PROBES[:, None]))
    promise = (probes.mean(axis=0) - threshold) * sure
    keep = np.flatnonzero(promise > 0)
    if len(keep) > MAX_LIMBS:
        keep = np.sort(keep[np.argpartition(-promise[keep], MAX_LIMBS)[:MAX_LIMBS]])
    part, ends, sure = part[keep], ends[keep], sure[keep]
    samples = _linear(maps, part[:, None], *_between(peaks.xy, ends[:, :1], ends[:, 1:], SAMPLES))
    support = (samples.mean(axis=1) + np.partition(samples, 1, axis=1)[:, 1]) / 2
    return unrivalled(Limbs(part, ends, (support - threshold) * sure), len(peaks.score), skeleton)


def _between(xy: np.ndarray, first: np.ndarray, second: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the points that lie a share of the way from one row of (N, 2) ``xy`` to another."""
    x, y = xy.T
    return x[first] + (x[second] - x[first]) * share, y[first] + (y[second] - y[first]) * share


def _pairs(keypoint: np.ndarray, skeleton: Skeleton) -> tuple[np.ndarray, np.ndarray]:
    """(M,) part and (M, 2) rows of every pair of candidates for its ends; the candidates are sorted by keypoint."""
    first = np.searchsorted(keypoint, np.arange(skeleton.num_keypoints + 1))
    a, b = skeleton.part_ends.T
    columns = (first[1:] - first[:-1])[b]
    counts = (first[1:] - first[:-1])[a] * columns
    part = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(part)) - (counts.cumsum() - counts)[part]
    return part, np.stack([first[a][part] + place // columns[part], first[b][part] + place % columns[part]], axis=1)


def _nearest(maps: np.ndarray, part: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The values of the parts' maps in the cells that hold the points, all of them in the maps."""
    height, width = maps.shape[1:]
    column, row = np.rint(x).astype(np.intp), np.rint(y).astype(np.intp)
    return _sound(maps.reshape(-1)[(part * height + row) * width + column])


def _linear(maps: np.ndarray, part: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same, interpolated between the four cells around each point."""
    height, width = maps.shape[1:]
    column, row = x.astype(np.intp), y.astype(np.intp)
    x, y = x - column.astype(x.dtype), y - row.astype(y.dtype)
    cell = (part * height + row) * width + column
    right, below = column < width - 1, (row < height - 1) * width
    flat = maps.reshape(-1)
    upper = _sound(flat[cell]) * (1 - x) + _sound(flat[cell + right]) * x
    lower = _sound(flat[cell + below]) * (1 - x) + _sound(flat[cell + below + right]) * x
    return upper * (1 - y) + lower * y


def _sound(values: np.ndarray) -> np.ndarray:
    """Between 0 and the ceiling; NaN counts as 0: of a number and NaN, fmax chooses the number."""
    return np.minimum(np.fmax(values, 0), CEILING)

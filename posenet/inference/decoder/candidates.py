"""The first half of the decoder: keypoint candidates, and the limbs between them.

A candidate is a peak of a keypoint map: a cell that is at least as high as the keypoint threshold and as each of its
eight neighbours. A plateau of several adjacent equal cells is one candidate, in its middle. On each axis, the position
is refined to the top of the parabola through the logarithms of three adjacent cells; this is exact for a Gaussian.

A limb is a pair of candidates for the two ends of a body part. With a and b the scores of the candidates, m the map of
the body part and t the part threshold, the pair has

    confidence       c = (a b)^CONFIDENCE_POWER
    prefilter score  (mean of m at PREFILTER_POSITIONS - t) c               m in the nearest cell
    limb score       ((mean of m + second lowest m) / 2 - t) c              m at SAMPLE_POSITIONS, interpolated

The limb score is computed for pairs with a prefilter score above 0. docs/notes/decoder.md gives the reasons.

Any number of people is found. Maps of noise have so many peaks and pairs that time and memory need a limit, which grows
with the size of the maps. Three limits follow from what people can be; images of a few dozen people reach none of them:
the strongest candidates (``MAX_PAIRS_PER_CELL``), the shortest pairs (``MANY_PAIRS``, ``MAX_NEAREST``), and the best
limbs (``MANY_LIMBS``, ``MAX_RIVALS``). Values that are read must be finite, and are clipped to at most ``MAX_VALUE``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.skeleton import Skeleton

MAX_PAIRS_PER_CELL = 60
"""Pairs of candidates for all body parts together, for every cell of a map. The maps of a 640 x 480 image, 512 pixels
high, have room for 210 candidates of each keypoint."""
MANY_PAIRS = 2**12
"""Of a body part with more pairs than this, only short ones become limbs: the response between candidates that are
farther apart comes from the people between them."""
MAX_NEAREST = 10
"""Short pairs at each of their ends. Of the limbs inside the people of crowds, 95 % are one of the two shortest."""
MANY_LIMBS = 1500
"""Of more limbs than this, only the best ones can join people. Fifty people have as many."""
MAX_RIVALS = 2
"""Limbs of one body part at each of their ends that can join people. In crowds, 97 % of those inside people are."""
MIN_LIMB_SCORE = 0.001
"""Limbs with a lower limb score are dropped."""
MIN_SHARE_OF_BEST = 0.35
"""Limbs with less than this share of the score of the best limb of the same body part at either end are dropped."""
PAIRS_PER_STEP = 2**16
"""Pairs that are scored together, which bounds the memory."""
MAX_VALUE = 2.0
"""Map values should be between 0 and 1. Larger ones are clipped to this."""
CONFIDENCE_POWER = 1.5
"""Exponent of the product of two candidates' scores in the confidence of their pair."""
PREFILTER_POSITIONS = np.array([0.25, 0.5, 0.75], np.float32)
"""Where the prefilter samples a pair: 0 is its first candidate, 1 its second."""
SAMPLE_POSITIONS = np.linspace(0, 1, 10, dtype=np.float32)
"""Where the limb score samples a pair."""


class KeypointCandidates(NamedTuple):
    """N keypoint candidates of one image, sorted by keypoint, then highest score first."""

    keypoint: np.ndarray
    """(N,) int, index of the keypoint."""
    xy: np.ndarray
    """(N, 2) float32, position in map cells."""
    score: np.ndarray
    """(N,) float32, height of the peak."""


class Limbs(NamedTuple):
    """M pairs of candidates that may be the two ends of a body part."""

    part: np.ndarray
    """(M,) int, index of the body part."""
    ends: np.ndarray
    """(M, 2) int, rows of the two candidates."""
    score: np.ndarray
    """(M,) float32, limb score."""


def find_keypoints(maps: np.ndarray, threshold: float) -> KeypointCandidates:
    """Find the peaks of (K, h, w) float32 keypoint maps, at least as high as ``threshold``, which is above 0."""
    # The maps are stacked into one tall map, each with a border of zeros. OpenCV processes all of them in one call, and
    # no peak is next to another map.
    num_keypoints, height, width = maps.shape
    padded = np.zeros((num_keypoints, height + 2, width + 2), np.float32)
    padded[:, 1:-1, 1:-1] = maps
    _require_finite(padded)
    tall = padded.reshape(-1, width + 2)
    is_peak = (tall >= threshold) & (tall == cv2.dilate(tall, np.ones((3, 3), np.uint8)))
    centre, is_single = _plateau_centres(is_peak)
    column, row = np.rint(centre).astype(np.int64).T
    left, above = np.floor(centre).astype(np.int64).T
    right, below = np.ceil(centre).astype(np.int64).T
    # Of two cells that meet at a corner, the centre may round to a lower third one.
    score = np.max([tall[above, left], tall[above, right], tall[below, left], tall[below, right]], axis=0)
    keypoint = row // (height + 2)

    order = np.lexsort((-score, keypoint))  # by keypoint, then highest score first
    order = order[score[order] >= threshold]  # the centre of a ring-shaped plateau may be low
    keypoint, column, row = keypoint[order], column[order], row[order]
    score = np.minimum(score[order], MAX_VALUE)
    x_offset = _peak_offset(tall[row, column - 1], score, tall[row, column + 1])
    y_offset = _peak_offset(tall[row - 1, column], score, tall[row + 1, column])
    offset = np.stack([x_offset, y_offset], axis=1)
    origin = np.stack([np.ones_like(keypoint), keypoint * (height + 2) + 1], axis=1)  # cell (0, 0) in the tall map
    xy = centre[order] - origin + np.where(is_single[order], offset, 0)
    return KeypointCandidates(keypoint, xy.astype(np.float32), score)


def _plateau_centres(is_peak: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2) centre of every 8-connected region of a mask, as x and y; (N, 2) whether it is one cell wide and high."""
    cell = np.flatnonzero(is_peak)
    width = is_peak.shape[1]
    flat = is_peak.ravel()
    if not any(flat[cell + offset].any() for offset in (1, width - 1, width, width + 1)):  # no two cells are adjacent
        return np.stack([cell % width, cell // width], axis=1), np.ones((len(cell), 2), bool)
    # For speed, OpenCV gets only the rows with peaks, and the row after each, which separates the regions.
    rows = np.flatnonzero(np.bincount(cell // width, minlength=len(is_peak)))
    rows = np.union1d(rows, rows + 1)
    stats = cv2.connectedComponentsWithStats(is_peak[rows].view(np.uint8), connectivity=8)[2]
    corner = stats[1:, :2]  # left and top; region 0 is the background
    size = stats[1:, 2:4]  # width and height
    corner[:, 1] = rows[corner[:, 1]]
    return corner + (size - 1) / 2, size == 1


def _peak_offset(before: np.ndarray, peak: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Offset of a Gaussian's top from the middle one of three adjacent cells; 0 where a neighbour has no value."""
    known = (before > 0) & (after > 0)
    before, peak, after = (np.log(np.where(known, np.minimum(value, MAX_VALUE), 1)) for value in (before, peak, after))
    curvature = 2 * peak - before - after
    offset: np.ndarray = np.divide(after - before, 2 * curvature, out=np.zeros_like(curvature), where=curvature > 0)
    return offset.clip(-0.5, 0.5)


def limit_candidates(candidates: KeypointCandidates, num_cells: int, skeleton: Skeleton) -> KeypointCandidates:
    """The strongest candidates of each keypoint, so few that their pairs stay below the limit (see the module)."""
    count = np.bincount(candidates.keypoint, minlength=skeleton.num_keypoints)

    def num_pairs(most: int) -> int:
        first, second = np.minimum(count, most)[skeleton.part_ends].T
        return int(first @ second)

    largest = int(count.max(initial=0))
    if num_pairs(largest) <= MAX_PAIRS_PER_CELL * num_cells:
        return candidates
    most = bisect.bisect_right(range(largest), MAX_PAIRS_PER_CELL * num_cells, key=num_pairs) - 1
    kept = np.arange(len(candidates.keypoint)) - np.searchsorted(candidates.keypoint, candidates.keypoint) < most
    return KeypointCandidates(*(values[kept] for values in candidates))


def find_limbs(maps: np.ndarray, candidates: KeypointCandidates, threshold: float, skeleton: Skeleton) -> Limbs:
    """The limbs in (B, h, w) body-part maps, sorted by part and rows. Their scores may be negative."""
    part, ends = _pairs_to_score(maps, candidates, threshold, skeleton)
    x, y = _points_between(candidates.xy, ends[:, :1], ends[:, 1:], SAMPLE_POSITIONS)  # (M, 10)
    samples = _interpolated_values(maps, part[:, None], x, y)
    support = (samples.mean(axis=1) + np.partition(samples, 1, axis=1)[:, 1]) / 2
    first, second = (candidates.score**CONFIDENCE_POWER)[ends.T]
    return Limbs(part, ends, (support - threshold) * (first * second))


def _pairs_to_score(
    maps: np.ndarray, candidates: KeypointCandidates, threshold: float, skeleton: Skeleton
) -> tuple[np.ndarray, np.ndarray]:
    """(M,) part and (M, 2) rows of the pairs that pass the prefilter and are short enough, sorted."""
    start = np.searchsorted(candidates.keypoint, np.arange(skeleton.num_keypoints + 1))  # first row of each keypoint
    is_large = np.diff(start)[skeleton.part_ends].prod(axis=1) > MANY_PAIRS
    part, first, second = _all_pairs(start, skeleton.part_ends, np.flatnonzero(~is_large))
    kept = np.flatnonzero(_mean_response(maps, candidates.xy, part, first, second) > threshold)
    part, first, second = part[kept], first[kept], second[kept]
    if is_large.any():
        pairs = [(part, first, second)]
        for large_part in np.flatnonzero(is_large):
            pairs += _short_pairs(maps, candidates.xy, large_part, start, threshold, skeleton)
        part, first, second = (np.concatenate(column) for column in zip(*pairs))
        length = _length(candidates.xy, first, second)
        is_short = _rank_within(part * len(candidates.xy) + second, length) < MAX_NEAREST
        kept = np.flatnonzero(is_short | ~is_large[part])
        kept = kept[np.argsort(part[kept], kind="stable")]
        part, first, second = part[kept], first[kept], second[kept]
    return part, np.stack([first, second], axis=1)


def _short_pairs(
    maps: np.ndarray, xy: np.ndarray, part: np.intp, start: np.ndarray, threshold: float, skeleton: Skeleton
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The pairs of one part that pass the prefilter, the ``MAX_NEAREST`` shortest ones at each first end."""
    a, b = skeleton.part_ends[part]
    second = np.arange(start[b], start[b + 1])
    last = min(MAX_NEAREST, len(second)) - 1
    step = max(1, PAIRS_PER_STEP // len(second))
    for low in range(start[a], start[a + 1], step):
        first = np.arange(low, min(low + step, start[a + 1]))[:, None]
        passes = _mean_response(maps, xy, part, first, second) > threshold
        length = np.where(passes, _length(xy, first, second), np.inf)
        is_short = length <= np.partition(length, last, axis=1)[:, last, None]
        row, column = np.nonzero(passes & is_short)
        yield np.full(len(row), part), first[row, 0], second[column]


def drop_weak_limbs(limbs: Limbs, num_candidates: int, skeleton: Skeleton) -> Limbs:
    """The limbs that are neither weak nor much weaker than another limb of the same part at one of their ends."""
    best = np.zeros((skeleton.num_parts, num_candidates), np.float32)  # best limb score of a part at a candidate
    for end in limbs.ends.T:
        np.maximum.at(best, (limbs.part, end), limbs.score)
    best_rival = best[limbs.part[:, None], limbs.ends].max(axis=1)
    kept = limbs.score > np.maximum(MIN_LIMB_SCORE, MIN_SHARE_OF_BEST * best_rival)
    return Limbs(*(values[kept] for values in limbs))


def best_limbs(limbs: Limbs, num_candidates: int) -> Limbs:
    """Of more than ``MANY_LIMBS``, those that are among the ``MAX_RIVALS`` best ones of their part at both ends."""
    if len(limbs.score) <= MANY_LIMBS:
        return limbs
    ranks = [_rank_within(limbs.part * num_candidates + end, -limbs.score) for end in limbs.ends.T]
    kept = np.maximum(*ranks) < MAX_RIVALS
    return Limbs(*(values[kept] for values in limbs))


def _rank_within(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(M,) for each item, how many of its group have a lower value, or the same and come before it."""
    order = np.lexsort((value, group))
    sorted_group = group[order]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(sorted_group, sorted_group)
    return rank


def _mean_response(
    maps: np.ndarray, xy: np.ndarray, part: np.ndarray | np.intp, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """The mean of the parts' maps at ``PREFILTER_POSITIONS`` between rows of ``xy``; the three indices broadcast."""
    position = PREFILTER_POSITIONS.reshape(-1, *[1] * max(first.ndim, second.ndim))
    x, y = _points_between(xy, first, second, position)
    column, row = np.rint(x).astype(np.intp), np.rint(y).astype(np.intp)
    _, height, width = maps.shape
    return np.asarray(_clipped(maps.reshape(-1)[(part * height + row) * width + column]).mean(axis=0))


def _length(xy: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    x, y = xy.T
    return np.asarray(np.hypot(x[second] - x[first], y[second] - y[first]))


def _all_pairs(
    start: np.ndarray, part_ends: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Part and two rows of all pairs of candidates for the ends of some parts; ``start``: their first rows."""
    count = np.diff(start)
    first, second = part_ends[parts].T
    num_pairs = count[first] * count[second]
    place = np.repeat(np.arange(len(parts)), num_pairs)
    number = np.arange(len(place)) - (num_pairs.cumsum() - num_pairs)[place]  # of the pair within its part
    num_second = count[second][place]
    return parts[place], start[first][place] + number // num_second, start[second][place] + number % num_second


def _points_between(
    xy: np.ndarray, first: np.ndarray, second: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """x and y of points on the lines between rows of (N, 2) ``xy``; position 0 is the first row, 1 the second."""
    x, y = xy.T
    return x[first] + (x[second] - x[first]) * position, y[first] + (y[second] - y[first]) * position


def _interpolated_values(maps: np.ndarray, part: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Values of the parts' maps at the points, interpolated linearly between the four cells around each."""
    height, width = maps.shape[1:]
    column = x.astype(np.intp)
    row = y.astype(np.intp)
    x = x - column.astype(x.dtype)
    y = y - row.astype(y.dtype)
    flat = maps.reshape(-1)
    cell = (part * height + row) * width + column
    right = column < width - 1  # offsets of the next cells; 0 in the last column and row
    below = (row < height - 1) * width
    upper = _clipped(flat[cell]) * (1 - x) + _clipped(flat[cell + right]) * x
    lower = _clipped(flat[cell + below]) * (1 - x) + _clipped(flat[cell + below + right]) * x
    return np.asarray(upper * (1 - y) + lower * y)


def _clipped(values: np.ndarray) -> np.ndarray:
    """Values between 0 and ``MAX_VALUE``; ``DataError`` if they are not finite."""
    _require_finite(values)
    return np.asarray(np.minimum(np.maximum(values, 0), MAX_VALUE))


def _require_finite(values: np.ndarray) -> None:
    """Raise ``DataError`` unless values of maps, a contiguous float32 array, are finite."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a copy. The sum is finite if all values are, unless some are beyond 1e16.
        sum_of_squares = np.dot(flat, flat)
    if not np.isfinite(sum_of_squares) and not np.isfinite(flat).all():
        raise DataError(
            "the network has computed NaN or infinite values: its weights are damaged, or its precision is too low; "
            "use amp off or other weights"
        )

"""``decode``: from the maps of one image to its people, in two halves.

First, candidates and limbs. A candidate is a peak of a keypoint map: a cell that is at least as high as the keypoint
threshold and as each of its eight neighbours. A plateau of several adjacent equal cells is one candidate, in its
middle. On each axis, the position is refined to the top of the parabola through the logarithms of three adjacent cells;
this is exact for a Gaussian.

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

Second, people. Limbs join candidates into groups. Some of these are fragments: groups that no limb connects to the
person whom they belong to, such as an arm without its shoulder. The pose model assigns them. It also completes people
with candidates that other people have too, estimates where missing keypoints are, and refines uncertain positions.
"""

import bisect
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from posenet.errors import DataError
from posenet.inference.decoder.pose_model import MAX_DEVIATION, MIN_FOR_ESTIMATE, PoseModel, pose_model_of
from posenet.person import Person
from posenet.settings import MAP_STRIDE, InferenceConfig
from posenet.skeleton import COCO, Skeleton

if TYPE_CHECKING:
    from torch import Tensor

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
MAX_VALUE = 2.0
"""Map values should be between 0 and 1. Larger ones are clipped to this."""
CONFIDENCE_POWER = 1.5
"""Exponent of the product of two candidates' scores in the confidence of their pair."""
PREFILTER_POSITIONS = np.array([0.25, 0.5, 0.75], np.float32)
"""Where the prefilter samples a pair: 0 is its first candidate, 1 its second."""
SAMPLE_POSITIONS = np.linspace(0, 1, 10, dtype=np.float32)
"""Where the limb score samples a pair."""
MIN_PERSON_SCORE = 0.05
"""People with a lower score are dropped, before limbs to other people lower the score further."""
PART_THRESHOLD = 0.1
"""A limb needs a higher response than this on the map of its body part: ten times ``targets.PART_FLOOR``."""
MAX_MISSING_LIMB_SHARE = 0.01
"""If fewer than this share of the body parts inside people lack a limb, the maps are taken to show all limbs."""
LIMB_SCORE_FLOOR = 0.05
"""Added to sums of limb scores in the score of a person, so that weak limbs hardly matter."""
DISTANCES_PER_STEP = 2**20
"""Distances of candidates from expected positions that are computed together, which bounds the memory."""
MIN_SCORE_RATIO = 0.6
"""A fragment is not assigned if its mean score is below this share of the person's."""
CELLS_PER_PERSON = 40
"""Cells of a map for each person that it has room for: the best ones are kept. Only maps of noise have more."""
MIN_ROOM = 100
"""People for whom small maps have room."""


class KeypointCandidates(NamedTuple):
    """N keypoint candidates of one image, sorted by keypoint, then highest score first."""

    keypoint: np.ndarray
    """(N,) int, index of the keypoint."""
    xy: np.ndarray
    """(N, 2) float32, position in map cells."""
    score: np.ndarray
    """(N,) float32, height of the peak."""

    @property
    def position(self) -> np.ndarray:
        """(N,) complex, x + iy in cells."""
        return np.asarray(self.xy[:, 0] + 1j * self.xy[:, 1].astype(np.float64))


class Limbs(NamedTuple):
    """M pairs of candidates that may be the two ends of a body part."""

    part: np.ndarray
    """(M,) int, index of the body part."""
    ends: np.ndarray
    """(M, 2) int, rows of the two candidates."""
    score: np.ndarray
    """(M,) float32, limb score."""


def decode(
    maps: "np.ndarray | Tensor",
    *,
    stride: int = MAP_STRIDE,
    keypoint_threshold: float = InferenceConfig.keypoint_threshold,
    skeleton: Skeleton = COCO,
) -> list[Person]:
    """Find the people in the maps of one image.

    Args:
        maps: (C, h, w) floating-point output of the network. The last two channels, person mask and keypoint
            foreground, are not used and may be missing.
        stride: network-input pixels per cell. Cell i is centred on pixel ``stride * i + (stride - 1) / 2``.
        keypoint_threshold: lowest peak of a keypoint map that becomes a candidate, above 0.
        skeleton: meaning of the channels.

    Returns:
        People, highest score first, with keypoints in pixels of the network input. ``assemble_people`` states their
        score. Two people can have the same keypoint where theirs coincide (``complete_people``). If the skeleton has a
        layout, keypoints with low scores are moved from their peak towards where the rest of their person suggests.

    Raises:
        ValueError: the shape or the type of the maps does not fit, or an argument is out of range.
        DataError: a value that the people depend on is NaN or infinite.
    """
    if not keypoint_threshold > 0 or stride < 1:
        raise ValueError("keypoint_threshold must be above 0, and stride at least 1")
    maps = _to_array(maps, skeleton)
    peaks = find_keypoints(maps[skeleton.keypoint_channels], keypoint_threshold)
    candidates = limit_candidates(peaks, maps[0].size, skeleton)
    is_noise = len(candidates.score) < len(peaks.score)
    limbs = find_limbs(maps[skeleton.part_channels], candidates, PART_THRESHOLD, skeleton)
    pose_model = pose_model_of(skeleton) if skeleton.layout and not is_noise else None
    max_people = max(MIN_ROOM, maps[0].size // CELLS_PER_PERSON)
    return assemble_people(candidates, limbs, stride, max_people, pose_model, skeleton)


def _to_array(maps: "np.ndarray | Tensor", skeleton: Skeleton) -> np.ndarray:
    """The maps of one image as float32; ``ValueError`` if their shape or type does not fit."""
    if hasattr(maps, "detach"):  # a tensor; this module works without PyTorch
        maps = maps.detach().cpu()
        maps = (maps.float() if maps.is_floating_point() else maps).numpy()
    maps = np.asarray(maps)
    has_channels = maps.ndim == 3 and len(maps) in (skeleton.num_channels, skeleton.num_decoded_channels)
    if not (has_channels and maps.size and maps.dtype.kind == "f"):
        expected = f"({skeleton.num_channels}, h, w) floating-point numbers"
        raise ValueError(f"maps must be {expected}, not {maps.shape} of {maps.dtype}")
    with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and an error if it is read
        return np.asarray(maps, np.float32)


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
    pairs = []
    # All pairs of small parts are looked at together; those of a large part alone, which bounds the memory.
    for parts in (np.flatnonzero(~is_large), *np.flatnonzero(is_large)[:, None]):
        part, first, second = _all_pairs(start, skeleton.part_ends, parts)
        passes = _mean_response(maps, candidates.xy, part, first, second) > threshold
        if is_large[parts].any():
            passes &= _are_short(candidates.xy, first, second, passes)
        kept = np.flatnonzero(passes)
        pairs.append((part[kept], np.stack([first[kept], second[kept]], axis=1)))
    part, ends = (np.concatenate(column) for column in zip(*pairs))
    order = np.argsort(part, kind="stable")
    return part[order], ends[order]


def _are_short(xy: np.ndarray, first: np.ndarray, second: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """Whether pairs of one part, all that it has, are the ``MAX_NEAREST`` shortest at both ends of those that pass."""
    x, y = xy.T
    length = np.full(len(passes), np.inf, xy.dtype)
    length[passes] = np.hypot(x[second[passes]] - x[first[passes]], y[second[passes]] - y[first[passes]])
    length = length.reshape(np.ptp(first) + 1, -1)  # (first ends, second ends): all pairs of the two, in this order
    for _ in range(2):
        last = min(MAX_NEAREST, length.shape[1]) - 1
        length[length > np.partition(length, last)[:, last, None]] = np.inf
        length = np.ascontiguousarray(length.T)  # now at the other ends; NumPy is slow along columns
    return np.isfinite(length).ravel()


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
    maps: np.ndarray, xy: np.ndarray, part: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """The mean of the parts' maps at ``PREFILTER_POSITIONS`` between two rows of ``xy``; the indices are (M,)."""
    x, y = _points_between(xy, first, second, PREFILTER_POSITIONS[:, None])
    column, row = np.rint(x).astype(np.intp), np.rint(y).astype(np.intp)
    _, height, width = maps.shape
    return np.asarray(_clipped(maps.reshape(-1)[(part * height + row) * width + column]).mean(axis=0))


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


def assemble_people(
    candidates: KeypointCandidates,
    limbs: Limbs,
    stride: int,
    max_people: int,
    pose_model: PoseModel | None,
    skeleton: Skeleton,
) -> list[Person]:
    """The people that candidates and limbs make; without a ``pose_model``, as for maps of noise, limbs alone.

    A person with n of K keypoints, of scores s_i, without those that ``complete_people`` adds, has the score

        mean(s) sqrt(n / K) (within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR),

    where "within" is the sum of the limb scores inside the person, and "across" that of the limbs to other people.
    ``MIN_PERSON_SCORE`` applies to the product without this last factor. Where maps exceed 1, the scores of people and
    of keypoints are 1.
    """
    strong_limbs = drop_weak_limbs(limbs, len(candidates.score), skeleton)
    rivals = best_limbs(strong_limbs, len(candidates.score))
    label, limbs_are_complete = group_into_people(candidates, rivals, max_people, pose_model)
    count = np.bincount(label)
    score = np.bincount(label, candidates.score) / np.sqrt(count * skeleton.num_keypoints)
    is_kept = score >= MIN_PERSON_SCORE
    score *= _share_of_limbs_within(strong_limbs, label, len(count))
    kept = np.flatnonzero(is_kept)
    kept = kept[np.argsort(-score[kept], kind="stable")][:max_people]  # labels, highest score first

    row_of_label = np.full(len(count), -1)  # -1, which is the last row of an array, for people who are dropped
    row_of_label[kept] = np.arange(len(kept))
    person = row_of_label[label]  # of each candidate
    is_owned = person >= 0
    place = person[is_owned], candidates.keypoint[is_owned]
    keypoints = np.zeros((len(kept), skeleton.num_keypoints, 3), np.float32)
    keypoints[*place, :2] = candidates.xy[is_owned]
    keypoints[*place, 2] = candidates.score[is_owned]
    is_linked = np.zeros((len(kept) + 1, len(person)), bool)  # the last row is for candidates of nobody
    is_linked[person[limbs.ends], limbs.ends[:, ::-1]] = True
    keypoints, estimates = complete_people(keypoints, candidates, is_linked, limbs_are_complete, pose_model)
    if pose_model is not None:
        keypoints = pose_model.refine_keypoints(keypoints)
    found = keypoints[..., 2, None] > 0
    cell = np.float32(stride)
    centre = np.float32((stride - 1) / 2)
    keypoints[..., :2] = np.where(found, keypoints[..., :2] * cell + centre, 0)
    keypoints[..., 2] = np.minimum(keypoints[..., 2], 1)
    estimated_xy = np.stack([estimates.real, estimates.imag], axis=2).astype(np.float32)
    estimated_xy = np.where(found, 0, estimated_xy * cell + centre)
    people_of_rows = zip(keypoints, np.minimum(score[kept], 1).tolist(), estimated_xy)
    return [Person(rows, value, skeleton, estimates=estimate) for rows, value, estimate in people_of_rows]


def group_into_people(
    candidates: KeypointCandidates, limbs: Limbs, max_people: int, pose_model: PoseModel | None
) -> tuple[np.ndarray, bool]:
    """The person of every candidate, (N,) from 0, and whether the maps are so clear that they show all limbs.

    The candidates are grouped by their limbs. With a pose model, they are grouped again after the scores of limbs that
    are too long for the size of their person were lowered, and fragments are assigned to people.
    """
    label = group_candidates(candidates.keypoint, limbs.ends, limbs.score)
    if pose_model is None or not len(label):
        return label, False
    z, score = _group_arrays(label, candidates, len(pose_model.height))
    end_labels = label[limbs.ends]
    scale = np.abs(pose_model.estimate_poses(z, score > 0)[1])[end_labels, 0].max(axis=1)
    first, second = candidates.position[limbs.ends].T
    factor = pose_model.length_factor(np.abs(second - first), limbs.part, scale)
    is_within = end_labels[:, 0] == end_labels[:, 1]
    if (factor[is_within] < 1).any():
        label = group_candidates(candidates.keypoint, limbs.ends, limbs.score * factor)
        z, score = _group_arrays(label, candidates, len(pose_model.height))
    limbs_are_complete = _missing_limb_share(limbs, label, score > 0, pose_model.is_part) < MAX_MISSING_LIMB_SHARE
    target = assign_fragments(pose_model, z, score, limbs_are_complete, max_people)
    return np.unique(target[label], return_inverse=True)[1], limbs_are_complete


def group_candidates(keypoint: np.ndarray, ends: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Group candidates so that limbs with high scores join members of one group, and no group has a keypoint twice.

    At first, every candidate is a separate group. The link between two groups is the sum of the scores of all limbs
    between them; groups that have a keypoint in common have no link. In each step, the two groups with the strongest
    link are merged.

    Args:
        keypoint: (N,) keypoint of each candidate.
        ends: (M, 2) candidates that each limb connects; no pair twice.
        score: (M,) score of each limb, above 0.

    Returns:
        (N,) label of each candidate's group, from 0.
    """
    group = list(range(len(keypoint)))  # of each candidate; a group that was merged leads to the one that it is part of
    keypoint_bits = [1 << index for index in keypoint.tolist()]  # the keypoints of each group, one bit for each
    links: list[dict[int, float]] = [{} for _ in group]  # links[a][b] is the link between groups a and b
    queue = list(zip((-score).tolist(), *ends.T.tolist()))  # (-link, a, b): a heap returns the smallest first
    for negative_link, a, b in queue:
        links[a][b] = links[b][a] = -negative_link
    heapify(queue)
    while queue:
        negative_link, a, b = heappop(queue)
        if links[a].get(b) != -negative_link:  # a or b has been merged since this entry was queued
            continue
        if len(links[a]) < len(links[b]):
            a, b = b, a
        group[b] = a
        keypoint_bits[a] |= keypoint_bits[b]
        # The links of b are added to those of a, which loses its links to groups with a keypoint of b.
        links_of_a, links_of_b, links[b] = links[a], links[b], {}
        del links_of_a[b], links_of_b[a]
        for other, link in links_of_b.items():
            del links[other][b]
            if not keypoint_bits[a] & keypoint_bits[other]:
                link += links_of_a.get(other, 0.0)
                links_of_a[other] = links[other][a] = link
                heappush(queue, (-link, a, other))
        for other in [other for other in links_of_a if keypoint_bits[a] & keypoint_bits[other]]:
            del links_of_a[other], links[other][a]
    label = np.array(group, np.int64)
    while (label != label[label]).any():
        label = label[label]
    return np.unique(label, return_inverse=True)[1]


def assign_fragments(
    pose_model: PoseModel, position: np.ndarray, score: np.ndarray, limbs_are_complete: bool, max_groups: int
) -> np.ndarray:
    """(G,) the group that each group becomes a part of, whose pose fits it best; itself if it is not assigned.

    ``position`` and ``score`` are (G, K), see ``pose_model``. If the maps show all limbs, a fragment is not assigned to
    a person if the skeleton has a body part between them: the limb of that part would have joined them already. Only
    the ``max_groups`` with the highest sums of scores take part.
    """
    found = score > 0
    total = score.sum(axis=1)
    count = found.sum(axis=1)
    ranked = np.argsort(-total, kind="stable")[:max_groups]
    people = ranked[count[ranked] > 1]
    mean = total / count
    is_possible = (
        ~_have_common(found[ranked], found[people])
        & (total[ranked, None] <= total[people])
        & (mean[ranked, None] >= MIN_SCORE_RATIO * mean[people])
        & (ranked[:, None] != people)
    )
    if limbs_are_complete:
        is_possible &= ~_have_common(found[ranked] @ pose_model.is_part > 0, found[people])
    target = np.arange(len(position))
    row, column = np.nonzero(is_possible)
    if not len(row):
        return target
    fragments, receivers = ranked[row], people[column]
    cost = _assignment_costs(pose_model, position, found, fragments, receivers)
    in_order = np.argsort(cost, kind="stable")[: np.isfinite(cost).sum()]
    has_received: set[int] = set()
    for fragment, person in zip(fragments[in_order].tolist(), receivers[in_order].tolist()):
        # A group may be both. Once assigned, it receives no fragment; once it has received one, it is not assigned.
        is_free = target[fragment] == fragment and fragment not in has_received and target[person] == person
        if is_free and not (found[fragment] & found[person]).any():
            target[fragment] = person
            has_received.add(person)
            found[person] |= found[fragment]
    return target


def _assignment_costs(
    pose_model: PoseModel, position: np.ndarray, found: np.ndarray, fragment: np.ndarray, person: np.ndarray
) -> np.ndarray:
    """(M,) cost of the assignment of each ``fragment`` to its ``person``, infinite beyond ``MAX_DEVIATION``.

    With d and sigma the distances of the fragment's keypoints from where they are expected in the person and their
    errors (see ``PoseModel.expect_keypoints``), it is a negative log likelihood up to a constant:

        mean(d^2 / sigma^2) + mean(log sigma^2)
    """
    people, row = np.unique(person, return_inverse=True)
    expected, sigma = pose_model.expect_keypoints(position[people], found[people])
    count = found.sum(axis=1)
    # One keypoint of a fragment often shows that the mean of all is beyond the limit.
    keypoint = found.argmax(axis=1)[fragment]
    distance = np.abs(position[fragment, keypoint] - expected[row, keypoint]) / sigma[row, keypoint]
    near = np.flatnonzero(distance**2 <= MAX_DEVIATION**2 * count[fragment])
    fragment, row = fragment[near], row[near]
    share = (found / np.maximum(count, 1)[:, None])[fragment]  # (pairs, K)
    distance = np.abs(position[fragment] - expected[row]) / sigma[row]
    square_deviation = np.einsum("mk,mk->m", share, distance**2)
    log_variance = np.einsum("mk,mk->m", share, np.log(sigma**2)[row])
    cost = np.full(len(person), np.inf)
    cost[near] = np.where(square_deviation <= MAX_DEVIATION**2, square_deviation + log_variance, np.inf)
    return cost


def _have_common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(A, B) whether rows of (A, K) and (B, K) bools have a true value in common."""
    return np.asarray(first.astype(np.float32) @ second.astype(np.float32).T > 0)


def complete_people(
    keypoints: np.ndarray,
    candidates: KeypointCandidates,
    is_linked: np.ndarray,
    limbs_are_complete: bool,
    pose_model: PoseModel | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Give people the candidates of keypoints that they lack, and estimate where their other missing keypoints are.

    For a person with at least ``MIN_FOR_ESTIMATE`` keypoints, the pose model expects each missing keypoint at some
    position. A candidate counts only up to ``MAX_DEVIATION`` from there. The first of these three that exists is taken:

    1. The nearest candidate that a limb, however weak, connects to the person: it becomes a keypoint of the person. Its
       limb was too weak to group it, or the candidate also belongs to another person, whose keypoint is at the same
       place: the maps have one peak for both.
    2. The nearest other candidate, as the estimate; not if the maps show all limbs.
    3. The expected position, as the estimate.

    For people with fewer keypoints, and without a pose model, the estimate is the mean of the keypoints found.

    Args:
        keypoints: (P, K, 3) float32 x, y in cells, and score; 0 where nothing was found.
        is_linked: (P + 1, N) bool: whether any limb connects a candidate to a person; the last row is not used.

    Returns:
        (P, K, 3) float32 keypoints as given, and (P, K) complex estimates in cells; those of keypoints that were found
        have no meaning.
    """
    found = keypoints[..., 2] > 0
    count = found.sum(axis=1)
    position = keypoints[..., 0] + 1j * keypoints[..., 1].astype(np.float64)
    mean = position.sum(axis=1) / np.maximum(count, 1)
    estimates = np.repeat(mean[:, None], keypoints.shape[1], axis=1)
    if pose_model is None:
        return keypoints, estimates
    completed = keypoints.copy()
    keypoint = candidates.keypoint
    rows = np.flatnonzero(count >= MIN_FOR_ESTIMATE)
    step = max(1, DISTANCES_PER_STEP // max(1, len(keypoint)))
    for some in (rows[start : start + step] for start in range(0, len(rows), step)):
        expected, sigma = pose_model.expect_keypoints(position[some], found[some])
        estimates[some] = expected
        limit = np.where(found[some], 0, (MAX_DEVIATION * sigma) ** 2)[:, keypoint]  # (people, N)
        square = (candidates.position.real - expected.real[:, keypoint]) ** 2
        square += (candidates.position.imag - expected.imag[:, keypoint]) ** 2
        row, near = np.nonzero(square < limit)
        deviation = square[row, near] / limit[row, near]
        nearest_last = np.argsort(-deviation, kind="stable")  # of several, the last one stays
        person, near = some[row[nearest_last]], near[nearest_last]
        if not limbs_are_complete:
            estimates[person, keypoint[near]] = candidates.position[near]
        linked = is_linked[person, near]
        person, near = person[linked], near[linked]
        completed[person, keypoint[near], :2] = candidates.xy[near]
        completed[person, keypoint[near], 2] = candidates.score[near]
    return completed, estimates


def _group_arrays(
    label: np.ndarray, candidates: KeypointCandidates, num_keypoints: int
) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the scores of G groups, (G, K) each; see ``pose_model``."""
    shape = label.max() + 1, num_keypoints
    z = np.zeros(shape, np.complex128)
    score = np.zeros(shape)
    z[label, candidates.keypoint] = candidates.position
    score[label, candidates.keypoint] = candidates.score
    return z, score


def _share_of_limbs_within(limbs: Limbs, label: np.ndarray, num_groups: int) -> np.ndarray:
    """(G,) last factor of the scores of all groups; see ``assemble_people``."""
    first, second = label[limbs.ends].T
    is_within = first == second
    within = np.bincount(first[is_within], limbs.score[is_within], num_groups)
    across = np.bincount(first[~is_within], limbs.score[~is_within], num_groups)
    across += np.bincount(second[~is_within], limbs.score[~is_within], num_groups)
    return np.asarray((within + LIMB_SCORE_FLOOR) / (within + across + LIMB_SCORE_FLOOR))


def _missing_limb_share(limbs: Limbs, label: np.ndarray, found: np.ndarray, is_part: np.ndarray) -> float:
    """(m + 1/2) / (n + 1), where m of the n body parts inside people have no limb: the share is high if n is small.

    ``found``, (G, K), are the keypoints of each group; ``is_part``, (K, K), is whether a body part connects two.
    """
    num_parts = float((found @ is_part.astype(np.float32) * found).sum()) / 2
    first, second = label[limbs.ends].T
    num_limbs = np.count_nonzero(first == second)
    return (num_parts - num_limbs + 0.5) / (num_parts + 1)

"""Left and right: which keypoints are twins, and annotations in which they are exchanged.

Twins are those of ``flip_idx``, of the names, of known layouts such as the 68 points of a face, or else measured. Which
of a pair is called left changes nothing that is trained; but people who have it the other way round than nearly all
others are probably wrong. In a body seen from the front, every left keypoint is to the right of its twin in the image;
seen from behind, every one is to the left. So pairs agree or disagree in nearly all people alike.

If all pairs are exchanged, they still agree. Then faces tell: whoever shows the nose and both eyes is seen from the
front, so that the triangle from the right eye to the left eye to the nose turns clockwise in the image, however the
head is tilted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeGuard

import numpy as np

from posenet.annotations.coco import AnnotationFile, Names
from posenet.annotations.measured_twins import measure_twins
from posenet.messages import pluralize
from posenet.skeleton.known_names import Pair, known_twins, pair_left_right, without_known_twin
from posenet.skeleton.skeleton import list_names, twins

SWAPPED_SHARE = 0.8
"""If the triangle turns the other way in more than this share of the faces, all pairs are exchanged."""
RARE_SHARE = 0.05
"""If less than this share of the annotations has a pair the other way round, each of these is reported."""
MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring a share."""
MIN_OTHER_PAIRS = 3
"""Smallest number of other pairs that must agree for a report of a single annotation."""
MIN_GAP = 0.1
"""Smallest horizontal distance between left and right, relative to the size of the object."""
MIN_SINE = 0.3
"""Smallest sine of the angle between the line of the eyes and that to the nose, for a face that tells."""


class Twins(NamedTuple):
    """The pairs of left and right of an object."""

    pairs: tuple[Pair, ...]  # left and right by name; if the names have no sides, in any order
    mirror: bool  # whether mirrored images may be used: every keypoint is in a pair, or known to be its own twin
    source: Literal["names", "flip_idx", "measured", "none"]  # what decided about the last keypoints
    message: str  # one line: how many pairs there are and what they are from, or what is missing


def find_twins(names: Sequence[str], joints: np.ndarray, flip_idx: object = None, category: str = "") -> Twins:
    """Find the pairs of left and right among keypoints.

    Args:
        names: of the K keypoints.
        joints: (P, K, 3) x, y, visibility of annotated people: asked where neither names nor ``flip_idx`` decide.
        flip_idx: for every keypoint the number, from 0, of its twin or its own. One that is not valid, or has no pair
            as labelling services export it by default, says nothing.
        category: what the objects are.
    """
    pairs = pair_by_statement(names, flip_idx, category)
    number = _count_pairs(pairs)
    if _has_pairs(flip_idx, len(names)):
        return Twins(pairs, True, "flip_idx", f"{number}, from flip_idx")
    unknown = without_known_twin(names, pairs, category)
    if len(unknown) < 2:
        return Twins(pairs, True, "names", f"{number}, from the names")
    indices = [names.index(name) for name in unknown]
    known = [(names.index(a), names.index(b)) for a, b in pairs]
    twin_of = measure_twins(joints, known, indices)
    if twin_of is None:
        text = f"{pluralize(len(unknown), 'keypoint')} without a twin: {list_names(unknown)}; no images are mirrored"
        return Twins(pairs, False, "none", text)
    measured = tuple((names[a], names[b]) for a, b in enumerate(twin_of.tolist()) if a < b)
    pairs = (*pairs, *(pair for pair in measured if pair[0] in unknown))
    return Twins(pairs, True, "measured", f"{_count_pairs(pairs)}: so mirrored annotations look like the others")


def _count_pairs(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "no pairs of left and right, every keypoint is its own twin"
    return pluralize(len(pairs), "pair of left and right", "pairs of left and right")


def is_flip_idx(value: object, count: int) -> TypeGuard[list[int]]:
    """Whether a value is a list of the number, from 0, of every keypoint's twin, or of itself."""
    if not isinstance(value, list) or len(value) != count or any(type(index) is not int for index in value):
        return False
    return all(0 <= index < count and value[index] == own for own, index in enumerate(value))


def _has_pairs(flip_idx: object, count: int) -> TypeGuard[list[int]]:
    return is_flip_idx(flip_idx, count) and flip_idx != list(range(count))


def pair_by_statement(names: Sequence[str], flip_idx: object, category: str) -> tuple[Pair, ...]:
    """The pairs by name; then those of ``flip_idx``, or of a known layout, whose keypoints have no twin by name."""
    by_name = pair_left_right(names)
    paired = twins(by_name)
    if _has_pairs(flip_idx, len(names)):
        others = [(names[a], names[b]) for a, b in enumerate(flip_idx) if a < b]
    else:
        others = list(known_twins(names, category))
    return (*by_name, *(pair for pair in others if pair[0] not in paired and pair[1] not in paired))


def twins_of_group(file: AnnotationFile, names: Names) -> Twins:
    """``find_twins`` for the used categories that have these names."""
    category = next(category for category in file.parsed_categories if category.keypoints == names)
    is_example = file.groups_of_names()[names] & file.is_labelled_person
    return find_twins(names, file.keypoints[is_example, : len(names)], category.flip_idx, category.name)


def unknown_sides(file: AnnotationFile) -> list[str]:
    """What is missing before images can be mirrored, for every list of names: keypoints that may have a twin.

    A skeleton with pairs, or one that lets nothing be mirrored, has decided. One without pairs lacks those that the
    annotations have.
    """
    if file.skeleton is not None and (file.skeleton.left_right or not file.skeleton.mirror):
        return []
    found = [twins_of_group(file, names) for names in file.groups_of_names()]
    return [twins.message for twins in found if not twins.mirror or (file.skeleton is not None and twins.pairs)]


def contradicting_pairs(file: AnnotationFile) -> list[str]:
    """The pairs of the skeleton that pair other keypoints than the names do."""
    if file.skeleton is None or not file.category_is_used.any():
        return []
    names = file.skeleton.file_names
    twin_of = twins(pair_left_right(names))
    return [f"{a} and {b}" for a, b in _pairs_of(file, names) if twin_of.get(a, b) != b or twin_of.get(b, a) != a]


def missing_pairs(file: AnnotationFile) -> list[str]:
    """The left and right names that the skeleton does not pair."""
    if file.skeleton is None or not file.category_is_used.any():
        return []
    names = file.skeleton.file_names
    paired = twins(_pairs_of(file, names))
    return [f"{a} and {b}" for a, b in pair_left_right(names) if a not in paired and b not in paired]


def annotations_with_a_swapped_pair(file: AnnotationFile) -> list[str]:
    """The few annotations in which a pair agrees or disagrees with all others, unlike in nearly all annotations."""
    places = []
    for order in _compare_pairs(file):
        rare = order.opposite if len(order.opposite) < len(order.same) else order.same
        if len(rare) < RARE_SHARE * (len(order.opposite) + len(order.same)):
            rows = rare[np.isin(rare, order.rows_of_many)].tolist()
            places += [f"{file.people.ids[row]} ({', '.join(order.pair)})" for row in rows]
    return places


def exchanged_faces(file: AnnotationFile) -> list[str]:
    """Whether the faces show that left and right are exchanged in all pairs; one item for each list of names."""
    places = []
    for names, is_member in file.groups_of_names().items():
        nose = next((name for name in names if "nose" in name.lower()), None)
        eyes = next((pair for pair in _pairs_of(file, names) if "eye" in pair[0].lower()), None)
        if nose is None or eyes is None or _is_opposite(file, eyes):
            continue
        people = file.keypoints[file.is_labelled_person & is_member]
        turns = _turn_of_faces(*(people[:, names.index(name)] for name in (*eyes, nose)))
        count = np.count_nonzero(turns)
        if count >= MIN_EXAMPLES and np.count_nonzero(turns < 0) > SWAPPED_SHARE * count:
            places.append(f"in {np.count_nonzero(turns < 0)} of {count} faces")
    return places


def _turn_of_faces(left_eye: np.ndarray, right_eye: np.ndarray, nose: np.ndarray) -> np.ndarray:
    """(P,): 1 for a face as it looks from the front, -1 if left and right are exchanged, 0 if it does not tell.

    The arguments are (P, 3) x, y, visibility.
    """
    is_shown = (left_eye[:, 2] > 0) & (right_eye[:, 2] > 0) & (nose[:, 2] > 0)
    across = left_eye[:, :2] - right_eye[:, :2]
    down = nose[:, :2] - (left_eye[:, :2] + right_eye[:, :2]) / 2
    area = across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]
    product = np.hypot(*across.T) * np.hypot(*down.T)
    return np.where(is_shown & (np.abs(area) > MIN_SINE * product), np.sign(area), 0)


def _pairs_of(file: AnnotationFile, names: Names) -> tuple[Pair, ...]:
    """Left and right of a category: those of the skeleton, with the names in the file, or else of what is stated."""
    if file.skeleton is None:
        category = next(category for category in file.parsed_categories if category.keypoints == names)
        return pair_by_statement(names, category.flip_idx, category.name)
    spelled = dict(zip(file.skeleton.file_keypoints, file.skeleton.file_names))
    return tuple((spelled[a], spelled[b]) for a, b in file.skeleton.left_right if a in spelled and b in spelled)


class _PairOrder(NamedTuple):
    """A pair beside all others: rows of annotations in which these agree among themselves, and the pair is clear."""

    pair: Pair
    same: np.ndarray  # the pair is in the same order as the others
    opposite: np.ndarray  # it is in the opposite order
    rows_of_many: np.ndarray  # there are at least ``MIN_OTHER_PAIRS`` others


def _is_opposite(file: AnnotationFile, pair: Pair) -> bool:
    """Whether a pair is in the opposite order of all others in most annotations."""
    return any(order.pair == pair and len(order.opposite) > len(order.same) for order in _compare_pairs(file))


def _compare_pairs(file: AnnotationFile) -> Iterator[_PairOrder]:
    """Compare every pair with all others, if there are ``MIN_EXAMPLES``."""
    for names, is_member in file.groups_of_names().items():
        rows = np.flatnonzero(file.is_labelled_person & is_member)
        pairs = _pairs_of(file, names)
        if len(pairs) < 2:
            continue
        indices = [(names.index(left), names.index(right)) for left, right in pairs]
        directions = _pair_directions(file.keypoints[rows], indices)  # (R, pairs)
        for column, pair in enumerate(pairs):
            of_pair = directions[:, column]
            others = np.delete(directions, column, axis=1)
            # If the others disagree among themselves, the body is seen from its side or has crossed limbs.
            is_unanimous = np.abs(others.sum(axis=1)) == np.abs(others).sum(axis=1)
            is_comparable = is_unanimous & others.any(axis=1) & (of_pair != 0)
            if is_comparable.sum() >= MIN_EXAMPLES:
                is_same = of_pair == np.sign(others.sum(axis=1))
                has_many = np.abs(others).sum(axis=1) >= MIN_OTHER_PAIRS
                yield _PairOrder(pair, rows[is_comparable & is_same], rows[is_comparable & ~is_same], rows[has_many])


def _pair_directions(keypoints: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """(P, pairs): 1 if left is to the right of its twin in the image, -1 if it is to the left, 0 if unclear.

    The keypoints are (P, K, 3) x, y, visibility; the pairs are indices of left and right ones.
    """
    is_labelled = keypoints[..., 2] > 0  # (P, K)
    points = keypoints[..., :2]
    low = points.min(1, where=is_labelled[..., None], initial=np.inf)
    high = points.max(1, where=is_labelled[..., None], initial=-np.inf)
    sizes = (high - low).max(1)  # (P,)
    left, right = np.array(pairs).T
    gaps = points[:, left, 0] - points[:, right, 0]
    is_clear = is_labelled[:, left] & is_labelled[:, right] & (np.abs(gaps) > MIN_GAP * sizes[:, None])
    return np.where(is_clear, np.sign(gaps), 0)

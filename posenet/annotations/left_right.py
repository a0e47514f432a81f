"""Finding exchanged sides: in the keypoint names, in the skeleton's pairs and in the annotated coordinates.

In a body seen from the front, every left keypoint is to the right of its twin in the image; seen from behind, every
one is to the left. So all pairs of a body agree. A pair that disagrees with all others in nearly every annotation has
swapped names. If a pair rarely disagrees, the annotations in which it does are probably wrong.

If all pairs are exchanged, they still agree. Then faces tell: whoever shows the nose and both eyes is seen from the
front, so that the triangle from the right eye to the left eye to the nose turns clockwise in the image, however the
head is tilted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import numpy as np

from posenet.annotations.coco import AnnotationFile, Names
from posenet.skeleton.skeleton import twins

Pair = tuple[str, str]
"""A left keypoint and the right one, or the two keypoints of a body part."""

SWAPPED_SHARE = 0.8
"""A pair that disagrees with all others in more than this share of the annotations has swapped names. The same share
of the faces shows that all pairs are exchanged."""
RARE_SHARE = 0.05
"""If a pair disagrees in less than this share of the annotations, each of these is reported."""
MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring a share."""
MIN_OTHER_PAIRS = 3
"""Smallest number of other pairs that must agree for a report of a single annotation."""
MIN_GAP = 0.1
"""Smallest horizontal distance between left and right, relative to the size of the object."""
MIN_SINE = 0.3
"""Smallest sine of the angle between the line of the eyes and that to the nose, for a face that tells."""

_RIGHT_OF_LEFT = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "l": "r", "L": "R"}
_LEFT = re.compile(
    "left|Left|LEFT"
    "|(?<![A-Za-z])[lL](?![A-Za-z])"  # a single letter: L_eye, eye.l
    "|(?<![A-Za-z])(?:L(?=[A-Za-z])|l(?=[A-Z]))"  # before a name: Lsho, LEye, lEye
    "|(?<=[a-z])L(?![A-Za-z])"  # after a name: eyeL
)


def pair_left_right(names: Sequence[str]) -> tuple[Pair, ...]:
    """Pair every left name with the right name that differs only in the side, such as L_eye and R_eye."""
    pairs: dict[str, str] = {}
    for name in names:
        for side in _LEFT.finditer(name):
            twin = name[: side.start()] + _RIGHT_OF_LEFT[side[0]] + name[side.end() :]
            if twin in names:
                pairs.setdefault(name, twin)
    return tuple(pairs.items())


def is_flip_idx(value: object, count: int) -> TypeGuard[list[int]]:
    """Whether a value is a list of the number, from 0, of every keypoint's twin, or of itself."""
    if not isinstance(value, list) or len(value) != count or any(type(index) is not int for index in value):
        return False
    return all(0 <= index < count and value[index] == own for own, index in enumerate(value))


def pair_by_flip_idx(names: Sequence[str], flip_idx: object) -> tuple[Pair, ...]:
    """The pairs by name, and those of ``flip_idx`` whose keypoints have no twin by name; the earlier one is left."""
    by_name = pair_left_right(names)
    if not is_flip_idx(flip_idx, len(names)):
        return by_name
    paired = twins(by_name)
    others = [(names[a], names[b]) for a, b in enumerate(flip_idx) if a < b]
    return (*by_name, *(pair for pair in others if pair[0] not in paired and pair[1] not in paired))


def lacks_sides(file: AnnotationFile) -> bool:
    """Whether no keypoint of some category has a twin, by the skeleton, or else by the names or its ``flip_idx``."""
    with_flip_idx = {category.keypoints for category in file.parsed_categories if category.flip_idx}
    decided = with_flip_idx if file.skeleton is None else set()
    return any(not _pairs_of(file, names) and names not in decided for names in file.groups_of_names())


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


def swapped_pairs(file: AnnotationFile) -> list[str]:
    """The pairs that are in the opposite order of all others in nearly all annotations."""
    return [
        f"{pair[0]} and {pair[1]} (in {share:.0%} of {count} annotations)"
        for pair, _, share, count in _compare_pairs(file)
        if share > SWAPPED_SHARE
    ]


def annotations_with_a_swapped_pair(file: AnnotationFile) -> list[str]:
    """The few annotations in which one pair is in the opposite order of all others."""
    places = []
    for (left, right), rows, share, _ in _compare_pairs(file):
        if share < RARE_SHARE:
            places += [f"{file.people.ids[row]} ({left}, {right})" for row in rows.tolist()]
    return places


def exchanged_faces(file: AnnotationFile) -> list[str]:
    """Whether the faces show that left and right are exchanged in all pairs; one item for each list of names."""
    places = []
    for names, is_member in file.groups_of_names().items():
        nose = next((name for name in names if "nose" in name.lower()), None)
        eyes = next((pair for pair in _pairs_of(file, names) if "eye" in pair[0].lower()), None)
        if nose is None or eyes is None or any(place.startswith(f"{eyes[0]} and") for place in swapped_pairs(file)):
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
    """Left and right of a category: those of the skeleton, with the names in the file, or else guessed."""
    if file.skeleton is None:
        return pair_left_right(names)
    spelled = dict(zip(file.skeleton.file_keypoints, file.skeleton.file_names))
    return tuple((spelled[a], spelled[b]) for a, b in file.skeleton.left_right if a in spelled and b in spelled)


def _compare_pairs(file: AnnotationFile) -> Iterator[tuple[Pair, np.ndarray, float, int]]:
    """Compare every pair with all others.

    Yields:
        The pair, the rows of the annotations in which it is in the opposite order of at least ``MIN_OTHER_PAIRS``
        others, the share of the comparable annotations in which it is, and their number.
    """
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
            count = int(is_comparable.sum())
            if count < MIN_EXAMPLES:
                continue
            disagrees = is_comparable & (of_pair != np.sign(others.sum(axis=1)))
            share = float(disagrees.sum()) / count
            has_many_others = np.abs(others).sum(axis=1) >= MIN_OTHER_PAIRS
            yield pair, rows[disagrees & has_many_others], share, count


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

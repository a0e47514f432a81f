"""Checks of left and right in the keypoint names, in the skeleton's pairs and in the annotated coordinates.

In a body seen from the front, every left keypoint is to the right of its twin in the image; seen from behind, every
one is to the left. So all pairs of a body agree. A pair that disagrees with all others in nearly every annotation has
swapped names. If a pair rarely disagrees, the annotations in which it does are probably wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenet.annotations.lint.findings import Findings
from posenet.annotations.problems import error_kind, warning_kind
from posenet.annotations.skeleton_draft import Pair, pair_left_right
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import twins

NO_SIDES = warning_kind(
    "no-sides",
    "no keypoint has a left or right twin, so a mirrored image swaps none",
    "nothing if the object has no sides; else list the pairs in left_right of the skeleton",
)
SWAPPED_PAIR = error_kind(
    "swapped-pair",
    "pairs in the opposite order of all other pairs of left and right",
    "swap the two names in the category and the skeleton, or the keypoints in all annotations",
)
SWAPPED_HERE = warning_kind(
    "swapped-here",
    "annotations in which one pair of left and right is in the opposite order of all others",
    "look at the image; swap the two keypoints if they are confused",
)
FLIP_PAIR = error_kind(
    "flip-pair",
    "pairs of the skeleton that the names contradict",
    "pair every left keypoint with the right one of the same name",
)
FLIP_ORDER = warning_kind(
    "flip-order",
    "pairs of the skeleton with the right keypoint first",
    "put the left one first: drawings colour the sides by it",
)
FLIP_MISSING = warning_kind(
    "flip-missing",
    "left and right names that the skeleton does not pair",
    "add them to left_right, or a mirrored image teaches the wrong side",
)

SWAPPED_SHARE = 0.8
"""A pair that disagrees with all others in more than this share of the annotations has swapped names."""
RARE_SHARE = 0.05
"""If a pair disagrees in less than this share of the annotations, each of these is reported."""
MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring both shares."""
MIN_OTHER_PAIRS = 3
"""Smallest number of other pairs that must agree for a report of a single annotation."""
MIN_GAP = 0.1
"""Smallest horizontal distance between left and right, relative to the size of the object."""


def check_left_right(
    ids: Sequence[object], keypoints: np.ndarray, names: tuple[str, ...], skeleton: Skeleton | None, findings: Findings
) -> None:
    """Check the sides of one category's keypoints.

    Args:
        ids: ids of the P annotations.
        keypoints: (P, K, 3) x, y, visibility.
        names: names of the keypoints in the category.
        skeleton: skeleton with the pairs; None guesses them from the names.
    """
    pairs = pair_left_right(names)
    if skeleton is not None:
        pairs = _check_skeleton_pairs(pairs, skeleton, findings)
    if not pairs:
        findings.add(NO_SIDES)
    elif len(pairs) > 1 and len(keypoints) >= MIN_EXAMPLES:
        directions = _pair_directions(keypoints, [(names.index(left), names.index(right)) for left, right in pairs])
        for column, pair in enumerate(pairs):
            _check_pair(ids, directions, column, pair, findings)


def _check_pair(ids: Sequence[object], directions: np.ndarray, column: int, pair: Pair, findings: Findings) -> None:
    """Compare one pair, a column of the (P, pairs) ``directions``, with all other pairs."""
    of_pair = directions[:, column]
    others = np.delete(directions, column, axis=1)
    # If the others disagree among themselves, the body is seen from its side or has crossed limbs.
    unanimous = np.abs(others.sum(1)) == np.abs(others).sum(1)
    comparable = unanimous & others.any(1) & (of_pair != 0)
    num_comparable = np.count_nonzero(comparable)
    if num_comparable < MIN_EXAMPLES:
        return
    disagrees = comparable & (of_pair != np.sign(others.sum(1)))
    share = np.count_nonzero(disagrees) / num_comparable
    left, right = pair
    if share > SWAPPED_SHARE:
        findings.add(SWAPPED_PAIR, f"{left} and {right} (in {share:.0%} of {num_comparable} annotations)")
    elif share < RARE_SHARE:
        many_others = np.abs(others).sum(1) >= MIN_OTHER_PAIRS
        for row in np.flatnonzero(disagrees & many_others).tolist():
            findings.add(SWAPPED_HERE, f"{ids[row]} ({left}, {right})")


def _check_skeleton_pairs(guessed: Sequence[Pair], skeleton: Skeleton, findings: Findings) -> tuple[Pair, ...]:
    """Compare the skeleton's pairs with those guessed from the names; return them with the names in the file."""
    spelled = dict(zip(skeleton.file_keypoints, skeleton.file_names))
    pairs = tuple((spelled[a], spelled[b]) for a, b in skeleton.left_right if a in spelled and b in spelled)
    guessed_twin = twins(guessed)
    paired = twins(pairs)
    for left, right in pairs:
        if guessed_twin.get(left, right) != right or guessed_twin.get(right, left) != left:
            findings.add(FLIP_PAIR, f"{left} and {right}")
        elif (right, left) in guessed:
            findings.add(FLIP_ORDER, f"{left} and {right}")
    for left, right in guessed:
        if left not in paired and right not in paired:
            findings.add(FLIP_MISSING, f"{left} and {right}")
    return pairs


def _pair_directions(keypoints: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """(P, pairs): 1 if left is to the right of its twin in the image, -1 if it is to the left, 0 if unclear."""
    labelled = keypoints[..., 2] > 0  # (P, K)
    points = keypoints[..., :2]
    low = points.min(1, where=labelled[..., None], initial=np.inf)
    high = points.max(1, where=labelled[..., None], initial=-np.inf)
    sizes = (high - low).max(1)  # (P,)
    left, right = np.array(pairs).T
    gaps = points[:, left, 0] - points[:, right, 0]
    known = labelled[:, left] & labelled[:, right] & (np.abs(gaps) > MIN_GAP * sizes[:, None])
    return np.where(known, np.sign(gaps), 0)

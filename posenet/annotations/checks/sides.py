"""Left and right in a file of annotations: what the skeleton pairs otherwise than the names, and exchanged sides.

In a body seen from the front, every left keypoint is to the right of its twin in the image; seen from behind, every one
is to the left. So pairs agree or disagree in nearly all people alike, and those in whom one differs are probably wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenet.annotations.coco import AnnotationFile, Category
from posenet.annotations.twins import find_twins, pair_by_statement
from posenet.skeleton.known_names import Pair, pair_left_right
from posenet.skeleton.skeleton import twins

RARE_SHARE = 0.05
"""If less than this share of the annotations has a pair the other way round, each of these is reported."""
MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring a share."""
MIN_OTHER_PAIRS = 3
"""Smallest number of other pairs that must agree for a report of a single annotation."""
MIN_GAP = 0.1
"""Smallest horizontal distance between left and right, relative to the size of the object."""


def find_unknown_sides(file: AnnotationFile) -> list[str]:
    """What is missing before images can be mirrored, for every list of names: keypoints that may have a twin.

    A skeleton with pairs, or one that lets nothing be mirrored, has decided. One without pairs lacks those that the
    annotations have.
    """
    if file.skeleton is not None and (file.skeleton.left_right or not file.skeleton.mirror):
        return []
    found = []
    for names, is_member in file.groups_of_names().items():
        category = _category_of(file, names)
        joints = file.columns.keypoints[is_member & file.columns.is_labelled_person, : len(names)]
        found.append(find_twins(names, joints, category.flip_idx, category.name))
    return [twins.message for twins in found if not twins.mirror or (file.skeleton is not None and twins.pairs)]


def find_other_pairs(file: AnnotationFile) -> list[str]:
    """The names that have a side, and another twin or none in the skeleton."""
    if file.skeleton is None or not file.categories.is_used.any():
        return []
    names = file.skeleton.file_names
    by_name, by_skeleton = twins(pair_left_right(names)), twins(_pairs_of(file, names))
    return [name for name, twin in by_name.items() if by_skeleton.get(name) != twin]


def find_swapped_pairs(file: AnnotationFile) -> list[str]:
    """The few annotations in which a pair agrees or disagrees with all others, unlike in nearly all annotations."""
    places = []
    for names, is_member in file.groups_of_names().items():
        rows = np.flatnonzero(file.columns.is_labelled_person & is_member)
        pairs = _pairs_of(file, names)
        if len(pairs) < 2:
            continue
        directions = _pair_directions(
            file.columns.keypoints[rows], [(names.index(a), names.index(b)) for a, b in pairs]
        )
        for column, pair in enumerate(pairs):
            of_pair = directions[:, column]
            others = np.delete(directions, column, axis=1)
            # If the others disagree among themselves, the body is seen from its side or has crossed limbs.
            is_unanimous = np.abs(others.sum(axis=1)) == np.abs(others).sum(axis=1)
            is_comparable = is_unanimous & others.any(axis=1) & (of_pair != 0)
            is_same = of_pair == np.sign(others.sum(axis=1))
            is_same_rare = 2 * (is_comparable & is_same).sum() <= is_comparable.sum()
            is_rare = is_comparable & (is_same == is_same_rare)
            if is_comparable.sum() >= MIN_EXAMPLES and is_rare.sum() < RARE_SHARE * is_comparable.sum():
                is_rare &= np.abs(others).sum(axis=1) >= MIN_OTHER_PAIRS
                places += [f"{file.columns.ids[row]} ({', '.join(pair)})" for row in rows[is_rare].tolist()]
    return places


def _category_of(file: AnnotationFile, names: tuple[str, ...]) -> Category:
    return next(category for category in file.categories.parsed if category.keypoints == names)


def _pairs_of(file: AnnotationFile, names: tuple[str, ...]) -> tuple[Pair, ...]:
    """Left and right of a category: those of the skeleton, with the names in the file, or else of what is stated."""
    if file.skeleton is None:
        category = _category_of(file, names)
        return pair_by_statement(names, category.flip_idx, category.name)
    spelled = dict(zip(file.skeleton.file_keypoints, file.skeleton.file_names))
    return tuple((spelled[a], spelled[b]) for a, b in file.skeleton.left_right if a in spelled and b in spelled)


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

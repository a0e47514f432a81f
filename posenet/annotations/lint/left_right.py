"""The linter's look at left and right: in the names, in the skeleton's pairs and in the annotated places.

In an object seen from the front or from behind, all its lefts lie on the same side of their rights. So a pair that lies
the other way round than the rest nearly everywhere has its names swapped; and where a pair hardly ever does, the few
annotations in which it does are worth a look.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenet.annotations.lint.findings import Findings
from posenet.annotations.skeleton_draft import pair_sides
from posenet.skeleton import Skeleton

SWAPPED = 0.8
"""Share of the annotations in which a pair lies the other way round than all others, from which its names are."""
RARE = 0.05
"""The same share, below which such an annotation is reported itself."""
LEAST_EXAMPLES = 20
"""Annotations that either needs."""
LEAST_OTHERS = 3
"""Other pairs that must agree to doubt a single annotation."""
APART = 0.1
"""Share of the object's size by which left and right must lie apart to say anything."""


def check_sides(
    ids: Sequence[object], points: np.ndarray, names: tuple[str, ...], skeleton: Skeleton | None, findings: Findings
) -> None:
    """Add what is odd about left and right.

    Args:
        ids: of the P annotations.
        points: (P, K, 3) x, y, visibility.
        names: of the keypoints, as the category spells them.
        skeleton: whose pairs count; None guesses them from the names.
    """
    guessed = pair_sides(names)
    pairs = guessed if skeleton is None else _check_pairs(guessed, skeleton, findings)
    if not pairs:
        findings.add(
            "warning",
            "no-sides",
            "no keypoint has a left or right twin, so a mirrored image swaps none",
            "nothing, if the object has no sides; else name the pairs in left_right of the skeleton",
        )
        return
    if len(pairs) < 2 or len(points) < LEAST_EXAMPLES:
        return
    sides = _sides(points, [(names.index(a), names.index(b)) for a, b in pairs])
    for column, pair in enumerate(pairs):
        others = np.delete(sides, column, axis=1)
        # Where the others do not agree among themselves, the object is seen from its side or crosses its limbs.
        agreed = np.abs(others.sum(1)) == np.abs(others).sum(1)
        telling = agreed & others.any(1) & (sides[:, column] != 0)
        against = telling & (sides[:, column] != np.sign(others.sum(1)))
        if telling.sum() < LEAST_EXAMPLES:
            continue
        share = against.sum() / telling.sum()
        if share > SWAPPED:
            findings.add(
                "error",
                "swapped-pair",
                "pairs that lie the other way round than all other pairs of left and right",
                "swap the two names in the category and the skeleton, or the keypoints in all annotations",
                f"{pair[0]} and {pair[1]} (in {share:.0%} of {telling.sum()} annotations)",
            )
        elif share < RARE:
            for row in np.flatnonzero(against & (np.abs(others).sum(1) >= LEAST_OTHERS)):
                findings.add(
                    "warning",
                    "swapped-here",
                    "annotations in which one pair of left and right lies the other way round than all others",
                    "look at the image; swap the two keypoints if they are confused",
                    f"{ids[row]} ({pair[0]}, {pair[1]})",
                )


def _check_pairs(
    guessed: tuple[tuple[str, str], ...], skeleton: Skeleton, findings: Findings
) -> tuple[tuple[str, str], ...]:
    """The skeleton's pairs as the file spells them, compared with those that the names suggest."""
    spelled = dict(zip(skeleton.file_keypoints, skeleton.file_names))
    pairs = tuple((spelled[a], spelled[b]) for a, b in skeleton.left_right if a in spelled and b in spelled)
    twins = dict(guessed) | {right: left for left, right in guessed}
    chosen = dict(pairs) | {right: left for left, right in pairs}
    for left, right in pairs:
        if twins.get(left, right) != right or twins.get(right, left) != left:
            findings.add(
                "error",
                "flip-pair",
                "pairs of the skeleton that the names contradict",
                "pair every left keypoint with the right one of the same name",
                f"{left} and {right}",
            )
        elif (right, left) in guessed:
            findings.add(
                "warning",
                "flip-order",
                "pairs of the skeleton that name the right keypoint first",
                "name the left one first: drawings colour the sides by it",
                f"{left} and {right}",
            )
    for left, right in guessed:
        if left not in chosen and right not in chosen:
            findings.add(
                "warning",
                "flip-missing",
                "left and right by name that the skeleton does not pair",
                "add them to left_right, or a mirrored image teaches the wrong side",
                f"{left} and {right}",
            )
    return pairs


def _sides(points: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """(P, pairs) 1 where left lies to the right of its twin in the image, -1 the other way, 0 not known."""
    labelled = points[..., 2] > 0
    place = points[..., :2]
    reach = place.max(1, where=labelled[..., None], initial=-np.inf) - place.min(
        1, where=labelled[..., None], initial=np.inf
    )
    left, right = np.array(pairs).T
    gap = place[:, left, 0] - place[:, right, 0]
    known = labelled[:, left] & labelled[:, right] & (np.abs(gap) > APART * reach.max(1)[:, None])
    return np.where(known, np.sign(gap), 0)

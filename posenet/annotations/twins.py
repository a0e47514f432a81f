"""Left and right: which keypoints are twins, as ``flip_idx``, names or a known layout says.

Which of a pair is called left changes nothing that is trained.
"""

from typing import TypeGuard

from posenet.annotations.coco import Category
from posenet.annotations.known_bodies import Pair, known_twins, pair_left_right, without_known_twin
from posenet.skeleton.skeleton import twins


def find_twins(category: Category) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Find the pairs of left and right among the keypoints of a category; in any order where the names have no sides.

    They are those of the names; then those of ``flip_idx``, or of a known layout such as the 68 points of a face, of
    keypoints that have no twin by name. A ``flip_idx`` that is not valid, or has no pair as labelling services export
    it by default, says nothing. Also returns the keypoints of which nothing says whether they have a twin: then nothing
    is mirrored.
    """
    names, flip_idx = category.keypoints, category.flip_idx
    by_name = pair_left_right(names)
    paired = twins(by_name)
    if is_flip_idx(flip_idx, len(names)) and flip_idx != list(range(len(names))):
        others = [(names[a], names[b]) for a, b in enumerate(flip_idx) if a < b]
        unknown: tuple[str, ...] = ()
    else:
        others = list(known_twins(names, category.name))
        unknown = without_known_twin(names, (*by_name, *others), category.name)
    pairs = (*by_name, *(pair for pair in others if pair[0] not in paired and pair[1] not in paired))
    # A single one can only be its own twin.
    return pairs, unknown if len(unknown) > 1 else ()


def is_flip_idx(value: object, count: int) -> TypeGuard[list[int]]:
    """Whether a value is a list of the number, from 0, of every keypoint's twin, or of itself."""
    if not isinstance(value, list) or len(value) != count or any(type(index) is not int for index in value):
        return False
    return all(0 <= index < count and value[index] == own for own, index in enumerate(value))

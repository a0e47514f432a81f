"""What is known of keypoints: which are twins, as ``flip_idx``, names or a known layout says; edges and OKS constants.

The known bodies are those of people and animals, hands and faces. Which of a pair is called left changes nothing that
is trained.
"""

import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import TypeGuard

from posenet.annotations.coco import Category
from posenet.skeleton.known_names import SIDES, canonical_names, known_facts, layouts_of, sided_pairs, words_of
from posenet.skeleton.skeleton import twins

Pair = tuple[str, str]
"""A left keypoint and the right one, or the two keypoints of a body part."""

MIN_KNOWN = 4
"""Objects with fewer keypoints of known names are not taken for a body: a rocket has a nose too."""
MIN_SERIES = 3
"""So many numbered keypoints that differ in the number alone may be on both sides."""


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


def pair_left_right(names: Sequence[str]) -> tuple[Pair, ...]:
    """Pair every left name with the right name that differs only in the side, such as L_eye and R_eye."""
    return tuple((left, right) for left, right, _ in sided_pairs(names))


def known_twins(names: Sequence[str], category: str = "") -> tuple[Pair, ...]:
    """The pairs of the numbered keypoints of known layouts, such as the 68 of a face."""
    return tuple(
        (names[indices[a]], names[indices[b]])
        for layout, indices in layouts_of(names, category)
        for a, b in layout["twins"]
    )


def without_known_twin(names: Sequence[str], pairs: Sequence[Pair], category: str = "") -> tuple[str, ...]:
    """The names of which nothing says whether they have a twin, beside the ``pairs`` that are known.

    Keypoints on the middle of a body, such as the nose, and those of a hand alone have none. Where other names have
    sides, those without one are on the middle too, but for a series of numbers, such as face-0 to face-67.
    """
    decided = {name for pair in pairs for name in pair}
    decided |= {names[index] for _, indices in layouts_of(names, category) for index in indices}
    canonical = canonical_names(names, category)
    fingers = {name for name in known_facts()["sigmas"] if re.search(r"(thumb|finger)", name)}
    middle = {*known_facts()["middle"], *fingers, "wrist", "hand_root"}
    rest = [name for name, known in zip(names, canonical) if name not in decided and known not in middle]
    if not pairs:
        return tuple(rest)
    series = [re.sub(r"\d+", "#", name) for name in rest]
    stems = {stem for stem in series if "#" in stem and series.count(stem) >= MIN_SERIES}
    stems = {stem for stem in stems if "_".join(words_of(stem)) not in middle}
    return tuple(name for name, stem in zip(rest, series) if stem in stems)


def known_edges(names: Sequence[str], category: str = "") -> list[Pair]:
    """The edges between keypoints with known names, and between those that differ in consecutive numbers."""
    canonical = canonical_names(names, category)
    name_of = dict(zip(canonical, names))
    chains = [[known for known in chain if known in name_of] for chain in _known_chains()]
    for layout, indices in layouts_of(names, category):
        for first, last in layout.get("chains", []):
            chains.append([canonical[index] for index in indices[first : last + 1]])
    is_whole_set = len({re.sub(r"\d+", "#", name) for name in names}) == 1
    if not is_whole_set and not layouts_of(names, category):
        series: dict[str, dict[int, str]] = {}
        for known in canonical:
            if match := re.fullmatch(r"(.+?)_?(\d+)", known):
                series.setdefault(match[1], {})[int(match[2])] = known
        numbers = [(members, number) for members in series.values() for number in sorted(members)]
        chains += [[members[number], members[number + 1]] for members, number in numbers if number + 1 in members]
    edges: dict[frozenset[str], Pair] = {}
    for chain in chains:
        for a, b in itertools.pairwise(chain):
            edges.setdefault(frozenset((a, b)), (name_of[a], name_of[b]))
    return list(edges.values())


def known_sigmas(names: Sequence[str], category: str, default: float) -> tuple[float, ...]:
    """The OKS constants: those that are known for a body, a hand, a face or an animal, ``default`` for all others."""
    canonical = canonical_names(names, category)
    facts = known_facts()
    sigmas = {f"face_{number}": sigma for number, sigma in enumerate(facts["sigmas"]["face"])} | facts["sigmas"]
    animal = facts["animal_sigmas"]
    if set(map(_without_side, canonical)) & (animal.keys() - sigmas.keys()):
        sigmas = sigmas | animal
    found = [sigmas.get(name, sigmas.get(_without_side(name))) for name in canonical]
    is_known = sum(sigma is not None for sigma in found) >= MIN_KNOWN
    return tuple(sigma if is_known and sigma is not None else default for sigma in found)


def _without_side(name: str) -> str:
    return re.sub("^(left|right)_", "", name)


@cache
def _known_chains() -> list[list[str]]:
    """The chains, those of the right side and those without a side."""
    chains: list[list[str]] = []
    for chain in known_facts()["chains"]:
        mirrored = [re.sub("^(left|right)_", lambda side: SIDES[side[0] == SIDES[0]], name) for name in chain]
        alone = list(dict.fromkeys(map(_without_side, chain)))
        chains += [other for other in (chain, mirrored, alone) if other not in chains]
    return chains

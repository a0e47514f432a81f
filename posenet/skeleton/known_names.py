"""What the names of keypoints say: canonical names, sides, and the edges and OKS constants of what is known.

The facts are in ``known.toml``: bodies, hands, faces and four-legged animals.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from posenet.files import read_toml

Pair = tuple[str, str]
"""A left keypoint and the right one, or the two keypoints of a body part."""

MIN_KNOWN = 4
"""Objects with fewer keypoints of known names are not taken for a body: a rocket has a nose too."""
MIN_SERIES = 3
"""So many numbered keypoints that differ in the number alone may be on both sides."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")  # of LEyeInner2: L, Eye, Inner, 2
_SIDES = ("left_", "right_")


def pair_left_right(names: Sequence[str]) -> tuple[Pair, ...]:
    """Pair every left name with the right name that differs only in the side, such as L_eye and R_eye."""
    return tuple((left, right) for left, right, _ in _sided_pairs(names))


def canonical_names(names: Sequence[str], category: str = "") -> tuple[str, ...]:
    """The names in lower case and in one spelling: "Right Shoulder", "shoulder_r" and "RSho" are right_shoulder.

    The numbered keypoints of a known layout, such as the 68 of a face, are called by its name. Names that would be the
    same stay as they are.
    """
    sided = {name: ("", _split(name)) for name in names}
    for name, (_, words) in sided.items():
        for side, known in zip(_SIDES * 2, itertools.chain(*_known()["sides"][:2])):
            if known in words and len(words) > 1:  # also without a twin
                sided[name] = (side, tuple(word for word in words if word != known))
    for left, right, rest in _sided_pairs(names):
        sided |= {left: (_SIDES[0], rest), right: (_SIDES[1], rest)}
    canonical_words = {other: name for name, others in _known()["words"].items() for other in others}
    result = []
    for name in names:
        side, words = sided[name]
        text = "_".join(words)
        result.append((side + canonical_words.get(text, text)).strip("_"))
    for layout, indices in _layouts_of(names, category):
        for number, index in enumerate(indices):
            result[index] = f"{layout['name']}_{number}"
    return tuple(other if result.count(other) == 1 else name for name, other in zip(names, result))


def known_twins(names: Sequence[str], category: str = "") -> tuple[Pair, ...]:
    """The pairs of the numbered keypoints of known layouts, such as the 68 of a face."""
    return tuple(
        (names[indices[a]], names[indices[b]])
        for layout, indices in _layouts_of(names, category)
        for a, b in layout["twins"]
    )


def without_known_twin(names: Sequence[str], pairs: Sequence[Pair], category: str = "") -> tuple[str, ...]:
    """The names of which nothing says whether they have a twin, beside the ``pairs`` that are known.

    Keypoints on the middle of a body, such as the nose, and those of a hand alone have none. Where other names have
    sides, those without one are on the middle too, but for a series of numbers, such as face-0 to face-67.
    """
    decided = {name for pair in pairs for name in pair}
    decided |= {names[index] for _, indices in _layouts_of(names, category) for index in indices}
    canonical = canonical_names(names, category)
    fingers = {name for name in _known()["sigmas"] if re.search(r"(thumb|finger)", name)}
    middle = {*_known()["middle"], *fingers, "wrist", "hand_root"}
    rest = [name for name, known in zip(names, canonical) if name not in decided and known not in middle]
    if not pairs:
        return tuple(rest)
    series = [re.sub(r"\d+", "#", name) for name in rest]
    stems = {stem for stem in series if "#" in stem and series.count(stem) >= MIN_SERIES}
    stems = {stem for stem in stems if "_".join(_split(stem)) not in middle}
    return tuple(name for name, stem in zip(rest, series) if stem in stems)


def known_edges(names: Sequence[str], category: str = "") -> list[Pair]:
    """The edges between keypoints with known names, and between those that differ in consecutive numbers."""
    canonical = canonical_names(names, category)
    name_of = dict(zip(canonical, names))
    chains = [[known for known in chain if known in name_of] for chain in _known_chains()]
    for layout, indices in _layouts_of(names, category):
        for first, last in layout.get("chains", []):
            chains.append([canonical[index] for index in indices[first : last + 1]])
    is_whole_set = len({re.sub(r"\d+", "#", name) for name in names}) == 1
    if not is_whole_set and not _layouts_of(names, category):
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
    sigmas = {f"face_{number}": sigma for number, sigma in enumerate(_known()["sigmas"]["face"])} | _known()["sigmas"]
    animal = _known()["animal_sigmas"]
    if set(map(_without_side, canonical)) & (animal.keys() - sigmas.keys()):
        sigmas = sigmas | animal
    found = [sigmas.get(name, sigmas.get(_without_side(name))) for name in canonical]
    is_known = sum(sigma is not None for sigma in found) >= MIN_KNOWN
    return tuple(sigma if is_known and sigma is not None else default for sigma in found)


def _sided_pairs(names: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """A left name, the right one and their other words in lower case, in the order of the left ones.

    Words for a side come before parts of words, such as leftear, and these before single letters, such as lsho.
    """
    by_words = {_split(name): name for name in names}
    forms = [(f"^{left}$", right) for left, right in _known()["sides"]]
    forms += [("^left", "right"), ("left$", "right"), ("^l", "r"), ("l$", "r")]
    pairs = {}
    paired: set[str] = set()
    for (left, right), (words, name) in itertools.product(forms, by_words.items()):
        for place, word in enumerate(words):
            before, after = words[:place], words[place + 1 :]
            twin = by_words.get((*before, re.sub(left, right, word), *after), name)
            if twin != name and not {name, twin} & paired:
                rest = re.sub(left, "", word)
                pairs[name] = (name, twin, (*before, *([rest] if rest else []), *after))
                paired |= {name, twin}
    return [pairs[name] for name in names if name in pairs]


def _split(name: str) -> tuple[str, ...]:
    return tuple(str(int(word)) if word.isdecimal() else word.lower() for word in _WORD.findall(name)) or (name,)


def _layouts_of(names: Sequence[str], category: str) -> list[tuple[dict[str, Any], list[int]]]:
    """The known layouts among numbered names, and the indices of their keypoints, in the order of the numbers."""
    series: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        series.setdefault(re.sub(r"\d+", "#", name), []).append(index)
    found = []
    for stem, indices in series.items():
        for layout in _known()["layouts"]:
            words = "_".join(_split(stem))
            is_meant = len(series) == 1 or words == layout["name"]
            is_meant &= layout.get("category", "") in ("", category.lower(), words)
            if "#" in stem and len(indices) == layout["count"] and is_meant:
                found.append((layout, sorted(indices, key=lambda index: int(re.findall(r"\d+", names[index])[-1]))))
    return found


def _without_side(name: str) -> str:
    return re.sub("^(left|right)_", "", name)


@cache
def _known_chains() -> list[list[str]]:
    """The chains, those of the right side and those without a side."""
    chains: list[list[str]] = []
    for chain in _known()["chains"]:
        mirrored = [re.sub("^(left|right)_", lambda side: _SIDES[side[0] == _SIDES[0]], name) for name in chain]
        alone = list(dict.fromkeys(map(_without_side, chain)))
        chains += [other for other in (chain, mirrored, alone) if other not in chains]
    return chains


@cache
def _known() -> dict[str, Any]:
    return dict(read_toml(Path(__file__).with_name("known.toml"), "known keypoints", "install posenet again"))

"""Canonical names of keypoints, and their sides, in whatever spelling.

The facts are in ``known.toml``: bodies, hands, faces and four-legged animals.
"""

import itertools
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from posenet.files import read_toml

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")  # of LEyeInner2: L, Eye, Inner, 2
SIDES = ("left_", "right_")
"""How canonical names begin."""


def canonical_names(names: Sequence[str], category: str = "") -> tuple[str, ...]:
    """The names in lower case and in one spelling: "Right Shoulder", "shoulder_r" and "RSho" are right_shoulder.

    The numbered keypoints of a known layout, such as the 68 of a face, are called by its name. Names that would be the
    same stay as they are.
    """
    sided = {name: ("", words_of(name)) for name in names}
    for name, (_, words) in sided.items():
        for side, known in zip(SIDES * 2, itertools.chain(*known_facts()["sides"][:2])):
            if known in words and len(words) > 1:  # also without a twin
                sided[name] = (side, tuple(word for word in words if word != known))
    for left, right, rest in sided_pairs(names):
        sided |= {left: (SIDES[0], rest), right: (SIDES[1], rest)}
    canonical_words = {other: name for name, others in known_facts()["words"].items() for other in others}
    result = []
    for name in names:
        side, words = sided[name]
        text = "_".join(words)
        result.append((side + canonical_words.get(text, text)).strip("_"))
    for layout, indices in layouts_of(names, category):
        for number, index in enumerate(indices):
            result[index] = f"{layout['name']}_{number}"
    return tuple(other if result.count(other) == 1 else name for name, other in zip(names, result))


def sided_pairs(names: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """A left name, the right one and their other words in lower case, in the order of the left ones.

    Words for a side come before parts of words, such as leftear, and these before single letters, such as lsho.
    """
    by_words = {words_of(name): name for name in names}
    forms = [(f"^{left}$", right) for left, right in known_facts()["sides"]]
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


def words_of(name: str) -> tuple[str, ...]:
    """The words and numbers of a name, in lower case."""
    return tuple(str(int(word)) if word.isdecimal() else word.lower() for word in _WORD.findall(name)) or (name,)


def layouts_of(names: Sequence[str], category: str) -> list[tuple[dict[str, Any], list[int]]]:
    """The known layouts among numbered names, and the indices of their keypoints, in the order of the numbers."""
    series: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        series.setdefault(re.sub(r"\d+", "#", name), []).append(index)
    found = []
    for stem, indices in series.items():
        for layout in known_facts()["layouts"]:
            words = "_".join(words_of(stem))
            is_meant = len(series) == 1 or words == layout["name"]
            is_meant &= layout.get("category", "") in ("", category.lower(), words)
            if "#" in stem and len(indices) == layout["count"] and is_meant:
                found.append((layout, sorted(indices, key=lambda index: int(re.findall(r"\d+", names[index])[-1]))))
    return found


@cache
def known_facts() -> dict[str, Any]:
    """The content of ``known.toml``."""
    return dict(read_toml(Path(__file__).with_name("known.toml"), "known keypoints", "install posenet again"))

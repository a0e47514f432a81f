"""The categories of a document in the normal form, and ids as numbers."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import Categories, Category, Entry, Names
from posenet.messages import truncate_for_message
from posenet.skeleton import Skeleton
from posenet.skeleton.known_names import canonical_names


def canonical_id(value: object) -> int | str | None:
    """An id as a whole number where it is one, as in "000123" or 1.0; another text as it is; None for no id."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else text
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else None


def number_ids(ids: Sequence[object]) -> list[int]:
    """Numbers in the place of ids: whole numbers that no earlier one has stay, the others get the next free ones."""
    free = itertools.count(1 + max((value for value in ids if isinstance(value, int)), default=0))
    seen: set[int] = set()
    numbers = []
    for value in ids:
        numbers.append(value if isinstance(value, int) and value not in seen else next(free))
        seen.add(numbers[-1])
    return numbers


def read_categories(
    entries: list[Entry], annotations: Sequence[Entry], skeleton: Skeleton | None, said: Adjustments
) -> Categories:
    """Read the categories; names of keypoints that they lack come from the skeleton, or are numbered."""
    lists: dict[object, list[Any]] = defaultdict(list)
    for entry in annotations:
        lists[canonical_id(entry.get("category_id"))].append(entry.get("keypoints"))
    entries = list(entries)
    if not entries and any(map(_guess_count, lists.values())):
        entries = [{"id": next(iter(lists)), "name": "object"}]
        said.add("derived", "no-categories")
    raw = [canonical_id(entry.get("id")) for entry in entries]
    if len(entries) == 1 and len(lists) == 1:
        lists = {raw[0]: next(iter(lists.values()))}
    parsed = [_parse_category(entry, lists.get(number, []), skeleton, said) for entry, number in zip(entries, raw)]
    row_of: dict[object, int] = {}
    is_repeated = np.array([row_of.setdefault(number, row) != row for row, number in enumerate(raw)], bool)
    said.leave_out_few("category-id", is_repeated, [category.name for category in parsed], total=1)
    if len(entries) == 1:
        row_of[None] = 0
    orders = {} if skeleton is None else _reorder(entries, parsed, skeleton, said)
    is_used = [bool(names) and (skeleton is None or names == skeleton.file_names) for _, names, _, _ in parsed]
    return Categories(entries, parsed, number_ids(raw), row_of, np.array(is_used, bool), orders)


def _reorder(
    entries: list[Entry], parsed: list[Category], skeleton: Skeleton, said: Adjustments
) -> dict[int, list[int]]:
    """Give categories the names and the order of the skeleton's keypoints where canonical names tell the order."""
    wanted = canonical_names(skeleton.file_names, skeleton.category)
    orders = {}
    for row, category in enumerate(parsed):
        known = canonical_names(category.keypoints, category.name)
        if category.keypoints == skeleton.file_names or sorted(known) != sorted(wanted):
            continue
        edges = tuple((wanted.index(known[a]), wanted.index(known[b])) for a, b in category.edges)
        parsed[row] = Category(category.name, skeleton.file_names, edges)
        entries[row] = {key: value for key, value in entries[row].items() if key != "flip_idx"}
        orders[row] = [known.index(name) for name in wanted]
        said.add("derived", "keypoint-order", [category.name])
    return orders


def _guess_count(lists: Sequence[Any]) -> int:
    """How many keypoints most of some lists have, nested or flat; 0 if that is not clear."""
    lengths: Counter[int] = Counter()
    for values in lists:
        if not isinstance(values, list) or not values:
            continue
        if isinstance(values[0], list):
            lengths[len(values)] += 1
        elif len(values) % 3 == 0 and set(map(type, values[2::3])) <= {int, float} and max(values[2::3]) <= 2:
            lengths[len(values) // 3] += 1
        elif len(values) % 2 == 0:
            lengths[len(values) // 2] += 1
    return max(lengths, key=lambda count: lengths[count], default=0)


def _parse_category(entry: Entry, lists: Sequence[Any], skeleton: Skeleton | None, said: Adjustments) -> Category:
    title, written = entry.get("name", ""), entry.get("keypoints")
    title = title if isinstance(title, str) else truncate_for_message(title)
    names = _clean_names(written, title, said) if isinstance(written, list) else ()
    count = _guess_count(lists)
    expected = () if skeleton is None else skeleton.file_names
    if count and count == len(expected) != len(names):
        said.add("derived", "names-of-skeleton", [f"{title}: {count}"])
        names = expected
    elif count and not names and any(map(_has_number, lists)):
        said.add("derived", "numbered-keypoints", [f"{title}: {count}"])
        names = tuple(f"keypoint_{number}" for number in range(1, count + 1))
    return Category(title, names, _parse_edges(entry.get("skeleton"), len(names), title, said), entry.get("flip_idx"))


def _has_number(values: Any) -> bool:
    """Whether a list has a number other than 0; tools write zeros for objects without keypoints."""
    return isinstance(values, list) and any(value not in (0, [0, 0, 0], [0, 0]) for value in values)


def _clean_names(written: Sequence[object], title: str, said: Adjustments) -> Names:
    """Names without blanks around them, each once, and none empty."""
    names: list[str] = []
    for number, value in enumerate(written, 1):
        name = (value if isinstance(value, str) else truncate_for_message(value)).strip() or f"keypoint_{number}"
        spelled = (name if copy == 1 else f"{name}_{copy}" for copy in itertools.count(1))
        names.append(next(text for text in spelled if text not in names))
    changed = [new for old, new in zip(written, names) if isinstance(old, str) and old != new]
    if changed:
        said.add("derived", "keypoint-name", [f"{title}: {name}" for name in changed])
    return tuple(names)


def _parse_edges(edges: Any, count: int, title: str, said: Adjustments) -> tuple[tuple[int, int], ...]:
    """Pairs of numbers of keypoints, from 0; COCO counts from 1, some from 0.

    If an edge leads to no keypoint, all are left out: they are those of other keypoints, as in CrowdPose.
    """
    pairs: list[list[Any]] = [
        [canonical_id(end) for end in edge] if isinstance(edge, list) and len(edge) == 2 else [None, None]
        for edge in (edges if count and isinstance(edges, list) else [])
    ]
    first = 0 if any(0 in pair for pair in pairs) else 1
    numbers = range(first, count + first)
    if lost := [f"{title} {a}-{b}" for a, b in pairs if a not in numbers or b not in numbers]:
        said.add("derived", "edges", lost)
        return ()
    return tuple({frozenset((a, b)): (a - first, b - first) for a, b in pairs if a != b}.values())

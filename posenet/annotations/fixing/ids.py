"""Repair of ids and of the references to them: whole numbers in place of text and fractional numbers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from posenet.annotations.coco_file import Entry, is_integer

WHOLE_NUMBERS = "ids and references turned into whole numbers"
NUMBERED = "annotations without an id numbered"

_Key = tuple[type, object]
"""An id as in the file, with its type, because "7", 7 and 7.0 are different ids."""


def fix_ids(sections: dict[str, list[Entry]], fixes: Counter[str]) -> None:
    """Turn ids that are text or fractional numbers into whole numbers, in references too.

    "7" and 7.0 become 7, other text becomes the next free number. An id stays as it is if another entry has its number.
    """
    annotations = sections["annotations"]
    for name, reference in (("images", "image_id"), ("categories", "category_id")):
        numbers = _fix_section(sections[name], fixes)
        kept = {_key(entry["id"]) for entry in sections[name] if isinstance(entry.get("id"), (str, int, float))}
        for entry in annotations:
            value = entry.get(reference)
            if not isinstance(value, (str, float)) or _key(value) in kept:
                continue
            number = numbers.get(_key(value), whole_number(value))
            if number is not None and _key(number) in kept:
                entry[reference] = number
                fixes[WHOLE_NUMBERS] += 1
    _fix_section(annotations, fixes)
    free = itertools.count(1 + max((entry["id"] for entry in annotations if is_integer(entry.get("id"))), default=0))
    for entry in annotations:
        if entry.get("id") is None:
            entry["id"] = next(free)
            fixes[NUMBERED] += 1


def whole_number(value: object) -> int | None:
    """The whole number that a value means, such as "7" and 7.0; None if it means none that fits into 64 bits."""
    is_text = isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value)
    is_whole = isinstance(value, float) and value.is_integer()
    number = int(value) if is_text or is_whole else value  # type: ignore[call-overload]  # text or a float here
    return number if is_integer(number) else None


def _key(value: object) -> _Key:
    return type(value), value


def _fix_section(entries: Sequence[Entry], fixes: Counter[str]) -> dict[_Key, int]:
    """Repair the ids of one section; return the new number of every id that was changed."""
    taken = {entry["id"] for entry in entries if is_integer(entry.get("id"))}
    others = [entry["id"] for entry in entries if isinstance(entry.get("id"), (str, float))]
    keys = list(dict.fromkeys(map(_key, others)))
    numbers: dict[_Key, int] = {}
    for key in keys:
        number = whole_number(key[1])
        if number is not None and number not in taken:
            numbers[key] = number
            taken.add(number)
    free = itertools.count(max(taken, default=0) + 1)
    for key in keys:
        if isinstance(key[1], str) and whole_number(key[1]) is None:
            numbers[key] = next(free)
    for entry in entries:
        value = entry.get("id")
        if isinstance(value, (str, float)) and _key(value) in numbers:
            entry["id"] = numbers[_key(value)]
            fixes[WHOLE_NUMBERS] += 1
    return numbers

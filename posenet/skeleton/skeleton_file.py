"""Skeletons as TOML files, and as the plain tables that checkpoints and stores carry.

A file names the keypoints as the annotations do, and in their order; ``docs/custom_data.md`` describes it. Only
``keypoints`` and ``parts`` must be there.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError
from posenet.skeleton.coco import COCO
from posenet.skeleton.skeleton import Skeleton

BUILT_IN = "coco"
"""The word that stands for the built-in skeleton wherever a file may be named."""
DEFAULT_SIGMA = 0.05
"""OKS constant of keypoints whose own is not known: COCO's lie between 0.025 (eyes) and 0.107 (hips)."""

_PAIRS = ("parts", "left_right", "drawn")
_KEYS = ("keypoints", "file_names", "channels", *_PAIRS, "derived", "sigmas", "layout", "colours")


def load_skeleton(path: str | Path) -> Skeleton:
    """Read a skeleton file; "coco" is the built-in skeleton.

    Raises:
        ConfigError: unreadable, an unknown key, a value of the wrong type or a skeleton that contradicts itself.
    """
    if str(path) == BUILT_IN:
        return COCO
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read skeleton {path}: {error.strerror or error}; name a TOML file such as posenet "
            f"skeleton writes, or {BUILT_IN}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return skeleton_from_table(table)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; see docs/custom_data.md") from error


def skeleton_from_table(table: Mapping[str, Any]) -> Skeleton:
    """The skeleton that a file's table describes.

    Raises:
        ValueError: what is wrong with it.
    """
    if unknown := [key for key in table if key not in _KEYS]:
        raise ValueError(f"unknown key {unknown[0]} (known: {', '.join(_KEYS)})")
    for key in ("keypoints", "parts"):
        if not table.get(key):
            raise ValueError(f"{key} is missing or empty")
    keypoints = _words(table["keypoints"], "keypoints")
    pairs = {key: tuple(_pair(pair, key) for pair in _list(table.get(key, []), key)) for key in _PAIRS}
    derived = {name: _pair(pair, f"derived.{name}") for name, pair in _table(table, "derived").items()}
    sigmas = {name: _number(value, f"sigmas.{name}") for name, value in _table(table, "sigmas").items()}
    layout = {name: _numbers(value, f"layout.{name}") for name, value in _table(table, "layout").items()}
    colours = dict(zip(_table(table, "colours"), _words(list(_table(table, "colours").values()), "colours")))
    if unknown := [name for name in sigmas if name not in keypoints]:
        raise ValueError(f"sigmas names {unknown[0]}, which is not among the keypoints of the annotations")
    skeleton = Skeleton(
        keypoints=_words(table.get("channels", [*keypoints, *derived]), "channels"),
        derived=derived,
        layout=layout,
        colours=colours,
        **pairs,
        file_keypoints=keypoints,
        file_names=_words(table.get("file_names", keypoints), "file_names"),
        sigmas=tuple(sigmas.get(name, DEFAULT_SIGMA) for name in keypoints),
    )
    first, *others = pieces(skeleton.keypoints, skeleton.parts)
    if others:
        raise ValueError(f"no part joins {others[0][0]} to {first[0]}, not even through other keypoints; add one")
    return skeleton


def pieces(keypoints: Sequence[str], parts: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The keypoints, grouped by which of them parts join, directly or through others."""
    group = {name: [name] for name in keypoints}
    for a, b in parts:
        if group[a] is not group[b]:
            group[a] += group[b]
            group.update(dict.fromkeys(group[a], group[a]))
    return [members for name, members in group.items() if members[0] == name]


def skeleton_to_table(skeleton: Skeleton) -> dict[str, Any]:
    """Lists, dictionaries, text and numbers from which ``skeleton_from_table`` makes the skeleton again."""
    names = skeleton.file_keypoints
    table: dict[str, Any] = {"keypoints": list(names)}
    if skeleton.file_names != names:
        table["file_names"] = list(skeleton.file_names)
    if skeleton.keypoints != (*names, *skeleton.derived):
        table["channels"] = list(skeleton.keypoints)
    table |= {key: [list(pair) for pair in pairs] for key in _PAIRS if (pairs := getattr(skeleton, key))}
    table |= {
        key: {name: list(value) for name, value in values.items()}
        for key in ("derived", "layout")
        if (values := getattr(skeleton, key))
    }
    if skeleton.colours:
        table["colours"] = dict(skeleton.colours)
    return table | {"sigmas": dict(zip(names, skeleton.sigmas))}


def skeleton_to_toml(skeleton: Skeleton, remarks: Mapping[str, str] | None = None) -> str:
    """The text of a skeleton file; ``remarks`` are comments that go above the keys of that name."""
    table, remarks = skeleton_to_table(skeleton), remarks or {}
    lines = []
    for key in (key for key in _KEYS if key in table):
        comment = [f"# {line}" for line in remarks.get(key, "").splitlines()]
        value = table[key]
        if isinstance(value, dict):
            lines += ["", *comment, f"[{key}]", *(f"{_toml(name)} = {_toml(item)}" for name, item in value.items())]
        elif isinstance(value[0], list):
            lines += ["", *comment, f"{key} = [", *(f"    {_toml(pair)}," for pair in value), "]"]
        else:
            lines += ["", *comment, f"{key} = {_toml(value)}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    """Text, numbers and lists of them look alike in TOML and JSON, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be a table")
    return value


def _list(value: Any, key: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{key} must be a list, not {value!r}")
    return value


def _words(value: Any, key: str) -> tuple[str, ...]:
    if wrong := [word for word in _list(value, key) if not isinstance(word, str) or not word]:
        raise ValueError(f"{key} must hold words, not {wrong[0]!r}")
    return tuple(value)


def _pair(value: Any, key: str) -> tuple[str, str]:
    if len(words := _words(value, key)) != 2:
        raise ValueError(f"{key} must hold pairs of keypoints, not {value!r}")
    return words


def _number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e6:
        raise ValueError(f"{key} must be a number, not {value!r}")
    return float(value)


def _numbers(value: Any, key: str) -> tuple[float, float]:
    if len(_list(value, key)) != 2:
        raise ValueError(f"{key} must be [height, spread], not {value!r}")
    return _number(value[0], key), _number(value[1], key)

"""Skeletons as TOML files, and as the plain tables in checkpoints and stores.

A skeleton file lists the keypoints with the names and in the order of the annotations. Only ``keypoints`` and
``parts`` are required; a single keypoint has no parts. ``docs/custom_data.md`` describes all keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError
from posenet.files import read_toml
from posenet.skeleton.skeleton import PERSON, Skeleton

BUILT_IN = "coco"
"""Name of the built-in skeleton, accepted wherever a skeleton file is."""
DEFAULT_SIGMA = 0.05
"""OKS constant of keypoints without one. COCO's are between 0.025 (eyes) and 0.107 (hips)."""

SHORT_NAMES = {
    "Rsho": "right_shoulder", "Relb": "right_elbow", "Rwri": "right_wrist", "Rhip": "right_hip", "Rkne": "right_knee",
    "Rank": "right_ankle", "Reye": "right_eye", "Rear": "right_ear",
    "Lsho": "left_shoulder", "Lelb": "left_elbow", "Lwri": "left_wrist", "Lhip": "left_hip", "Lkne": "left_knee",
    "Lank": "left_ankle", "Leye": "left_eye", "Lear": "left_ear",
}  # fmt: skip
"""The names of keypoints in version 0.5 and before, with those of COCO, by which they are replaced: so
skeleton files, checkpoints, stores and exported files of those versions can be read."""

_NAMES = ("keypoints", "file_names", "channels")
_PAIRS = ("parts", "left_right", "drawn")
_TABLES = ("derived", "sigmas", "layout", "colours")
_KINDS: dict[str, tuple[Any, str]] = {
    "mirror": (bool, "true or false"),
    "category_id": (int, "a whole number"),
    **dict.fromkeys(_TABLES, (Mapping, "a table")),
    **dict.fromkeys(_PAIRS, ((list, tuple), "a list")),
}
_KEYS = ("category", "category_id", *_NAMES, *_PAIRS, "mirror", *_TABLES)


def load_skeleton(path: Skeleton | str | Path) -> Skeleton:
    """Read a skeleton file; the built-in skeleton for "coco", and a skeleton as it is.

    ``ConfigError`` if the file is not valid.
    """
    if isinstance(path, Skeleton):
        return path
    if str(path) == BUILT_IN:
        return COCO
    if Path(path).suffix.lower() == ".json":
        draft = f"posenet annotations skeleton {path} --output mine.toml"
        raise ConfigError(f"{path} is JSON, not a skeleton file; {draft} drafts one from annotations")
    table = read_toml(path, "skeleton", f"give a TOML file, such as posenet annotations skeleton writes, or {BUILT_IN}")
    try:
        return skeleton_from_table(table)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; see posenet docs custom_data") from error


def skeleton_from_table(table: Mapping[str, Any]) -> Skeleton:
    """Build the skeleton that the table of a skeleton file describes; ``ValueError`` if the table is not valid."""
    if unknown := [key for key in table if key not in _KEYS]:
        raise ValueError(f"unknown key {unknown[0]} (known: {', '.join(_KEYS)})")
    for key in ("keypoints", "parts"):
        if not table.get(key) and not (key == "parts" and len(table["keypoints"]) == 1):
            raise ValueError(f"{key} is missing or empty")
    for key, (kinds, text) in _KINDS.items():
        is_bool = key in table and isinstance(table[key], bool)  # which is an int, too
        if key in table and (not isinstance(table[key], kinds) or is_bool != (kinds is bool)):
            raise ValueError(f"{key} must be {text}, not {table[key]!r}")
    file_names = _parse_names(table.get("file_names", table["keypoints"]), "file_names")
    table = {key: value if key == "category" else _replace_names(value) for key, value in table.items()}
    keypoints = _parse_names(table["keypoints"], "keypoints")
    pairs = {key: tuple(_parse_pair(pair, key) for pair in table.get(key, ())) for key in _PAIRS}
    derived = {name: _parse_pair(pair, f"derived.{name}") for name, pair in table.get("derived", {}).items()}
    sigmas = {name: _parse_number(value, f"sigmas.{name}") for name, value in table.get("sigmas", {}).items()}
    colours = dict(table.get("colours", {}))
    _parse_names(list(colours.values()), "colours")
    if unknown := [name for name in sigmas if name not in keypoints]:
        raise ValueError(f"sigmas names {unknown[0]}, which is not among the keypoints of the annotations")
    skeleton = Skeleton(
        keypoints=_parse_names(table.get("channels", [*keypoints, *derived]), "channels"),
        parts=pairs["parts"],
        left_right=pairs["left_right"],
        derived=derived,
        file_keypoints=keypoints,
        file_names=file_names,
        sigmas=tuple(sigmas.get(name, DEFAULT_SIGMA) for name in keypoints),
        layout={name: _parse_spread(value, f"layout.{name}") for name, value in table.get("layout", {}).items()},
        drawn=pairs["drawn"],
        colours=colours,
        category=_parse_names([table.get("category", PERSON)], "category")[0],
        category_id=table.get("category_id", 1),
        mirror=table.get("mirror", True),
    )
    first, *others = connected_components(skeleton.keypoints, skeleton.parts)
    if others:
        raise ValueError(f"no part joins {others[0][0]} to {first[0]}, not even through other keypoints; add one")
    return skeleton


def _replace_names(value: Any) -> Any:
    """A value of a table without ``SHORT_NAMES``: a name, or a list or a table with names in it."""
    if isinstance(value, str):
        return SHORT_NAMES.get(value, value)
    if isinstance(value, (list, tuple)):
        return list(map(_replace_names, value))
    if isinstance(value, Mapping):
        return {_replace_names(key): _replace_names(item) for key, item in value.items()}
    return value


def connected_components(keypoints: Sequence[str], parts: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Group the keypoints that parts join, directly or through other keypoints."""
    component = {name: [name] for name in keypoints}
    for a, b in parts:
        if component[a] is not component[b]:
            merged = component[a] + component[b]
            component.update(dict.fromkeys(merged, merged))
    return [members for name, members in component.items() if members[0] == name]


def skeleton_to_table(skeleton: Skeleton) -> dict[str, Any]:
    """The plain table from which ``skeleton_from_table`` builds the same skeleton."""
    names = skeleton.file_keypoints
    table: dict[str, Any] = {} if skeleton.category == PERSON else {"category": skeleton.category}
    if skeleton.category_id != 1:
        table["category_id"] = skeleton.category_id
    table["keypoints"] = list(names)
    if skeleton.file_names != names:
        table["file_names"] = list(skeleton.file_names)
    if skeleton.keypoints != (*names, *skeleton.derived):
        table["channels"] = list(skeleton.keypoints)
    for key in _PAIRS:
        if pairs := getattr(skeleton, key):
            table[key] = [list(pair) for pair in pairs]
    if not skeleton.mirror:
        table["mirror"] = False
    for key in ("derived", "layout"):
        if values := getattr(skeleton, key):
            table[key] = {name: list(value) for name, value in values.items()}
    if skeleton.colours:
        table["colours"] = dict(skeleton.colours)
    table["sigmas"] = dict(zip(names, skeleton.sigmas))
    return table


def skeleton_to_toml(skeleton: Skeleton, comments: Mapping[str, str] | None = None) -> str:
    """The text of a skeleton file, with ``comments`` above the keys that they are for."""
    table = skeleton_to_table(skeleton)
    blocks = []
    for key in _KEYS:
        if key not in table:
            continue
        lines = [f"# {line}" for line in (comments or {}).get(key, "").splitlines()]
        value = table[key]
        if key in _TABLES:
            lines += [f"[{key}]", *(f"{plain_to_toml(name)} = {plain_to_toml(item)}" for name, item in value.items())]
        elif key in _PAIRS:
            lines += [f"{key} = [", *(f"    {plain_to_toml(pair)}," for pair in value), "]"]
        else:
            lines.append(f"{key} = {plain_to_toml(value)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def plain_to_toml(value: Any) -> str:
    """Texts, numbers, switches and lists are written alike in TOML and JSON, except for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse_names(value: Any, key: str, count: int = 0) -> tuple[str, ...]:
    """A list of names, of ``count`` if that is not 0."""
    if not isinstance(value, (list, tuple)) or (count and len(value) != count):
        raise ValueError(f"{key} must be a list of {f'{count} ' if count else ''}names, not {value!r}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{key} must contain names, not {name!r}")
    return tuple(value)


def _parse_pair(value: Any, key: str) -> tuple[str, str]:
    first, second = _parse_names(value, key, 2)
    return first, second


def _parse_number(value: Any, key: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e6:
        raise ValueError(f"{key} must be a number, not {value!r}")
    return float(value)


def _parse_spread(value: Any, key: str) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"{key} must be [height, spread], not {value!r}")
    return _parse_number(value[0], key), _parse_number(value[1], key)


COCO = skeleton_from_table(read_toml(Path(__file__).with_name("coco.toml"), "skeleton", "install posenet again"))
"""The built-in skeleton: the 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

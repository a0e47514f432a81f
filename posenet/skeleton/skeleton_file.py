"""Skeletons as TOML files, and as the plain tables in checkpoints and stores.

A skeleton file lists the keypoints with the names and in the order of the annotations. Only ``keypoints`` and
``parts`` are required; a single keypoint has no parts. ``docs/custom_data.md`` describes all keys.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError
from posenet.files import read_toml, value_to_toml
from posenet.skeleton.skeleton import PERSON, Skeleton

BUILT_IN = "coco"
"""Name of the built-in skeleton, accepted wherever a skeleton file is."""
DEFAULT_SIGMA = 0.05
"""OKS constant of keypoints without one. COCO's are between 0.025 (eyes) and 0.107 (hips)."""

_WORDS = "shoulder elbow wrist hip knee ankle eye ear".split()
SHORT_NAMES = {f"{side[0].upper()}{word[:3]}": f"{side}_{word}" for side in ("right", "left") for word in _WORDS}
"""The names of COCO's keypoints in version 0.5 and before, and those by which they are replaced: so skeleton files,
checkpoints, stores and exported files of those versions can be read."""

_PAIRS = ("parts", "left_right", "drawn")
_TABLES = ("derived", "sigmas", "layout", "colours")
_KEYS: dict[str, tuple[Any, str]] = {
    "category": (str, "a name"),
    "category_id": (int, "a whole number"),
    **dict.fromkeys(("keypoints", "file_names", "channels", *_PAIRS), ((list, tuple), "a list")),
    "mirror": (bool, "true or false"),
    **dict.fromkeys(_TABLES, (Mapping, "a table")),
}
"""The type of every key, and how messages call it, in the order of a file."""


def load_skeleton(path: Skeleton | str | Path) -> Skeleton:
    """Read a skeleton file, or the built-in one for "coco"; a skeleton is kept. ``ConfigError`` if it is not valid."""
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
    for key, value in table.items():
        kinds, text = _KEYS[key]
        if not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool):  # a bool is an int, too
            raise ValueError(f"{key} must be {text}, not {value!r}")
    for key in ("keypoints", "parts"):
        if not table.get(key) and not (key == "parts" and len(table["keypoints"]) == 1):
            raise ValueError(f"{key} is missing or empty")
    file_names = _parse(table.get("file_names", table["keypoints"]), "file_names")
    category = table.get("category", PERSON)
    if _has_short_names(table):
        text = json.dumps(dict(table), default=str)
        for short, name in SHORT_NAMES.items():
            text = text.replace(f'"{short}"', f'"{name}"')
        table = json.loads(text)
    keypoints = _parse(table["keypoints"], "keypoints")
    pairs: dict[str, Any] = {key: tuple(_parse(pair, key, 2) for pair in table.get(key, ())) for key in _PAIRS}
    derived = {name: _parse(pair, f"derived.{name}", 2) for name, pair in table.get("derived", {}).items()}
    sigmas = dict(table.get("sigmas", {}))
    _parse(list(sigmas.values()), "sigmas", kinds=(int, float))
    if unknown := [name for name in sigmas if name not in keypoints]:
        raise ValueError(f"sigmas names {unknown[0]}, which is not among the keypoints of the annotations")
    layout, colours = table.get("layout", {}), dict(table.get("colours", {}))
    _parse(list(colours.values()), "colours")
    skeleton = Skeleton(
        keypoints=_parse(table.get("channels", [*keypoints, *derived]), "channels"),
        **pairs,
        derived=derived,
        file_keypoints=keypoints,
        file_names=file_names,
        sigmas=tuple(float(sigmas.get(name, DEFAULT_SIGMA)) for name in keypoints),
        layout={name: _parse(value, f"layout.{name}", 2, (int, float)) for name, value in layout.items()},
        colours=colours,
        category=_parse([category], "category")[0],
        category_id=table.get("category_id", 1),
        mirror=table.get("mirror", True),
    )
    first, *others = connected_components(skeleton.keypoints, skeleton.parts)
    if others:
        raise ValueError(f"no part joins {others[0][0]} to {first[0]}, not even through other keypoints; add one")
    return skeleton


def _has_short_names(table: Mapping[str, Any]) -> bool:
    """Whether keypoints have the names of version 0.5, of both sides: a car may well have a keypoint called Rear."""
    names = set(_parse(table["keypoints"], "keypoints"))
    return any({f"R{word[:3]}", f"L{word[:3]}"} <= names for word in _WORDS)


def connected_components(keypoints: Sequence[str], parts: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Group the keypoints that parts join, directly or through other keypoints."""
    component = {name: [name] for name in keypoints}
    for a, b in parts:
        if component[a] is not component[b]:
            merged = component[a] + component[b]
            component.update(dict.fromkeys(merged, merged))
    return [members for name, members in component.items() if members[0] == name]


def skeleton_to_table(skeleton: Skeleton) -> dict[str, Any]:
    """The plain table from which ``skeleton_from_table`` builds the same skeleton, without what is the default."""
    names = list(skeleton.file_keypoints)
    table = {
        "category": skeleton.category,
        "category_id": skeleton.category_id,
        "keypoints": names,
        "file_names": list(skeleton.file_names),
        "channels": list(skeleton.keypoints),
        **{key: [list(pair) for pair in getattr(skeleton, key)] for key in _PAIRS},
        "mirror": skeleton.mirror,
        **{key: {name: list(value) for name, value in getattr(skeleton, key).items()} for key in ("derived", "layout")},
        "colours": dict(skeleton.colours),
        "sigmas": dict(zip(names, skeleton.sigmas)),
    }
    channels = [*names, *skeleton.derived]
    defaults = {"category": PERSON, "category_id": 1, "file_names": names, "channels": channels, "mirror": True}
    return {key: value for key, value in table.items() if value not in (defaults.get(key), [], {})}


def skeleton_to_toml(skeleton: Skeleton, comments: Mapping[str, str] | None = None) -> str:
    """The text of a skeleton file, with ``comments`` above the keys that they are for."""
    table = skeleton_to_table(skeleton)
    blocks = []
    for key in _KEYS:
        if (value := table.get(key)) is None:
            continue
        lines = [f"# {line}" for line in (comments or {}).get(key, "").splitlines()]
        if key in _TABLES:
            lines += [f"[{key}]", *(f"{value_to_toml(name)} = {value_to_toml(item)}" for name, item in value.items())]
        else:
            lines.append(f"{key} = {value_to_toml(value)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _parse(value: Any, key: str, count: int = 0, kinds: tuple[type, ...] = (str,)) -> Any:
    """The tuple of a list of names, or of numbers; of ``count`` if that is not 0."""
    what = f"{count or ''} {'names' if str in kinds else 'numbers'}".strip()
    if not isinstance(value, (list, tuple)) or (count and len(value) != count):
        raise ValueError(f"{key} must be a list of {what}, not {value!r}")
    for item in value:
        if type(item) not in kinds or item == "" or (type(item) is not str and not abs(item) < 1e6):
            raise ValueError(f"{key} must contain {what}, not {item!r}")
    return tuple(item if isinstance(item, str) else float(item) for item in value)


COCO = skeleton_from_table(read_toml(Path(__file__).with_name("coco.toml"), "skeleton", "install posenet again"))
"""The built-in skeleton: the 18 keypoints and 30 body parts of Simple Pose on COCO annotations."""

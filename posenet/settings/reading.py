"""Reading a configuration: strict TOML and ``key=value`` overrides, into the dataclasses of ``posenet.settings.sections``.

An experiment file states only what differs from the defaults. An unknown key, a value of the wrong type and a
value out of range are errors that name the key.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from posenet.errors import ConfigError
from posenet.messages import truncate_for_message
from posenet.settings.sections import Config
from posenet.skeleton.coco import COCO
from posenet.skeleton.skeleton import Skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, load_skeleton, skeleton_from_table, skeleton_to_table


def load_config(path: str | Path | None = None, overrides: Iterable[str] = (), base: Config | None = None) -> Config:
    """Read an experiment file and apply overrides.

    Args:
        path: TOML file; what it leaves out is as in ``base``.
        overrides: ``"section.key=value"`` pairs, read as TOML and, where that fails, as plain text.
        base: stands in for the defaults.

    Raises:
        ConfigError: unreadable file, unknown key, value of the wrong type or out of range.
    """
    tables: dict[str, Any] = config_to_dict(base or Config())
    if path is not None:
        try:
            _merge(tables, tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(
                f"cannot read configuration {path}: {error.strerror or error}; give the path of an "
                "experiment file, such as config/demo.toml"
            ) from error
        # Wrong text, numbers of too many digits, tables within tables without end.
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if not (pairs := list(overrides)):
        return config_from_dict(tables, source=str(path or "configuration"))
    merged = copy.deepcopy(tables)
    for pair in pairs:
        _apply(merged, pair)
    try:
        return config_from_dict(merged, source="--set or a flag")
    except ConfigError:
        # What is wrong without the overrides is the file's fault, and the message must not send anybody elsewhere.
        config_from_dict(tables, source=str(path or "configuration"))
        raise


def config_from_dict(tables: Mapping[str, Any], source: str = "configuration") -> Config:
    """Build a ``Config`` from nested tables, such as a checkpoint carries; errors name ``source``."""
    try:
        return _build(Config, tables, "")
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def config_to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Nested plain tables; ``config_from_dict`` reads them back. They hold the skeleton, not the name of its file."""
    tables = dataclasses.asdict(config)
    skeleton = config.model.skeleton
    tables["model"]["skeleton"] = BUILT_IN if skeleton == COCO else skeleton_to_table(skeleton)
    return tables


def config_differences(old: Config, new: Config) -> list[str]:
    """What changed from ``old`` to ``new``, one readable line per key."""
    before, after = config_to_dict(old), config_to_dict(new)
    return [
        f"{section}.{key}: {_brief(before[section][key])} -> {_brief(value)}"
        for section, table in after.items()
        for key, value in table.items()
        if before[section][key] != value
    ]


def _brief(value: Any) -> str:
    return f"a skeleton of {len(value['keypoints'])} keypoints" if isinstance(value, dict) else repr(value)


def _merge(tables: dict[str, Any], given: Mapping[str, Any]) -> None:
    for section, table in given.items():
        if isinstance(table, Mapping) and isinstance(tables.get(section), dict):
            tables[section].update(table)
        else:
            tables[section] = table


def _apply(tables: dict[str, Any], pair: str) -> None:
    key, equals, text = pair.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"override {pair!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"override {pair!r}: {section} is not a section")
    table[name] = value


def _build(kind: type, table: Any, prefix: str) -> Any:
    if not isinstance(table, Mapping):
        raise ValueError(f"{prefix.rstrip('.') or 'the file'} must be a table")
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in hints:
            name = truncate_for_message(key)[1:-1]
            meant = "".join(f"did you mean {prefix}{near}? " for near in difflib.get_close_matches(name, hints, 1))
            raise ValueError(f"unknown key {prefix}{name} ({meant}known: {', '.join(sorted(hints))})")
        hint = hints[key]
        build = _build if dataclasses.is_dataclass(hint) and hint is not Skeleton else _convert
        values[key] = build(hint, value, f"{prefix}{key}" + ("." if build is _build else ""))
    return kind(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if hint is Skeleton:
        return _skeleton(value, key)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in args and isinstance(value, str):
            return value
        raise ValueError(f"{key} must be one of {', '.join(map(repr, args))}, not {truncate_for_message(value)}")
    if origin in (types.UnionType, typing.Union):
        kind = next((a for a in args if (typing.get_origin(a) is tuple) == isinstance(value, (list, tuple))), args[0])
        return _convert(kind, value, key)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{key} must be a list, not {truncate_for_message(value)}")
        if args[-1] is not Ellipsis and len(value) != len(args):
            raise ValueError(f"{key} must be a list of {len(args)} values, not {truncate_for_message(value)}")
        return tuple(_convert(args[0], item, key) for item in value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ValueError(f"{key} must be of type {hint.__name__}, not {truncate_for_message(value)}")
    if hint is float and not math.isfinite(value):
        raise ValueError(f"{key} must be finite, not {truncate_for_message(value)}")
    return value


def _skeleton(value: Any, key: str) -> Skeleton:
    if isinstance(value, str):
        return load_skeleton(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be {BUILT_IN!r}, the name of a TOML file or a table, not {value!r}")
    try:
        return skeleton_from_table(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error

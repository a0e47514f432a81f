"""Reading a configuration from TOML files, tables and ``section.key=value`` overrides.

An error names the key that is unknown, or whose value has the wrong type or is out of range.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import logging
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from posenet.errors import ConfigError
from posenet.files import BACKSLASH_REMEDY, parse_toml, read_toml
from posenet.messages import truncate_for_message
from posenet.settings.experiments import experiment_remedy, find_experiment, named_experiment
from posenet.settings.sections import Config
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, load_skeleton, skeleton_from_table, skeleton_to_table

_log = logging.getLogger(__name__)

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")

DATA_KEYS = ("train", "val", "val_images", "val_annotations")
"""Settings of ``data`` that name the data."""

Settings = TypeVar("Settings")
"""``Config`` or one of its sections."""


def load_config(path: str | Path | None = None, overrides: Iterable[str] = (), base: Config | None = None) -> Config:
    """Read an experiment and apply overrides.

    Args:
        path: TOML file, or the name of an experiment that posenet brings along, such as ``"tiny"``; keys that it leaves
            out keep their values in ``base``.
        overrides: ``"section.key=value"`` pairs; a value is read as TOML or, if it is not TOML, as plain text. With
            the name of an experiment, ``data.train`` replaces all data that the experiment names.
        base: configuration to start from; None means the defaults.

    Raises:
        ConfigError: the file is unreadable, a key is unknown, or a value has the wrong type or is out of range.
    """
    tables = config_to_dict(base or Config())
    pairs = [overrides] if isinstance(overrides, str) else list(overrides)
    for pair in pairs:
        if not isinstance(pair, str):
            raise ConfigError(f"an override is a text such as 'train.epochs=3', not {truncate_for_message(pair)}")
    if path is not None:
        if not isinstance(path, (str, Path)):
            raise ConfigError(f"an experiment is given by its name or path, not by {truncate_for_message(path)}")
        for section, table in _read_experiment(path, pairs).items():
            if isinstance(table, Mapping) and isinstance(tables.get(section), dict):
                tables[section].update(table)
            else:
                tables[section] = table  # an unknown section or a wrong value, which _build_section reports
    file_source = str(path or "configuration")
    if not pairs:
        return config_from_dict(tables, file_source)
    overridden_tables = copy.deepcopy(tables)
    for pair in pairs:
        apply_override(overridden_tables, pair)
    try:
        return config_from_dict(overridden_tables, "an override")
    except ConfigError:
        # If the tables are wrong without the overrides too, this raises an error that names the file instead.
        config_from_dict(tables, file_source)
        raise


def _read_experiment(path: str | Path, pairs: Sequence[str]) -> dict[str, Any]:
    """The tables of an experiment, without its data if it is given by name and the overrides name others."""
    name = named_experiment(path)
    if not name:
        if Path(path).suffix.lower() in (".yaml", ".yml", ".json"):
            raise ConfigError(
                f"{path} is no experiment, which is a TOML file; annotations are another argument: posenet train {path}"
            )
        return read_toml(path, "configuration", experiment_remedy())
    tables = read_toml(find_experiment(name), "configuration", "install posenet again")
    if any(pair.partition("=")[0].strip() == "data.train" for pair in pairs):
        for key in DATA_KEYS:
            tables["data"].pop(key, None)
    return tables


def config_from_dict(tables: Mapping[str, Any], source: str = "configuration", ignore_unknown: bool = False) -> Config:
    """Build a ``Config`` from nested tables, such as those in a checkpoint; errors name the ``source``.

    With ``ignore_unknown``, keys that no longer exist are left out, and a log message names them.
    """
    if ignore_unknown:
        tables = _without_unknown_keys(tables, source)
    try:
        return _build_section(Config, tables, "")
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def _without_unknown_keys(tables: Mapping[str, Any], source: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    unknown = []
    defaults = dataclasses.asdict(Config())
    for section, table in tables.items():
        if section not in defaults:
            unknown.append(str(section))
        elif not isinstance(table, Mapping):
            known[section] = table
        else:
            known[section] = {key: value for key, value in table.items() if key in defaults[section]}
            unknown += [f"{section}.{key}" for key in table if key not in defaults[section]]
    if unknown:
        _log.info("%s: settings that do not exist any more are ignored: %s", source, ", ".join(unknown))
    return known


def config_to_dict(config: Config) -> dict[str, Any]:
    """Nested tables of plain values for ``config_from_dict``; they contain the skeleton itself, not its file name."""
    tables = dataclasses.asdict(config)
    skeleton = config.model.skeleton
    tables["model"]["skeleton"] = BUILT_IN if skeleton == COCO else skeleton_to_table(skeleton)
    return tables


def config_differences(old: Config, new: Config) -> list[str]:
    """One readable line for each key with different values in ``old`` and ``new``."""
    old_tables = config_to_dict(old)
    differences = []
    for section, table in config_to_dict(new).items():
        for key, new_value in table.items():
            old_value = old_tables[section][key]
            if new_value != old_value:
                differences.append(f"{section}.{key}: {_describe_value(old_value)} -> {_describe_value(new_value)}")
    return differences


def _describe_value(value: Any) -> str:
    return f"a skeleton of {len(value['keypoints'])} keypoints" if isinstance(value, dict) else repr(value)


def apply_override(tables: dict[str, Any], pair: str) -> None:
    """Set the key that a ``section.key=value`` pair names."""
    key, equals_sign, text = pair.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals_sign or not dot:
        known = [f"{name}.{key}" for name, own in tables.items() if isinstance(own, dict) and section in own]
        suggestion = f"; did you mean {' or '.join(known)}?" if known and not dot else ""
        raise ConfigError(f"override {pair!r} is not of the form section.key=value{suggestion}")
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"override {pair!r}: {section} is not a section")
    try:
        table[name] = parse_toml(f"value = {text}")["value"]
    except ValueError as error:
        text = text.strip()
        if (text[:1], text[-1:]) in (("[", "]"), ("{", "}")):
            raise ConfigError(
                f"override {pair!r} is not valid TOML; write texts in quotes, as in "
                '[{path="a.h5"}], and the whole pair in single quotes'
            ) from error
        if text.startswith(('"', "'")):
            raise ConfigError(f"override {pair!r} is not valid TOML: {error}") from error
        table[name] = text


def _build_section(kind: type[Settings], table: Any, section: str) -> Settings:
    """Build a settings dataclass from a table; ``section`` is its name, empty for the whole ``Config``."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{section or 'the file'} must be a table")
    prefix = f"{section}." if section else ""
    expected_types = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in expected_types:
            name = truncate_for_message(key)[1:-1]  # without the quotes
            elsewhere = [f"{part}.{name}" for part, table in dataclasses.asdict(Config()).items() if name in table]
            similar = difflib.get_close_matches(name, expected_types, n=1)
            meant = [f"{prefix}{similar[0]}"] if similar else elsewhere
            suggestion = f"did you mean {' or '.join(meant)}? " if meant else ""
            raise ValueError(f"unknown key {prefix}{name} ({suggestion}known: {', '.join(sorted(expected_types))})")
        values[key] = _convert_value(expected_types[key], value, f"{prefix}{key}")
    return kind(**values)


def _convert_value(expected: Any, value: Any, key: str) -> Any:
    """Convert a value from a table to the ``expected`` type of the setting ``key``, or raise ``ValueError``."""
    if expected is Skeleton:
        return _convert_skeleton(value, key)
    if dataclasses.is_dataclass(expected):
        return _build_section(typing.cast(type, expected), value, key)
    origin = typing.get_origin(expected)
    arguments = typing.get_args(expected)
    if origin is Literal:
        return _convert_choice(arguments, value, key)
    if origin in (types.UnionType, typing.Union):
        for member in arguments:
            if typing.get_origin(member) is Literal:  # bool | Literal[...]
                return value if isinstance(value, bool) else _convert_choice(typing.get_args(member), value, key, True)
        return _convert_value(_select_union_member(arguments, value), value, key)
    if origin is tuple:
        return _convert_list(arguments, value, key)
    return _convert_scalar(expected, value, key)


def _convert_choice(choices: Sequence[str], value: Any, key: str, or_switch: bool = False) -> str:
    if isinstance(value, str) and value in choices:
        return value
    if or_switch:
        expected = " or ".join(["true, false", *map(repr, choices)])
    else:
        expected = f"one of {', '.join(map(repr, choices))}"
    raise ValueError(f"{key} must be {expected}, not {truncate_for_message(value)}")


def _select_union_member(members: Sequence[Any], value: Any) -> Any:
    """The type for a table if there is one and the value is a table; the tuple type for a list; else the scalar type.

    A table that should be in a list gets the tuple type too, which refuses it.
    """
    tuple_types = [member for member in members if typing.get_origin(member) is tuple]
    tables = [member for member in members if dataclasses.is_dataclass(member)]
    if isinstance(value, Mapping) and (tables or tuple_types):
        return (tables or tuple_types)[0]
    if isinstance(value, (list, tuple)) and tuple_types:
        return tuple_types[0]
    return next(member for member in members if member not in (*tuple_types, *tables))


def _convert_list(item_types: Sequence[Any], value: Any, key: str) -> tuple[Any, ...]:
    """Convert to ``tuple[X, ...]`` or to a tuple of fixed length; all items have one type."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{key} must be a list, not {truncate_for_message(value)}")
    if item_types[-1] is not Ellipsis and len(value) != len(item_types):
        raise ValueError(f"{key} must be a list of {len(item_types)} values, not {truncate_for_message(value)}")
    return tuple(_convert_value(item_types[0], item, key) for item in value)


def _convert_scalar(expected: type, value: Any, key: str) -> Any:
    """Accept exactly the expected type, so that a bool is not accepted as an int; an int may stand for a float."""
    if type(value) not in ((int, float) if expected is float else (expected,)):
        raise ValueError(f"{key} must be of type {expected.__name__}, not {truncate_for_message(value)}")
    if isinstance(value, str) and _CONTROL_CHARACTER.search(value):
        # In TOML, "C:\new" contains a line end.
        raise ValueError(f"{key} contains a control character: {truncate_for_message(value)}; {BACKSLASH_REMEDY}")
    if expected is float and not abs(value) <= sys.float_info.max:
        raise ValueError(f"{key} must be finite, not {truncate_for_message(value)}")
    return expected(value)


def _convert_skeleton(value: Any, key: str) -> Skeleton:
    if isinstance(value, str):
        return load_skeleton(value)
    if not isinstance(value, Mapping):
        shown = truncate_for_message(value)
        raise ValueError(f"{key} must be {BUILT_IN!r}, the name of a TOML file or a table, not {shown}")
    try:
        return skeleton_from_table(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error

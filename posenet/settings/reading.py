"""Reading a configuration from TOML files, tables and ``section.key=value`` overrides, and writing it.

A file may be an experiment of posenet, by its name. An error names the key that is unknown, or whose value has the
wrong type or is out of range.
"""

import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from posenet import extensions
from posenet.errors import ConfigError
from posenet.files import BACKSLASH_REMEDY, parse_toml, read_toml, value_to_toml
from posenet.messages import suggest, truncate_for_message
from posenet.settings.earlier import upgrade
from posenet.settings.sections import Config, DataSets
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, load_skeleton, skeleton_from_table, skeleton_to_table

EXPERIMENTS_FOLDER = Path(__file__).parent.parent / "experiments"
"""The experiments that posenet brings along. In a checkout, the folder config/ is a link to it."""
SETTINGS_FILE = "settings.toml"
"""File in the folder of a run: an experiment with all its settings."""
DATA_KEYS = ("train", "val", "val_images", "val_annotations")
"""Settings of ``data`` that name the data."""
TRAINING_CODE_KEYS = ("model.network", "loss.function", "data.transform")
"""Settings that name code of the user which decides what a step computes, as "module:name"."""

Settings = TypeVar("Settings")
"""``Config`` or one of its sections."""


def load_config(
    path: Config | str | Path | None = None, overrides: Iterable[str] = (), base: Config | None = None
) -> Config:
    """Read an experiment and apply overrides.

    Args:
        path: TOML file, or the name of an experiment that posenet brings along, such as ``"tiny"``; keys that it leaves
            out keep their values in ``base``. Its key ``base`` names another experiment, whose settings it changes: a
            name, or a path relative to the file. A ``Config`` takes the place of ``base``. The code that all these name
            may be imported from now on, from the folder of the file.
        overrides: ``"section.key=value"`` pairs; a value is read as TOML or, if it is not TOML, as plain text. With
            the name of an experiment, ``data.train`` replaces all data that the experiment names.
        base: configuration to start from; None means the defaults.

    Raises:
        ConfigError: the file is unreadable, a key is unknown, or a value has the wrong type or is out of range.
    """
    if isinstance(path, Config):
        base, path = path, None
        _allow_code(config_to_dict(base), Path())
    pairs = [overrides] if isinstance(overrides, str) else list(overrides)
    tables = config_to_dict(base or Config())
    if path is not None:
        if not isinstance(path, (str, Path)):
            raise ConfigError(f"an experiment is given by its name or path, not by {truncate_for_message(path)}")
        has_own_data = any(pair.partition("=")[0].strip() == "data.train" for pair in pairs)
        _update(tables, _read_experiment(path, has_own_data))
    config = config_from_dict(tables, str(path or "configuration"))
    for pair in pairs:
        _allow_code(apply_override(tables, pair), Path())
    return config_from_dict(tables, "an override") if pairs else config


def experiment_names() -> list[str]:
    """The names of all experiments that posenet brings along."""
    return sorted(path.stem for path in EXPERIMENTS_FOLDER.glob("*.toml"))


def named_experiment(source: object, folder: Path = Path()) -> str:
    """The name of the experiment that a ``--config`` means; empty for a file, which comes first, and anything else.

    A folder of the name, such as that of a run, is in nobody's way.
    """
    name = str(source)
    return name if name in experiment_names() and not (folder / name).is_file() else ""


def _read_experiment(source: str | Path, has_own_data: bool, derived: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of an experiment with those of its base.

    Args:
        has_own_data: whether others replace the data of an experiment that is given by name.
        derived: the files of which it is the base, the last one first.
    """
    folder = derived[0].parent if derived else Path()
    name, names = named_experiment(source, folder), experiment_names()
    remedy = f"{suggest(str(source), names)}give a name ({', '.join(names)}) or the path of a TOML file"
    path = EXPERIMENTS_FOLDER / f"{name}.toml" if name else folder / str(source)
    if path.resolve() in [file.resolve() for file in derived]:
        raise ConfigError(f"{path} is the base of its own base; give the experiment {derived[0]} another base")
    tables = read_toml(path, "configuration", remedy)
    _allow_code(tables, path.parent)
    base = tables.pop("base", None)
    data = tables.get("data")
    if name and has_own_data and isinstance(data, dict):
        for key in DATA_KEYS:
            data.pop(key, None)
    if base is None:
        return tables
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base must be the name or path of an experiment, not {truncate_for_message(base)}")
    has_own_data = has_own_data or (isinstance(data, dict) and "train" in data)
    inherited = _read_experiment(base, has_own_data, (path, *derived))
    config_from_dict(inherited, f"{base}, the base of {path}")  # so that an error names the right file
    _update(inherited, tables)
    return inherited


def _update(tables: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Replace the keys of sections that ``changes`` has."""
    for section, table in changes.items():
        if isinstance(table, Mapping) and isinstance(tables.get(section), dict):
            tables[section].update(table)
        else:
            tables[section] = table  # an unknown section or a wrong value, which _build_section reports


def _allow_code(tables: Mapping[str, Any], folder: Path) -> None:
    """Allow the code that the tables of a file or an override name, which is looked for in a folder."""
    for section, _, key in (key.partition(".") for key in (*TRAINING_CODE_KEYS, "log.callbacks")):
        table = tables.get(section)
        names = table.get(key) if isinstance(table, Mapping) else None
        for name in names if isinstance(names, (list, tuple)) else [names]:
            if isinstance(name, str) and extensions.is_name(name):
                extensions.allow(name, folder)


def config_from_dict(tables: Mapping[str, Any], source: str = "configuration", from_checkpoint: bool = False) -> Config:
    """Build a ``Config`` from nested tables; errors name the ``source``.

    Those in a checkpoint or an exported file may be of an earlier version; see ``earlier.upgrade``.
    """
    if from_checkpoint:
        tables = upgrade(tables, source)
    try:
        return _build_section(Config, tables, "")
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def config_to_dict(config: Config) -> dict[str, Any]:
    """Nested tables of plain values for ``config_from_dict``; they contain the skeleton itself, not its file name."""
    tables = dataclasses.asdict(config)
    skeleton = config.model.skeleton
    tables["model"]["skeleton"] = BUILT_IN if skeleton == COCO else skeleton_to_table(skeleton)
    return tables


def config_to_toml(config: Config) -> str:
    """All settings as an experiment file."""
    tables = config_to_dict(config).items()
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {value_to_toml(value)}" for key, value in table.items())])
        for name, table in tables
    )


def config_differences(old: Config, new: Config) -> list[str]:
    """One readable line for each key with different values in ``old`` and ``new``."""

    def describe(value: Any) -> str:
        return f"a skeleton of {len(value['keypoints'])} keypoints" if isinstance(value, dict) else repr(value)

    old_tables = config_to_dict(old)
    return [
        f"{section}.{key}: {describe(old_tables[section][key])} -> {describe(value)}"
        for section, table in config_to_dict(new).items()
        for key, value in table.items()
        if value != old_tables[section][key]
    ]


def apply_override(tables: dict[str, Any], pair: str) -> dict[str, Any]:
    """Set the key that a ``section.key=value`` pair names; return the pair as tables."""
    key, equals_sign, text = pair.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals_sign or not dot:
        raise ConfigError(f"override {pair!r} is not of the form section.key=value")
    text = text.strip()
    try:
        value = parse_toml(f"value = {text}")["value"]
        kind = typing.get_type_hints(Config).get(section)
        expected = typing.get_type_hints(kind).get(name) if kind else None
        if expected in (str, DataSets, Skeleton) and not isinstance(value, (str, list, dict)):
            value = text  # a folder may be called 2024-05-01, 7 or true
    except ValueError as error:
        value = text
        if text.startswith(("[", "{", '"', "'")):
            raise ConfigError(
                f"override {pair!r} is not valid TOML: {error}; write texts in quotes, as in [{{path='a.h5'}}]"
            ) from error
    tables.setdefault(section, {})[name] = value
    return {section: {name: value}}


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
            known = sorted(expected_types)
            raise ValueError(f"unknown key {prefix}{name} ({suggest(name, known)}known: {', '.join(known)})")
        values[key] = _convert_value(expected_types[key], value, f"{prefix}{key}")
    return kind(**values)


def _convert_value(expected: Any, value: Any, key: str) -> Any:
    """Convert a value from a table to the ``expected`` type of the setting ``key``, or raise ``ValueError``."""
    origin = typing.get_origin(expected)
    members = typing.get_args(expected)
    shown = truncate_for_message(value)
    if expected is Skeleton:
        return _convert_skeleton(value, key)
    if dataclasses.is_dataclass(expected):
        return _build_section(typing.cast(type, expected), value, key)
    if origin in (types.UnionType, typing.Union):
        plain, structured = members  # a text or number, and a list or table
        return _convert_value(structured if isinstance(value, (list, tuple, Mapping)) else plain, value, key)
    if origin is Literal:
        if type(value) not in map(type, members) or value not in members:
            raise ValueError(f"{key} must be one of {', '.join(map(json.dumps, members))}, not {shown}")
        return value
    if origin is tuple:
        is_list = isinstance(value, (list, tuple))
        if not is_list or (members[-1] is not Ellipsis and len(value) != len(members)):
            size = "" if members[-1] is Ellipsis else f" of {len(members)} values"
            raise ValueError(f"{key} must be a list{size}, not {shown}")
        return tuple(_convert_value(members[0], item, key) for item in value)
    # Exactly the expected type, so that a bool is not accepted as an int; an int may stand for a float.
    if type(value) not in ((int, float) if expected is float else (expected,)):
        raise ValueError(f"{key} must be of type {expected.__name__}, not {shown}")
    if isinstance(value, str) and re.search(r"[\x00-\x1f]", value):  # in TOML, "C:\new" contains a line end
        raise ValueError(f"{key} contains a control character: {shown}; {BACKSLASH_REMEDY}")
    if expected is float and not abs(value) <= sys.float_info.max:
        raise ValueError(f"{key} must be finite, not {shown}")
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

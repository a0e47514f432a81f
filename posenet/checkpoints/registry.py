"""The registry of weights: names, and where the file of each name comes from.

The package has a registry of its own. Users add names with TOML files of the same form; see docs/weights.md.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posenet.downloading import without_credentials
from posenet.errors import ConfigError
from posenet.files import read_toml
from posenet.messages import truncate_for_message
from posenet.settings import Config, config_from_dict
from posenet.skeleton.skeleton_file import BUILT_IN

BUILT_IN_REGISTRY = Path(__file__).with_name("registry.toml")
REGISTRY_VARIABLE = "POSENET_REGISTRY"
"""Environment variable with the paths of registries, separated as in PATH."""
HOME_VARIABLE = "POSENET_HOME"
"""Environment variable with the folder of downloaded weights."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TEXT_KEYS = ("description", "license", "google_drive", "url", "file", "sha256")
_SOURCE_KEYS = ("google_drive", "url", "file")
_SETTINGS_KEYS = ("model", "inference")


@dataclass(frozen=True)
class RegisteredWeights:
    """One entry of a registry."""

    name: str
    registry: Path
    """The file with this entry."""
    description: str = ""
    license: str = "not stated"
    """Terms of use of the weights."""
    google_drive: str = ""
    """Identifier of a file on Google Drive; one of this, ``url`` and ``file`` is given."""
    url: str = ""
    """Address of a file: http or https."""
    file: str = ""
    """Path of a file on this machine, relative to the registry's folder."""
    sha256: str = ""
    """Expected SHA-256 of the file in hexadecimal; empty if it is not known beforehand."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections ``model`` and ``inference`` of the configuration, for files that contain none."""

    @property
    def source(self) -> str:
        """Where the file comes from, for messages; without a password."""
        if self.google_drive:
            return f"https://drive.google.com/uc?id={self.google_drive}"
        return without_credentials(self.url) if self.url else str(self.local_path)

    @property
    def local_path(self) -> Path:
        """The path of ``file``."""
        return self.registry.parent / self.file

    def config(self) -> Config | None:
        """The configuration in the entry; None if it has none. ``ConfigError`` if it is not valid."""
        if not self.settings:
            return None
        tables = {section: dict(table) for section, table in self.settings.items()}
        skeleton = tables.get("model", {}).get("skeleton")
        if isinstance(skeleton, str) and skeleton != BUILT_IN:
            tables["model"]["skeleton"] = str(self.registry.parent / skeleton)
        return config_from_dict(tables, source=f"{self.registry}: {self.name}")


def home_folder() -> Path:
    """The folder of downloaded weights: POSENET_HOME, or ``posenet`` in the user's cache."""
    if home := os.environ.get(HOME_VARIABLE):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "posenet"


def registry_files() -> list[Path]:
    """The registries that are read, in order: the built-in one, and those of POSENET_REGISTRY or of the user."""
    if paths := os.environ.get(REGISTRY_VARIABLE):
        return [BUILT_IN_REGISTRY, *(Path(path).expanduser() for path in paths.split(os.pathsep) if path)]
    config_home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    user_registry = Path(config_home) / "posenet" / "weights.toml"
    return [BUILT_IN_REGISTRY, user_registry] if user_registry.is_file() else [BUILT_IN_REGISTRY]


def read_registries() -> dict[str, RegisteredWeights]:
    """All registered weights by name. A later registry replaces the names of an earlier one.

    Raises:
        ConfigError: a registry cannot be read or is not valid.
    """
    entries = {}
    for path in registry_files():
        remedy = f"correct {REGISTRY_VARIABLE}, which lists the registries of weights"
        for name, table in read_toml(path, "registry", remedy).items():
            try:
                entries[name] = _parse_entry(name, table, path)
            except ValueError as error:
                raise ConfigError(f"{path}: {error}; see docs/weights.md") from error
    return entries


def _parse_entry(name: str, table: Any, registry: Path) -> RegisteredWeights:
    """One entry of a registry; ``ValueError`` if it is not valid."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{truncate_for_message(name)} is not a name of letters, digits, '.', '_' and '-'")
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} must be a table, such as [{name}] with url = ...")
    known = (*_TEXT_KEYS, *_SETTINGS_KEYS)
    for key, value in table.items():
        expected = Mapping if key in _SETTINGS_KEYS else str
        if key not in known:
            similar = difflib.get_close_matches(key, known, n=1)
            suggestion = f"did you mean {similar[0]}? " if similar else ""
            raise ValueError(
                f"unknown key {name}.{truncate_for_message(key)[1:-1]} ({suggestion}known: {', '.join(known)})"
            )
        if not isinstance(value, expected):
            kind = "a table" if expected is Mapping else "text"
            raise ValueError(f"{name}.{key} must be {kind}, not {truncate_for_message(value)}")
    sources = [key for key in _SOURCE_KEYS if table.get(key)]
    if len(sources) != 1:
        raise ValueError(f"{name} needs exactly one of {', '.join(_SOURCE_KEYS)}")
    if "url" in sources and urlsplit(table["url"]).scheme not in ("http", "https"):
        raise ValueError(f"{name}.url must start with http:// or https://; use {name}.file for a file on this machine")
    sha256 = table.get("sha256", "").lower()
    if sha256 and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"{name}.sha256 must have 64 hexadecimal digits")
    texts = {key: table[key] for key in _TEXT_KEYS if key in table}
    settings = {key: table[key] for key in _SETTINGS_KEYS if key in table}
    return RegisteredWeights(name, registry, **{**texts, "sha256": sha256}, settings=settings)

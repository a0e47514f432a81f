"""Code of the user that settings name as "module:name": which names may be imported, and importing them.

A setting is only a text, and it comes with files of others too, such as checkpoints. So a name is imported only if this
process was told so: an experiment file or an override that ``load_config`` has read states it, or ``allow`` was called.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from posenet.errors import ConfigError

_folders: dict[str, Path] = {}
"""The names that may be imported, and the folder in which each is looked for first."""


def is_name(text: str) -> bool:
    """Whether a text has the form "module:name"."""
    return re.fullmatch(r"[\w.]+:\w+", text) is not None


def allow(name: str, folder: str | Path = ".") -> None:
    """Allow that settings name this code; its module is looked for in the folder, in the current one and as usual."""
    _folders[name] = Path(folder).resolve()


def load_extension(key: str, name: str) -> Any:
    """The object that the setting ``key`` names; importing its module runs it.

    The folder stays on ``sys.path``, so that processes that are started later find the module too.

    Raises:
        ConfigError: nobody but a checkpoint names it, it cannot be imported, or another module of this name was.
    """
    if name not in _folders:
        raise ConfigError(
            f"{key}={name} is code, which is not run because a checkpoint names it; if you trust it, say --set "
            f'{key}={name}, in Python posenet.extensions.allow("{name}")'
        )
    module, _, attribute = name.partition(":")
    for folder in (_folders[name], Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, attribute)
    except Exception as error:  # the code of a user can raise anything
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, (ImportError, AttributeError)) else error
        raise ConfigError(f"{key}={name} cannot be loaded from {_folders[name]} ({reason}); give module:name") from error
    _refuse_another_module(key, module, imported, _folders[name])
    return found


def digest_of_code(name: str) -> str:
    """The beginning of the SHA-256 of the file of a module that was imported; empty if it has no file."""
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:8] if file else ""


def _refuse_another_module(key: str, name: str, imported: ModuleType, folder: Path) -> None:
    """``ConfigError`` if the folder has a module of this name, and another file was imported under it."""
    stem = folder.joinpath(*name.split("."))
    meant = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
    file = getattr(imported, "__file__", None)
    if meant and (file is None or not meant[0].samefile(file)):
        raise ConfigError(
            f"{key}: the module {name} is {file or 'built in'}, not {meant[0]}; give the module another name"
        )

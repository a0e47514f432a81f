"""Code of the user that settings name as "module:name": which names may be imported, and importing them.

A setting is only a text, and it comes with files of others too, such as checkpoints. So a name is imported only if this
process was told so: an experiment file or an override that ``load_config`` has read states it, or ``allow`` was called.
"""

import importlib
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError
from posenet.files import sha256_of

_folders: dict[str, tuple[Path, ...]] = {}
"""The names that may be imported, and the folders in which each is looked for, the first one first."""


def is_name(text: str) -> bool:
    """Whether a text has the form "module:name"."""
    return re.fullmatch(r"[\w.]+:\w+", text) is not None


def allow(name: str, folder: str | Path = ".") -> None:
    """Allow that settings name this code; its module is looked for in the folder, in the current one and as usual."""
    path = Path(folder).resolve()
    _folders[name] = (path, *(other for other in _folders.get(name, ()) if other != path))


def load_extension(key: str, name: str) -> Any:
    """The object that the setting ``key`` names; importing its module runs it.

    The folders stay on ``sys.path``, so that processes that are started later find the module too.

    Raises:
        ConfigError: nobody but a checkpoint names it, it cannot be imported, or another module of this name was.
    """
    if name not in _folders:
        raise ConfigError(
            f"only the checkpoint names {key}={name}, and its code is not run unasked; name it too: with --config or "
            f'--set, in Python with posenet.extensions.allow("{name}")'
        )
    folders = [*_folders[name], Path.cwd()]
    sys.path += [str(folder) for folder in dict.fromkeys(folders) if str(folder) not in sys.path]
    module, _, attribute = name.partition(":")
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, attribute)
    except Exception as error:  # the code of a user can raise anything
        raise ConfigError(
            f"{key}={name} cannot be loaded from {folders[0]} ({type(error).__name__}: {error}); give module:name, "
            "without .py, and install what the module imports"
        ) from error
    # Python imports a module once for each name, so that of another folder may be in its place.
    *parents, _ = module.split(".")
    meant = PathFinder.find_spec(module, [str(folder.joinpath(*parents)) for folder in folders])
    file = getattr(imported, "__file__", None)
    if meant is not None and meant.origin is not None and (file is None or not Path(meant.origin).samefile(file)):
        raise ConfigError(f"{key}: {file or 'a built-in module'} hides {meant.origin}; give the module another name")
    return found


def digest_of_code(name: str) -> str:
    """The beginning of the SHA-256 of the file of a module that was imported; empty if it has no file."""
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return sha256_of(Path(file))[:8] if file else ""

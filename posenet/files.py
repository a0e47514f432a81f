"""Reading TOML files, and writing files so that they are either complete or not there."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError


@contextlib.contextmanager
def atomic_replacement(path: Path, temporary_suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename that file to ``path`` when the block ends without an error.

    Other processes find either the old or the new content, complete, also after a kill or a power failure.

    Args:
        temporary_suffix: suffix of the temporary path, for libraries that choose the format of a file by it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp{temporary_suffix}")
    # A killed process with the same id may have left this file. It may be a hard link to a file that matters, so it is
    # removed, not overwritten.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file completely or not at all; create its folder if necessary."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(data)


def flush_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power failure.

    Not every system can flush a folder; there this does nothing.
    """
    is_folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not is_folder:
            raise


def read_toml(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read a TOML file; ``ConfigError``, which names the ``kind`` of file and the ``remedy``, if that fails."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {kind} {path}: {error.strerror or error}; {remedy}") from error
    # A ValueError is a syntax error, text that is not UTF-8 or a number with too many digits; deep nesting ends in a
    # RecursionError.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error

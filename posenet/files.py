"""Files: reading inputs, TOML among them; writing outputs completely or not at all.

Standard output, FIFOs and devices are written directly. Inputs are regular files, or what the shell has opened, because
a FIFO or a device may never end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from posenet.errors import ConfigError, DataError

STANDARD_OUTPUT = "standard output"
"""Its name in messages."""
MAX_TOML_BYTES = 2**18
"""Size of the largest TOML file that is read; a skeleton of 133 keypoints has about 20 kB."""
MAX_TOML_DOTS = 500
"""The most dots in a line of a TOML file. Parsing a key takes time and memory by the square of its parts."""
MAX_TOML_DEPTH = 20
"""How deep tables and lists of a TOML file may be nested."""

_SHELL_INPUT = re.compile(r"/dev/(stdin|null|fd/\d+)|/proc/self/fd/\d+")
"""What may be read although it is no regular file: standard input, ``<(command)``, and the empty device."""


class SpecialFileError(OSError):
    """An input is a FIFO, a socket or a device."""


def is_standard_output(path: str | Path) -> bool:
    """Whether a path means standard output: ``-``, or a name of the same file or pipe, such as /dev/stdout."""
    if str(path) == "-":
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def _standard_output() -> BinaryIO:
    """Standard output for bytes, after all that was printed; ``DataError`` if it is closed."""
    if sys.stdout is None:
        raise DataError("standard output is closed; write to a file")
    sys.stdout.flush()
    return sys.stdout.buffer


def resolve_link(path: Path) -> Path:
    """The file that a symbolic link points to, so that replacing it keeps the link; another path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Check the paths of all files that will be written, and make their folders, before any work is done.

    ``DataError`` if an output is an input, appears twice, or is an existing folder; or if its folder is a file.
    """
    protected = {os.path.realpath(path) for path in inputs}
    checked: set[str] = set()
    for path in outputs:
        resolved = os.path.realpath(path)
        if resolved in protected:
            raise DataError(f"writing {path} would replace an input; choose another name or folder")
        if resolved in checked:
            raise DataError(f"{path} would be written twice; choose another name or folder for one of the outputs")
        checked.add(resolved)
        if path.is_dir():
            raise DataError(f"{path} is a folder; give the name of a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{path.parent} cannot be a folder: a file has that name; choose another") from error


@contextlib.contextmanager
def atomic_replacement(path: Path, temporary_suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename that file to ``path`` when the block ends without an error.

    Other processes find either the old or the new content, complete, also after a kill or a power failure. FIFOs and
    devices are not replaced: for them ``path`` itself is yielded, to be written directly. Libraries choose the format
    of a file by the ``temporary_suffix``.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp{temporary_suffix}")
    # A killed process with the same id may have left this file. It may be a hard link to a file that matters, so it is
    # removed, not overwritten.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of ``path`` that killed processes have left; call it where no other one writes it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+(-\d+)?\.tmp")
    for other in path.parent.iterdir():
        if pattern.fullmatch(other.name):
            other.unlink(missing_ok=True)


@contextlib.contextmanager
def open_text_output(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file that replaces an earlier one when the block ends without an error; or standard output."""
    if is_standard_output(path):
        stream = io.TextIOWrapper(_standard_output(), "utf-8", "surrogateescape", newline="")
        with name_file_in_errors(STANDARD_OUTPUT):
            try:
                yield stream
            finally:
                stream.detach()
        return
    with (
        atomic_replacement(resolve_link(path)) as temporary,
        open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


@contextlib.contextmanager
def name_file_in_errors(path: str | Path) -> Iterator[None]:
    """Within this context, an ``OSError`` without a file name, such as that of a full disk, gets the name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file completely or not at all, creating its folder if necessary; or write to standard output."""
    if is_standard_output(path):
        with name_file_in_errors(STANDARD_OUTPUT):
            output = _standard_output()
            output.write(data)
            output.flush()
        return
    path = resolve_link(Path(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with name_file_in_errors(path), atomic_replacement(path) as temporary:
        temporary.write_bytes(data)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder if the system can flush those, would survive a power failure."""
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


def require_regular_file(path: str | Path) -> None:
    """Raise ``SpecialFileError`` unless an input is a regular file or the shell has opened it; ``OSError`` if a folder.

    Opening a FIFO waits for a writer, perhaps for ever, and a device such as /dev/zero never ends.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) or _SHELL_INPUT.fullmatch(str(path)):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise SpecialFileError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def open_input(path: str | Path) -> io.BufferedReader:
    """Open an input; ``OSError`` if it cannot be read or is no regular file, see ``require_regular_file``."""
    require_regular_file(path)
    return open(path, "rb")


def read_input(path: str | Path, max_bytes: int = -1) -> bytes:
    """Read an input, or its first ``max_bytes``; errors are those of ``open_input``."""
    with open_input(path) as file:
        return file.read(max_bytes)


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file in hexadecimal; ``OSError`` if it cannot be read."""
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_toml(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read a TOML file; ``ConfigError``, which names the ``kind`` of file and the ``remedy``, if that fails."""
    try:
        data = read_input(path, MAX_TOML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {kind} {path}: {error.strerror or error}; {remedy}") from error
    if len(data) > MAX_TOML_BYTES:
        raise ConfigError(f"{path} has more than {MAX_TOML_BYTES >> 10} KiB, more than any {kind}; {remedy}")
    try:
        return parse_toml(data.decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ``ValueError`` if it is not valid, or nested so deep that it is no file of settings."""
    if any(line.count(".") > MAX_TOML_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {MAX_TOML_DOTS} dots")
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("tables or lists are nested too deep") from error
    level: list[Any] = [document]
    for _ in range(MAX_TOML_DEPTH):
        level = [item for value in level for item in _items(value)]
    if level:
        raise ValueError(f"tables or lists are nested deeper than {MAX_TOML_DEPTH} levels")
    return document


def _items(value: Any) -> Iterable[Any]:
    """What a table or a list contains; nothing for other values."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()

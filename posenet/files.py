"""Files: reading inputs, TOML among them; writing outputs completely or not at all.

Standard output, FIFOs and devices are written directly. Inputs are regular files, or what the shell has opened, because
a FIFO or a device may never end.
"""

import codecs
import contextlib
import errno
import hashlib
import io
import itertools
import json
import logging
import os
import re
import secrets
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from posenet.errors import ConfigError, DataError

STANDARD_OUTPUT = "standard output"
"""Its name in messages."""
BACKSLASH_REMEDY = r"in double quotes, write every \ as \\, or put the text in single quotes"
"""What to do about a path of Windows in a TOML file, where a backslash begins an escape sequence."""

_SHELL_INPUT = re.compile(r"/dev/(stdin|null|fd/\d+)|/proc/self/fd/\d+")
"""What may be read although it is no regular file: standard input, ``<(command)``, and the empty device."""

_log = logging.getLogger(__name__)


def is_standard_output(path: str | Path) -> bool:
    """Whether a path means standard output: ``-``, or a name of the same file or pipe, such as /dev/stdout."""
    if str(path) == "-":
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except (OSError, ValueError):  # there is no such file, or the system cannot express the name
        return False


def resolve_link(path: Path) -> Path:
    """The file that a symbolic link points to, so that replacing it keeps the link; another path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_outputs(
    outputs: Iterable[str | Path],
    inputs: Iterable[str | Path | int] = (),
    *,
    overwrite: bool = False,
    folders: Sequence[Path] = (),
) -> None:
    """Check all files that will be written, before any work is done, and make the folders of ``outputs``.

    A file that exists is refused, unless ``overwrite`` is set. An input is never replaced, under no name: not through
    a symbolic link and not as a hard link. Standard output, FIFOs and devices are written in place, so they may exist.

    Args:
        inputs: everything that is read: paths, and descriptors of open files. The iterable may be slow: it is only used
            if there is a file that would be replaced.
        folders: folders in which files of any name will be written. Their files count as outputs that exist.

    Raises:
        DataError: an output is refused, appears twice, is a folder, or cannot be written.
    """
    chosen = [Path(path) for path in outputs]
    files = [path for path in chosen if not is_standard_output(path)]
    existing: dict[tuple[int, int], Path] = {}  # by device and inode, which all names of a file share
    names: set[str] = set()
    try:
        for path in chosen:
            name = os.path.realpath(path)
            if name in names:
                raise DataError(f"{name} would be written twice; choose another name or folder for one of the outputs")
            names.add(name)
        for path in [*files, *(file for folder in folders if folder.exists() for file in folder.iterdir())]:
            if path.is_file():
                existing[path.stat().st_dev, path.stat().st_ino] = path
            elif path.is_dir() and path in files:
                raise DataError(f"{path} is a folder; give the name of a file")
        for source in inputs if existing else ():
            with contextlib.suppress(OSError, ValueError):  # what reads it will report that
                status = os.stat(source)
                if output := existing.get((status.st_dev, status.st_ino)):
                    raise DataError(f"writing {output} would replace an input, {source}; choose another name or folder")
        for path in () if overwrite else existing.values():
            raise DataError(f"{path} exists; choose another name or folder, or replace it with --overwrite")
        for path in chosen:
            path.parent.mkdir(parents=True, exist_ok=True)
        for path in files:
            is_replaced = path.is_file() or not path.exists()  # others are written in place
            if is_replaced and not os.access(resolve_link(path).parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    except (OSError, ValueError) as error:  # a ValueError is a name that the system cannot express
        name = getattr(error, "filename", None) or str(path)
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot write {name}: {reason}; choose another name or folder") from error


def _hidden_name(path: Path) -> str:
    """How the names of the temporary files and of the lock of a file begin."""
    name = path.name
    while len(os.fsencode(name)) > 191:  # common file systems allow 255 bytes; a number and suffixes follow
        name = name[:-1]
    return f".{name}"


@contextlib.contextmanager
def atomic_replacement(path: Path, temporary_suffix: str = "") -> Iterator[Path]:
    """Yield a new, empty file beside ``path``, and rename it to ``path`` when the block ends without an error.

    Other processes find either the old or the new content, complete, also after a kill or a power failure. FIFOs and
    devices are not replaced: for them ``path`` itself is yielded, to be written directly. Libraries choose the format
    of a file by the ``temporary_suffix``.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    # Should two processes ever draw the same number, the second fails before it touches what the first one writes.
    temporary = path.with_name(f"{_hidden_name(path)}.{secrets.randbelow(2**32)}.tmp{temporary_suffix}")
    with name_file_in_errors(path, temporary):
        open(temporary, "xb").close()
        try:
            yield temporary
            _flush_to_disk(temporary)
            os.replace(temporary, path)
            with contextlib.suppress(OSError):  # not every system flushes folders
                _flush_to_disk(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def acquire_lock(path: Path, seconds: float = 0) -> FileLock:
    """Lock a file, or only warn where the file system has no locks; ``Timeout`` if another process holds the lock."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        _log.warning("%s has no locks (%s); let no other process write there", path.parent, error.strerror)
    return lock


@contextlib.contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Within this context no other process writes ``path``; ``DataError`` if one does."""
    lock_file = path.with_name(f"{_hidden_name(path)}.lock")
    try:
        lock = acquire_lock(lock_file)
    except Timeout as error:
        raise DataError(
            f"{path} is being written by another process; wait until it has ended, or choose another file (if no "
            f"such process runs, delete {lock_file})"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # Windows removes it on release, and not before
            lock_file.unlink(missing_ok=True)
        lock.release()


def remove_leftovers(*paths: Path) -> None:
    """Remove the temporary files of ``paths`` that killed processes have left. No other process may write these."""
    begins = {path.with_name(_hidden_name(path)) for path in paths}
    for folder in {path.parent for path in paths}:
        for other in folder.iterdir():
            # Those of FILE.2 begin as those of FILE, but another process may be writing it.
            name = re.fullmatch(r"(.+)\.[\d-]+\.tmp(\.\w+)?", other.name, re.DOTALL)
            if name and folder / name[1] in begins:
                other.unlink(missing_ok=True)


def name_numbers() -> Iterator[str]:
    """What is appended to a name that may be taken, until it is free: nothing, -2, -3 and so on."""
    return itertools.chain([""], (f"-{number}" for number in itertools.count(2)))


@contextlib.contextmanager
def name_file_in_errors(path: str | Path, *temporary: Path) -> Iterator[None]:
    """Within this context, an ``OSError`` without a file name, such as that of a full disk, gets the name ``path``.

    So does one with the name of a ``temporary`` file, which the user does not know.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or error.filename in map(str, temporary):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def open_output(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that replaces an earlier one when the block ends without an error; or standard output."""
    if is_standard_output(path):
        if sys.stdout is None:
            raise DataError("standard output is closed; write to a file")
        with name_file_in_errors(STANDARD_OUTPUT):
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    path = resolve_link(Path(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replacement(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextlib.contextmanager
def open_text_output(path: str | Path) -> Iterator[codecs.StreamWriter]:
    """``open_output`` for text in UTF-8."""
    with open_output(path) as file:
        yield codecs.getwriter("utf-8")(file, "surrogateescape")


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file completely or not at all, creating its folder if necessary; or write to standard output."""
    with open_output(path) as file:
        file.write(data)


def _flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_regular_file(path: str | Path) -> None:
    """Raise ``OSError`` unless an input is a regular file or the shell has opened it: others may never end."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) and not _SHELL_INPUT.fullmatch(str(path)):
        raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a regular file", str(path))


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
        return parse_toml(read_input(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {kind} {path}: {error.strerror or error}; {remedy}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ``ValueError`` if it is not valid, or nested so deep that it is no file of settings."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = f"; {BACKSLASH_REMEDY}" if re.search(r'"[^"\n]*\\', text) else ""
        raise ValueError(f"{error}{remedy}") from error


def value_to_toml(value: Any) -> str:
    """A value of a TOML file; tables are written in braces, and lists of lists or tables one item a line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{value_to_toml(key)} = {value_to_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple, Mapping)) for item in value):
        return "[\n" + "".join(f"    {value_to_toml(item)},\n" for item in value) + "]"
    # All else is written as in JSON, except for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""The journal of a prediction: what has been found so far, so that a run can continue after a kill.

Of several processes, each writes the people it finds to a journal; rank 0 reads the journals and writes the files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from posenet.errors import DataError
from posenet.files import OWN_LOCK, name_file_in_errors, remove_leftovers, write_atomically
from posenet.inference.media.sources import Frame, Source
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import Skeleton

SUFFIX = ".progress"
LOCK_SUFFIX = ".lock"
OWN_JOURNAL = re.compile(rb'\{"run": \{')
"""How every journal and every note of completion begins."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
END = "end"
"""Key of the last line."""
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged line raises."""

_log = logging.getLogger(__name__)


def journal_paths(file: Path, world_size: int) -> list[Path]:
    """The journal of each process for a file of people."""
    path = file.with_name(file.name + SUFFIX)
    return [path] if world_size == 1 else [Path(f"{path}-{rank}-of-{world_size}") for rank in range(world_size)]


def completion_note_path(file: Path) -> Path:
    """The note that a file of people is complete. It replaces the journal of a single process."""
    return journal_paths(file, 1)[0]


def side_files(file: Path, world_size: int) -> dict[Path, re.Pattern[bytes]]:
    """All files that may be written beside a file of people, and how those of this program begin."""
    journals = journal_paths(file, world_size)
    locks = dict.fromkeys(map(_lock_path, journals), OWN_LOCK)
    return dict.fromkeys([*journals, completion_note_path(file)], OWN_JOURNAL) | locks


def find_journals(file: Path) -> list[Path]:
    """The journals of any number of processes that exist for a file of people."""
    pattern = re.compile(rf"{re.escape(file.name + SUFFIX)}(-\d+-of-\d+)?")
    found = file.parent.iterdir() if file.parent.is_dir() else ()
    return sorted(path for path in found if pattern.fullmatch(path.name))


def unrecorded_outputs(file: Path, outputs: Sequence[str]) -> list[str]:
    """Those of ``outputs`` that no journal of a file of people names as its own; see ``Journal.open``."""
    recorded: set[str] = set()
    for path in find_journals(file):
        with open(path, "rb") as journal, contextlib.suppress(*_DAMAGE):
            # Journals of version 0.5, and notes of completion, after which nothing is written, do not name them.
            recorded.update(json.loads(journal.readline()).get("outputs", _relative(outputs, path)))
    return [output for output, name in zip(outputs, _relative(outputs, file)) if name not in recorded]


def _relative(outputs: Sequence[str], file: Path) -> list[str]:
    """Paths as seen from the folder of a file."""
    return [os.path.relpath(output, file.parent) for output in outputs]


def require_journal(file: Path) -> None:
    """Raise ``DataError`` if a file of people exists without a journal from which it can be continued."""
    if file.exists() and not find_journals(file):
        raise DataError(
            f"{file} cannot be continued, because {file.name + SUFFIX} is missing: the file is complete, or was not "
            "written by this tool; choose another name, or start again with overwrite=True"
        )


def check_resumable(file: Path, world_size: int) -> None:
    """Raise ``DataError`` if a file of people was begun by another number of processes."""
    journals = find_journals(file)
    if journals and not set(journals) & set(journal_paths(file, world_size)):
        raise DataError(
            f"{file} was begun by another number of processes ({journals[0].name}); continue it with as "
            "many, or start again without resume=True"
        )


def _lock_path(journal: Path) -> Path:
    return journal.with_name(journal.name + LOCK_SUFFIX)


@contextlib.contextmanager
def _lock(journal: Path) -> Iterator[None]:
    """Within this context no other process writes the journal; ``DataError`` if one does."""
    lock = FileLock(_lock_path(journal))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DataError(
            f"{journal.with_suffix('')} is being written by another process; wait until it has ended, or choose "
            "another file"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning(
            "%s has no locks (%s); let no other process write %s", journal.parent, error.strerror, journal.stem
        )
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is locked
        lock.release()


class Journal:
    """A file with a line that describes the run, a line for each frame in order, and a last line.

    After a kill, the last line may be torn, and the last block (see ``split_into_blocks``) incomplete. A torn line and
    an incomplete block of images are cut off when the run continues. A video continues after its last whole batch.

    Attributes:
        next_block: the number of the block with which the run continues; valid after ``replay``.
        begun: the results of that block that are recorded, if it is a video; valid after ``replay``.
    """

    def __init__(self, path: Path, sources: Sequence[Source], skeleton: Skeleton, batch_size: int) -> None:
        self.path = path
        self.next_block = 0
        self.begun: list[Result] = []
        self._sources = sources
        self._index_of = {source: index for index, source in enumerate(sources)}
        self._skeleton = skeleton
        self._batch_size = batch_size

    @contextlib.contextmanager
    def open(self, run: Mapping[str, Any], outputs: Sequence[str], *, resume: bool) -> Iterator[None]:
        """Start the journal, or ``resume`` an earlier one, if there is one. Others cannot write it in this context.

        Args:
            run: everything that the people depend on.
            outputs: the files of people, which a later run with ``resume`` may replace.

        Raises:
            DataError: another process writes it, or it is of a run with other inputs or flags.
        """
        with _lock(self.path):
            remove_leftovers(self.path)
            if resume and self.path.exists():
                _read_header(self.path, run)
            else:
                write_atomically(self.path, _line({"run": dict(run), "outputs": _relative(outputs, self.path)}))
            with open(self.path, "ab", buffering=0) as self._file:
                yield

    def replay(self) -> Iterator[Result]:
        """Yield the results of the blocks that are complete; cut off what is neither in them nor in ``begun``."""
        pending: list[tuple[Result, int]] = []  # and the position after each line
        with open(self.path, "rb") as file:
            cut = position = len(file.readline())
            for line in file:
                try:
                    entry = json.loads(line)
                    result = None if entry == {END: True} else self._decode(entry)
                except _DAMAGE:  # a torn line
                    break
                block = len(self._sources) if result is None else result.frame.source.block
                if block > self.next_block:
                    yield from (result for result, _ in pending)
                    pending = []
                    self.next_block = block
                    cut = position
                position += len(line)
                if result is not None:
                    pending.append((result, position))
        readable = 0
        for number, (result, end) in enumerate(pending, 1):
            readable += result.error is None
            is_video = result.frame.source.kind != "image"
            if is_video and result.error is None and readable % self._batch_size == 0:
                self.begun = [result for result, _ in pending[:number]]
                cut = end
        os.truncate(self.path, cut)

    def write(self, result: Result) -> None:
        """Append a result."""
        frame = result.frame
        entry: dict[str, Any] = {"source": self._index_of[frame.source]}
        if frame.error:
            entry["error"] = str(frame.error)
        else:
            found = [[person.keypoints.tolist(), person.score] for person in result]
            entry |= {"number": frame.number, "seconds": frame.seconds, "size": frame.size, "people": found}
            entry["best_score"] = result.best_score
        self._append(entry)

    def finish(self) -> None:
        """Record that all blocks are complete."""
        self._append({END: True})

    def _append(self, entry: object) -> None:
        with name_file_in_errors(self.path):
            self._file.write(_line(entry))

    def _decode(self, entry: dict[str, Any]) -> Result:
        """The content of a line; one of ``_DAMAGE`` if this program cannot have written it."""
        source = self._sources[_whole(entry["source"])]
        if "error" in entry:
            return Result(Frame(source, error=DataError(str(entry["error"])), is_recorded=True), [], self._skeleton)
        height, width = map(_whole, entry["size"])
        without_pixels = np.broadcast_to(np.uint8(0), (height, width, 3))
        number = None if entry["number"] is None else _whole(entry["number"])
        people = [self._decode_person(*person) for person in entry["people"]]
        frame = Frame(source, without_pixels, number, _finite(entry["seconds"]), is_recorded=True)
        return Result(frame, people, self._skeleton, best_score=_finite(entry["best_score"]))

    def _decode_person(self, keypoints: Any, score: Any) -> Person:
        array = np.array(keypoints, np.float32)
        if array.shape != (self._skeleton.num_keypoints, 3) or not np.isfinite(array).all():
            raise ValueError("a person has other keypoints")
        return Person(array, _finite(score), self._skeleton)


def write_completion_note(path: Path, run: Mapping[str, Any], unreadable: Mapping[int, str]) -> None:
    """Write the note that a run is complete, with the reason for each source that could not be read."""
    write_atomically(path, _line({"run": dict(run), "unreadable": list(unreadable.items())}))


def read_completion_note(path: Path, run: Mapping[str, Any], sources: Sequence[Source]) -> dict[Source, str] | None:
    """The reason for each of the ``sources`` that a complete run could not read; None if the run is not complete.

    Raises:
        DataError: the note is damaged, or of a run with other inputs or flags.
    """
    errors = _read_header(path, run).get("unreadable") if path.exists() else None
    if errors is None:
        return None
    try:
        return {sources[_whole(index)]: str(text) for index, text in errors}
    except _DAMAGE:
        raise _damaged(path) from None


def _read_header(path: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """The first line of a journal; ``DataError`` if it is of another run."""
    with open(path, "rb") as file:
        try:
            header = dict(json.loads(file.readline()))
            earlier = dict(header["run"])
        except _DAMAGE:
            raise _damaged(path) from None
    changed = [name for name in run if earlier.get(name) != run[name]]
    if changed:
        raise DataError(
            f"{path.with_suffix('')} was written with other {', '.join(changed)}; continue it with the same ones, or "
            "start again without resume=True"
        )
    return header


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged; delete it to start again")


def _whole(value: Any) -> int:
    """A number that counts something; ``ValueError`` or ``TypeError`` for anything else."""
    number = operator.index(value)
    if number < 0:
        raise ValueError("a count is negative")
    return number


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"

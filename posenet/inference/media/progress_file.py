"""Which part of a prediction a ``.jsonl`` file holds, so that an interrupted run can be continued."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from posenet.errors import DataError
from posenet.files import name_file_in_errors, write_atomically
from posenet.locks import LockedError, lock_file

SUFFIX = ".progress"
LOCK_SUFFIX = ".lock"


class UnreadableSource(NamedTuple):
    """A source that could not be read completely."""

    source_index: int
    """Index among all sources."""
    error: str


class Progress(NamedTuple):
    """The complete units of a file of people."""

    units: int
    """Number of units that the file holds completely, without gaps."""
    size: int
    """Size of the file after them, in bytes."""
    unreadable: tuple[UnreadableSource, ...] = ()
    """The sources of these units that could not be read."""
    is_continued: bool = False
    """Whether an earlier run has started the file."""


@contextlib.contextmanager
def open_progress_file(people: Path, run: Mapping[str, Any], *, resume: bool) -> Iterator[ProgressFile]:
    """Lock a file of people, and start or resume its progress file.

    Args:
        run: everything that the results depend on.

    Raises:
        DataError: another process writes the file, or it cannot be resumed.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file(people.with_name(people.name + LOCK_SUFFIX), people, delete=True))
        except LockedError as error:
            raise DataError(
                f"{people} is being written by {error}; wait until it has ended, or choose another file"
            ) from error
        progress_file = ProgressFile.resume(people, run) if resume else ProgressFile.start(people, run)
        yield stack.enter_context(contextlib.closing(progress_file))


class ProgressFile:
    """The file beside a file of people: a line that describes the run, then a line after each complete unit.

    The line of a unit is ``[units, size]``, or ``[units, size, [[index, error], ...]]`` with its unreadable sources.

    A unit is recorded after its people are in the file of people. After a kill, that file may hold more than the last
    record says, up to a part of a line; ``resume`` cuts this off. A torn last line of the progress file is ignored.
    """

    def __init__(self, people: Path, progress: Progress) -> None:
        self._people = people
        self.progress = progress
        self._file = open(_path(people), "ab", buffering=0)  # noqa: SIM115

    @classmethod
    def start(cls, people: Path, run: Mapping[str, Any]) -> Self:
        """Start a new file; ``run`` describes everything that the results depend on."""
        write_atomically(_path(people), _line({"run": dict(run)}))
        return cls(people, Progress(0, 0))

    @classmethod
    def resume(cls, people: Path, run: Mapping[str, Any]) -> Self:
        """Continue an earlier file, or start a new one if there is none.

        Raises:
            DataError: the file of people does not belong to an earlier run with the same inputs and flags.
        """
        if not _path(people).exists():
            if people.exists():
                raise DataError(
                    f"{people} cannot be continued, because {_path(people).name} is missing: the file is complete, or "
                    "was not written by this tool; delete it to start again"
                )
            return cls.start(people, run)
        header, records = _read(_path(people))
        changed = [name for name in run if header.get(name) != run[name]]
        if changed:
            raise DataError(
                f"{people} was written with other {', '.join(changed)}; continue it with the same ones, or start again "
                "without --resume"
            )
        size = people.stat().st_size if people.exists() else 0
        # After a power failure, the file of people may lack the last units.
        progress = max((record for record in records if record.size <= size), default=Progress(0, 0))
        if size > progress.size:
            os.truncate(people, progress.size)
        write_atomically(_path(people), _line({"run": dict(run)}) + _record_line(*progress[:3]))
        return cls(people, progress._replace(is_continued=True))

    def record(self, units: int, size: int | None, unreadable: Sequence[UnreadableSource] = ()) -> None:
        """Record that the file of people holds this many units.

        Args:
            size: its size in bytes; None if it has not changed.
            unreadable: the sources of the last unit that could not be read.
        """
        size = self.progress.size if size is None else size
        self.progress = self.progress._replace(units=units, size=size)
        with name_file_in_errors(_path(self._people)):
            self._file.write(_record_line(units, size, unreadable))

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Delete the progress file of a run that is complete."""
        self.close()
        _path(self._people).unlink(missing_ok=True)


def _path(people: Path) -> Path:
    return people.with_name(people.name + SUFFIX)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _record_line(units: int, size: int, unreadable: Sequence[UnreadableSource]) -> bytes:
    return _line([units, size, unreadable] if unreadable else [units, size])


def _read(path: Path) -> tuple[dict[str, Any], list[Progress]]:
    """The description of the run, and the records of intact lines."""
    header: dict[str, Any] = {}
    records = []
    unreadable: list[UnreadableSource] = []
    first, *lines = path.read_bytes().split(b"\n")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        header = dict(json.loads(first)["run"])
    for line in lines[:-1]:  # a complete line ends with a line feed, so the last part is empty or torn
        with contextlib.suppress(ValueError, TypeError):
            units, size, *new = json.loads(line)
            unreadable += [UnreadableSource(int(index), str(error)) for index, error in (new[0] if new else ())]
            records.append(Progress(int(units), int(size), tuple(unreadable)))
    return header, records

"""Which part of a prediction a ``.jsonl`` file holds, so that an interrupted run can be continued."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from posenet.errors import DataError
from posenet.files import write_atomically

SUFFIX = ".progress"


class Progress(NamedTuple):
    """The complete units of a file of people."""

    units: int
    """Number of units that the file holds completely, without gaps."""
    size: int
    """Size of the file after them, in bytes."""


class ProgressFile:
    """The file beside a file of people: a line that describes the run, then a line after each complete unit.

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
        write_atomically(_path(people), _line({"run": dict(run)}) + _line(progress))
        return cls(people, progress)

    def record(self, units: int, size: int | None) -> None:
        """Record that the file of people holds this many units in ``size`` bytes; None if it has not changed."""
        self.progress = Progress(units, self.progress.size if size is None else size)
        self._file.write(_line(self.progress))

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


def _read(path: Path) -> tuple[dict[str, Any], list[Progress]]:
    """The description of the run, and the records of intact lines."""
    header: dict[str, Any] = {}
    records = []
    first, *lines = path.read_bytes().split(b"\n")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        header = dict(json.loads(first)["run"])
    for line in lines[:-1]:  # a complete line ends with a line feed, so the last part is empty or torn
        with contextlib.suppress(ValueError, TypeError):
            units, size = json.loads(line)
            records.append(Progress(int(units), int(size)))
    return header, records

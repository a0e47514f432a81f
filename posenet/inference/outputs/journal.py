"""The journal of a prediction: what has been found so far, so that a run can continue after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.errors import DataError
from posenet.files import (
    OWN_LOCK,
    begins_like,
    lock_path,
    name_file_in_errors,
    output_lock,
    remove_leftovers,
    write_atomically,
)
from posenet.inference.media.sources import Frame, Source
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import Skeleton

SUFFIX = ".progress"
OWN_JOURNAL = re.compile(rb'\{"run": \{')
"""How every journal begins."""
END = "end"
"""Key of the last line."""


def journal_path(file: Path) -> Path:
    """The journal beside a file of people."""
    return file.with_name(file.name + SUFFIX)


def side_files(file: Path) -> dict[Path, re.Pattern[bytes]]:
    """All files that may be written beside a file of people, and how those of this program begin."""
    journal = journal_path(file)
    return {journal: OWN_JOURNAL, lock_path(journal): OWN_LOCK}


def can_continue(file: Path) -> bool:
    """Whether an earlier run has left a journal; ``DataError`` if there is a file of people without one."""
    journal = journal_path(file)
    if file.exists() and not journal.exists():
        raise DataError(
            f"{file} cannot be continued, because {journal.name} is missing: the file is complete, or was not "
            "written by this tool; choose another name, or start again with overwrite=True"
        )
    return journal.exists()


def remove_earlier_journal(file: Path) -> None:
    """Remove the journal of a file of people that is replaced; ``DataError`` if another process writes it."""
    journal = journal_path(file)
    if begins_like(journal, OWN_JOURNAL):
        with output_lock(journal, file):
            journal.unlink()


class Journal:
    """A file with a line that describes the run, a line for each frame in order, and a last line.

    After a kill, the last line may be torn, and the last block (see ``split_among_processes``) incomplete. A torn line
    and an incomplete block of images are cut off when the run continues. A video continues after its last whole batch.

    ``run`` is everything that the people and the files of them depend on. Messages name the keys whose values differ.

    Attributes:
        next_block: the number of the block with which the run continues; valid after ``replay``.
        begun: the results of that block that are recorded, if it is a video; valid after ``replay``.
    """

    def __init__(
        self, path: Path, run: Mapping[str, Any], sources: Sequence[Source], skeleton: Skeleton, batch_size: int
    ) -> None:
        self.path = path
        self.next_block = 0
        self.begun: list[Result] = []
        self._run = run
        self._sources = sources
        self._index_of = {source: index for index, source in enumerate(sources)}
        self._skeleton = skeleton
        self._batch_size = batch_size

    @contextlib.contextmanager
    def open(self, outputs: Iterable[Path], *, resume: bool) -> Iterator[None]:
        """Start the journal, or ``resume`` an earlier one, if there is one. Others cannot write it in this context.

        Args:
            outputs: files that nobody else is writing; what killed runs have left beside them is removed.

        Raises:
            DataError: another process writes it, or it is of a run with other inputs or flags.
        """
        with output_lock(self.path, self.path.with_suffix("")) as is_locked:
            if is_locked:
                for path in (self.path, *outputs):
                    remove_leftovers(path)
            if resume and self.path.exists():
                _require_same_run(self.path, self._run)
            else:
                write_atomically(self.path, json.dumps({"run": self._run}).encode() + b"\n")
            with open(self.path, "ab", buffering=0) as self._file:
                yield

    def replay(self) -> Iterator[Result]:
        """Yield the results of the blocks that are complete; cut off what is neither in them nor in ``begun``."""
        pending: list[tuple[Result, int]] = []  # those of the block that is read, and the position after each line
        with open(self.path, "rb") as file:
            cut = position = len(file.readline())
            for line in file:
                checksum, _, text = line.partition(b" ")
                if checksum != _checksum(text):  # a torn line
                    break
                entry = json.loads(text)
                result = None if entry == END else self._to_result(entry)
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
        self._append(END)

    def _append(self, entry: object) -> None:
        text = json.dumps(entry).encode() + b"\n"
        with name_file_in_errors(self.path):
            self._file.write(_checksum(text) + b" " + text)

    def _to_result(self, entry: dict[str, Any]) -> Result:
        source = self._sources[entry["source"]]
        if "error" in entry:
            return Result(Frame(source, error=DataError(entry["error"]), is_recorded=True), [], self._skeleton)
        height, width = entry["size"]
        frame = Frame(
            source,
            number=entry["number"],
            seconds=entry["seconds"],
            is_recorded=True,
            whole_size=(height, width),
        )
        people = [
            Person(np.array(keypoints, np.float32), score, self._skeleton) for keypoints, score in entry["people"]
        ]
        return Result(frame, people, self._skeleton, best_score=entry["best_score"])


def _checksum(text: bytes) -> bytes:
    """What a line begins with: a line that was torn or damaged has another one."""
    return b"%08x" % zlib.crc32(text)


def _require_same_run(path: Path, run: Mapping[str, Any]) -> None:
    """Raise ``DataError`` if a journal is of another run, or damaged."""
    try:
        with open(path, "rb") as file:
            earlier = dict(json.loads(file.readline())["run"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged; delete it to start again") from None
    if changed := [name for name in run if earlier.get(name) != run[name]]:
        raise DataError(
            f"{path.with_suffix('')} was written with other {', '.join(changed)}; continue it with the same ones, or "
            "start again without resume=True"
        )

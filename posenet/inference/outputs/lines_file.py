"""The ``.jsonl`` file of a prediction: a line for each image, also for one without people. It shows what is done."""

from __future__ import annotations

import contextlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posenet.errors import DataError
from posenet.files import atomic_replacement, name_file_in_errors
from posenet.inference.media.sources import Source
from posenet.inference.outputs.people_files import Record


class LinesFile:
    """Appends a line for each image and frame, and one after the last frame of a video, with their number.

    Each line is written at once, so that a kill can only cut the last one.

    Args:
        resume: keep the lines that an earlier run has written, and continue after them.

    Attributes:
        done: the names of the inputs that are complete, with the error of a video that could only be read in part.

    Raises:
        DataError: with ``resume``, a line is not one of a prediction.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.done: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._file: io.FileIO | None = None
        self._resume = resume and path.is_file()
        if self._resume:
            for _, record in self._lines():
                if "frame" not in record:
                    self.done[record["file_name"]] = record.get("error", "")

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Within this context lines can be written. The first one makes the file, and so does the end without an error.

        The lines of a video that is not complete are removed: it is predicted again from its beginning.
        """
        if self._resume:
            self._remove_incomplete()
        with self._stack:
            yield
            self._opened()

    def write(self, record: Record) -> None:
        """Append the record of an image or of a frame, or that all frames of a video are there."""
        with name_file_in_errors(self.path):
            self._opened().write(json.dumps(record).encode() + b"\n")

    def records(self, sources: Iterable[Source]) -> Iterator[tuple[Source, Record]]:
        """The images and frames in the file, in the order of their sources."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        place = 0
        for line, record in self._lines():
            if "people" in record:
                places[record["file_name"]].append(place)
            place += len(line)
        with open(self.path, "rb") as file:
            for source in sources:
                for place in places[source.name]:
                    file.seek(place)
                    yield source, json.loads(file.readline())

    def _opened(self) -> io.FileIO:
        if self._file is None:
            if not self._resume and self.path.is_file():
                self.path.unlink()  # a hard link to it keeps its content
            self._file = self._stack.enter_context(io.FileIO(self.path, "a"))
        return self._file

    def _lines(self) -> Iterator[tuple[bytes, Record]]:
        """The lines and what they say; without a last one that was cut."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield line, self._parse(number, line)

    def _parse(self, number: int, line: bytes) -> Record:
        with contextlib.suppress(ValueError, RecursionError):
            record: Any = json.loads(line)
            has_content = isinstance(record, dict) and ("people" in record or "frames" in record)
            if has_content and isinstance(record.get("file_name"), str):
                return dict(record)
        raise DataError(
            f"line {number} of {self.path} is not one of a prediction that can be continued; choose another name, or "
            "start again without resume=True"
        )

    def _remove_incomplete(self) -> None:
        """Keep only the lines of inputs that are complete."""
        kept_bytes = sum(len(line) for line, record in self._lines() if record["file_name"] in self.done)
        if kept_bytes == self.path.stat().st_size:
            return
        with name_file_in_errors(self.path), atomic_replacement(self.path) as temporary, open(temporary, "wb") as kept:
            kept.writelines(line for line, record in self._lines() if record["file_name"] in self.done)

"""The record of what a file of people holds, after kills at any byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.errors import DataError
from posenet.inference.media.progress_file import Progress, ProgressFile, UnreadableSource

RUN = {"inputs": "a", "weights": "b"}
PEOPLE = [b"one\n", b"", b"two\nthree\n", b"four\n"]
"""The lines of each unit."""


def write(path: Path) -> None:
    progress = ProgressFile.start(path, RUN)
    with open(path, "wb", buffering=0) as file:
        for units, lines in enumerate(PEOPLE, 1):
            file.write(lines)
            progress.record(units, file.tell())
    progress.close()


def test_whatever_was_written_last_a_run_continues_after_a_complete_unit(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    record = tmp_path / "p.jsonl.progress"
    write(path)
    people = path.read_bytes()
    lines = record.read_bytes()
    seen = set()
    for num_bytes in range(len(lines) + 1):
        for num_people_bytes in (0, 3, 4, 5, 9, 14, 15, len(people)):
            path.write_bytes(people[:num_people_bytes])
            record.write_bytes(lines[:num_bytes])
            try:
                progress = ProgressFile.resume(path, RUN)
            except DataError:
                assert b"\n" not in lines[:num_bytes], "only the description of the run is written at once"
                continue
            progress.close()
            units = progress.progress.units
            assert path.read_bytes() == b"".join(PEOPLE[:units])[:num_people_bytes] == b"".join(PEOPLE[:units])
            seen.add(units)
    assert seen == {0, 1, 2, 3, 4}


def test_a_continued_run_can_be_continued_again(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write(path)
    for _ in range(2):
        progress = ProgressFile.resume(path, RUN)
        assert progress.progress == Progress(4, 19, is_continued=True)
        progress.close()
    progress.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["p.jsonl"]


def test_other_inputs_are_named(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl")
    with pytest.raises(DataError, match="was written with other weights;"):
        ProgressFile.resume(tmp_path / "p.jsonl", RUN | {"weights": "c"})


def test_unreadable_sources_of_complete_units_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"one\ntwo\n")
    first, second, third = (UnreadableSource(index, f"{index}.jpg is damaged") for index in (3, 5, 8))
    progress = ProgressFile.start(path, RUN)
    progress.record(1, 4, [first, second])
    progress.record(2, 8)
    progress.record(3, 12, [third])  # these people are not in the file
    progress.close()
    for _ in range(2):
        progress = ProgressFile.resume(path, RUN)
        progress.close()
        assert progress.progress == Progress(2, 8, (first, second), is_continued=True)

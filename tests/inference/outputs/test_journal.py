"""The journal of a prediction whose lines were damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.inference.media.sources import Frame, Source, split_into_blocks
from posenet.inference.outputs.journal import Journal
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import COCO

RUN = {"inputs": "abc"}
PERSON = Person(np.ones((COCO.num_keypoints, 3), np.float32), 0.5, COCO)


def new_journal(path: Path) -> Journal:
    sources = [Source("image", Path(f"{number}.png")) for number in range(3)]
    return Journal(path, [source for [source] in split_into_blocks(sources, 1)], COCO, 1)


@pytest.mark.parametrize(
    "changes",
    [{"source": value} for value in (-1, 3, 0.5, "0", None)]
    + [{"size": value} for value in (None, [4], [-1, 2], ["4", 6], [4, 10**30])]
    + [{"seconds": value} for value in (None, "x", float("nan"), 10**400)]
    + [{"number": value} for value in (-1, 0.5, "0")]
    + [{"people": value} for value in (None, [1], [[]])]
    + [{"people": [value]} for value in ([[[1, 2, 3]], 0.5], [[], 0.5])]
    + [{"people": [[PERSON.keypoints.tolist(), *value]]} for value in (["x"], [float("inf")], [0.5, "1"])]
    + ['"end"', "5", "null", "[]", "[" * 10_000],
)
def test_a_line_that_the_program_cannot_have_written_ends_the_journal(tmp_path: Path, changes: Any) -> None:
    path = tmp_path / "p.progress"
    journal = new_journal(path)
    with journal.open(RUN, [], resume=False):
        for number in range(3):
            source = Source("image", Path(f"{number}.png"), block=number)
            journal.write(Result(Frame(source, np.zeros((4, 6, 3), np.uint8)), [PERSON]))
    header, first, second, third = path.read_text().splitlines()
    damaged = json.dumps(json.loads(second) | changes) if isinstance(changes, dict) else changes
    path.write_text(f"{header}\n{first}\n{damaged}\n{third}\n")
    journal = new_journal(path)
    with journal.open(RUN, [], resume=True):
        # A block counts as complete when another one follows.
        assert list(journal.replay()) == [] and journal.next_block == 0
    assert path.read_text() == header + "\n"


def test_temporary_files_that_a_killed_run_has_left_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.progress.7.tmp").touch()
    with new_journal(tmp_path / "a.progress").open({}, [], resume=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.progress"]

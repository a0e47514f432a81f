"""The journal of a prediction: what is read from it, also where its lines were damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media.sources import Frame, Source
from posenet.inference.outputs.journal import Journal
from posenet.inference.result import Result
from posenet.inference.split_among_processes import split_into_blocks
from posenet.person import Person
from posenet.skeleton import COCO

RUN = {"inputs": "abc"}
PERSON = Person(np.ones((COCO.num_keypoints, 3), np.float32), 0.5, COCO)


def new_journal(path: Path) -> Journal:
    sources = [Source("image", Path(f"{number}.png")) for number in range(3)]
    return Journal(path, RUN, [source for [source] in split_into_blocks(sources, 1)], COCO, 1)


def damage(text: bytes, kind: str) -> bytes:
    """A line of a journal, damaged."""
    return {
        "torn": text[: len(text) // 2] + b"\n",
        "another number": text.replace(b"0.5", b"0.7"),
        "no JSON": b"\x00\xff\n",
    }[kind]


@pytest.mark.parametrize("kind", ["torn", "another number", "no JSON"])
def test_a_line_that_was_damaged_ends_the_journal(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.progress"
    journal = new_journal(path)
    with journal.open([], resume=False):
        for number in range(3):
            source = Source("image", Path(f"{number}.png"), block=number)
            journal.write(Result(Frame(source, np.zeros((4, 6, 3), np.uint8)), [PERSON]))
    header, first, second, third = path.read_bytes().splitlines(keepends=True)
    assert damage(second, kind) != second
    path.write_bytes(header + first + damage(second, kind) + third)
    journal = new_journal(path)
    with journal.open([], resume=True):
        # A block counts as complete when another one follows.
        assert list(journal.replay()) == [] and journal.next_block == 0
    assert path.read_bytes() == header


def test_what_killed_runs_have_left_beside_the_outputs_is_removed(tmp_path: Path) -> None:
    names = [".p.json.7.tmp", ".q.csv.7-2.tmp", ".p.json.progress.7.tmp"]
    for name in [*names, ".other.json.7.tmp"]:
        (tmp_path / name).touch()
    journal = new_journal(tmp_path / "p.json.progress")
    with journal.open([tmp_path / "p.json", tmp_path / "q.csv"], resume=True):
        assert not any((tmp_path / name).exists() for name in names) and (tmp_path / ".other.json.7.tmp").exists()


def test_what_was_found_is_read_from_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "p.progress"
    journal = new_journal(path)
    sources = [Source("image", Path(f"{number}.png"), block=number) for number in range(3)]
    with journal.open([], resume=False):
        journal.write(Result(Frame(sources[0], np.zeros((4, 6, 3), np.uint8)), [PERSON], best_score=0.6))
        journal.write(Result(Frame(sources[1], error=DataError("1.png is cut off"))))
        journal.write(Result(Frame(sources[2], np.zeros((4, 6, 3), np.uint8))))
        journal.finish()
    journal = new_journal(path)
    with journal.open([], resume=True):
        first, second, third = journal.replay()
    recorded = [(result.frame.source, result.frame.is_recorded) for result in (first, second, third)]
    assert recorded == [(source, True) for source in sources] and journal.next_block == 3
    assert first == [PERSON] and first.frame.size == (4, 6) and first.best_score == 0.6
    assert str(second.error) == "1.png is cut off" and third == []


def test_a_video_continues_after_its_last_whole_batch_of_frames_that_could_be_read(tmp_path: Path) -> None:
    """Then the network gets the same batches as in a run that nobody has stopped."""
    path = tmp_path / "p.progress"
    video = Source("video", Path("clip.mp4"))
    journal = Journal(path, RUN, [video], COCO, batch_size=2)
    with journal.open([], resume=False):
        for number in range(4):
            frame = Frame(video, np.zeros((4, 6, 3), np.uint8), number, number / 25)
            journal.write(Result(Frame(video, error=DataError("frame 1 is damaged")) if number == 1 else frame))
    journal = Journal(path, RUN, [video], COCO, batch_size=2)
    with journal.open([], resume=True):
        assert list(journal.replay()) == []
    assert [result.frame.number for result in journal.begun] == [0, None, 2]

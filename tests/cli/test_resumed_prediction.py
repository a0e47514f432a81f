"""``predict`` continued after a kill, and parts of a list in processes of their own."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from posenet.inference.outputs.journal import journal_path

from posenet.cli.main import run_tool
from posenet.images import write_image
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.spot_networks import spot_image
from tests.helpers.videos import write_animation

SIZES = ((97, 131), (131, 97), (64, 64), (97, 131), (97, 300))
"""(height, width) of the images, in turn."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, some without people; one that cannot be read, two videos and a GIF."""
    from posenet.inference.media.video import VideoWriter

    folder = tmp_path_factory.mktemp("inputs")
    for number in range(20):
        height, width = SIZES[number % len(SIZES)]
        image = spot_image(height, width, (20 + number, 20), (width - 20, 40), 4)
        write_image(folder / f"{number:03d}.png", image if number % 4 else np.zeros_like(image))
    (folder / "007b.png").write_bytes(b"no image")
    write_animation(folder / "009b.gif", 3)
    for name in ("005c.mp4", "013c.mp4"):
        with contextlib.closing(VideoWriter(folder / name, (98, 132), 10)) as writer:
            for number in range(7):
                writer.write(spot_image(98, 132, (20 + 2 * number, 20), (90, 60), 4), number / 10)
    return folder


Predict = Callable[..., int]


@pytest.fixture
def predict(spot_file: Path) -> Predict:
    def run(*words: str | Path) -> int:
        argv = ["--checkpoint", spot_file, "--backend", "onnxruntime", "--min-score", "0", *words]
        return run_tool("predict", list(map(str, argv)))

    return run


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_prediction_that_is_killed_again_and_again_writes_every_person_once(
    predict: Predict, inputs: Path, tmp_path: Path, suffix: str
) -> None:
    """The process is killed when its journal has grown by some bytes, and may leave a torn line."""
    flag = "--json" if suffix == "jsonl" else "--csv"
    whole, path = tmp_path / f"whole.{suffix}", tmp_path / f"p.{suffix}"
    journal = journal_path(path)
    expected_status = predict(inputs, flag, whole)
    rng = random.Random(1)
    words = [inputs, flag, path, "--resume"]

    def journaled_bytes() -> int:
        return journal.stat().st_size if journal.exists() else 0

    kills = 0
    for _ in range(30):
        limit = journaled_bytes() + rng.randrange(1, 3000)
        pid = fork_process(lambda: sys.exit(predict(*words)), tmp_path / "log.txt")
        is_running = True
        while is_running and journaled_bytes() < limit:
            is_running = not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            time.sleep(0.002)
        was_killed = is_running and kills < 4
        if was_killed:
            os.kill(pid, signal.SIGKILL)
        status = wait_for_exit(pid)
        if not was_killed:
            assert status == expected_status
            assert path.read_bytes() == whole.read_bytes()
            if kills >= 2:
                break
            for file in tmp_path.glob("p.*"):  # it ended too early to be killed: start again
                file.unlink()
            continue
        kills += status == -signal.SIGKILL
        if kills % 2 and journal.exists():
            journal.write_bytes(journal.read_bytes() + b'{"source": 3, "peo')
    assert kills >= 2
    assert path.read_bytes() == whole.read_bytes()
    assert {file.name for file in tmp_path.glob("p.*")} == {path.name, journal.name}


def test_a_complete_file_is_written_again_and_other_inputs_are_refused(
    predict: Predict, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    words = ["--json", path, "--resume"]
    assert predict(inputs, *words) == 2
    before = path.read_bytes()
    capsys.readouterr()
    assert predict(inputs, *words) == 2 and path.read_bytes() == before
    assert "1 of 24 inputs could not be read completely" in capsys.readouterr().err  # as at the end of the first run
    for others, name in (
        ([inputs, "--min-score", "0.9"], "--min-score"),
        ([inputs, "--stride", "2"], "frames of videos"),
        ([inputs, "--start", "1"], "frames of videos"),
        ([inputs, "--duration", "1"], "frames of videos"),
        ([inputs, "--track"], "tracking settings"),
        ([inputs / "001.png"], "inputs"),
        ([inputs, "--backend", "auto"], "--backend"),
        ([inputs, "--flip"], "inference settings"),
    ):
        assert predict(*words, *others) == 2
        assert f"was written with other {name}" in capsys.readouterr().err
    journal = path.with_name("p.jsonl.progress")
    content = journal.read_bytes()
    capsys.readouterr()
    for damaged in (b'{"run": {\n', b'{"run": {}, "run": 5}\n'):
        journal.write_bytes(damaged + content.partition(b"\n")[2])
        assert predict(inputs, *words) == 2
        assert "p.jsonl.progress is damaged; delete it" in capsys.readouterr().err
    journal.unlink()
    assert predict(inputs, *words) == 2
    assert "cannot be continued" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_two_processes_cannot_write_the_same_file(
    predict: Predict, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    with FileLock(tmp_path / ".p.jsonl.progress.lock"):
        assert predict(inputs / "001.png", "--json", path, "--resume") == 2
        assert "p.jsonl is being written by another process" in capfd.readouterr().err
        assert not path.exists()
    assert predict(inputs / "001.png", "--json", path, "--resume") == 0


def test_a_file_system_without_locks_is_a_warning(
    predict: Predict, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    words = [inputs / "001.png", inputs / "002.png", "--batch-size", "1", "--json"]
    assert predict(*words, tmp_path / "p.jsonl") == 0
    assert "has no locks" in capfd.readouterr().err
    (tmp_path / ".q.jsonl.123.tmp").touch()
    assert predict(*words, tmp_path / "q.jsonl", "--resume") == 0
    assert (tmp_path / ".q.jsonl.123.tmp").exists(), "another process may write it"
    assert (tmp_path / "p.jsonl").read_bytes() == (tmp_path / "q.jsonl").read_bytes() != b""


def test_parts_of_a_list_give_the_people_of_the_whole(
    predict: Predict, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{path}\n" for path in sorted(inputs.glob("0*.png")) if path.stem != "007b"]
    assert predict(*map(str.strip, names), "--json", tmp_path / "whole.jsonl") == 0
    for number, part in enumerate((names[:7], names[7:])):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(part).encode())))
        assert predict("-", "--json", tmp_path / f"{number}.jsonl") == 0
    whole, *parts = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("whole", 0, 1))
    assert whole == parts[0] + parts[1] and len(whole) > 10


def test_several_processes_of_a_launcher_are_refused(
    predict: Predict, inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert predict(inputs) == 2
    assert "give each process a part of the list from standard input, see posenet docs scale" in capsys.readouterr().err

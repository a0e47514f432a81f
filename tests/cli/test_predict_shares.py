"""``evaluate`` and ``predict`` in several processes, and continued after a kill."""

from __future__ import annotations

import contextlib
import errno
import json
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

from posenet.cli.main import run_tool
from posenet.images import write_image
from posenet.inference.outputs.journal import journal_paths
from tests.helpers.process_groups import fork_ranks
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.spot_data import write_spot_split
from tests.helpers.spot_networks import spot_image, spot_people_image
from tests.helpers.videos import read_video, write_animation

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


def all_outputs(folder: Path) -> list[str | Path]:
    folder.mkdir(exist_ok=True)
    files = ["--json", folder / "p.jsonl", "--csv", folder / "p.csv", "--coco", folder / "p.json"]
    return [*files, "--output", folder / "d", "--track"]


def on_ranks(world_size: int, run: Callable[[], int], folder: Path) -> tuple[list[int], str]:
    """Run a tool in forked processes, as a launcher would start them; return the statuses and all messages."""
    pids = fork_ranks(world_size, lambda rank: sys.exit(run()), folder)
    statuses = [wait_for_exit(pid) for pid in pids]
    return statuses, "".join((folder / f"{rank}.txt").read_text() for rank in range(world_size))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_process_whose_images_are_all_damaged_does_not_stop_the_others(predict: Predict, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_image(folder / "a.png", spot_image(64, 96, (20, 20), (70, 40), 4))
    (folder / "b.png").write_bytes(b"no image")
    words = [folder, "--coco", tmp_path / "people.json", "--set", "inference.batch_size=1"]
    statuses, messages = on_ranks(2, lambda: predict(*words), tmp_path / "log")
    assert statuses == [2, 2] and "1 of 2 images could not be read" in messages
    [image] = json.loads((tmp_path / "people.json").read_text())["images"]
    assert image["file_name"] == "a.png"


def test_several_processes_write_the_files_of_one(predict: Predict, inputs: Path, tmp_path: Path) -> None:
    assert predict(inputs, *all_outputs(tmp_path / "one")) == 2
    many = all_outputs(tmp_path / "many")
    statuses, messages = on_ranks(3, lambda: predict(inputs, *many), tmp_path / "log")
    assert statuses == [2] * 3, messages
    assert messages.count("error:") == 1 and "1 of 24 inputs could not be read completely" in messages
    one = contents(tmp_path / "one")
    assert len(one) == 3 + 23, "no journal stays"
    assert one["p.jsonl"].count(b"\n") > 20
    many_files = contents(tmp_path / "many")
    assert many_files.keys() == one.keys()
    # The encoder of videos may divide its work among threads in different ways.
    assert [name for name in one if many_files[name] != one[name] and not name.endswith(".mp4")] == []
    for name in ("005c.mp4", "013c.mp4"):
        videos = [read_video(tmp_path / folder / "d" / name) for folder in ("one", "many")]
        assert len(videos[0]) == 7
        for frame, other in zip(*videos, strict=True):
            assert frame.seconds == other.seconds and np.array_equal(frame.image, other.image)


def test_several_processes_that_are_interrupted_name_only_files_that_exist(
    predict: Predict, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.cli.predict.catch_stop_signals", lambda: contextlib.nullcontext(lambda: True))
    path, drawings = tmp_path / "p.jsonl", tmp_path / "drawings"
    statuses, messages = on_ranks(2, lambda: predict(inputs, "--json", path, "--output", drawings), tmp_path / "log")
    assert statuses == [130, 130] and f"wrote {drawings}\n" in messages, messages
    assert not path.exists()


def test_several_processes_write_the_results_file_of_one(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path / "split")
    argv = ["--checkpoint", spot_file, "--backend", "onnxruntime", "--images", tmp_path / "split"]
    argv += ["--annotations", annotations, "--output"]

    def run(name: str) -> int:
        return run_tool("evaluate", [*map(str, argv), str(tmp_path / name)])

    assert run("one.json") == 0
    statuses, messages = on_ranks(2, lambda: run("two.json"), tmp_path / "log")
    assert statuses == [0, 0] and messages.count("8 images") == 1, messages
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_cameras_are_refused_by_several_processes(predict: Predict, inputs: Path, tmp_path: Path) -> None:
    words = [inputs, "0", "--json", tmp_path / "p.jsonl"]
    statuses, messages = on_ranks(2, lambda: predict(*words), tmp_path / "log")
    assert statuses == [2, 2] and messages.count("camera 0 needs a single process") == 1


@pytest.mark.parametrize("world_size, suffix", [(1, "csv"), (2, "jsonl")])
def test_a_prediction_that_is_killed_again_and_again_writes_every_person_once(
    predict: Predict, inputs: Path, tmp_path: Path, world_size: int, suffix: str
) -> None:
    """The processes are killed when their journals have grown by some bytes, and may leave a torn line."""
    flag = "--json" if suffix == "jsonl" else "--csv"
    whole, path = tmp_path / f"whole.{suffix}", tmp_path / f"p.{suffix}"
    expected_status = predict(inputs, flag, whole)
    rng = random.Random(world_size)
    words = [inputs, flag, path, "--resume"]

    def journaled_bytes() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob(f"p.{suffix}.progress*"))

    kills = 0
    for _ in range(30):
        limit = journaled_bytes() + rng.randrange(1, 3000)
        if world_size == 1:
            pids = [fork_process(lambda: sys.exit(predict(*words)), tmp_path / "log.txt")]
        else:
            pids = fork_ranks(world_size, lambda rank: sys.exit(predict(*words)), tmp_path / "log")
        running = dict.fromkeys(pids)
        while running and journaled_bytes() < limit:
            for pid in list(running):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    del running[pid]
            time.sleep(0.002)
        was_killed = len(running) == world_size and kills < 4
        if was_killed:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        statuses = [wait_for_exit(pid) for pid in pids]
        if not was_killed:
            assert statuses == [expected_status] * world_size
            assert path.read_bytes() == whole.read_bytes()
            if kills >= 2:
                break
            for file in tmp_path.glob("p.*"):  # it ended too early to be killed: start again
                file.unlink()
            continue
        kills += statuses == [-signal.SIGKILL] * world_size
        if kills % 2:
            for file in tmp_path.glob(f"p.{suffix}.progress*"):
                if file.suffix != ".lock":
                    file.write_bytes(file.read_bytes() + b'{"source": 3, "peo')
    assert kills >= 2
    assert path.read_bytes() == whole.read_bytes()
    journals = [file.name for file in journal_paths(path, world_size)]
    assert {file.name for file in tmp_path.glob("p.*")} == {path.name, *journals}


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


@pytest.mark.slow
def test_nproc_starts_processes(predict: Predict, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        write_image(tmp_path / "in" / f"{number}.png", spot_people_image(200, 300, 2, number))
    assert predict(tmp_path / "in", "--json", tmp_path / "one.json") == 0
    assert predict(tmp_path / "in", "--json", tmp_path / "two.json", "--nproc", "2") == 0
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes() != b"[]\n"
    capfd.readouterr()
    argv = ["--checkpoint", "missing.pth", str(tmp_path / "in"), "--json", str(tmp_path / "p.json"), "--nproc", "2"]
    assert run_tool("predict", argv) == 2
    error = capfd.readouterr().err
    assert error.count("error:") == 1 and "missing.pth" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "one.json", "two.json"]

"""``predict`` continued after a kill, and parts of a list in processes of their own."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.images import write_image
from tests.helpers.spot_networks import spot_image
from tests.helpers.videos import write_animation, write_spot_video

SIZES = ((97, 131), (131, 97), (64, 64), (97, 131), (97, 300))
"""(height, width) of the images, in turn."""
LIMIT = 120.0
"""Seconds for one prediction."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, some without people; one that cannot be read, two videos and a GIF."""
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(20):
        height, width = SIZES[number % len(SIZES)]
        image = spot_image(height, width, (20 + number, 20), (width - 20, 40), 4)
        write_image(folder / f"{number:03d}.png", image if number % 4 else np.zeros_like(image))
    (folder / "007b.png").write_bytes(b"no image")
    write_animation(folder / "009b.gif", 3)
    for name in ("005c.mp4", "013c.mp4"):
        write_spot_video(folder / name, 7)
    return folder


Predict = Callable[..., int]


def arguments(spot_file: Path, *words: str | Path) -> list[str]:
    return list(map(str, ["--checkpoint", spot_file, "--backend", "onnxruntime", "--min-score", "0", *words]))


@pytest.fixture
def predict(spot_file: Path) -> Predict:
    return lambda *words: run_tool("predict", arguments(spot_file, *words))


def kill_again_and_again(spot_file: Path, inputs: Path, folder: Path, kills: int, seed: int) -> None:
    """Start a prediction, and kill it when it has written some more files or bytes; compare what the last run leaves.

    After a kill, each file in the folders and each line is complete, apart from the last line.
    """
    names = {"--output": "drawn", "--json": "p.jsonl", "--csv": "p.csv", "--coco": "c.json"}

    def start(prefix: str) -> subprocess.Popen[bytes]:
        words = [inputs, "--resume", *(word for flag, name in names.items() for word in (flag, folder / prefix / name))]
        command = [sys.executable, "-m", "posenet", "predict", *arguments(spot_file, *words)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    (folder / "whole").mkdir()
    (folder / "part").mkdir()
    assert start("whole").wait(LIMIT) == 2, "an image cannot be read"
    rng = random.Random(seed)
    lines = folder / "part" / "p.jsonl"

    def progress() -> int:
        drawn = folder / "part" / "drawn"
        return 1000 * (len(list(drawn.iterdir())) if drawn.exists() else 0) + (
            lines.stat().st_size if lines.exists() else 0
        )

    done = 0
    while done < kills:
        limit = progress() + rng.randrange(1, 6000)
        process = start("part")
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and progress() < limit:
            assert time.monotonic() < deadline
            time.sleep(rng.random() * 0.005)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            done += 1
        else:  # it ended too early to be killed: start again
            shutil.rmtree(folder / "part")
            (folder / "part").mkdir()
        if done % 2 and lines.exists():
            with lines.open("ab") as file:
                file.write(b'{"image_id": 3, "peo')
    assert start("part").wait(LIMIT) == 2
    assert sorted(path.name for path in (folder / "part").rglob("*")) == sorted(
        path.name for path in (folder / "whole").rglob("*")
    )
    for path in (folder / "whole").rglob("*"):
        if path.is_file():
            other = folder / "part" / path.relative_to(folder / "whole")
            if path.name == "p.jsonl":
                assert sorted(other.read_bytes().splitlines()) == sorted(path.read_bytes().splitlines())
            else:
                assert other.read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_a_prediction_that_is_killed_three_times_writes_everything_once(
    spot_file: Path, inputs: Path, tmp_path: Path
) -> None:
    kill_again_and_again(spot_file, inputs, tmp_path, kills=3, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(8))
def test_a_prediction_that_is_killed_again_and_again_writes_everything_once(
    spot_file: Path, inputs: Path, tmp_path: Path, seed: int
) -> None:
    kill_again_and_again(spot_file, inputs, tmp_path, kills=10, seed=seed)


@pytest.mark.parametrize("cut", [1, 20, "a whole line", "a frame of a video"])
def test_a_cut_line_and_the_frames_of_an_unfinished_video_are_written_again(
    predict: Predict, inputs: Path, tmp_path: Path, cut: int | str
) -> None:
    path = tmp_path / "p.jsonl"
    names = [inputs / "001.png", inputs / "005c.mp4"]
    assert predict(*names, "--json", path, "--resume") == 0
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 7 + 1
    kept = {"a whole line": b"".join(lines[:-1]), "a frame of a video": b"".join(lines[:4])}
    path.write_bytes(kept[cut] if isinstance(cut, str) else whole[:-cut])
    assert predict(*names, "--json", path, "--resume") == 0
    assert path.read_bytes() == whole

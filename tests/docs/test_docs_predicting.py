"""Every command of docs/predicting.md runs as it is written."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from posenet.cli import evaluate, predict
from posenet.cli.main import run_tool
from posenet.images.image_files import write_image
from posenet.inference.media import sources
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from tests.helpers.run_logs import epoch_entry, train_entry
from tests.helpers.spot_networks import SpotNetwork
from tests.helpers.videos import GREY, FakeCamera, FakeWindow, write_video

PAGE = Path(__file__).parents[2] / "docs" / "predicting.md"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.replace("\\\n", " ").strip().splitlines()
]


@pytest.fixture
def folder(tmp_path, tiny_coco, monkeypatch):
    """A folder with all files that the page names."""
    write_image(tmp_path / "photos" / "a.jpg", GREY)
    write_image(tmp_path / "b.png", np.zeros((40, 50, 3), np.uint8))
    write_video(tmp_path / "clip.mp4", count=3)
    run = tmp_path / "checkpoints" / "demo"
    run.mkdir(parents=True)
    (run / "log.jsonl").write_text("\n".join(map(json.dumps, (train_entry(5), epoch_entry(5, 1)))))
    for name in ("val2017", "annotations"):
        shutil.copytree(tiny_coco / name, tmp_path / "data" / "demo" / "coco" / name)
    for tool in (predict, evaluate):
        monkeypatch.setattr(tool, "make_predictor", lambda args: Predictor(SpotNetwork(), InferenceConfig(height=64)))
    monkeypatch.setattr(predict, "Window", FakeWindow)
    monkeypatch.setattr(sources, "Camera", FakeCamera)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_page_succeeds(folder, monkeypatch):
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        source, _, command = command.rpartition("|")
        if source:
            listed = subprocess.run(source, shell=True, check=True, capture_output=True, text=True).stdout
            monkeypatch.setattr("sys.stdin", listed.splitlines())
        program, tool, *words = shlex.split(command)
        assert program == "posenet" and run_tool(tool, words) == 0, command
    for name in (
        "drawn/a.jpg",
        "drawn/b.png",
        "drawn/clip.mp4",
        "people.jsonl",
        "people.json",
        "curves.svg",
        "checkpoints/demo/curves.png",
        "charts/precision_recall.png",
        "charts/keypoints.png",
    ):
        assert (folder / name).exists(), name

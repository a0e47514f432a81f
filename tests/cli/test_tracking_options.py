"""``posenet predict`` with tracking: ids in the JSON file, colours, trails and smoothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.cli import predict
from posenet.cli.main import run_tool
from posenet.images import write_image
from posenet.inference.predictor import Predictor
from posenet.settings import Config, InferenceConfig
from tests.helpers.spot_networks import SpotNetwork, spot_image
from tests.helpers.videos import read_video


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A video of a person who walks to the right, and a network that finds it."""
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=128))
    monkeypatch.setattr(predict, "make_predictor", lambda args, **_: (predictor, Config()))
    path = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10.0, (192, 128))
    for number in range(12):
        x = 30 + 2 * number
        writer.write(spot_image(128, 192, (x, 30), (x + 20, 80), 4))
    writer.release()
    return path


def people_of(clip: Path, *arguments: str) -> list[dict[str, Any]]:
    path = clip.with_name("people.json")
    words = ["--checkpoint", "x.pth", str(clip), "--json", str(path), *arguments]
    assert run_tool("predict", words) == 0
    people: list[dict[str, Any]] = json.loads(path.read_text())
    return people


def test_every_entry_has_an_integer_id_and_a_time(clip: Path) -> None:
    people = people_of(clip, "--track")
    assert [(person["frame"], person["id"], person["time"]) for person in people] == [
        (number, 1, number / 10) for number in range(2, 12)
    ]


def test_without_tracking_there_are_no_ids(clip: Path) -> None:
    people = people_of(clip)
    assert len(people) == 12
    assert all("id" not in person for person in people)


def test_settings_of_the_tracker(clip: Path) -> None:
    assert len(people_of(clip, "--track", "--set", "tracking.confirm_frames=5")) == 8


def test_smoothing_implies_tracking_and_changes_positions(clip: Path) -> None:
    tracked = people_of(clip, "--track")
    smoothed = people_of(clip, "--smooth")
    assert [person["id"] for person in smoothed] == [person["id"] for person in tracked]
    assert [person["keypoints"] for person in smoothed] != [person["keypoints"] for person in tracked]


def test_trails_are_drawn(clip: Path, tmp_path: Path) -> None:
    last_frames = []
    for arguments in (["--track"], ["--trails"]):
        people_of(clip, "--output", str(tmp_path / "drawn"), *arguments)
        last_frames.append(read_video(tmp_path / "drawn" / "clip.mp4")[-1].image)
    assert cv2.absdiff(*last_frames).max() > 60


def test_images_are_predicted_without_ids(clip: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    write_image(image, spot_image(128, 192, (30, 30), (50, 80), 4))
    people = people_of(image, "--track")
    assert len(people) == 1
    assert "id" not in people[0]


def test_a_wrong_setting_is_refused_before_prediction(clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--checkpoint", "x.pth", str(clip), "--json", "x.json", "--track", "--set", "tracking.keep_seconds=-1"]
    assert run_tool("predict", words) == 2
    assert "tracking.keep_seconds" in capsys.readouterr().err
    assert np.any(cv2.VideoCapture(str(clip)).read()[0])

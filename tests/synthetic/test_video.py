"""Videos of people who walk: the truth is that of the pixels, people cross, leave and come back."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.errors import ConfigError, DataError
from posenet.synthetic import video
from posenet.synthetic.dataset import write_dataset
from posenet.synthetic.posture import walk
from posenet.synthetic.video import RATE, film
from tests.helpers.drawn_data import file_contents

pytest.importorskip("av", reason="PyAV is not installed: pip install 'simplepose[video]'")


@pytest.fixture(scope="module")
def frames() -> list[list[dict]]:
    """The people of every frame."""
    return [people for _, people in film(np.random.default_rng((0, 2, 0)), 160, 90, 50)]


def keypoints_by_id(people: list[dict]) -> dict[int, np.ndarray]:
    return {person["id"]: np.reshape(person["keypoints"], (17, 3)) for person in people}


def test_an_id_is_that_of_one_person_who_moves_smoothly(frames: list[list[dict]]) -> None:
    for before, after in itertools.pairwise(frames):
        old, new = keypoints_by_id(before), keypoints_by_id(after)
        assert len(new) == len(after)
        for number in old.keys() & new.keys():
            both = (new[number][:, 2] > 0) & (old[number][:, 2] > 0)
            if both.any():
                assert np.abs(new[number][both, :2] - old[number][both, :2]).max() < 8


def test_boxes_and_keypoints_are_inside_the_image_and_visible_is_a_share(frames: list[list[dict]]) -> None:
    people = [person for frame in frames for person in frame]
    assert len(people) > 50
    for person in people:
        left, top, width, height = person["bbox"]
        assert 0 <= left < left + width <= 160 and 0 <= top < top + height <= 90
        assert 0 < person["visible"] <= 1
        keypoints = np.reshape(person["keypoints"], (17, 3))
        visible = keypoints[keypoints[:, 2] == 2]
        assert (visible[:, :2] >= (left - 1.5, top - 1.5)).all()
        assert (visible[:, :2] <= (left + width + 0.5, top + height + 0.5)).all()


def test_walkers_leave_the_image_and_come_back_and_never_jump() -> None:
    num_returns = 0
    for seed in range(20):
        steps = list(itertools.islice(walk(np.random.default_rng(seed), 3.0, 1.5, 1 / RATE), 750))
        x = np.array([step.position[0] for step in steps])
        headings = np.array([step.heading for step in steps])
        is_outside = np.abs(x) > 1.6
        num_returns += np.count_nonzero(is_outside[:-1] & ~is_outside[1:])
        assert np.abs(np.diff(x)).max() < 1.2 / RATE
        assert np.abs(np.diff(headings)).max() < 13
    assert num_returns > 20


def test_people_cross() -> None:
    order_changes = 0
    for seed in range(6):
        walks = [walk(np.random.default_rng((seed, index)), 3 + index, 1.5, 1 / RATE) for index in range(2)]
        steps = [[next(steps).position[0] for steps in walks] for _ in range(500)]
        left, right = np.array(steps).T
        order_changes += np.count_nonzero(np.diff(left > right))
    assert order_changes > 6


def test_a_data_set_of_videos_is_reproducible_and_replaced(tmp_path: Path) -> None:
    arguments = ["--video", "2", "--seconds", "0.2", "--size", "96x64", "--seed", "3"]
    assert run_tool("make-synthetic", ["--output", str(tmp_path / "a"), *arguments, "--workers", "1"]) == 0
    assert run_tool("make-synthetic", ["--output", str(tmp_path / "b"), *arguments, "--workers", "2"]) == 0
    assert file_contents(tmp_path / "a") == file_contents(tmp_path / "b")
    truth = json.loads((tmp_path / "a" / "videos" / "000001.json").read_text())
    assert (truth["file_name"], truth["width"], truth["height"], truth["rate"]) == ("000001.mp4", 96, 64, RATE)
    assert [frame["frame"] for frame in truth["frames"]] == [0, 1, 2, 3, 4]
    assert [frame["time"] for frame in truth["frames"]] == [0, 0.04, 0.08, 0.12, 0.16]
    person = truth["frames"][0]["people"][0]
    assert set(person) == {"id", "bbox", "keypoints", "visible"}
    assert len(person["keypoints"]) == 3 * len(truth["keypoints"]) == 51
    write_dataset(tmp_path / "a", train=1, val=0, workers=1, size=64, overwrite=True)
    assert not list((tmp_path / "a").rglob("0*.mp4")) and not list((tmp_path / "a").rglob("0*.json"))


def test_the_video_shows_the_frames_of_the_truth(tmp_path: Path) -> None:
    write_dataset(tmp_path, 0, 0, seed=3, workers=1, size=(96, 64), videos=1, seconds=0.2)
    capture = cv2.VideoCapture(str(tmp_path / "videos" / "000001.mp4"))
    for drawn, _ in film(np.random.default_rng((3, 2, 0)), 96, 64, 5):
        success, image = capture.read()
        assert success
        assert cv2.absdiff(image, drawn).mean() < 12
    assert not capture.read()[0]


def test_images_do_not_depend_on_videos(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", 2, 1, workers=1, size=96)
    write_dataset(tmp_path / "b", 2, 1, workers=1, size=96, videos=1, seconds=0.1)
    with_videos = file_contents(tmp_path / "b")
    for name, data in file_contents(tmp_path / "a").items():
        assert name == "synthetic.json" or with_videos[name] == data


@pytest.mark.parametrize(("videos", "seconds"), [(-1, 1.0), (1, 0.0), (1, 1e9)])
def test_wrong_numbers_are_refused(tmp_path: Path, videos: int, seconds: float) -> None:
    with pytest.raises(DataError, match="videos"):
        write_dataset(tmp_path / "a", 0, 0, videos=videos, seconds=seconds)
    assert not (tmp_path / "a").exists()


def test_why_a_video_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str) -> None:
        video.write_video(tmp_path / name, np.random.default_rng(0), 96, 64, 0.1)

    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(DataError, match="cannot write .*folder.mp4: Is a directory"):
        write("folder.mp4")
    monkeypatch.setattr("av.codecs_available", set())
    with pytest.raises(ConfigError, match="PyAV was built without the encoder mpeg4"):
        write("a.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r"videos need PyAV; pip install .*\[video\]"):
        write("a.mp4")

import json

import cv2
import numpy as np
import pytest
import torch
from test_predictor import NECK, NOSE, Spotlights, picture

import posenet.cli.predict as tool
from posenet.checkpoint import read
from posenet.cli.main import run_tool
from posenet.config import config_from_dict, config_to_dict
from posenet.inference.images import read_image, write_image
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet

SPOTS = ((40.2, 20.0), (90.0, 60.4))


@pytest.fixture
def stub(monkeypatch):
    """The tool with a network that finds spots of light."""
    monkeypatch.setattr(tool, "make_predictor", lambda args: Predictor(Spotlights(), height=128, batch_size=3))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for name in ("a.png", "b.png", "000000000139.png"):
        write_image(folder / name, picture(97, 131, *SPOTS, 4))
    write_image(folder / "empty.png", np.zeros((50, 60, 3), np.uint8))
    return folder


def predict(*words):
    return run_tool("predict", ["--checkpoint", "x.pth", *map(str, words)])


def test_pictures_and_json(stub, photos, tmp_path, capsys):
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path) == 0
    assert sorted(p.name for p in out.iterdir()) == ["000000000139.png", "a.png", "b.png", "empty.png"]
    assert not np.array_equal(read_image(out / "a.png"), read_image(photos / "a.png"))
    assert np.array_equal(read_image(out / "empty.png"), read_image(photos / "empty.png"))
    people = json.loads(path.read_text())
    assert [p["image_id"] for p in people] == [139, str(photos / "a.png"), str(photos / "b.png")]
    assert people[1]["file_name"] == str(photos / "a.png") and people[1]["category_id"] == 1
    keypoints = np.reshape(people[0]["keypoints"], (17, 3))
    np.testing.assert_allclose(keypoints[0, :2], SPOTS[0], atol=0.5)
    assert np.count_nonzero(keypoints[:, 2]) == 1
    assert "3 people in 4 pictures" in capsys.readouterr().out


def test_min_score_leaves_people_out(stub, photos, tmp_path):
    assert predict(photos, "--json", tmp_path / "people.json", "--min-score", "0.5") == 0
    assert json.loads((tmp_path / "people.json").read_text()) == []


def test_weak_keypoints_are_written_but_not_drawn(stub, photos, tmp_path):
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path, "--keypoint-min-score", "2") == 0
    assert np.array_equal(read_image(out / "a.png"), read_image(photos / "a.png"))
    assert len(json.loads(path.read_text())) == 3


def test_unreadable_pictures_are_passed_over_and_reported(stub, photos, tmp_path, capsys):
    (photos / "aa.png").write_bytes(b"nonsense")
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path) == 2
    assert len(list(out.iterdir())) == 4 and len(json.loads(path.read_text())) == 3
    error = capsys.readouterr().err
    assert "1 of 5 pictures could not be read" in error and "aa.png" in error and "Traceback" not in error


def test_equal_names_are_numbered(stub, photos, tmp_path):
    for name in ("A.png", "b.gif"):
        write_image(tmp_path / "more" / "x.png", picture(97, 131, *SPOTS, 4))
        (tmp_path / "more" / "x.png").rename(tmp_path / "more" / name)
    out = tmp_path / "out"
    assert predict(photos, tmp_path / "more" / "A.png", tmp_path / "more" / "b.gif", "--output", out) == 0
    assert sorted(p.name for p in out.iterdir()) == ["000000000139.png", "A-2.png", "a.png", "b-2.png", "b.png",
                                                     "empty.png"]


def test_originals_are_never_replaced(stub, photos, tmp_path, capsys):
    before = (photos / "a.png").read_bytes()
    assert predict(photos, "--output", photos) == 2
    assert predict(photos / "a.png", "--json", photos / ".." / "photos" / "a.png") == 2
    (tmp_path / "link").symlink_to(photos)
    assert predict(photos, "--output", tmp_path / "link") == 2
    assert "would replace an input" in capsys.readouterr().err
    assert (photos / "a.png").read_bytes() == before
    assert predict(photos, "--output", tmp_path / "out") == 0
    assert predict(photos, "--output", tmp_path / "out") == 0


@pytest.mark.parametrize("words, message", [
    (["nowhere.jpg", "--output", "out"], "no such file"), (["*.xyz", "--output", "out"], "no file matches"),
    (["bare", "--output", "out"], "no pictures in folder"), (["photos/a.png"], "give --output")])
def test_bad_input_is_one_line_and_status_2(stub, photos, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    assert predict(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("image", [
    np.full((60, 80), 50, np.uint8), np.full((60, 80, 4), 50, np.uint8), np.full((60, 80, 3), 5000, np.uint16),
    np.full((60, 80), 5000, np.uint16), np.full((1, 1, 3), 50, np.uint8), np.full((4000, 6000, 3), 50, np.uint8),
    np.full((2, 30000, 3), 50, np.uint8),
], ids=["grey", "alpha", "16-bit", "16-bit grey", "1x1", "large", "strip"])
def test_every_kind_of_picture_is_drawn(stub, tmp_path, image):
    (tmp_path / "in.png").write_bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes())
    assert predict(tmp_path / "in.png", "--output", tmp_path / "out") == 0
    assert read_image(tmp_path / "out" / "in.png").shape == (*image.shape[:2], 3)


def test_a_checkpoint_and_its_flags(photos, tmp_path, capsys):
    config = config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 0}, "inference": {"height": 64}})
    checkpoint = tmp_path / "tiny.pth"
    torch.save({"format": 1, "model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)},
               checkpoint)
    argv = ["--weights", str(checkpoint), "--device", "cpu", str(photos / "a.png"), "--output", str(tmp_path / "out")]
    assert run_tool("predict", argv) == 0
    assert run_tool("predict", [*argv, "--height", "64", "--scales", "1", "1.5", "--flip", "--batch_size", "2",
                                "--set", "inference.keypoint_threshold=0.2"]) == 0
    for words, message in ((["--height", "5"], "inference.height"), (["--scales", "0"], "inference.scales"),
                           (["--set", "model.stacks=2"], "another architecture"), (["--set", "x=1"], "x=1"),
                           (["--device", "nonsense"], "nonsense"), (["--config", "none.toml"], "none.toml")):
        assert run_tool("predict", [*argv, *words]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in error and "Traceback" not in error
    assert "config" in read(checkpoint)


def test_neck_and_nose_are_what_the_stub_lights():
    [person] = Predictor(Spotlights(), height=128)(picture(97, 131, *SPOTS, 4))
    assert person.found.nonzero()[0].tolist() == [NOSE, NECK]

"""``export-onnx --int8``: its report, its flags, and images used twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from posenet.checkpoints.file import FORMAT
from posenet.cli.main import run_tool
from posenet.settings import config_from_dict, config_to_dict
from tests.helpers.networks import random_network, tiny_network
from tests.helpers.spot_networks import spot_people_image


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "a.pth"
    config = config_from_dict(
        {"model": {"stacks": 1, "width": 16, "growth": 2}, "inference": {"height": 128, "flip": True}}
    )
    torch.save({"format": FORMAT, "model": random_network(1).state_dict(), "config": config_to_dict(config)}, path)
    return path


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two images and annotations of one person each."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "images").mkdir()
    images = []
    annotations = []
    for number in (1, 2):
        image = spot_people_image(128, 160, 1, seed=number)
        cv2.imwrite(str(folder / "images" / f"{number}.png"), image)
        images.append({"id": number, "file_name": f"{number}.png", "height": 128, "width": 160})
        keypoints = np.tile([40, 50, 2], 17).tolist()
        annotations.append(
            {"id": number, "image_id": number, "category_id": 1, "keypoints": keypoints, "num_keypoints": 17}
            | {"area": 3000, "bbox": [10, 10, 60, 60], "iscrowd": 0}
        )
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "person"}]}
    (folder / "people.json").write_text(json.dumps(content))
    return folder


def verify_flags(split: Path) -> list[str]:
    return ["--verify-images", str(split / "images"), "--verify-annotations", str(split / "people.json")]


def test_it_reports_size_speed_and_ap_without_the_calibration_images(
    checkpoint: Path, split: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install posenet[int8]")
    copy = tmp_path / "copy.png"
    copy.write_bytes((split / "images" / "1.png").read_bytes())
    output = tmp_path / "a.onnx"
    argv = ["--checkpoint", str(checkpoint), "--output", str(output), "--int8", "--calibrate", str(copy)]
    assert run_tool("export-onnx", [*argv, *verify_flags(split)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"error of the maps: [\d.]+% with \d+ of 29 blocks in float32", shown)
    assert "leaves out flip averaging" in shown
    assert re.search(r"ONNX Runtime int8 +[\d.]+ +[\d.]+", shown)
    assert re.search(r"without which the AP is measured: 1\n", shown)
    assert re.search(r"AP on 1 image, one scale, no flips: \d\.\d+ in float32, \d\.\d+ in int8", shown)
    assert output.stat().st_size > 1000

    argv[-1] = str(split / "images")
    output.unlink()
    assert run_tool("export-onnx", [*argv, *verify_flags(split)]) == 2
    assert "calibrate on other images" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--int8"], "--int8 needs --calibrate"),
        (["--calibrate", "a.png"], "--calibrate needs --int8"),
        (["--int8", "--calibrate", "absent.png"], "no such file or folder: absent.png"),
        (["--int8", "--calibrate", "EMPTY"], "no images in folder"),
        (["--int8", "--calibrate", "TEXT"], "text.png"),
        (["--int8", "--calibrate", "TEXT", "--verify-images", "."], "need each other"),
        (
            ["--int8", "--calibrate", "TEXT", "--verify-images", "absent", "--verify-annotations", "SPLIT"],
            "not a folder",
        ),
        (["--int8", "--calibrate", "TEXT", "--verify-images", ".", "--verify-annotations", "TEXT"], "text.png"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_flags_and_files_get_one_line(
    flags: list[str], message: str, checkpoint: Path, split: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install posenet[int8]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("no image")
    names = {"EMPTY": tmp_path / "empty", "TEXT": tmp_path / "text.png", "SPLIT": split / "people.json"}
    argv = ["--checkpoint", str(checkpoint), "--output", str(tmp_path / "a.onnx")]
    assert run_tool("export-onnx", [*argv, *(str(names.get(flag, flag)) for flag in flags)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1] and len(lines) == 1
    assert not (tmp_path / "a.onnx").exists()


def test_an_untrained_network_gets_one_line_and_no_file(
    split: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install posenet[int8]")
    config = config_to_dict(config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 2}}))
    torch.save({"format": FORMAT, "model": tiny_network(stacks=1).state_dict(), "config": config}, tmp_path / "a.pth")
    output = tmp_path / "a.onnx"
    argv = ["--checkpoint", str(tmp_path / "a.pth"), "--output", str(output), "--int8"]
    assert run_tool("export-onnx", [*argv, "--calibrate", str(split / "images")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "cannot be rounded to 8 bits" in lines[-1] and "use a trained checkpoint" in lines[-1]
    assert [line for line in lines if "error" in line or "Traceback" in line] == lines[-1:]
    assert not output.exists()


def test_an_exported_file_and_a_missing_package_get_one_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = ["--output", str(tmp_path / "b.onnx")]
    assert run_tool("export-onnx", ["--checkpoint", str(tmp_path / "a.onnx"), *output]) == 2
    assert "is an exported file already" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    argv = ["--checkpoint", str(checkpoint), *output, "--int8", "--calibrate", str(checkpoint)]
    assert run_tool("export-onnx", argv) == 2
    assert "install posenet[int8]" in capsys.readouterr().err

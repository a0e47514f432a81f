"""``posenet.evaluate``: the tool as a function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import posenet
from posenet.checkpoints.file import FORMAT
from posenet.cli.main import run_tool
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.settings import config_to_dict, load_config
from tests.helpers.networks import random_network

TINY = ["model.stacks=1", "model.width=16", "model.growth=2", "inference.height=64"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = load_config(None, TINY)
    path = tmp_path / "tiny.pth"
    torch.save({"format": FORMAT, "model": random_network(1).state_dict(), "config": config_to_dict(config)}, path)
    return path


@pytest.fixture
def split(tiny_coco: Path) -> tuple[Path, Path]:
    """The images and the annotations of a small split."""
    return tiny_coco / "val2017", tiny_coco / "annotations" / "person_keypoints_val2017.json"


def test_the_function_writes_the_results_of_the_tool(
    checkpoint: Path, split: tuple[Path, Path], tmp_path: Path
) -> None:
    images, annotations = map(str, split)
    flags = ["--checkpoint", str(checkpoint), "--images", images, "--annotations", annotations, "--flip"]
    assert run_tool("evaluate", [*flags, "--output", str(tmp_path / "tool.json")]) == 0
    evaluation = posenet.evaluate(checkpoint, *split, output=tmp_path / "function.json", flip=True)
    assert (tmp_path / "function.json").read_bytes() == (tmp_path / "tool.json").read_bytes()
    assert evaluation is not None
    assert evaluation.images == 3
    assert set(evaluation.metrics) >= {"AP", "AR"}


def test_a_predictor_may_be_passed(checkpoint: Path, split: tuple[Path, Path]) -> None:
    predictor = posenet.Predictor.from_checkpoint(checkpoint, device="cpu", amp="off")
    assert posenet.evaluate(predictor, *split) == posenet.evaluate(checkpoint, *split)
    with pytest.raises(ConfigError, match="flip, config cannot be changed for a predictor"):
        posenet.evaluate(predictor, *split, config=load_config(None, TINY), flip=True)


def test_images_may_be_chosen_and_nothing_is_printed_without_a_bar(
    checkpoint: Path, split: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    image_id = json.loads(split[1].read_text())["images"][1]["id"]
    evaluation = posenet.evaluate(checkpoint, *split, image_ids=[image_id], progress=False)
    assert evaluation is not None
    assert evaluation.images == 1
    assert capfd.readouterr() == ("", "")


def test_errors_are_exceptions(checkpoint: Path, split: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing.pth"):
        posenet.evaluate(tmp_path / "missing.pth", *split)
    with pytest.raises(DataError, match="is a folder"):
        posenet.evaluate(checkpoint, *split, output=tmp_path)
    with pytest.raises(DataError, match="would replace an input"):
        posenet.evaluate(checkpoint, *split, output=split[1])
    with pytest.raises(ConfigError, match="inference.height"):
        posenet.evaluate(checkpoint, *split, height=1)
    with pytest.raises(ConfigError, match="amp 'fp8' is unknown; use auto, off, bf16, fp16"):
        posenet.evaluate(checkpoint, *split, amp="fp8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exif_frame 'shown' is unknown; use displayed or stored"):
        posenet.evaluate(checkpoint, *split, exif_frame="shown")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exif_frame 'shown' is unknown; use displayed or stored"):
        posenet.build_store(*split, tmp_path / "a.h5", exif_frame="shown")  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*.h5"))
    with pytest.raises(DataError, match="images are missing"):
        posenet.evaluate(checkpoint, tmp_path, split[1])

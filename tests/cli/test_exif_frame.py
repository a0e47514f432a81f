"""``--exif-frame`` of all tools: the flag comes before the configuration, and that before the default."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.checkpoints.file import FORMAT
from posenet.cli import main as cli
from posenet.cli.options import select_exif_frame
from posenet.cli.predictor_options import make_predictor
from posenet.data.store import Store
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.settings import config_to_dict, load_config
from posenet.skeleton import COCO
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.networks import random_network
from tests.helpers.oriented_images import lit_centre, oriented_image

TOOLS = {
    "evaluate": ["--checkpoint", "a.pth", "--images", "a", "--annotations", "a.json"],
    "predict": ["--checkpoint", "a.pth", "a.jpg"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_flag_comes_before_the_setting(tool: str) -> None:
    parser = cli.make_parser(cli.load_tool(tool), tool)

    def frame(*arguments: str) -> str:
        return select_exif_frame(parser.parse_args([*TOOLS[tool], *arguments]))

    assert frame() == "displayed"
    assert frame("--exif-frame", "stored") == "stored"
    assert frame("--set", "data.exif_frame=stored") == "stored"
    assert frame("--set", "data.exif_frame=stored", "--exif-frame", "displayed") == "displayed"


@pytest.mark.parametrize("arguments, frame", [([], "displayed"), (["--set", "data.exif_frame=stored"], "stored")])
def test_a_store_is_built_with_the_setting(tmp_path: Path, arguments: list[str], frame: str) -> None:
    drawn = oriented_image(3)
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    content = document([1], [person(1, 1)])
    content["images"][0] |= {"file_name": "a.jpg", "height": 160, "width": 240}
    command = ["--images", str(tmp_path), "--annotations", str(write_annotations(tmp_path / "a.json", content))]
    assert cli.run_tool("build-hdf5", [*command, "--output", str(tmp_path / "a.h5"), *arguments]) == 0
    assert Store(tmp_path / "a.h5").read_record(0).orientation == (3 if frame == "displayed" else 1)


@pytest.mark.parametrize("annotated", ["stored", "displayed"])
@pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
@pytest.mark.parametrize("stated", ["flag", "setting", "checkpoint"])
def test_evaluate_reads_the_frame_and_reports_it(
    tmp_path: Path,
    annotated: str,
    exif_frame: str,
    stated: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """People are predicted where the block is lit. In the wrong frame, nobody is found."""
    drawn = oriented_image(3)
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    x, y = drawn.centres[annotated]
    entry = person(1, 1, (x - 30, y - 30, 60, 60))
    content = document([1], [entry])
    content["images"][0] |= {"file_name": "a.jpg", "height": 160, "width": 240}
    annotations = write_annotations(tmp_path / "a.json", content)

    def stream(predictor: Predictor, images: Iterable[np.ndarray]) -> Iterator[list[Person]]:
        for image in images:
            keypoints = np.reshape(entry["keypoints"], (1, 17, 3)).astype(float)
            keypoints[..., :2] += np.subtract(lit_centre(image), (x, y))
            yield [Person(COCO.to_network_order(keypoints)[0], 1.0, COCO)]

    monkeypatch.setattr(Predictor, "stream", stream)
    checkpoint = write_checkpoint(tmp_path / "a.pth", exif_frame=exif_frame if stated == "checkpoint" else "displayed")
    command = ["--checkpoint", str(checkpoint), "--images", str(tmp_path), "--annotations", str(annotations)]
    if stated != "checkpoint":
        command += {"flag": ["--exif-frame", exif_frame], "setting": ["--set", f"data.exif_frame={exif_frame}"]}[stated]
    with caplog.at_level(logging.INFO):
        assert cli.run_tool("evaluate", command) == 0
    assert ("  1.000" in capsys.readouterr().out) == (annotated == exif_frame)
    assert f"1 image with an EXIF orientation: {exif_frame} frame by setting" in caplog.text


def write_checkpoint(path: Path, exif_frame: str) -> Path:
    """A checkpoint of a small network that was trained with this ``data.exif_frame``."""
    config = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2", f"data.exif_frame={exif_frame}"])
    torch.save({"format": FORMAT, "model": random_network(1).state_dict(), "config": config_to_dict(config)}, path)
    return path


def test_the_flag_and_the_settings_come_before_the_checkpoint(tmp_path: Path) -> None:
    parser = cli.make_parser(cli.load_tool("evaluate"), "evaluate")
    checkpoint = str(write_checkpoint(tmp_path / "a.pth", "stored"))

    def frame(*arguments: str) -> str:
        args = parser.parse_args(["--checkpoint", checkpoint, "--images", "a", "--annotations", "a.json", *arguments])
        _, config = make_predictor(args, parallel=False)
        return select_exif_frame(args, config)

    assert frame() == "stored"
    assert frame("--set", "inference.flip=true") == "stored"
    assert frame("--set", "data.exif_frame=displayed") == "displayed"
    assert frame("--exif-frame", "displayed") == "displayed"

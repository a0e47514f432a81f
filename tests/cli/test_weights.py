"""The tool weights, and names of weights in other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from tests.helpers.drive import Drive, drive_with
from tests.helpers.networks import write_checkpoint


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drive:
    """Google Drive with a checkpoint of a tiny network, whose name is "mine"."""
    data = write_checkpoint(tmp_path / "mine.pth", "inference.height=64").read_bytes()
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return drive_with(data, "mine", monkeypatch)


def test_the_list_shows_licence_source_and_file_of_all_names(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool("weights", ["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert drive.downloads == 0
    assert run_tool("weights", ["fetch", "mine"]) == 0
    path = capsys.readouterr().out.removeprefix("mine is in ").rstrip()
    assert lines[0].startswith("simplepose: ") and lines[1] == "    licence  none stated"
    assert "1gLa2oNxnbFPo0BjnpPaiAmWJwyND8wkA" in lines[2] and lines[3].endswith(".pth (not downloaded)")
    assert lines[4:6] == ["mine: a tiny network", "    licence  CC0"]
    assert lines[7] == f"    file     {path} (not downloaded)"
    assert run_tool("weights", ["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines[:7], f"    file     {path}"]


def test_the_tools_accept_a_name(drive: Drive, tiny_coco: Path, stores: dict[str, Path]) -> None:
    images = tiny_coco / "val2017"
    annotations = tiny_coco / "annotations" / "person_keypoints_val2017.json"
    data = ["--images", str(images), "--annotations", str(annotations)]
    assert run_tool("evaluate", ["--checkpoint", "mine", *data, "--output", "results.json"]) == 0
    outputs = ["--json", "people.json", "--set", "inference.flip=true"]
    assert run_tool("predict", ["--weights", "mine", str(images), *outputs]) == 0
    small = ["train.input_size=64", "data.workers=0", "log.tensorboard=false"]
    small += ["model.stacks=1", "model.width=16", "model.growth=2"]
    training = ["--set", f"data.train={stores['train']}", *small, "--max-steps", "1"]
    assert run_tool("train", ["--weights", "mine", *training]) == 0
    assert all(Path(name).exists() for name in ("results.json", "people.json"))
    assert drive.downloads == 1


def test_an_unknown_name_is_an_error_of_one_line(drive: Drive, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jpg").touch()
    for tool, words, message in (
        ("weights", ["fetch", "yours"], "yours is neither a file nor the name of published weights (simplepose, mine)"),
        (
            "predict",
            ["--checkpoint", "min", "a.jpg", "--json", "people.json"],
            "min is neither a file nor the name of published weights (simplepose, mine)",
        ),
    ):
        assert run_tool(tool, words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert drive.downloads == 0

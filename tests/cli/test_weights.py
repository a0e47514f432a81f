"""The tool weights, and names of weights in other tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from posenet.checkpoints.named import NAMED_WEIGHTS, NamedWeights
from posenet.cli.main import run_tool
from tests.helpers.networks import write_checkpoint
from tests.helpers.weights_server import WeightsHost, weights_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsHost]:
    """A server with a checkpoint of a tiny network, whose name is "mine"."""
    data = write_checkpoint(tmp_path / "mine.pth", "inference.height=64").read_bytes()
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with weights_host(data) as host:
        entry = NamedWeights("a tiny network", license="CC0", url=f"{host.address}/mine.pth")
        monkeypatch.setitem(NAMED_WEIGHTS, "mine", entry)
        yield host


def test_the_list_shows_licence_source_and_file_of_all_names(
    host: WeightsHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool("weights", ["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert host.requests == []
    assert run_tool("weights", ["fetch", "mine"]) == 0
    path = capsys.readouterr().out.removeprefix("mine is in ").rstrip()
    assert lines[0].startswith("simplepose: ") and lines[1] == "    licence  none stated"
    assert "1gLa2oNxnbFPo0BjnpPaiAmWJwyND8wkA" in lines[2] and lines[3].endswith(".pth (not downloaded)")
    mine = ["mine: a tiny network", "    licence  CC0", f"    source   {host.address}/mine.pth", f"    file     {path}"]
    assert lines[4:] == [*mine[:3], f"{mine[3]} (not downloaded)"]
    assert run_tool("weights", ["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines[:4], *mine]


def test_the_tools_accept_a_name(host: WeightsHost, tiny_coco: Path, stores: dict[str, Path]) -> None:
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
    assert host.requests == ["/mine.pth"]


def test_an_unknown_name_is_an_error_of_one_line(host: WeightsHost, capsys: pytest.CaptureFixture[str]) -> None:
    for tool, words, message in (
        ("weights", ["fetch", "mine", "yours"], "yours is not the name of published weights; known: simplepose, mine"),
        (
            "predict",
            ["--checkpoint", "min", f"{host.address}/a.jpg", "--json", "people.json"],
            "min is neither a file nor the name of published weights (simplepose, mine)",
        ),
    ):
        assert run_tool(tool, words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert host.requests == []

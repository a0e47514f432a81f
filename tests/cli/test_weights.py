"""The tool weights: names, which other tools take too, and conversion from and to the authors' format."""

import math
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.published.convert import export_weights, import_weights
from posenet.checkpoints.published.names import rename_to_published
from posenet.checkpoints.weights import load_model
from posenet.cli.main import run_tool
from posenet.errors import CheckpointError
from posenet.settings import config_to_dict, load_config
from tests.helpers.drive import Drive, drive_with
from tests.helpers.networks import random_network, tiny_network, write_checkpoint

TINY = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])


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


def test_weights_that_no_network_can_use_are_not_converted(tmp_path: Path) -> None:
    path = tmp_path / "bad.pth"
    weights = random_network(stacks=1).state_dict()
    weights["stem.entry.conv.weight"][0] = math.nan
    torch.save({"format": 1, "model": weights, "config": config_to_dict(TINY)}, path)
    for convert_weights in (import_weights, export_weights):
        with pytest.raises(CheckpointError, match="bad.pth: .* contains NaN"):
            convert_weights(path, tmp_path / "new.pth")
    assert [file.name for file in tmp_path.iterdir()] == ["bad.pth"]


def convert(action: str, *arguments: object) -> int:
    """Run ``posenet weights`` and return its exit status."""
    return run_tool("weights", [action, *map(str, arguments)], prog="weights")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A file of weights as the authors' code writes it."""
    path = tmp_path / "PoseNet_9_epoch.pth"
    renamed = rename_to_published(tiny_network(growth=6).state_dict())
    weights = {f"module.{name}": tensor for name, tensor in renamed.items()}
    torch.save({"weights": weights, "optimizer_weight": {"state": {}}, "train_loss": 1.5, "epoch": 9}, path)
    return path


def test_export_of_an_import_is_the_published_file_and_the_network_has_the_size_of_its_weights(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, exported = tmp_path / "new" / "ours.pth", tmp_path / "exported.pth"
    assert convert("import", published, "--output", ours, "--set", "inference.height=320") == 0
    assert "2 stacks, width 16, growth 6" in capsys.readouterr().out
    config = load_model(ours)[1]
    assert (config.inference.height, config.model.stacks, config.model.growth) == (320, 2, 6)
    assert convert("export", ours, "--output", exported) == 0
    first, second = (torch.load(path, weights_only=True) for path in (published, exported))
    assert second.keys() == first.keys()
    assert [f"module.{name}" for name in second["weights"]] == list(first["weights"])
    assert all(torch.equal(second["weights"][name[7:]], tensor) for name, tensor in first["weights"].items())


def test_import_of_our_checkpoint_keeps_its_settings_except_those_that_options_change(tmp_path: Path) -> None:
    source, output = tmp_path / "last.pth", tmp_path / "mine.pth"
    config = load_config(None, ["inference.height=192"], base=TINY)
    torch.save({"model": random_network(stacks=1).state_dict(), "config": config_to_dict(config)}, source)
    words = ["--set", "inference.flip=true", "inference.height=320"]
    assert convert("import", source, "--output", output, *words) == 0
    changed = load_model(output)[1]
    assert changed == load_config(None, ["inference.flip=true", "inference.height=320"], base=config)


def test_files_are_replaced_only_on_request_and_the_input_never(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = published.read_bytes()
    assert convert("import", published, "--output", published, "--overwrite") == 2
    assert str(published) in capsys.readouterr().err and published.read_bytes() == before
    output = tmp_path / "ours.pth"
    output.write_bytes(b"mine")
    assert convert("import", published, "--output", output) == 2
    assert output.read_bytes() == b"mine"
    assert convert("import", published, "--output", output, "--overwrite") == 0
    assert convert("export", output, "--output", published) == 2 and published.read_bytes() == before


@pytest.mark.parametrize("name", ["layer.weight", "stem.entry.conv.weight"])
def test_weights_of_another_network_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    torch.save({name: torch.tensor(3.0)}, tmp_path / "other.pth")
    assert convert("import", tmp_path / "other.pth", "--output", tmp_path / "a.pth") == 2
    assert "PoseNet" in capsys.readouterr().err
    assert not (tmp_path / "a.pth").exists()


def test_networks_of_other_skeletons_need_its_name_and_are_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand, bare, ours = (tmp_path / name for name in ("hand.toml", "bare.pth", "ours.pth"))
    hand.write_text('keypoints = ["thumb", "index"]\nparts = [["thumb", "index"]]\n')
    skeleton = load_config(None, [f"model.skeleton={hand}"]).model.skeleton
    torch.save({"model": tiny_network(stacks=1, skeleton=skeleton).state_dict()}, bare)
    assert convert("import", bare, "--output", ours) == 2
    assert "model.skeleton=FILE" in capsys.readouterr().err
    assert convert("import", bare, "--output", ours, "--set", f"model.skeleton={hand}") == 0
    assert convert("export", ours, "--output", tmp_path / "b.pth") == 2
    assert "COCO" in capsys.readouterr().err

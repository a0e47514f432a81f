"""Importing and exporting published weights: the same network, the same bits, and no file lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import write_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.cli.main import run_tool
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_published
from posenet.settings import config_to_dict, load_config
from tests.helpers.networks import tiny_network


def convert(action: str, *arguments: object) -> int:
    """Run ``posenet weights`` and return its exit status."""
    return run_tool("weights", [action, *map(str, arguments)], prog="weights")


@pytest.fixture
def network() -> PoseNet:
    return tiny_network(growth=6)


@pytest.fixture
def published(network: PoseNet, tmp_path: Path) -> Path:
    """A file with the weights of ``network`` as the authors' code writes it."""
    path = tmp_path / "PoseNet_9_epoch.pth"
    weights = {f"module.{name}": tensor for name, tensor in rename_to_published(network.state_dict()).items()}
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


def test_import_of_our_checkpoint_keeps_its_settings_except_those_that_options_change(
    network: PoseNet, tmp_path: Path
) -> None:
    source, output = tmp_path / "last.pth", tmp_path / "mine.pth"
    config = load_config(None, ["model.stacks=2", "model.width=16", "model.growth=6", "inference.height=192"])
    write_checkpoint(source, {"model": network.state_dict(), "config": config_to_dict(config)})
    (tmp_path / "mine.toml").write_text("[inference]\nheight = 320\n")
    words = ["--config", tmp_path / "mine.toml", "--set", "inference.flip=true"]
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

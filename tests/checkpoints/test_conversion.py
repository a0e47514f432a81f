"""Published weights in and out: the same network, the same bits, and no file lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenet import PoseNet
from posenet.checkpoints.file import write_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.cli.main import run_tool
from posenet.model.published_names import rename_to_published
from posenet.settings import config_to_dict, load_config
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.helpers.networks import tiny_network


def convert(name: str, *words: object) -> int:
    return run_tool(name, [str(word) for word in words], prog=name)


@pytest.fixture
def network() -> PoseNet:
    return tiny_network(growth=6)


@pytest.fixture
def published(network: PoseNet, tmp_path: Path) -> Path:
    """A file as the authors' code writes it, of a smaller network."""
    path = tmp_path / "PoseNet_9_epoch.pth"
    weights = {f"module.{name}": tensor for name, tensor in rename_to_published(network.state_dict()).items()}
    torch.save({"weights": weights, "optimizer_weight": {"state": {}}, "train_loss": 1.5, "epoch": 9}, path)
    return path


def test_importing_keeps_every_bit_and_reads_the_size_off_the_weights(
    network: PoseNet, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "new" / "ours.pth"
    assert convert("import-weights", published, "--output", ours, "--set", "inference.height=320") == 0
    assert "2 stacks, width 16, growth 6" in capsys.readouterr().out
    model, config = load_model(ours)
    assert config.inference.height == 320 and (config.model.stacks, config.model.growth) == (2, 6)
    theirs, own = network.state_dict(), model.state_dict()
    assert list(own) == list(theirs) and all(torch.equal(own[name], theirs[name]) for name in own)


def test_a_checkpoint_of_ours_keeps_its_settings_but_for_those_that_flags_change(
    network: PoseNet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load_config(None, ["model.stacks=2", "model.width=16", "model.growth=6", "inference.height=192"])
    write_checkpoint(tmp_path / "last.pth", {"model": network.state_dict(), "config": config_to_dict(own)})
    assert convert("import-weights", tmp_path / "last.pth", "--output", tmp_path / "same.pth") == 0
    assert load_model(tmp_path / "same.pth")[1] == own
    assert (
        convert(
            "import-weights", tmp_path / "last.pth", "--output", tmp_path / "flip.pth", "--set", "inference.flip=true"
        )
        == 0
    )
    inference = load_model(tmp_path / "flip.pth")[1].inference
    assert inference.flip and inference.height == 192


def test_exporting_gives_the_published_file_back(published: Path, tmp_path: Path) -> None:
    ours, back = tmp_path / "ours.pth", tmp_path / "back.pth"
    assert convert("import-weights", published, "--output", ours) == 0
    assert convert("export-weights", ours, "--output", back) == 0
    first, second = (torch.load(path, weights_only=True) for path in (published, back))
    assert second.keys() == first.keys()
    assert ["module." + name for name in second["weights"]] == list(first["weights"])
    assert all(torch.equal(second["weights"][name[7:]], tensor) for name, tensor in first["weights"].items())


def test_no_file_is_replaced_unasked(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = published.read_bytes()
    assert convert("import-weights", published, "--output", published, "--overwrite") == 2
    assert "would replace the input" in capsys.readouterr().err and published.read_bytes() == before
    ours = tmp_path / "ours.pth"
    ours.write_bytes(b"mine")
    assert convert("import-weights", published, "--output", ours) == 2 and ours.read_bytes() == b"mine"
    assert convert("import-weights", published, "--output", ours, "--overwrite") == 0
    assert convert("export-weights", ours, "--output", tmp_path) == 2


def test_what_is_no_posenet_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("layer.weight", "stem.entry.conv.weight"):
        torch.save({name: torch.tensor(3.0)}, tmp_path / "other.pth")
        assert convert("import-weights", tmp_path / "other.pth", "--output", tmp_path / "a.pth") == 2
        assert "does not hold the weights of a PoseNet" in capsys.readouterr().err
    assert not (tmp_path / "a.pth").exists()


def test_other_skeletons_are_named_on_import_and_stay_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])
    skeleton = skeleton_from_table({"keypoints": ["thumb", "index"], "parts": [["thumb", "index"]]})
    state = {"model": tiny_network(stacks=1, skeleton=skeleton).state_dict()}
    torch.save(state, tmp_path / "bare.pth")
    assert convert("import-weights", tmp_path / "bare.pth", "--output", tmp_path / "a.pth") == 2
    assert "predicts 5 maps, the skeleton has 50" in capsys.readouterr().err
    tables = config_to_dict(config)
    tables["model"]["skeleton"] = {"keypoints": list(skeleton.keypoints), "parts": [["thumb", "index"]]}
    torch.save(state | {"config": tables}, tmp_path / "hand.pth")
    assert convert("export-weights", tmp_path / "hand.pth", "--output", tmp_path / "b.pth") == 2
    assert "other keypoints or parts than COCO's" in capsys.readouterr().err


def test_other_sigmas_and_a_damaged_epoch_change_no_weights(tmp_path: Path) -> None:
    network = tiny_network(stacks=1)
    tables = config_to_dict(load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"]))
    tables["model"]["skeleton"] = skeleton_to_table(COCO) | {"sigmas": {}, "drawn": []}
    state = {"model": network.state_dict(), "config": tables}
    for progress, epoch in [({"epoch": 7}, 7), ({"epoch": "x"}, 0), ("x", 0)]:
        torch.save(state | {"progress": progress}, tmp_path / "ours.pth")
        assert convert("export-weights", tmp_path / "ours.pth", "--output", tmp_path / "b.pth", "--overwrite") == 0
        assert torch.load(tmp_path / "b.pth", weights_only=True)["epoch"] == epoch

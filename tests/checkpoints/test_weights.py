"""Loading weights: prefixes, published files, partial fits, and the network of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from posenet.checkpoints.weights import (
    LoadReport,
    config_of_checkpoint,
    extract_weights,
    load_model,
    load_weights,
    stored_config,
    strip_wrapper_prefixes,
)
from posenet.errors import CheckpointError
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_published
from posenet.settings import config_to_dict, load_config
from tests.helpers.networks import random_network, tiny_network

TINY = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])


@pytest.fixture
def model() -> PoseNet:
    return random_network(stacks=1)


@pytest.fixture
def other() -> PoseNet:
    """A network of the same architecture with other weights."""
    return tiny_network(stacks=1)


def have_same_weights(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "prefix", ["", "posenet.", "module.posenet.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_weights_load_completely_with_any_prefix_of_a_wrapper(
    model: PoseNet, other: PoseNet, tmp_path: Path, prefix: str
) -> None:
    path = tmp_path / "wrapped.pth"
    torch.save({"model": {prefix + name: tensor for name, tensor in model.state_dict().items()}}, path)
    report = load_weights(other, path)
    assert have_same_weights(other, model)
    assert not report.missing + report.unexpected + report.reshaped


def test_prefixes_of_compiled_submodules_are_stripped() -> None:
    assert strip_wrapper_prefixes("module.stem._orig_mod.entry.weight") == "stem.entry.weight"


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_published_file_has_the_size_of_network_of_its_weights(model: PoseNet, tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "PoseNet_52_epoch.pth"
    weights = {prefix + name: tensor for name, tensor in rename_to_published(model.state_dict()).items()}
    optimizer = {"state": {}, "param_groups": []}
    torch.save({"weights": weights, "optimizer_weight": optimizer, "train_loss": 1.0, "epoch": 52}, path)
    loaded, config = load_model(path)
    assert have_same_weights(loaded, model)
    assert (config.model.stacks, config.model.width, config.model.growth) == (1, 16, 2)
    assert stored_config(path) == config


def test_our_checkpoint_loads_with_its_settings_as_far_as_they_still_exist(
    model: PoseNet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.pth"
    tables = config_to_dict(TINY)
    tables["log"]["format"] = "json"
    torch.save({"format": 1, "model": model.state_dict(), "config": tables}, path)
    with caplog.at_level("INFO"):
        loaded, config = load_model(path)
    assert have_same_weights(loaded, model) and config == TINY
    assert not loaded.training
    assert "ignored: log.format" in caplog.text
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(path, load_config(None, ["model.stacks=2"], base=TINY))


def test_load_weights_reports_what_does_not_fit_and_loads_the_rest(
    model: PoseNet, other: PoseNet, tmp_path: Path
) -> None:
    path = tmp_path / "other.pth"
    weights = dict(model.state_dict())
    missing, reshaped, loaded = list(weights)[:3]
    del weights[missing]
    weights[reshaped] = torch.zeros(99)
    weights["extra.weight"] = torch.zeros(3)
    torch.save({"model": weights}, path)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    report = load_weights(other, path)
    assert (report.missing, report.unexpected, report.reshaped) == ([missing], ["extra.weight"], [reshaped])
    assert report.loaded == list(weights)[1:-1]
    after = other.state_dict()
    assert torch.equal(after[missing], before[missing]) and torch.equal(after[reshaped], before[reshaped])
    assert torch.equal(after[loaded], weights[loaded])


def test_only_named_tensors_of_a_checkpoint_are_weights() -> None:
    weight = torch.ones(2)
    state = {"stem.weight": weight, "epoch": 3, 7: weight}
    assert list(extract_weights(state, "some.pth")) == ["stem.weight"]
    with pytest.raises(CheckpointError, match=r"some\.pth contains no weights"):
        extract_weights({"epoch": 3}, "some.pth")


def test_a_report_lists_five_names_of_each_kind_and_counts_the_rest() -> None:
    report = LoadReport("a.pth", ["stem"], missing=list("abcde"), unexpected=list("fghijkl"), reshaped=["m"])
    assert str(report).splitlines() == [
        "a.pth: loaded 1 tensors",
        "  missing 5: a, b, c, d, e",
        "  unexpected 7: f, g, h, i, j ... (+2 more)",
        "  other shape 1: m",
    ]


def test_any_difference_from_the_network_is_named_as_another_architecture() -> None:
    for report, message in (
        (LoadReport("a.pth", missing=["a", "b"], unexpected=["c"]), r"\(3 tensors do not fit, first a\)"),
        (LoadReport("a.pth", reshaped=["a"]), r"\(1 tensors do not fit, first a\)"),
        (LoadReport("a.pth", unexpected=["c"]), r"\(1 tensors do not fit, first c\)"),
    ):
        with pytest.raises(CheckpointError, match=f"another architecture {message}"):
            report.require_all()
    LoadReport("a.pth", loaded=["a"]).require_all()


@pytest.mark.parametrize("num_fitting, accepted", [(2, True), (1, False)])
def test_half_of_the_tensors_must_fit(tmp_path: Path, num_fitting: int, accepted: bool) -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in ("a", "b", "c", "d")})
    path = tmp_path / "some.pth"
    torch.save({name: torch.ones(1) for name in ("a", "b")[:num_fitting]}, path)
    if accepted:
        assert load_weights(model, path).loaded == ["a", "b"]
    else:
        with pytest.raises(CheckpointError, match=r"only 1 of 4 tensors fit .* set model\.stacks"):
            load_weights(model, path)
    assert [tensor.item() for tensor in model.state_dict().values()] == [float(accepted)] * 2 + [0.0] * 2


def test_a_checkpoint_cannot_name_a_file_as_its_skeleton() -> None:
    state = {"config": {"model": {"skeleton": "/etc/passwd"}}}
    with pytest.raises(CheckpointError, match="has a file name as its skeleton"):
        config_of_checkpoint(state, "some.pth")
    assert config_of_checkpoint({"config": {"model": {"skeleton": "coco"}}}, "some.pth") is not None
    assert config_of_checkpoint({}, "some.pth") is None

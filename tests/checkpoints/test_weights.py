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
    "prefix",
    [
        "",
        "module.",
        "posenet.",
        "module.posenet.",
        "_orig_mod.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "module.module.",
    ],
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


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_published_file_loads_in_both_pickle_formats(
    model: PoseNet, tmp_path: Path, prefix: str, legacy: bool
) -> None:
    path = tmp_path / "PoseNet_52_epoch.pth"
    weights = {prefix + name: tensor for name, tensor in rename_to_published(model.state_dict()).items()}
    optimizer = {"state": {}, "param_groups": []}
    content = {"weights": weights, "optimizer_weight": optimizer, "train_loss": 1.0, "epoch": 52}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    loaded, _ = load_model(path, TINY)
    assert have_same_weights(loaded, model)


def test_a_bare_state_dict_loads(model: PoseNet, other: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "bare.pth"
    torch.save(model.state_dict(), path)
    load_weights(other, path)
    assert have_same_weights(other, model)


def test_load_model_uses_the_configuration_in_the_checkpoint(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "own.pth"
    torch.save({"model": model.state_dict(), "config": config_to_dict(TINY)}, path)
    loaded, config = load_model(path)
    assert have_same_weights(loaded, model)
    assert config == TINY
    assert not loaded.training


def test_a_checkpoint_of_an_older_version_loads_with_the_settings_that_still_exist(
    model: PoseNet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.pth"
    tables = config_to_dict(TINY)
    tables["log"]["format"] = "json"
    torch.save({"format": 1, "model": model.state_dict(), "config": tables}, path)
    with caplog.at_level("INFO"):
        loaded, config = load_model(path)
    assert have_same_weights(loaded, model) and config == TINY
    assert "ignored: log.format" in caplog.text


def test_a_file_without_settings_has_the_size_of_network_of_its_weights(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "bare.pth"
    torch.save(rename_to_published(model.state_dict()), path)
    loaded, config = load_model(path)
    assert have_same_weights(loaded, model)
    assert stored_config(path) == config
    assert (config.model.stacks, config.model.width, config.model.growth) == (1, 16, 2)


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
    assert f"loaded {len(report.loaded)} tensors" in str(report)
    assert "missing 1" in str(report) and "other shape 1" in str(report)
    with pytest.raises(CheckpointError, match="another architecture"):
        report.require_all()


def test_a_report_lists_a_few_names_and_counts_the_rest(other: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    extra = {f"extra.{i}": torch.zeros(1) for i in range(7)}
    torch.save(other.state_dict() | extra, path)
    assert "unexpected 7: extra.0, extra.1, extra.2, extra.3, extra.4 ... (+2 more)" in str(load_weights(other, path))


def test_too_few_fitting_tensors_are_an_error_and_change_nothing(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "wide.pth"
    torch.save({"model": tiny_network(stacks=1, width=32, growth=6).state_dict()}, path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="another architecture"):
        load_weights(model, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_load_model_refuses_another_architecture(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "one.pth"
    torch.save({"model": model.state_dict(), "config": config_to_dict(TINY)}, path)
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(path, load_config(None, ["model.stacks=2"], base=TINY))


def test_only_named_tensors_of_a_checkpoint_are_weights() -> None:
    weight = torch.ones(2)
    state = {"stem.weight": weight, "epoch": 3, 7: weight}
    assert list(extract_weights(state, "some.pth")) == ["stem.weight"]
    with pytest.raises(CheckpointError, match=r"some\.pth contains no weights"):
        extract_weights({"epoch": 3}, "some.pth")


@pytest.mark.parametrize(
    "report, message",
    [
        (
            LoadReport("a.pth", missing=["stem.weight", "b"], unexpected=["c"]),
            r"\(3 tensors do not fit, first stem.weight\)",
        ),
        (LoadReport("a.pth", reshaped=["stem.weight"]), r"\(1 tensors do not fit, first stem.weight\)"),
        (LoadReport("a.pth", unexpected=["c"]), r"\(1 tensors do not fit, first c\)"),
    ],
)
def test_any_difference_from_the_network_is_named_as_another_architecture(report: LoadReport, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        report.require_all()


def test_a_file_that_fits_is_accepted() -> None:
    LoadReport("a.pth", loaded=["stem.weight"]).require_all()


@pytest.mark.parametrize("num_fitting, accepted", [(2, True), (1, False)])
def test_half_of_the_tensors_must_fit(num_fitting: int, accepted: bool) -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in ("a", "b", "c", "d")})
    state = {name: torch.ones(1) for name in ("a", "b")[:num_fitting]}
    if accepted:
        assert load_weights(model, "some.pth", state=state).loaded == ["a", "b"]
    else:
        with pytest.raises(CheckpointError, match="only 1 of 4 tensors fit"):
            load_weights(model, "some.pth", state=state)
    assert [tensor.item() for tensor in model.state_dict().values()] == [float(accepted)] * 2 + [0.0] * 2


def test_a_checkpoint_cannot_name_a_file_as_its_skeleton() -> None:
    state = {"config": {"model": {"skeleton": "/etc/passwd"}}}
    with pytest.raises(CheckpointError, match="has a file name as its skeleton"):
        config_of_checkpoint(state, "some.pth")
    assert config_of_checkpoint({"config": {"model": {"skeleton": "coco"}}}, "some.pth") is not None
    assert config_of_checkpoint({}, "some.pth") is None


def test_a_report_of_five_names_lists_them_all() -> None:
    assert str(LoadReport("a.pth", missing=list("abcde"))) == "a.pth: loaded 0 tensors\n  missing 5: a, b, c, d, e"

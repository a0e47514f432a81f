"""Loading weights: prefixes, partial fits, and the network of a checkpoint."""

import copy
import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, extract_weights, load_model, load_weights, stored_config
from posenet.errors import CheckpointError, ConfigError
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import config_to_dict, load_config
from posenet.skeleton import COCO
from posenet.training.resume import config_of_run
from tests.helpers.networks import random_network, tiny_network, write_checkpoint
from tests.helpers.process_runs import find_differences

TINY = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])


@pytest.fixture
def model() -> PoseNet:
    return random_network(stacks=1)


@pytest.fixture
def other() -> PoseNet:
    """A network of the same architecture with other weights."""
    return tiny_network(stacks=1)


def have_same_weights(a: nn.Module, b: nn.Module) -> bool:
    return find_differences(a.state_dict(), b.state_dict()) == []


@pytest.mark.parametrize(
    "prefix, key",
    [
        ("", "model_state_dict"),
        ("posenet.", "anything"),
        ("module.posenet.", "weights"),
        ("_orig_mod.module.", "model"),
        ("model._orig_mod.", "state_dict"),
    ],
)
def test_weights_load_completely_under_any_key_with_any_prefix_of_a_wrapper(
    model: PoseNet, other: PoseNet, tmp_path: Path, prefix: str, key: str
) -> None:
    path = tmp_path / "wrapped.pth"
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"epoch": 3, key: weights, "optimizer_state_dict": optimizer.state_dict()}, path)
    report = load_weights(other, path)
    assert have_same_weights(other, model)
    assert not report.missing + report.unexpected + report.reshaped


def test_names_in_a_checkpoint_of_ours_keep_what_other_programs_add(tmp_path: Path) -> None:
    """A network of the user may have parts of these names."""
    names = ["model.a", "posenet.b", "pre.conv1.weight"]
    for prefix in ("", "module.", "_orig_mod."):
        weights = {prefix + name: torch.zeros(1) for name in names}
        assert list(extract_weights({"model": weights, "config": {}}, "a.pth")) == names


def test_our_checkpoint_loads_with_its_settings(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    tables = config_to_dict(TINY)
    torch.save({"format": 1, "model": model.state_dict(), "config": tables}, path)
    loaded, config = load_model(path)
    assert have_same_weights(loaded, model) and config == TINY
    assert not loaded.training
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(path, load_config(None, ["model.stacks=2"], base=TINY))
    torch.save({"model": model.state_dict() | {"extra.weight": torch.ones(1)}, "config": tables}, path)
    with pytest.raises(CheckpointError, match="1 tensors .*extra.weight"):
        load_model(path)


def test_load_weights_reports_what_does_not_fit_and_loads_the_rest(
    model: PoseNet, other: PoseNet, tmp_path: Path
) -> None:
    path = tmp_path / "other.pth"
    weights = dict(model.state_dict())
    missing, reshaped, loaded = list(weights)[:3]
    del weights[missing]
    weights[reshaped] = torch.zeros(99)
    weights["extra.weight"] = torch.tensor([-math.inf])  # what does not fit may have any values
    torch.save({"model": weights | {7: weights[loaded], "epoch": 3}}, path)
    before = copy.deepcopy(other.state_dict())
    report = load_weights(other, path)
    assert (report.missing, report.unexpected, report.reshaped) == ([missing], ["extra.weight"], [reshaped])
    assert report.loaded == list(weights)[1:-1]
    after = other.state_dict()
    assert torch.equal(after[missing], before[missing]) and torch.equal(after[reshaped], before[reshaped])
    assert torch.equal(after[loaded], weights[loaded])


def test_layers_of_the_maps_of_another_skeleton_are_not_loaded(tmp_path: Path) -> None:
    """Also if they have the same shapes."""
    path = write_checkpoint(tmp_path / "old.pth", stacks=2)
    report = load_weights(tiny_network(stacks=2), path, dataclasses.replace(COCO, keypoints=COCO.keypoints[::-1]))
    kept = {"stacks.1.heads.2.output.weight", "stacks.1.heads.2.output.bias", "merges.0.1.maps.conv.weight"}
    assert kept <= set(report.reshaped) and len(report.reshaped) == 2 * 5 * 2 + 5
    assert not load_weights(tiny_network(stacks=2), path, COCO).reshaped


def test_half_of_the_tensors_must_fit(tmp_path: Path) -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in ("a", "b", "c", "d")})
    path = tmp_path / "some.pth"
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="1 of 4 tensors .*model.stacks"):
        load_weights(model, path)
    assert [tensor.item() for tensor in model.state_dict().values()] == [0.0] * 4
    torch.save({"a": torch.ones(1), "b": torch.ones(1)}, path)
    assert load_weights(model, path).loaded == ["a", "b"]


def test_a_checkpoint_cannot_name_a_file_as_its_skeleton() -> None:
    state = {"config": {"model": {"skeleton": "/etc/passwd"}}}
    with pytest.raises(CheckpointError, match="has a file name as its skeleton"):
        config_of_checkpoint(state, "some.pth")
    assert config_of_checkpoint({"config": {"model": {"skeleton": "coco"}}}, "some.pth") is not None
    assert config_of_checkpoint({}, "some.pth") is None
    with pytest.raises(ConfigError, match=r"some\.pth.*train\.epochs"):
        config_of_checkpoint({"config": {"train": {"epochs": "many"}}}, "some.pth")


WEIGHT = "stem.entry.conv.weight"
VARIANCE = "stem.entry.norm.running_var"


def changed(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[1] = value
    return tensor


NO_WEIGHTS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "NaN": (WEIGHT, lambda weight: changed(weight, math.nan)),
    "infinite in float32": (WEIGHT, lambda weight: changed(weight.double(), 1e200)),
    "negative variance": (VARIANCE, lambda weight: changed(weight, -1e-3)),
    "complex64": (WEIGHT, lambda weight: weight.to(torch.complex64)),
    "int8": (WEIGHT, lambda weight: weight.to(torch.int8)),
    "without values": (WEIGHT, lambda weight: weight.to("meta")),
    "sparse": (WEIGHT, lambda weight: weight.to_sparse()),
    "quantized": (WEIGHT, lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)),
    "nested": (WEIGHT, lambda weight: torch.nested.nested_tensor([weight[0], weight[1]])),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", NO_WEIGHTS)
def test_what_a_network_cannot_compute_with_is_refused(model: PoseNet, tmp_path: Path, kind: str) -> None:
    name, change = NO_WEIGHTS[kind]
    path = tmp_path / "bad.pth"
    weights = model.state_dict()
    weights[name] = change(weights[name])
    torch.save({"format": 1, "model": weights, "config": config_to_dict(TINY)}, path)
    # PyTorch 2.15 already refuses to read nested tensors.
    with pytest.raises(CheckpointError, match=f"bad.pth(: {re.escape(name)} .*{kind}| is not a checkpoint)") as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_every_door_refuses_the_same_weights_and_changes_nothing(
    model: PoseNet, other: PoseNet, tmp_path: Path
) -> None:
    path = tmp_path / "bad.pth"
    weights = model.state_dict()
    weights[WEIGHT] = changed(weights[WEIGHT], math.nan)
    torch.save({"format": 1, "model": weights, "config": config_to_dict(TINY)}, path)
    before = copy.deepcopy(other.state_dict())
    doors: dict[str, Callable[[], object]] = {
        "load_weights": lambda: load_weights(other, path),
        "load_model": lambda: load_model(path),
        "resume": lambda: config_of_run(None, [], tmp_path, (path, read_checkpoint(path))),
        "Predictor": lambda: Predictor(path, device="cpu"),
    }
    for door, enter in doors.items():
        with pytest.raises(CheckpointError, match=f"bad.pth: {WEIGHT} contains NaN"):
            pytest.fail(f"{door} accepts it: {enter()}")
    assert [file.name for file in tmp_path.iterdir()] == ["bad.pth"]
    assert find_differences(other.state_dict(), before) == []


def test_weights_of_other_floating_types_load_as_float32(model: PoseNet, tmp_path: Path) -> None:
    path = tmp_path / "half.pth"
    weights = {name: tensor.half() for name, tensor in model.state_dict().items()}
    torch.save({"model": weights, "config": config_to_dict(TINY)}, path)
    expected = {name: weights[name].to(tensor.dtype) for name, tensor in model.state_dict().items()}
    assert find_differences(load_model(path)[0].state_dict(), expected) == []


def test_two_tensors_of_one_name_are_refused(model: PoseNet) -> None:
    weights = model.state_dict()
    with pytest.raises(CheckpointError, match="two.pth .*more than once"):
        extract_weights({"weights": weights | {f"module.{WEIGHT}": weights[WEIGHT]}}, "two.pth")


def test_maps_get_no_other_meaning_than_that_in_the_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "a.pth")
    stored = stored_config(path)
    skeleton = dataclasses.replace(COCO, keypoints=COCO.keypoints[::-1])
    difference = "'left_ear', not 'nose'"
    other = dataclasses.replace(stored, model=dataclasses.replace(stored.model, skeleton=skeleton))
    with pytest.raises(CheckpointError, match=difference):
        load_model(path, other)
    with pytest.raises(ConfigError, match=difference):
        Predictor(path, skeleton=skeleton)
    looks = dataclasses.replace(COCO, drawn=COCO.drawn[:3], sigmas=(0.1,) * len(COCO.sigmas))
    assert Predictor(path, skeleton=looks).skeleton == looks
    assert load_model(path, dataclasses.replace(other, model=dataclasses.replace(other.model, skeleton=looks)))


@pytest.mark.parametrize(
    "names, keys", [(("generator", "critic"), ["generator", "critic"]), ((), ["epoch", "optimizer_state_dict"])]
)
def test_weights_that_are_not_determined_are_refused_with_the_keys_that_are_there(
    model: PoseNet, other: PoseNet, tmp_path: Path, names: tuple[str, ...], keys: list[str]
) -> None:
    path = tmp_path / "a.pth"
    torch.save(
        {"epoch": 3, "optimizer_state_dict": {"state": {}}, **{name: model.state_dict() for name in names}}, path
    )
    with pytest.raises(CheckpointError) as caught:
        load_weights(other, path)
    assert all(key in str(caught.value) for key in keys)

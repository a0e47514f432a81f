"""The network: parity with the published one and its names, shapes, gradients, initial weights, bad input."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from posenet.errors import CheckpointError
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_ours, rename_to_published
from posenet.settings import NUM_SCALES, ModelConfig
from tests.helpers.networks import tiny_network

FIXTURES = Path(__file__).parents[1] / "fixtures"
PUBLISHED_SHAPES = json.loads((FIXTURES / "published_checkpoint_keys.json").read_text())


def random_images(height: int = 128, width: int = 128) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def fixture_weights(name: str, shape: list[int]) -> Tensor:
    """The weights of the parity fixtures: a function of the published name and the shape."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if name.endswith(("running_mean", "bias")):
        values = 0.1 * rng.standard_normal(shape)
    elif len(shape) == 1:
        values = rng.uniform(0.5, 1.5, shape)
    else:
        values = rng.standard_normal(shape) * np.sqrt(1 / np.prod(shape[1:]))
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("fixture", ["network_1stack.npz", "network_2stack.npz"])
def test_outputs_equal_those_of_the_published_network(fixture: str) -> None:
    expected = np.load(FIXTURES / fixture)
    seed, height, width, stacks = expected["input_seed_h_w_nstack"].tolist()
    with torch.device("meta"):
        model = PoseNet(ModelConfig(stacks=stacks)).eval()
    weights = {name: fixture_weights(name, PUBLISHED_SHAPES[name]) for name in rename_to_published(model.state_dict())}
    model.load_state_dict(rename_to_ours(weights), assign=True)
    images = torch.from_numpy(np.random.default_rng(seed).random((1, height, width, 3)).astype(np.float32))
    with torch.inference_mode():
        predictions = model(images.permute(0, 3, 1, 2))
    mean_abs = [[maps.abs().mean().item() for maps in scales] for scales in predictions]
    np.testing.assert_allclose(mean_abs, expected["mean_abs"], atol=1e-5)
    last = stacks - 1  # the fixtures hold the maps of the last stack only
    for scale in range(NUM_SCALES):
        np.testing.assert_allclose(
            predictions[last][scale][0].numpy(), expected[f"stack{last}_scale{scale}"], atol=1e-4
        )


def test_size_and_cost_of_the_default_network() -> None:
    with torch.device("meta"):
        model = PoseNet(ModelConfig()).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 128_998_760
    images = torch.empty(32, 3, 512, 512, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        model(images)
    with torch.no_grad(), FlopCounterMode(display=False) as heatmaps:
        model.heatmaps(images)
    assert forward.get_total_flops() / 32e9 == pytest.approx(447.3, abs=0.1)
    assert heatmaps.get_total_flops() < 0.87 * forward.get_total_flops()


def test_heatmaps_are_the_last_stack_at_stride_4_and_the_images_stay_as_they_are() -> None:
    model = tiny_network(stacks=3, conv_std=0.1).eval()
    images = random_images(128, 64)
    with torch.inference_mode():
        assert torch.equal(model.heatmaps(images), model(images)[-1][0])
    assert torch.equal(images, random_images(128, 64))


def test_every_parameter_has_a_gradient_and_every_batch_norm_runs_once_per_forward_pass() -> None:
    model = tiny_network(stacks=3)
    predictions = model(random_images())
    sum((maps - 0.1).square().sum() for scales in predictions for maps in scales).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    counts = {name: m.num_batches_tracked.item() for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert set(counts.values()) == {1}
    assert "merges.1.4.features.norm" in counts


def test_initial_weights() -> None:
    model = tiny_network(width=64, growth=16)
    weights: dict[type, list[Tensor]] = {nn.Conv2d: [], nn.Linear: []}
    for module in model.modules():
        if type(module) in weights:
            weights[type(module)].append(module.weight.detach().flatten())
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()
    for kind, std in ((nn.Conv2d, 0.05), (nn.Linear, 0.01)):
        values = torch.cat(weights[kind])
        assert values.std().item() == pytest.approx(std, rel=0.03)
        assert abs(values.mean().item()) < 0.05 * std


@pytest.mark.parametrize(
    "images, message",
    [
        (torch.zeros(1, 3, 100, 128), "multiples of 64"),
        (torch.zeros(1, 1, 64, 64), r"\(N, 3, H, W\)"),
        (torch.zeros(3, 64, 64), r"\(N, 3, H, W\)"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "float32"),
    ],
)
def test_images_of_another_shape_or_dtype_are_refused(images: Tensor, message: str) -> None:
    model = tiny_network().eval()
    for run in (model, model.heatmaps):
        with pytest.raises(ValueError, match=message):
            run(images)


def test_the_default_network_has_exactly_the_published_names_and_shapes() -> None:
    with torch.device("meta"):
        model = PoseNet(ModelConfig())
    published = rename_to_published(model.state_dict())
    assert len(published) == 1848
    assert {name: list(tensor.shape) for name, tensor in published.items()} == PUBLISHED_SHAPES


@pytest.mark.parametrize("stacks", [1, 2, 11])
def test_a_round_trip_keeps_names_order_and_tensors(stacks: int) -> None:
    ours = tiny_network(stacks=stacks).state_dict()
    published = rename_to_published(ours)
    stripped = {name.removeprefix("posenet."): tensor for name, tensor in published.items()}
    assert list(rename_to_ours(stripped)) == list(rename_to_ours(ours)) == list(ours)
    for first, second in (
        (ours, rename_to_ours(published)),
        (published, rename_to_published(rename_to_ours(published))),
    ):
        assert list(second) == list(first)
        assert all(second[name] is tensor for name, tensor in first.items())


def test_unknown_names_stay_so_that_loading_reports_them() -> None:
    tensor = torch.zeros(1)
    names = ["posenet.outs.0.9.conv.bias", "posenet.hourglass.0.hg.4.0.convBlock.0.weight", "fc.weight"]
    assert list(rename_to_ours(dict.fromkeys(names, tensor))) == names


@pytest.mark.parametrize("name", ["module.stem.entry.conv.weight", "stacks.0.heads.5.output.bias", "fc.weight"])
def test_names_without_a_published_form_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        rename_to_published({name: torch.zeros(1)})

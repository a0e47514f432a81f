"""The network: parity with the published one, shapes, gradients, statistics, initial weights, bad input."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from posenet.model import PoseNet
from posenet.model.published_names import to_ours, to_published
from posenet.settings import load_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
PUBLISHED_SHAPES = json.loads((FIXTURES / "published_checkpoint_keys.json").read_text())


def tiny(stacks: int = 2, **options: float) -> PoseNet:
    torch.manual_seed(0)
    return PoseNet(stacks=stacks, width=16, growth=2, **options)


def default_on_meta() -> PoseNet:
    with torch.device("meta"):
        return PoseNet()


def random_images(height: int = 128, width: int = 128) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def recipe_weights(name: str, shape: list[int]) -> Tensor:
    """The fixtures' weights: a function of the published name and the shape."""
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
def test_outputs_are_those_of_the_published_network(fixture: str) -> None:
    expected = np.load(FIXTURES / fixture)
    seed, height, width, stacks = expected["input_seed_h_w_nstack"].tolist()
    with torch.device("meta"):
        model = PoseNet(stacks=stacks).eval()
    weights = {name: recipe_weights(name, PUBLISHED_SHAPES[name]) for name in to_published(model.state_dict())}
    model.load_state_dict(to_ours(weights), assign=True)
    images = torch.from_numpy(np.random.default_rng(seed).random((1, height, width, 3)).astype(np.float32))
    with torch.inference_mode():
        predictions = model(images.permute(0, 3, 1, 2))
    mean_abs = [[maps.abs().mean().item() for maps in scales] for scales in predictions]
    np.testing.assert_allclose(mean_abs, expected["mean_abs"], atol=1e-5)
    stored = [(s, j) for s in range(stacks) for j in range(5) if f"stack{s}_scale{j}" in expected]
    assert [(stacks - 1, j) for j in range(5)] == stored
    for s, j in stored:
        np.testing.assert_allclose(predictions[s][j][0].numpy(), expected[f"stack{s}_scale{j}"], atol=1e-4)


def test_size_and_cost_of_the_default_network() -> None:
    model = default_on_meta().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 128_998_760
    images = torch.empty(1, 3, 512, 512, device="meta")
    with FlopCounterMode(display=False) as everything:
        model(images)
    with FlopCounterMode(display=False) as finest:
        model.heatmaps(images)
    assert everything.get_total_flops() / 1e9 == pytest.approx(529, abs=0.5)
    assert finest.get_total_flops() < 0.87 * everything.get_total_flops()


def test_predictions_have_five_scales_also_of_rectangles() -> None:
    predictions = tiny(stacks=3)(random_images(128, 192))
    assert len(predictions) == 3
    for scales in predictions:
        assert [maps.shape for maps in scales] == [(2, 50, 32 >> j, 48 >> j) for j in range(5)]


def test_channels_follow_the_arguments_and_the_configuration() -> None:
    assert tiny(num_channels=7).heatmaps(random_images()).shape == (2, 7, 32, 32)
    model = PoseNet.from_config(
        load_config(None, ["model.stacks=3", "model.width=32", "model.growth=4", "model.conv_std=0.5"])
    )
    assert model.stem.refine.spatial.conv.weight.std() > 0.3
    model.load_state_dict(PoseNet(stacks=3, width=32, growth=4).state_dict())


def test_heatmaps_are_the_last_stack_at_stride_4() -> None:
    model = tiny(stacks=3, conv_std=0.1).eval()
    images = random_images(128, 64)
    with torch.inference_mode():
        assert torch.equal(model.heatmaps(images), model(images)[-1][0])


def test_heatmaps_compute_nothing_that_does_not_reach_them() -> None:
    model = tiny(stacks=3)
    model(random_images())[-1][0].square().sum().backward()
    reaching = {name for name, p in model.named_parameters() if p.grad is not None}
    ran = set()
    for name, module in model.named_modules():
        names = {f"{name}.{own}" for own, _ in module.named_parameters(recurse=False)}
        module.register_forward_hook(lambda *_, names=names: ran.update(names))
    model.heatmaps(random_images())
    assert ran == reaching
    assert "stacks.2.hourglass.inner.inner.inner.inner.expand.conv.weight" in ran
    assert not any(name.startswith(("stacks.0.heads.1", "stacks.2.heads.1", "merges.0.1")) for name in ran)


def test_every_parameter_gets_a_gradient() -> None:
    model = tiny(stacks=3)
    predictions = model(random_images())
    sum((maps - 0.1).square().sum() for scales in predictions for maps in scales).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_statistics_move_once_a_step() -> None:
    model = tiny(stacks=3)
    model(random_images())
    counts = {name: m.num_batches_tracked.item() for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert set(counts.values()) == {1}
    assert "merges.1.4.features.norm" in counts


def test_evaluation_leaves_the_model_as_it_was() -> None:
    model = tiny().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = random_images()
    model(images)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(images, random_images())


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = PoseNet(stacks=2, width=64, growth=16)
    weights: dict[type, list[Tensor]] = {nn.Conv2d: [], nn.Linear: []}
    for module in model.modules():
        if type(module) in weights:
            weights[type(module)].append(module.weight.detach().flatten())
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()
    for kind, std in ((nn.Conv2d, 0.001), (nn.Linear, 0.01)):
        values = torch.cat(weights[kind])
        assert values.std().item() == pytest.approx(std, rel=0.03)
        assert abs(values.mean().item()) < 0.05 * std
    assert tiny(conv_std=0.5).stem.refine.spatial.conv.weight.std().item() == pytest.approx(0.5, rel=0.2)
    assert tiny(linear_std=0.5).stacks[0].heads[0].features[2].excite.weight.std().item() == pytest.approx(0.5, rel=0.5)


def test_only_convolutions_that_no_normalisation_follows_have_a_bias() -> None:
    biased = {name for name, m in tiny().named_modules() if isinstance(m, nn.Conv2d) and m.bias is not None}
    assert biased == {f"stacks.{s}.heads.{j}.output" for s in range(2) for j in range(5)}


def test_heads_are_what_the_published_names_call_features_and_outs() -> None:
    model = tiny(stacks=3)
    names = [name for name, _ in model.named_parameters()]
    published = to_published(dict(model.named_parameters()))
    roots = ("posenet.features.", "posenet.outs.")
    heads = {ours for ours, theirs in zip(names, published) if theirs.startswith(roots)}
    assert set(model.head_parameter_names()) == heads
    assert 0 < len(heads) < len(names)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 100, 128), "multiples of 64"),
        (torch.zeros(1, 3, 128, 32), "multiples of 64"),
        (torch.zeros(1, 1, 64, 64), r"\(N, 3, H, W\)"),
        (torch.zeros(3, 64, 64), r"\(N, 3, H, W\)"),
        (torch.zeros(1, 64, 64, 3), r"\(N, 3, H, W\)"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "float32"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.float64), "float32"),
    ],
)
def test_wrong_images_are_refused(images: Tensor, message: str) -> None:
    model = tiny().eval()
    for run in (model, model.heatmaps):
        with pytest.raises(ValueError, match=message):
            run(images)


@pytest.mark.parametrize("options", [{"stacks": 0}, {"width": 20}, {"width": 0}, {"growth": 3}, {"growth": -2}])
def test_impossible_networks_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no network of"):
        PoseNet(**options)


def test_channels_last_and_reduced_precision() -> None:
    model = tiny(conv_std=0.1).eval()
    images = random_images()
    with torch.inference_mode():
        reference = model.heatmaps(images)
        with torch.autocast("cpu", torch.bfloat16):
            reduced = model.heatmaps(images)
        other = model.to(memory_format=torch.channels_last).heatmaps(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(other, reference)
    assert reduced.dtype == torch.bfloat16
    assert (reduced - reference).abs().max() < 0.05 * reference.abs().max()

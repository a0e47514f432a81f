"""The network: shapes, gradients, initial weights, bad input."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from posenet.model.posenet import PoseNet
from posenet.settings import ModelConfig
from tests.helpers.networks import tiny_network


def random_images(height: int = 128, width: int = 128) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


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

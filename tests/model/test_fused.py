"""The fused copy of a network that prediction uses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from posenet.devices.precision import Amp
from posenet.model.fused import FusedNetwork
from posenet.model.layers import UpsampleConv2d
from posenet.model.posenet import FeaturesMerge, PoseNet, ScaleMerge
from tests.helpers.networks import random_network

IMAGES = torch.rand(2, 3, 64, 128, generator=torch.Generator().manual_seed(0))


def convolutions(network: nn.Module) -> list[nn.Module]:
    """All convolutions of a network."""
    return [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]


def computed_convolutions(network: PoseNet | FusedNetwork) -> list[nn.Module]:
    """Those convolutions that the maps need."""
    computed = set()
    for module in convolutions(network):
        module.register_forward_hook(lambda module, inputs, output: computed.add(module))
    with torch.inference_mode():
        network.heatmaps(IMAGES)
    return [module for module in convolutions(network) if module in computed]


def test_the_maps_are_the_same_and_no_batch_norm_is_left() -> None:
    network = random_network()
    with torch.inference_mode():
        expected = network.eval().heatmaps(IMAGES)
        fused = FusedNetwork(network)
        maps = fused.heatmaps(IMAGES)
    assert expected.std() > 0.1
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert maps.is_contiguous()
    assert not [module for module in fused.modules() if isinstance(module, nn.BatchNorm2d)]


def test_kernels_of_transposed_convolutions_are_computed_once_from_float32_sums() -> None:
    network = random_network().eval()
    for amp, upsample_first in (("off", False), ("bf16", False), ("off", True)):
        fused = FusedNetwork(network, amp, upsample_first)  # type: ignore[arg-type]
        assert not [module for module in fused.modules() if isinstance(module, UpsampleConv2d)]
        transposed = [module for module in fused.modules() if isinstance(module, nn.ConvTranspose2d)]
        assert bool(transposed) != upsample_first
        with torch.inference_mode():
            maps, expected = fused.heatmaps(IMAGES), network.heatmaps(IMAGES)
        assert (maps - expected).abs().max() < (0.05 if amp == "bf16" else 1e-4) * expected.abs().max()
    float_kernel, bf16_kernel = (
        next(module.weight for module in FusedNetwork(network, amp).modules() if isinstance(module, nn.ConvTranspose2d))
        for amp in ("off", "bf16")
    )
    assert torch.equal(bf16_kernel, float_kernel.bfloat16())


def test_only_what_the_maps_need_is_computed_and_kept() -> None:
    network = random_network(stacks=3).eval()
    fused = FusedNetwork(network)
    assert computed_convolutions(fused) == convolutions(fused)
    assert len(computed_convolutions(network)) - len(convolutions(fused)) == 2 * 2  # 3 become 1 between two stacks


def test_convolutions_between_two_stacks_are_joined_without_loss_of_precision() -> None:
    merge, output = ScaleMerge(5, 16, 12), nn.Conv2d(16, 5, 1)
    for layer in (merge.maps, merge.features):
        layer.conv = nn.Conv2d(layer.conv.in_channels, 12, 1)  # as a FusedNetwork folds BatchNorm into it
        layer.norm = nn.Identity()
    features = torch.rand(2, 16, 4, 6)
    with torch.no_grad():
        expected = merge(output(features), features)
        with torch.autocast("cpu", torch.bfloat16):
            joined = FeaturesMerge(merge, output)
        torch.testing.assert_close(joined(output(features), features), expected, rtol=1e-5, atol=1e-6)


def test_the_original_network_is_not_changed() -> None:
    network = random_network()
    before = copy.deepcopy(network.state_dict())
    modes = [module.training for module in network.modules()]
    fused = FusedNetwork(network, "bf16")
    fused.heatmaps(IMAGES)
    assert [module.training for module in network.modules()] == modes
    assert all(parameter.requires_grad for parameter in network.parameters())
    after = network.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], value) for name, value in before.items())
    shared = {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in fused.parameters()}
    assert not shared and not any(p.requires_grad for p in fused.parameters())


@pytest.mark.parametrize("amp, dtype, tolerance", [("bf16", torch.bfloat16, 0.05), ("fp16", torch.float16, 0.01)])
def test_weights_are_stored_in_half_precision(amp: Amp, dtype: torch.dtype, tolerance: float) -> None:
    network = random_network()
    with torch.inference_mode():
        fused = FusedNetwork(network, amp)
        assert {p.dtype for p in fused.parameters()} == {dtype}
        maps, expected = fused.heatmaps(IMAGES), network.eval().heatmaps(IMAGES)
    assert maps.dtype == dtype
    assert (maps - expected).abs().max() < tolerance * expected.abs().max()

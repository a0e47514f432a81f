"""The fused copy of a network that prediction uses."""

import copy

import pytest
import torch
from torch import nn

from posenet.devices.precision import DTYPES, Amp
from posenet.model.fused import FusedNetwork
from posenet.model.layers import UpsampleConv2d
from posenet.model.posenet import PoseNet
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


@pytest.mark.parametrize("upsample_first", [False, True])
@pytest.mark.parametrize("amp, tolerance", [("off", 1e-4), ("bf16", 0.05), ("fp16", 0.01)])
def test_the_maps_are_the_same_with_folded_layers_in_any_precision(
    amp: Amp, tolerance: float, upsample_first: bool
) -> None:
    network = random_network().eval()
    for stack in network.stacks:
        nn.init.uniform_(stack.heads[0].output.bias, -0.3, 0.3)  # as after training; they are 0 before
    fused = FusedNetwork(network, amp, upsample_first)
    with torch.inference_mode():
        maps, expected = fused.heatmaps(IMAGES), network.heatmaps(IMAGES)
    assert expected.std() > 0.1 and maps.is_contiguous()
    assert {maps.dtype} == {parameter.dtype for parameter in fused.parameters()} == {DTYPES[amp]}
    assert (maps - expected).abs().max() < tolerance * expected.abs().max()
    modules = list(fused.modules())
    assert not [module for module in modules if isinstance(module, nn.BatchNorm2d | UpsampleConv2d)]
    assert any(isinstance(module, nn.ConvTranspose2d) for module in modules) != upsample_first


def test_only_what_the_maps_need_is_computed_and_kept() -> None:
    network = random_network(stacks=3).eval()
    fused = FusedNetwork(network)
    assert computed_convolutions(fused) == convolutions(fused)
    assert len(computed_convolutions(network)) - len(convolutions(fused)) == 2 * 2  # 3 become 1 between two stacks


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

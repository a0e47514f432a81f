"""The copy of a network that prediction uses."""

from __future__ import annotations

import argparse
import copy
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

from posenet.checkpoints.file import FORMAT
from posenet.cli.predictor_options import make_predictor
from posenet.devices.precision import select_amp
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.settings import InferenceConfig, config_from_dict, config_to_dict
from tests.helpers.spot_networks import SpotNetwork, spot_image


def lively(stacks: int = 2, num_channels: int = 50) -> PoseNet:
    """A small network whose batch normalisation does something and whose maps are about 1."""
    torch.manual_seed(0)
    network = PoseNet(num_channels, stacks=stacks, width=16, growth=2, conv_std=0.1, linear_std=0.1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.3, 0.3),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 1.5),
            ):
                nn.init.uniform_(tensor, low, high)
    return network


IMAGES = torch.rand(2, 3, 64, 128, generator=torch.Generator().manual_seed(0))


def test_the_maps_are_the_same_and_no_normalisation_is_left():
    network = lively()
    with torch.inference_mode():
        expected = network.eval().heatmaps(IMAGES)
        deployed = FusedNetwork(network)
        maps = deployed.heatmaps(IMAGES)
    assert expected.std() > 0.1
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert maps.is_contiguous()
    assert not [module for module in deployed.modules() if isinstance(module, nn.BatchNorm2d)]


def test_the_network_itself_is_left_alone():
    network = lively()
    before, mode = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    deployed = FusedNetwork(network, "bf16")
    deployed.heatmaps(IMAGES)
    assert [module.training for module in network.modules()] == mode
    assert all(parameter.requires_grad for parameter in network.parameters())
    after = network.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], value) for name, value in before.items())
    shared = {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in deployed.parameters()}
    assert not shared and not any(p.requires_grad for p in deployed.parameters())


@pytest.mark.parametrize("amp, dtype, tolerance", [("bf16", torch.bfloat16, 0.05), ("fp16", torch.float16, 0.01)])
def test_half_precision_holds_weights_of_half_the_size(amp, dtype, tolerance):
    network = lively()
    with torch.inference_mode():
        deployed = FusedNetwork(network, amp)
        assert {p.dtype for p in deployed.parameters()} == {dtype}
        maps, expected = deployed.heatmaps(IMAGES), network.eval().heatmaps(IMAGES)
    assert maps.dtype == torch.float32
    assert (maps - expected).abs().max() < tolerance * expected.abs().max()


class Exact(SpotNetwork):
    """A ``SpotNetwork`` with a weight, so that precision has something to act on."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def heatmaps(self, images):
        return super().heatmaps(images * self.weight).to(self.weight.dtype)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_a_deployed_network_finds_the_same_people(amp):
    image = spot_image(480, 640, (300.0, 100.0), (310.0, 250.0), 12)
    [one] = Predictor(Exact(), InferenceConfig(height=256))(image)
    [other] = Predictor(FusedNetwork(Exact(), amp), InferenceConfig(height=256))(image)
    np.testing.assert_allclose(other.keypoints[:, :2], one.keypoints[:, :2], atol=1.0)
    np.testing.assert_allclose(other.keypoints[:, 2], one.keypoints[:, 2], atol=0.02)


def test_auto_is_bf16_where_the_cpu_has_it(monkeypatch):
    cpu = torch.device("cpu")
    for native, expected in ((True, "bf16"), (False, "off")):
        for ask in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            monkeypatch.setattr(torch.cpu, ask, lambda: native, raising=False)
        assert select_amp(cpu) == expected
    assert [select_amp(cpu, name) for name in ("off", "bf16", "fp16")] == ["off", "bf16", "fp16"]
    assert select_amp(torch.device("meta")) == "off"


@pytest.mark.parametrize(
    "bf16, capability, expected", [(True, (9, 0), "bf16"), (False, (7, 5), "fp16"), (False, (6, 1), "off")]
)
def test_auto_on_cuda_follows_the_device(monkeypatch, bf16, capability, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert select_amp(torch.device("cuda")) == expected


@pytest.mark.parametrize(
    "tool, words, expected",
    [
        ("predict", [], "bf16"),
        ("predict", ["--amp", "off"], "off"),
        ("evaluate", [], "off"),
        ("evaluate", ["--amp", "auto"], "bf16"),
    ],
)
def test_the_tools_run_a_deployed_copy_in_the_precision_asked_for(tool, words, expected, tmp_path, monkeypatch):
    """On a CPU with bf16; an evaluation is to give the same AP everywhere unless told otherwise."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    checkpoint = tmp_path / "a.pth"
    config = config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 2}})
    torch.save({"format": FORMAT, "model": lively(1).state_dict(), "config": config_to_dict(config)}, checkpoint)
    parser = argparse.ArgumentParser()
    import_module(f"posenet.cli.{tool}").add_arguments(parser)
    needed = {"predict": ["a.jpg"], "evaluate": ["--images", "a", "--annotations", "b"]}[tool]
    args = parser.parse_args([*needed, "--checkpoint", str(checkpoint), "--device", "cpu", *words])
    model = make_predictor(args).network
    assert isinstance(model, FusedNetwork) and model.amp == expected

"""Simulated 8-bit convolutions."""

from __future__ import annotations

import torch

from posenet.inference.fake_quantization import FakeQuantizedNetwork, round_weights
from posenet.model.fused import FusedNetwork
from tests.helpers.networks import random_network


def test_weights_are_rounded_with_one_scale_for_each_output_channel() -> None:
    weight = torch.randn(3, 4, 3, 3) * torch.tensor([0.01, 1.0, 100.0])[:, None, None, None]
    rounded = round_weights(weight)
    for channel, rounded_channel in zip(weight, rounded):
        step = channel.abs().max() / 127
        assert (channel - rounded_channel).abs().max() <= 0.51 * step
        assert len(rounded_channel.unique()) > 10
    assert not torch.equal(weight, rounded)


def test_only_the_chosen_blocks_are_rounded_and_the_images_do_not_change() -> None:
    network = random_network(stacks=2)
    images = torch.rand(1, 3, 64, 128)
    before = images.clone()
    fake = FakeQuantizedNetwork(network, [images])
    expected = FusedNetwork(network).heatmaps(images)
    assert torch.equal(fake.heatmaps(images, ()), expected)
    all_rounded = fake.heatmaps(images, list(fake.blocks))
    one_rounded = fake.heatmaps(images, list(fake.blocks)[:1])
    errors = [(maps - expected).square().mean() for maps in (one_rounded, all_rounded)]
    assert 0 < errors[0] < errors[1] < expected.square().mean()
    assert torch.equal(fake.heatmaps(images, ()), expected)  # switched back
    assert torch.equal(images, before)


def test_blocks_hold_each_convolution_of_the_maps_once() -> None:
    fake = FakeQuantizedNetwork(random_network(stacks=2), [torch.rand(1, 3, 64, 64)])
    names = [name for block in fake.blocks.values() for name in block]
    assert sorted(names) == sorted(fake.convolutions)
    assert set(fake.blocks["network.stem.refine"]) == {
        f"network.stem.refine.{layer}.conv" for layer in ("reduce", "spatial", "expand")
    }
    assert "network.stacks.1.heads.0.output" in fake.blocks
    assert not any("heads.1" in name for name in names)  # coarser maps are not computed


def test_ranges_cover_all_images_and_zero() -> None:
    images = [torch.full((1, 3, 64, 64), value) for value in (0.25, 0.75)]
    fake = FakeQuantizedNetwork(random_network(stacks=1), images)
    assert fake.ranges["network.stem.entry.conv"] == (0.0, 0.75)

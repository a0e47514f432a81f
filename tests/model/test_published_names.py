"""Names of published checkpoints: the default's whole list, both ways, any number of stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posenet.errors import CheckpointError
from posenet.model import PoseNet
from posenet.model.published_names import is_published, to_ours, to_published

PUBLISHED_SHAPES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_checkpoint_keys.json").read_text())


def tiny(stacks: int) -> PoseNet:
    torch.manual_seed(stacks)
    return PoseNet(stacks=stacks, width=16, growth=2)


def test_default_network_has_exactly_the_published_names_and_shapes() -> None:
    with torch.device("meta"):
        model = PoseNet()
    published = to_published(model.state_dict())
    assert len(published) == 1848
    assert {name: list(tensor.shape) for name, tensor in published.items()} == PUBLISHED_SHAPES


@pytest.mark.parametrize("stacks", [1, 2, 11])
def test_round_trip_keeps_names_order_and_bits(stacks: int) -> None:
    state = tiny(stacks).state_dict()
    back = to_ours(to_published(state))
    assert list(back) == list(state)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    published = to_published(state)
    again = to_published(to_ours(published))
    assert list(again) == list(published)
    assert all(again[name] is tensor for name, tensor in published.items())


def test_a_published_state_loads_strictly_and_predicts_the_same() -> None:
    model, other = tiny(2).eval(), PoseNet(stacks=2, width=16, growth=2).eval()
    images = torch.rand(1, 3, 64, 64)
    assert not torch.equal(model.heatmaps(images), other.heatmaps(images))
    other.load_state_dict(to_ours(to_published(model.state_dict())))
    assert torch.equal(model.heatmaps(images), other.heatmaps(images))


def test_published_prefix_may_be_stripped_already() -> None:
    state = tiny(2).state_dict()
    stripped = {name.removeprefix("posenet."): tensor for name, tensor in to_published(state).items()}
    assert is_published(stripped)
    assert list(to_ours(stripped)) == list(state)


def test_is_published() -> None:
    assert is_published(PUBLISHED_SHAPES)
    assert is_published(["posenet.outs.0.0.conv.bias"])
    assert not is_published(tiny(1).state_dict())
    assert not is_published(["features.0.weight", "hourglass.0", "pre.conv1", "posenet.", ""])
    assert not is_published([])


def test_foreign_names_are_kept_for_the_loader_to_report() -> None:
    tensor = torch.zeros(1)
    names = ["posenet.outs.0.9.conv.bias", "posenet.hourglass.0.hg.4.0.convBlock.0.weight", "fc.weight"]
    assert list(to_ours(dict.fromkeys(names, tensor))) == names


@pytest.mark.parametrize("name", ["module.stem.entry.conv.weight", "stacks.0.heads.5.output.bias", "fc.weight"])
def test_names_without_a_published_form_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        to_published({name: torch.zeros(1)})

"""Names of published checkpoints: the complete list of the default network, both directions, any number of stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posenet.errors import CheckpointError
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_ours, rename_to_published
from posenet.settings import ModelConfig
from tests.helpers.networks import tiny_network

PUBLISHED_SHAPES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_checkpoint_keys.json").read_text())


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

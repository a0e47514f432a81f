"""The authors' network: parity with it, and the names of its parameters."""

import json
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from posenet.checkpoints.published.names import rename_to_ours, rename_to_published
from posenet.model.posenet import PoseNet
from posenet.settings import NUM_SCALES, ModelConfig
from tests.helpers.networks import tiny_network
from tests.helpers.source_files import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
PUBLISHED_SHAPES = json.loads((FIXTURES / "published_checkpoint_keys.json").read_text())


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
    names = ["posenet.outs.0.9.conv.bias", "hourglass.0.hg.4.0.convBlock.0.weight", "fc.weight"]
    assert list(rename_to_ours(dict.fromkeys(names, torch.zeros(1)))) == ["outs.0.9.conv.bias", *names[1:]]

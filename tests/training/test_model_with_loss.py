"""Network, target renderer and loss as one module: its parts, precision, and the terms of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from posenet.data.targets import TargetRenderer
from posenet.devices.precision import Amp
from posenet.settings import LossConfig, TargetsConfig
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss
from posenet.training.model_with_loss import ModelWithLoss
from tests.helpers.data_parallel_replicas import replicate
from tests.helpers.networks import tiny_network

SIZE = 64
NUM_SCALES = 5


def make_model(amp: Amp = "off") -> ModelWithLoss:
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    return ModelWithLoss(tiny_network(stacks=1), renderer, loss, amp, channels_last=False).eval()


def random_batch(num_images: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, joints, person masks, and masks of the supervised cells."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (num_images, SIZE, SIZE, 3), dtype=torch.uint8, generator=generator)
    joints = torch.rand(num_images, 3, 18, 3, generator=generator) * SIZE
    mask_shape = (num_images, SIZE // 4, SIZE // 4)
    person_mask = torch.randint(0, 256, mask_shape, dtype=torch.uint8, generator=generator)
    return images, joints, person_mask, torch.full_like(person_mask, 255)


def test_the_loss_is_that_of_the_network_s_predictions_and_the_rendered_targets() -> None:
    model = make_model()
    images, joints, person_mask, mask_miss = random_batch()
    target = model.renderer(joints, person_mask / 255)
    predictions = model.network(images.permute(0, 3, 1, 2) / 255)
    expected = model.loss(predictions, target, mask_miss[:, None] / 255)
    torch.testing.assert_close(model(images, joints, person_mask, mask_miss), expected)


def test_the_loss_of_an_image_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = make_model()
    batch = random_batch(3)
    together = model(*batch)
    one_by_one = [model(*(tensor[i : i + 1] for tensor in batch)) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(one_by_one))


def test_in_bf16_the_loss_is_float32_and_close_to_the_exact_one() -> None:
    batch = random_batch()
    loss = make_model("bf16")(*batch)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, make_model()(*batch), rtol=0.05, atol=0)


def test_the_terms_of_the_loss_are_recorded_in_training_only() -> None:
    model = make_model()
    assert model.meter.read() is None
    model(*random_batch())
    assert model.meter.read() is None
    model.train()
    model(*random_batch())
    assert model.meter.read() is not None
    assert model.meter.read() is None, "reading starts a new record"


def test_the_terms_add_up_to_the_mean_loss_of_all_images() -> None:
    model = make_model().train()
    losses = torch.cat([model(*random_batch(2)), model(*random_batch(3))])
    (terms,) = model.meter.read()
    assert len(terms) == NUM_SCALES
    assert sum(terms) == pytest.approx(losses.mean().item(), rel=1e-4)


def test_terms_that_are_not_finite_are_not_reported() -> None:
    meter = make_model().meter
    meter.add(torch.tensor([[[math.nan]]]))
    assert meter.read() is None
    meter.add(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    assert meter.read() == [[2.0, 3.0]]


class StubNetwork(nn.Module):
    """One convolution whose output, at five scales, is the prediction of the only stack; it compiles quickly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 50, 4, stride=4)

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        maps = self.convolution(images)
        return [[F.avg_pool2d(maps, 1 << scale) for scale in range(NUM_SCALES)]]


def with_stub_network() -> ModelWithLoss:
    model = make_model()
    model.network = StubNetwork()
    return model.train()


def loss_and_gradients(model: ModelWithLoss, batch: tuple[Tensor, ...]) -> list[Tensor]:
    losses = model(*batch)
    parameters = list(model.parameters()) or list(model.network.convolution._former_parameters.values())
    return [losses.detach(), *torch.autograd.grad(losses.sum(), parameters)]


def with_people(batch: tuple[Tensor, ...], people: int) -> tuple[Tensor, ...]:
    images, joints, *masks = batch
    return images, joints.repeat(1, people, 1, 1)[:, :people], *masks


@pytest.fixture
def compiler() -> Iterator[CompileCounter]:
    """Counts the graphs that are compiled, and runs them as they are."""
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def test_one_compiled_graph_serves_any_number_of_people(compiler: CompileCounter) -> None:
    model = with_stub_network()
    expected_model = with_stub_network()
    model.compile(backend=compiler, fullgraph=True)
    for people in (4, 8, 5, 12):
        batch = with_people(random_batch(), people)
        torch.testing.assert_close(loss_and_gradients(model, batch), loss_and_gradients(expected_model, batch))
        model.meter.read()
    assert compiler.frame_count == 1


def test_evaluation_is_not_compiled(compiler: CompileCounter) -> None:
    model = with_stub_network()
    model.compile(backend=compiler, fullgraph=True)
    model.eval()(*random_batch())
    assert compiler.frame_count == 0


def test_each_data_parallel_replica_of_a_compiled_model_uses_its_own_weights(compiler: CompileCounter) -> None:
    model = with_stub_network()
    model.compile(backend=compiler, fullgraph=True)
    batch = random_batch()
    loss_and_gradients(model, batch)
    for factor in (0.5, 2):
        replica = replicate(model)
        convolution = replica.network.convolution
        convolution.weight = convolution._former_parameters["weight"] = convolution.weight * factor
        expected_model = with_stub_network()
        with torch.no_grad():
            expected_model.network.convolution.weight *= factor
        torch.testing.assert_close(loss_and_gradients(replica, batch), loss_and_gradients(expected_model, batch))
    assert compiler.frame_count <= 2, "replicas are made in every step and share one graph"


def test_targets_network_and_loss_are_one_full_graph(compiler: CompileCounter) -> None:
    model = make_model().train()
    model.compile(backend=compiler, fullgraph=True)  # a graph break is an error
    for people in (4, 8):
        model(*with_people(random_batch(), people)).sum().backward()
    assert compiler.frame_count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())

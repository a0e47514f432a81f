"""Network, target renderer and loss as one module: its parts, precision, and compilation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.data.targets import TargetRenderer
from posenet.settings import LossConfig, TargetsConfig
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.teacher import Teacher
from tests.helpers.networks import tiny_network

SIZE = 64


def make_model(teacher: Teacher | None = None) -> ModelWithLoss:
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    network = tiny_network(stacks=1)
    return ModelWithLoss(network, renderer, loss, "off", channels_last=False, teacher=teacher)


def random_batch(num_images: int = 2, people: int = 3, supervised: int = 255) -> tuple[Tensor, ...]:
    """Images, joints, person masks, and masks of the supervised cells."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (num_images, SIZE, SIZE, 3), dtype=torch.uint8, generator=generator)
    joints = torch.rand(num_images, people, 18, 3, generator=generator) * SIZE
    mask_shape = (num_images, SIZE // 4, SIZE // 4)
    person_mask = torch.randint(0, 256, mask_shape, dtype=torch.uint8, generator=generator)
    return images, joints, person_mask, torch.full_like(person_mask, supervised)


def test_the_terms_are_those_of_the_network_s_predictions_and_the_rendered_targets() -> None:
    model = make_model().eval()
    images, joints, person_mask, mask_miss = random_batch()
    target = model.renderer(joints, person_mask / 255)
    predictions = model.network(images.permute(0, 3, 1, 2) / 255)
    expected = model.loss.terms(predictions, target, mask_miss[:, None] / 255)
    torch.testing.assert_close(model(images, joints, person_mask, mask_miss), expected)


class OneConvolution(nn.Module):
    """A network whose prediction at five scales is that of one convolution; it compiles quickly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 50, 4, stride=4)

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        maps = self.convolution(images)
        return [[F.avg_pool2d(maps, 1 << scale) for scale in range(5)]]

    heatmaps = property(lambda self: lambda images: self(images)[0][0])


class Graphs:
    """A compiler that counts the graphs, and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        self.count += 1
        return graph.forward


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    torch.compiler.reset()
    yield Graphs()
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("has_teacher", [False, True])
def test_targets_network_and_loss_are_one_graph(graphs: Graphs, has_teacher: bool) -> None:
    """``fullgraph`` makes a break of the graph an error. A second graph serves any number of people.

    Evaluation is not compiled.
    """
    teacher = Teacher(OneConvolution(), 0.5, 0.0, 0.01) if has_teacher else None  # type: ignore[arg-type]
    eager, compiled = make_model(teacher=teacher), make_model(teacher=teacher)
    eager.network, compiled.network = OneConvolution(), OneConvolution()
    assert not compiled.is_compiled
    compiled.compile(backend=graphs, fullgraph=True)
    assert compiled.is_compiled
    compiled.eval()(*random_batch())
    assert graphs.count == 0
    compiled.train()
    for people in (4, 8, 5, 12):
        results = []
        for model in (compiled, eager.train()):
            terms = model(*random_batch(people=people))
            results.append([terms.detach(), *torch.autograd.grad(terms.sum(), list(model.parameters()))])
        torch.testing.assert_close(*results)
    assert graphs.count == 2


@pytest.mark.slow
def test_the_whole_network_is_in_the_graph(graphs: Graphs) -> None:
    model = make_model().train()
    model.compile(backend=graphs, fullgraph=True)
    model(*random_batch()).sum().backward()
    assert graphs.count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())

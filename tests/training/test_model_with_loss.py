"""Network, target renderer and loss as one module: its parts, precision, and compilation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.data.dataset import stack_joints
from posenet.data.targets import TargetRenderer
from posenet.devices.runtime import Runtime
from posenet.settings import LossConfig, TargetsConfig
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.teacher import Teacher
from tests.helpers.networks import tiny_network
from tests.helpers.process_groups import run_in_processes
from tests.helpers.process_runs import in_forked_process

SIZE = 64


def make_model(teacher: Teacher | None = None) -> ModelWithLoss:
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    network = tiny_network(stacks=1)
    return ModelWithLoss(network, renderer, loss, "off", channels_last=False, teacher=teacher)


def random_batch(num_images: int = 2, people: int = 3, supervised: int = 255, seed: int = 0) -> tuple[Tensor, ...]:
    """Images, joints, person masks, and masks of the supervised cells."""
    generator = torch.Generator().manual_seed(seed)
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


@pytest.mark.slow
@pytest.mark.parametrize("has_teacher", [False, True])
@in_forked_process
def test_targets_network_and_loss_are_one_graph_for_all_batches(has_teacher: bool) -> None:
    """Whatever the number of people, and whether or not some channels are not supervised.

    ``fullgraph`` makes a break of the graph an error. Evaluation is not compiled.
    """
    graphs = Graphs()
    teacher = Teacher(OneConvolution(), 0.5, 0.0, 0.01) if has_teacher else None  # type: ignore[arg-type]
    eager, compiled = make_model(teacher=teacher), make_model(teacher=teacher)
    eager.network, compiled.network = OneConvolution(), OneConvolution()
    assert not compiled.is_compiled
    compiled.compile(backend=graphs, fullgraph=True)
    assert compiled.is_compiled
    compiled.eval()(*random_batch())
    assert graphs.count == 0
    compiled.train()
    channels = torch.arange(2 * 50).view(2, 50).remainder(3).clamp(max=1).to(torch.uint8)
    for people, supervised in ((4, None), (8, None), (2, channels), (5, None), (12, channels), (4, None)):
        results = []
        for model in (compiled, eager.train()):
            terms = model(*random_batch(people=people), supervised)
            results.append([terms.detach(), *torch.autograd.grad(terms.sum(), list(model.parameters()))])
        torch.testing.assert_close(*results)
    assert graphs.count == 1


@pytest.mark.slow
@in_forked_process
def test_a_run_compiles_once_for_1_2_3_and_7_people() -> None:
    """Batches are padded, so that they have places for 4 and for 8 people."""
    graphs = Graphs()
    model = make_model().train()
    model.network = OneConvolution()
    model.compile(backend=graphs, fullgraph=True)
    images, _, person_mask, mask_miss = random_batch()
    for people in (1, 2, 3, 7):
        joints = [random_batch(people=count)[1][0].numpy() for count in (people, 1)]
        model(images, stack_joints(joints), person_mask, mask_miss).sum().backward()
    assert graphs.count == 1


class ThreeConvolutions(nn.Module):
    """A network whose weights take more than the megabyte of the first bucket of DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 256, 4, stride=4), nn.Conv2d(256, 256, 3, padding=1))
        self.last = nn.Conv2d(256, 50, 1)

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        maps = self.last(self.layers(images))
        return [[F.avg_pool2d(maps, 1 << scale) for scale in range(5)]]


def gradients_of_compiled(runtime: Runtime, num_batches: int) -> tuple[list[list[Tensor]], int]:
    """The gradients of some batches of this rank, and the number of graphs that were compiled."""
    graphs = Graphs()
    model = make_model().train()
    model.network = ThreeConvolutions()
    model.compile(backend=graphs, fullgraph=True)
    wrapped = runtime.wrap(model)
    gradients = []
    for number in range(num_batches):
        wrapped.zero_grad()
        wrapped(*random_batch(people=4 * (1 + number), seed=10 * runtime.rank + number)).mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    return gradients, graphs.count


@pytest.mark.slow
def test_each_of_two_processes_compiles_one_graph_and_their_gradients_are_averaged(tmp_path: Path) -> None:
    ranks = run_in_processes(2, tmp_path, lambda runtime: gradients_of_compiled(runtime, 2))
    assert [count for _, count in ranks] == [1, 1]
    torch.testing.assert_close(ranks[0][0], ranks[1][0], rtol=0, atol=0)

    def gradients_of_rank(rank: int) -> list[list[Tensor]]:
        runtime = Runtime()
        runtime.rank = rank
        return gradients_of_compiled(runtime, 2)[0]

    # This process must not compile: see in_forked_process.
    single = [run_in_processes(1, tmp_path, lambda _, rank=rank: gradients_of_rank(rank))[0] for rank in range(2)]
    for averaged, first, second in zip(ranks[0][0], *single):
        torch.testing.assert_close(averaged, [(a + b) / 2 for a, b in zip(first, second)], rtol=0, atol=0)


@pytest.mark.slow
@in_forked_process
def test_the_whole_network_is_in_the_graph() -> None:
    graphs = Graphs()
    model = make_model().train()
    model.compile(backend=graphs, fullgraph=True)
    model(*random_batch()).sum().backward()
    assert graphs.count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())

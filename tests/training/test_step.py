"""One training step: targets, network and loss as one module, also compiled; its update, and what a bad step leaves."""

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.data.dataset import Batch
from posenet.data.targets import TargetRenderer
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.settings import GuardConfig, LossConfig, OptimConfig, TargetsConfig
from posenet.skeleton import COCO
from posenet.training.bad_steps import BadStepPolicy
from posenet.training.loss import FocalL2Loss
from posenet.training.optimizer import make_optimizer
from posenet.training.step import ModelWithLoss, TrainStep
from tests.helpers.networks import tiny_network
from tests.helpers.process_runs import find_differences, in_forked_process
from tests.helpers.tiny_training import CPU

BATCH_SIZE = 6
LR = 0.1


class LinearModel(nn.Module):
    """A layer and a BatchNorm layer that return a loss for each image; ``mask_miss`` multiplies them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 1)

    def forward(self, images: Tensor, *masks: Tensor | None) -> Tensor:
        features = self.norm(images[..., None, None])[..., 0, 0]
        return self.linear(features)[:, 0] ** 2 * masks[-2]


def make_batch(seed: int, factor: float = 1.0) -> Batch:
    images = torch.randn(BATCH_SIZE, 4, generator=torch.Generator().manual_seed(seed))
    return Batch(images, images, images, torch.full((BATCH_SIZE,), factor), torch.arange(BATCH_SIZE))


def make_step(
    optimizer: str = "sgd",
    amp: Any = "off",
    loss_scale: float = 0.0,
    max_grad_norm: float = 0.0,
    weight_decay: float = 0.01,
    runtime: Runtime | None = None,
) -> TrainStep:
    torch.manual_seed(0)
    model = LinearModel().train()
    settings = OptimConfig(name=optimizer, lr=LR, weight_decay=weight_decay)  # type: ignore[arg-type]
    scaler, policy = make_grad_scaler(CPU, amp, loss_scale), BadStepPolicy(GuardConfig())
    optimizer_of_model = make_optimizer(model, settings)
    return TrainStep(model, optimizer_of_model, scaler, policy, runtime or Runtime(), max_grad_norm)


def state_of(step: TrainStep) -> dict[str, Any]:
    """A copy of all that a step changes."""
    parts = {"model": step.model, "optimizer": step.optimizer, "scaler": step.scaler}
    return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})


KINDS = [("sgd", "off", 0.0), ("adamw", "off", 0.0), ("sgd", "fp16", 0.0), ("adamw", "fp16", 1024.0)]
"""Optimizer, precision and loss scale: 0 adapts it."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_one_bad_loss_changes_nothing(kind: tuple[str, str, float]) -> None:
    """Whichever of the accumulated batches has it, and also if it is the first step of a run."""
    for bad, position, steps_before in itertools.product((math.nan, math.inf, 1e8), (0, 2), (0, 1)):
        step = make_step(*kind)
        for seed in range(steps_before):
            step([make_batch(seed)])
        before = state_of(step)
        batches = [make_batch(2), make_batch(3), make_batch(4)]
        batches[position] = make_batch(9, bad)
        result = step(batches)
        assert result.loss is None
        assert result.bad is not None and result.bad.is_own and not result.bad.value <= result.bad.limit < math.inf
        assert find_differences(state_of(step), before) == []
        assert all(parameter.grad is None for parameter in step.model.parameters())
        assert step([make_batch(5)]).loss is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_step_with_a_bad_gradient_changes_nothing(kind: tuple[str, str, float], max_grad_norm: float) -> None:
    """One that is not finite, or far above the last ones. Neither the loss scale of fp16 changes, unless it adapts."""
    step = make_step(*kind, max_grad_norm=max_grad_norm)
    for seed in (1, 2):
        step([make_batch(seed)])
    before = state_of(step)
    assert math.isfinite(step.bad_steps.relative_gradient.limit)
    for factor in (1e4, math.nan, math.inf) if kind[1:] != ("fp16", 0.0) else (1e4,):
        hook = step.model.linear.weight.register_hook(lambda gradient: gradient * factor)
        result = step([make_batch(3)])
        hook.remove()
        assert result.bad is not None and (result.bad.name, result.loss) == ("gradient norm", None)
        assert not result.bad.value <= result.bad.limit
        assert find_differences(state_of(step)["model"], before["model"]) == []
        assert find_differences(state_of(step)["optimizer"], before["optimizer"]) == []
        assert state_of(step)["scaler"].get("scale") == before["scaler"].get("scale")
    assert step([make_batch(4)]).loss is not None


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_good_steps_are_those_of_a_plain_training_loop_that_accumulates_gradients(optimizer: str) -> None:
    step = make_step(optimizer, max_grad_norm=0.5)
    reference = make_step().model
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"sgd": {"momentum": 0.9}, "adamw": {}}[optimizer]
    plain = kinds[optimizer](reference.parameters(), LR, weight_decay=0.01, fused=True, **options)
    for seed in range(20):
        batches = [make_batch(seed), make_batch(100 + seed)]
        losses = [reference(*batch[:4], None).mean() for batch in batches]
        for loss in losses:
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
        assert step(batches).loss == sum(loss.item() for loss in losses) / 2
    assert find_differences(step.model.state_dict(), reference.state_dict()) == []


@pytest.mark.parametrize("amp, loss_scale", [("off", 0.0), ("fp16", 1024.0)])
def test_the_true_gradient_is_clipped_and_only_if_it_is_too_large(amp: str, loss_scale: float) -> None:
    """The first update of SGD is the learning rate times the gradient."""
    updates = {}
    for clip in (0.0, 1e-2, 1e6):
        step = make_step(amp=amp, loss_scale=loss_scale, max_grad_norm=clip, weight_decay=0)
        before = nn.utils.parameters_to_vector(step.model.parameters()).detach()
        step([make_batch(1, 100.0), make_batch(2, 100.0)])
        updates[clip] = nn.utils.parameters_to_vector(step.model.parameters()).detach() - before
    assert updates[1e-2].norm().item() == pytest.approx(LR * 1e-2, rel=1e-3)
    assert updates[0.0].norm().item() > LR * 1
    assert torch.equal(updates[1e6], updates[0.0])


def test_an_overflow_of_fp16_lowers_the_loss_scale_and_is_no_bad_step() -> None:
    step = make_step(amp="fp16")

    def overflow_at_large_scales(gradient: Tensor) -> Tensor:
        return gradient * (math.inf if step.scaler.get_scale() > 20_000 else 1)

    step.model.linear.weight.register_hook(overflow_at_large_scales)
    before = state_of(step)["model"]
    results = [step([make_batch(1)]) for _ in range(2)]
    assert find_differences(state_of(step)["model"], before) == []
    results += [step([make_batch(1)]) for _ in range(2)]
    assert [result.loss is None for result in results] == [True, True, False, False]
    assert all(result.bad is None for result in results)
    assert step.scaler.get_scale() == 2**14


class TwoRanks(Runtime):
    """Pretends that another process reports one loss for every batch, whether that is bad, and the same gradient."""

    world_size = 2

    def __init__(self, loss: float = 0.0, bad: float = 0.0) -> None:
        self.other = torch.tensor([[loss], [bad]])
        self.synced: list[bool] = []
        self._syncs = True

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        losses = values[:, :-1] + self.other[:, :1]
        return torch.cat([losses, 2 * values[:, -1:]], 1)

    @contextlib.contextmanager
    def no_gradient_sync(self, module: nn.Module) -> Iterator[None]:
        self._syncs = False
        yield
        self._syncs = True

    def record_backward(self, gradient: Tensor) -> None:
        self.synced.append(self._syncs)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_only_the_last_backward_pass_of_a_step_averages_the_gradients_over_the_processes(num_batches: int) -> None:
    runtime = TwoRanks()
    step = make_step(runtime=runtime)
    step.model.linear.weight.register_hook(runtime.record_backward)
    step([make_batch(seed) for seed in range(num_batches)])
    assert runtime.synced == [False] * (num_batches - 1) + [True]


def test_the_loss_is_the_mean_over_batches_and_processes_and_any_process_can_make_all_skip() -> None:
    alone = [make_step()([make_batch(seed)]).loss for seed in (1, 2)]
    batches = [make_batch(1), make_batch(2)]
    step = make_step(runtime=TwoRanks(loss=10.0))
    assert step(batches).loss == pytest.approx((sum(alone) + 2 * 10) / 4)
    step = make_step(runtime=TwoRanks(bad=1.0))
    before = state_of(step)
    result = step([make_batch(1)])
    assert result.loss is None and result.bad is not None
    assert (result.bad.name, result.bad.value, result.bad.is_own) == ("loss", alone[0], False)
    assert find_differences(state_of(step), before) == []


# The module of targets, network and loss

SIZE = 64


def make_model(teacher: Any = None) -> ModelWithLoss:
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    network = tiny_network(stacks=1)
    return ModelWithLoss(network, renderer, loss, "off", teacher)


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
    expected = model.loss(predictions, target, mask_miss[:, None] / 255)
    torch.testing.assert_close(model(images, joints, person_mask, mask_miss), expected)


class MeanError(nn.Module):
    """Another loss than that of the package: one value for every image."""

    def forward(self, predictions: list[list[Tensor]], target: Tensor, mask_miss: Tensor) -> Tensor:
        return (mask_miss * (predictions[-1][0] - target) ** 2).mean((1, 2, 3))


class OneNumber(MeanError):
    def forward(self, *inputs: Any) -> Tensor:
        return super().forward(*inputs).mean()


def test_a_loss_of_other_code_returns_a_value_for_every_image_and_gets_the_mask_of_every_channel() -> None:
    model = make_model().eval()
    model.loss = MeanError()
    batch = random_batch()
    supervised = torch.zeros(2, 50, dtype=torch.uint8)
    assert model(*batch).shape == (2,) and model(*batch).min() > 0
    assert model(*batch, supervised).tolist() == [0, 0]
    model.loss = OneNumber()
    with pytest.raises(ConfigError, match="2 values"):
        model(*batch)


class OneConvolution(nn.Module):
    """A network whose prediction at five scales is that of one convolution; it compiles quickly."""

    channels_last = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 50, 4, stride=4)

    def forward(self, images: Tensor) -> list[list[Tensor]]:
        maps = self.convolution(images)
        return [[F.avg_pool2d(maps, 1 << scale) for scale in range(5)]]

    heatmaps = property(lambda self: lambda images: self(images)[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("has_teacher", [False, True])
@in_forked_process
def test_compiled_targets_network_and_loss_are_those_that_are_read(has_teacher: bool) -> None:
    """Whatever the number of people, and whether or not some channels are not supervised.

    ``fullgraph`` makes a break of the graph an error.
    """
    teacher = pytest.importorskip("posenet.training.teacher").Teacher(OneConvolution(), 0.5) if has_teacher else None
    eager, compiled = make_model(teacher=teacher), make_model(teacher=teacher)
    eager.network, compiled.network = OneConvolution(), OneConvolution()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager", fullgraph=True))
        compiled.compile()
    channels = torch.arange(2 * 50).view(2, 50).remainder(3).clamp(max=1).to(torch.uint8)
    for people, supervised in ((4, None), (8, None), (2, channels), (12, channels)):
        results = []
        for model in (compiled.train(), eager.train()):
            terms = model(*random_batch(people=people), supervised)
            results.append([terms.detach(), *torch.autograd.grad(terms.sum(), list(model.parameters()))])
        torch.testing.assert_close(*results)


@pytest.mark.slow
@in_forked_process
def test_the_whole_network_is_in_the_graph() -> None:
    model = make_model().train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager", fullgraph=True))
        model.compile()
    model(*random_batch()).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

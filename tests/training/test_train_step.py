"""One training step: its update, and what a step with a bad loss or gradient leaves as it was."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from posenet.data.loader import Batch
from posenet.devices.precision import Amp, make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.settings import GuardConfig, OptimConfig
from posenet.training.loss_guard import LossGuard
from posenet.training.optimizer import make_optimizer
from posenet.training.train_step import TrainStep
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import CPU

BATCH_SIZE = 6
LR = 0.1


class LinearModelWithLoss(nn.Module):
    """A tiny model with BatchNorm that returns one loss per image, scaled by ``mask_miss``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 1)

    def forward(
        self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor, supervised: None = None
    ) -> Tensor:
        return self.linear(self.norm(images))[:, 0] ** 2 * mask_miss


def make_batch(seed: int, loss_scale: float = 1.0) -> Batch:
    images = torch.randn(BATCH_SIZE, 4, generator=torch.Generator().manual_seed(seed))
    return Batch(images, images, images, torch.full((BATCH_SIZE,), loss_scale), torch.arange(BATCH_SIZE))


Scaling = tuple[Amp, float]
"""Precision, and loss scale; 0 adapts it."""
SCALINGS: list[Scaling] = [("off", 0.0), ("fp16", 0.0), ("fp16", 1024.0)]


def make_train_step(
    amp: Amp = "off", loss_scale: float = 0.0, *, max_grad_norm: float = 0.0, optimizer_name: str = "sgd"
) -> tuple[LinearModelWithLoss, Optimizer, TrainStep]:
    torch.manual_seed(0)
    model = LinearModelWithLoss().train()
    optimizer = make_optimizer(model, OptimConfig(name=optimizer_name, lr=LR, momentum=0.9, weight_decay=0.01))
    scaler = make_grad_scaler(CPU, amp, loss_scale)
    return model, optimizer, TrainStep(model, optimizer, scaler, LossGuard(GuardConfig()), Runtime(CPU), max_grad_norm)


def copy_state(step: TrainStep) -> dict[str, Any]:
    """A copy of everything that a step changes, and what the next update would be made of."""
    state = {
        "model": step.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scaler": step.scaler.state_dict(),
    }
    return copy.deepcopy(state)


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e8])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_step_with_one_bad_loss_changes_nothing(
    optimizer_name: str, scaling: Scaling, bad: float, position: int
) -> None:
    model, _, train_step = make_train_step(*scaling, optimizer_name=optimizer_name)
    train_step([make_batch(1)])
    before = copy_state(train_step)
    batches = [make_batch(2), make_batch(3), make_batch(4)]
    batches[position] = make_batch(9, loss_scale=bad)
    result = train_step(batches).read()
    assert result.loss is None
    assert result.bad_value is not None and train_step.guard.is_bad(result.bad_value)
    assert find_differences(copy_state(train_step), before) == []
    assert all(parameter.grad is None for parameter in model.parameters())
    assert train_step([make_batch(5)]).read().loss is not None


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
@pytest.mark.parametrize("scaling", [("off", 0.0), ("fp16", 1024.0)])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(
    optimizer_name: str, scaling: Scaling, max_grad_norm: float, gradient: float
) -> None:
    model, _, train_step = make_train_step(*scaling, max_grad_norm=max_grad_norm, optimizer_name=optimizer_name)
    train_step([make_batch(1)])
    before = copy_state(train_step)
    hook = model.linear.weight.register_hook(lambda true_gradient: true_gradient * gradient)
    result = train_step([make_batch(2), make_batch(3)]).read()
    assert result.loss is None
    assert result.bad_value is not None and not math.isfinite(result.bad_value)
    after = copy_state(train_step)
    assert before["scaler"].pop("_growth_tracker", 0) == after["scaler"].pop("_growth_tracker", 0) + (
        scaling[0] == "fp16"
    )
    assert find_differences(after, before) == []
    hook.remove()
    assert train_step([make_batch(4)]).read().loss is not None


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
def test_after_a_skipped_first_step_the_second_is_like_a_first_one(optimizer_name: str) -> None:
    """PyTorch creates momentum in the first step, and leaves it uninitialized if a fused optimizer skips that step."""
    _, _, expected = make_train_step(optimizer_name=optimizer_name)
    _, _, skipping = make_train_step(optimizer_name=optimizer_name)
    assert skipping([make_batch(9, loss_scale=math.nan)]).read().loss is None
    for seed in range(3):
        assert skipping([make_batch(seed)]).read() == expected([make_batch(seed)]).read()
    assert find_differences(copy_state(skipping), copy_state(expected)) == []


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
def test_good_steps_are_those_of_a_plain_training_loop(optimizer_name: str) -> None:
    """Bit for bit: that the optimizer could skip them changes nothing."""
    model, _, train_step = make_train_step(max_grad_norm=0.5, optimizer_name=optimizer_name)
    reference, _, _ = make_train_step()
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(reference.parameters(), LR, momentum=0.9, weight_decay=0.01, fused=True)
    else:
        optimizer = torch.optim.AdamW(reference.parameters(), LR, weight_decay=0.01, fused=True)
    for seed in range(20):
        batches = [make_batch(seed), make_batch(100 + seed)]
        result = train_step(batches).read()
        losses = []
        for batch in batches:
            loss = reference(*batch[:4]).mean()
            (loss / 2).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert result.loss == sum(losses) / 2
    assert find_differences(model.state_dict(), reference.state_dict()) == []


class HostReads(TorchFunctionMode):
    """Collects the names of the functions that bring the value of a tensor to Python."""

    READS = frozenset({"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "nonzero", "equal"})

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.READS:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_step_reads_nothing_from_the_device_until_its_result_is_read(
    optimizer_name: str, scaling: Scaling, max_grad_norm: float
) -> None:
    _, _, train_step = make_train_step(*scaling, max_grad_norm=max_grad_norm, optimizer_name=optimizer_name)
    with HostReads() as reads:
        pending = train_step([make_batch(1), make_batch(2, loss_scale=math.nan)])
        assert reads.names == []
        pending.read()
        assert reads.names != []


def test_accumulated_batches_train_on_the_mean_of_their_gradients() -> None:
    model, optimizer, train_step = make_train_step()
    optimizer.param_groups[0]["weight_decay"] = 0.0
    model.norm.eval()
    reference = copy.deepcopy(model)
    first = make_batch(1)
    second = make_batch(2)
    train_step([first, second])
    reference(*(torch.cat(tensors) for tensors in zip(first[:4], second[:4]))).mean().backward()
    for parameter, expected in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter.detach(), expected.detach() - LR * expected.grad, atol=1e-6, rtol=0)


@pytest.mark.parametrize("amp, loss_scale", [("off", 0.0), ("fp16", 1024.0)])
def test_the_gradient_is_clipped_after_the_loss_scale_is_removed(amp: Amp, loss_scale: float) -> None:
    model, optimizer, train_step = make_train_step(amp, loss_scale, max_grad_norm=0.01)
    optimizer.param_groups[0]["weight_decay"] = 0.0
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    train_step([make_batch(1, loss_scale=100.0)])
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert (after - before).norm().item() == pytest.approx(LR * 0.01, rel=1e-3)


def test_an_overflow_that_a_lower_loss_scale_fixes_is_no_bad_step() -> None:
    model, _, train_step = make_train_step("fp16")

    def overflow_at_large_scales(gradient: Tensor) -> Tensor:
        return gradient * (math.inf if train_step.scaler.get_scale() > 20_000 else 1)

    model.linear.weight.register_hook(overflow_at_large_scales)
    results = [train_step([make_batch(1)]).read() for _ in range(4)]
    assert [result.loss is None for result in results] == [True, True, False, False]
    assert all(result.bad_value is None for result in results)


class RecordingRuntime(Runtime):
    """A runtime of one process that records the calls which only several processes need.

    Attributes:
        synced: for each backward pass, whether it would average the gradients over the processes.
    """

    def __init__(self) -> None:
        super().__init__(CPU)
        self.synced: list[bool] = []
        self._sync = True

    @contextlib.contextmanager
    def no_gradient_sync(self, module: nn.Module) -> Iterator[None]:
        self._sync = False
        yield
        self._sync = True

    def record_backward(self, gradient: Tensor) -> None:
        self.synced.append(self._sync)


class Linear(nn.Module):
    """A module that takes a batch as the training step does; its weights are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(
        self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor, supervised: None = None
    ) -> Tensor:
        return images @ self.weight * mask_miss


def ones_batch(factor: float = 1.0) -> Batch:
    """Two images of four ones; the loss of each is 4 times the factor."""
    images = torch.ones(2, 4)
    return Batch(images, images, images, torch.full((2,), factor), torch.arange(2))


def linear_step(runtime: Runtime, clip: float = 0.0) -> tuple[Linear, TrainStep]:
    module = Linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scaler = make_grad_scaler(CPU, "off", 0.0)
    return module, TrainStep(module, optimizer, scaler, LossGuard(GuardConfig(threshold=100)), runtime, clip)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_only_the_last_backward_pass_of_a_step_averages_the_gradients(num_batches: int) -> None:
    runtime = RecordingRuntime()
    module, step = linear_step(runtime)
    module.weight.register_hook(runtime.record_backward)
    step([ones_batch() for _ in range(num_batches)])
    assert runtime.synced == [False] * (num_batches - 1) + [True]


@pytest.mark.parametrize("bad", range(3))
def test_a_step_with_a_bad_loss_makes_the_same_backward_passes_as_a_good_one(bad: int) -> None:
    """No rank knows of a bad loss on another one, so all exchange their gradients in every step."""
    runtime = RecordingRuntime()
    module, step = linear_step(runtime)
    module.weight.register_hook(runtime.record_backward)
    result = step([ones_batch(1e9 if number == bad else 1.0) for number in range(3)]).read()
    assert result.loss is None and result.bad_value == 4e9
    assert runtime.synced == [False, False, True]
    assert module.weight.grad is None and module.weight.tolist() == [1.0] * 4


def test_the_loss_of_a_step_is_the_mean_over_its_batches_and_all_processes() -> None:
    runtime = RecordingRuntime()
    runtime.world_size = 2
    runtime.all_reduce_sum = lambda values: values + torch.tensor([[10.0], [0.0]])  # the other process's loss is 10
    _, step = linear_step(runtime)
    result = step([ones_batch(1.0), ones_batch(2.0)]).read()
    assert result.loss == pytest.approx((4 + 10 + 8 + 10) / 4)


def test_a_step_is_skipped_if_another_process_has_a_bad_loss() -> None:
    runtime = RecordingRuntime()
    runtime.all_reduce_sum = lambda values: values + torch.tensor([[0.0], [1.0]])
    module, step = linear_step(runtime)
    result = step([ones_batch()]).read()
    assert result.loss is None and result.bad_value == 4
    assert module.weight.tolist() == [1.0] * 4


def test_a_gradient_up_to_the_limit_is_not_clipped() -> None:
    for clip, weight in ((0.0, 0.0), (2.0, 0.0), (1.0, 0.5)):  # the gradient is (1, 1, 1, 1), its norm 2
        module, step = linear_step(Runtime(CPU), clip)
        step([ones_batch()])
        torch.testing.assert_close(module.weight.detach(), torch.full((4,), weight), atol=1e-5, rtol=0)

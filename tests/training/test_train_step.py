"""One optimizer step: accumulation, clipping, and a dropped step that leaves no trace."""

import copy

import pytest
import torch
from torch import nn

from posenet.data.dataset import Batch
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.settings import GuardConfig, OptimConfig
from posenet.training.loss_guard import LossGuard
from posenet.training.optimizer import make_optimizer
from posenet.training.trainer import TrainStep

CPU = torch.device("cpu")


class Toy(nn.Module):
    """A module with BatchNorm that takes a batch as the training step does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, images, joints, person_mask, mask_miss):
        return self.linear(self.norm(images))[:, 0] ** 2 * mask_miss


def batch(seed: int, scale: float = 1.0, size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 4, generator=generator)
    return Batch(images, images, images, torch.full((size,), scale), torch.arange(size))


def setup(amp: str = "off", clip: float = 0.0, fixed: float = 0.0):
    torch.manual_seed(0)
    module = Toy().train()
    optimizer = make_optimizer(module, OptimConfig(lr=0.1, momentum=0.9, weight_decay=0.0))
    scaler = make_grad_scaler(CPU, amp, fixed)
    train_step = TrainStep(module, optimizer, scaler, LossGuard(GuardConfig()), Runtime(CPU), clip)
    return module, optimizer, train_step


def state(module, optimizer):
    return copy.deepcopy((module.state_dict(), optimizer.state_dict()))


def assert_same(a, b):
    assert str(a[1]) == str(b[1])
    assert all(torch.equal(a[0][n], b[0][n]) for n in a[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_dropped_step_changes_nothing(bad, position):
    module, optimizer, train_step = setup()
    train_step([batch(1)])
    before = state(module, optimizer)
    batches = [batch(2), batch(3), batch(4)]
    batches[position] = batch(9, scale=bad)
    result = train_step(batches)
    assert result.loss is None and result.bad_value is not None
    assert_same(state(module, optimizer), before)
    assert all(p.grad is None for p in module.parameters())
    assert train_step([batch(5)]).loss is not None


def test_non_finite_gradient_is_dropped_though_the_loss_is_fine():
    module, optimizer, train_step = setup()
    before = state(module, optimizer)
    handle = module.linear.weight.register_hook(lambda g: g * float("nan"))
    result = train_step([batch(1)])
    assert result.loss is None and result.bad_value != result.bad_value
    assert_same(state(module, optimizer), before)
    handle.remove()


def test_accumulated_gradient_is_the_mean():
    module, _, train_step = setup()
    module.norm.eval()
    reference = copy.deepcopy(module)
    train_step([batch(1), batch(2)])
    whole = [torch.cat([a, b]) for a, b in zip(batch(1)[:4], batch(2)[:4])]
    reference(*whole).mean().backward()
    with torch.no_grad():
        for p in reference.parameters():
            p -= 0.1 * p.grad
    for p, q in zip(module.parameters(), reference.parameters()):
        assert torch.allclose(p, q, atol=1e-6)


def test_clipping_limits_the_true_gradient():
    for fixed in (0.0, 1024.0):
        module, _, train_step = setup(clip=0.01, amp="fp16" if fixed else "off", fixed=fixed)
        before = [p.detach().clone() for p in module.parameters()]
        train_step([batch(1, scale=100.0)])
        moved = torch.cat([(p - q).flatten() for p, q in zip(module.parameters(), before)])
        assert moved.norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_too_large_a_loss_scale_is_not_reported_to_the_guard():
    module, optimizer, train_step = setup(amp="fp16")
    module.linear.weight.register_hook(lambda g: g * float("inf") if train_step.scaler.get_scale() > 20000 else g)
    results = [train_step([batch(1)]) for _ in range(4)]
    assert [o.bad_value for o in results] == [None] * 4
    assert [o.loss is None for o in results] == [True, True, False, False]

"""BatchNorm over processes: what nn.BatchNorm2d gives for all their batches together."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from tests.helpers.process_groups import run_in_processes

SHARES = (3, 1)
"""Images of the two processes."""


def layer() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, momentum=0.3), nn.ReLU(), nn.BatchNorm2d(5)).double()
    nn.init.normal_(net[1].weight)
    nn.init.normal_(net[1].bias)
    return net


def batches(offset: float) -> Tensor:
    return torch.randn(2, sum(SHARES), 3, 6, 7, dtype=torch.double, generator=torch.Generator().manual_seed(1)) + offset


def passes(net: nn.Module, images: Tensor) -> list[Tensor]:
    """Outputs and all gradients of two batches one after the other, then the buffers and an output in eval mode."""
    images = images.clone().requires_grad_()
    outputs = torch.stack([net(batch) for batch in images])
    (outputs.square() * outputs.detach().sin()).sum().backward()
    buffers = [b.double() for b in net.buffers()]
    evaluated = net.eval()(images[0]).detach()
    return [outputs.detach(), images.grad, evaluated, *(p.grad for p in net.parameters()), *buffers]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_two_processes_normalise_as_one_with_both_batches(tmp_path: Path, offset: float) -> None:
    whole = passes(layer(), batches(offset))

    def share(runtime: Runtime) -> list[Tensor]:
        return passes(runtime.convert_sync_batch_norm(layer()), batches(offset).split(SHARES, dim=1)[runtime.rank])

    first, second = run_in_processes(2, tmp_path, share)
    for i, expected in enumerate(whole):
        if i < 2:
            found = torch.cat([first[i], second[i]], dim=1)
        elif i == 2:
            found = torch.cat([first[i], second[i]])
        elif i < 3 + len(list(layer().parameters())):
            found = first[i] + second[i]
        else:
            torch.testing.assert_close(first[i], second[i], rtol=0, atol=0)
            found = first[i]
        # The mean takes four of float64's sixteen digits, its square would take eight.
        torch.testing.assert_close(found, expected, rtol=1e-5 if offset else 1e-9, atol=1e-5 if offset else 1e-11)


def test_conversion_keeps_names_parameters_and_values() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3, eps=0.1, momentum=0.7), nn.Sequential(nn.BatchNorm2d(2))).eval()
    before, parameters, names = copy.deepcopy(net), list(net.parameters()), list(net.state_dict())
    converted = GroupBatchNorm2d.convert(net)
    assert isinstance(converted[0], GroupBatchNorm2d) and isinstance(converted[1][0], GroupBatchNorm2d)
    assert all(a is b for a, b in zip(parameters, converted.parameters())) and list(converted.state_dict()) == names
    assert not converted[0].training and (converted[0].eps, converted[0].momentum) == (0.1, 0.7)
    images = torch.rand(1, 3, 2, 2)
    torch.testing.assert_close(converted[0](images), before[0](images))

"""BatchNorm over several processes gives what ``nn.BatchNorm2d`` gives for all their batches together."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenet.devices.runtime import Runtime
from posenet.devices.sync_batch_norm import GroupBatchNorm2d
from tests.helpers.process_groups import run_in_processes, single_process_group

IMAGES_PER_RANK = (3, 1)


def make_network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, momentum=0.3), nn.ReLU(), nn.BatchNorm2d(5)).double()
    nn.init.normal_(net[1].weight)
    nn.init.normal_(net[1].bias)
    return net


def make_batches(offset: float) -> Tensor:
    """Two batches (2, N, 3, 6, 7) of the images of all ranks."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, sum(IMAGES_PER_RANK), 3, 6, 7, dtype=torch.double, generator=generator) + offset


def run_network(net: nn.Module, batches: Tensor) -> dict[str, Any]:
    """Train on two batches and evaluate the first one; return outputs, gradients and buffers."""
    batches = batches.clone().requires_grad_()
    outputs = torch.stack([net(batch) for batch in batches])
    (outputs.square() * outputs.detach().sin()).sum().backward()
    buffers = {name: buffer.double() for name, buffer in net.named_buffers()}
    return {
        "outputs": outputs.detach(),  # (2, N, 5, 4, 5)
        "image_gradients": batches.grad,  # (2, N, 3, 6, 7)
        "parameter_gradients": {name: parameter.grad for name, parameter in net.named_parameters()},
        "buffers": buffers,
        "evaluated": net.eval()(batches[0]).detach(),  # (N, 5, 4, 5)
    }


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_two_processes_normalize_like_one_with_both_batches(tmp_path: Path, offset: float) -> None:
    def run_rank(runtime: Runtime) -> dict[str, Any]:
        batches = make_batches(offset).split(IMAGES_PER_RANK, dim=1)[runtime.rank]
        return run_network(runtime.convert_sync_batch_norm(make_network()), batches)

    first, second = run_in_processes(2, tmp_path, run_rank)
    expected = run_network(make_network(), make_batches(offset))
    # An offset of 1e4 costs four of float64's sixteen digits; its square would cost eight.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if offset else {"rtol": 1e-9, "atol": 1e-11}
    for key in ("outputs", "image_gradients"):
        torch.testing.assert_close(torch.cat([first[key], second[key]], dim=1), expected[key], **tolerance)
    torch.testing.assert_close(torch.cat([first["evaluated"], second["evaluated"]]), expected["evaluated"], **tolerance)
    for name, gradient in expected["parameter_gradients"].items():
        total = first["parameter_gradients"][name] + second["parameter_gradients"][name]
        torch.testing.assert_close(total, gradient, **tolerance)
    for name, buffer in expected["buffers"].items():
        assert torch.equal(first["buffers"][name], second["buffers"][name])
        torch.testing.assert_close(first["buffers"][name], buffer, **tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    norm, plain = GroupBatchNorm2d(2), nn.BatchNorm2d(2)
    images = (torch.randn(4, 2, 64, 64, generator=torch.Generator().manual_seed(0)) + 3).to(dtype)
    with single_process_group():
        output = norm(images)
    assert output.dtype == dtype
    torch.testing.assert_close(output, plain(images.float()).to(dtype))
    torch.testing.assert_close(norm.running_var, plain.running_var, rtol=1e-5, atol=0)


def test_conversion_keeps_settings_and_parameters() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3, eps=0.1, momentum=0.7), nn.Sequential(nn.BatchNorm2d(2))).eval()
    original, parameters = copy.deepcopy(net), list(net.parameters())
    converted = GroupBatchNorm2d.convert(net)
    assert isinstance(converted[0], GroupBatchNorm2d) and isinstance(converted[1][0], GroupBatchNorm2d)
    assert all(a is b for a, b in zip(parameters, converted.parameters(), strict=True))
    assert converted.state_dict().keys() == original.state_dict().keys() and not converted[0].training
    images = torch.rand(1, 3, 2, 2)
    torch.testing.assert_close(converted[0](images), original[0](images))

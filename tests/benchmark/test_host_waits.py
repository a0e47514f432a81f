"""Counting the operations that make the host wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenet.benchmark.host_waits import HostWaits
from posenet.data.targets import CellLists, WholeMaps
from posenet.settings import TargetsConfig
from posenet.skeleton import COCO

VALUES = torch.tensor([1.0, 0.0, 2.0])
MASK = VALUES > 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda: VALUES.tolist(),
        lambda: VALUES.cpu(),
        lambda: VALUES[0].item(),
        lambda: float(VALUES.sum()),
        lambda: bool(MASK[0]),
        lambda: MASK.nonzero(),
        lambda: VALUES[MASK],
        lambda: VALUES.masked_select(MASK),
        lambda: VALUES.clone().index_put_((MASK,), VALUES[0]),
        lambda: torch.repeat_interleave(VALUES, MASK.long()),
        lambda: torch.equal(VALUES, VALUES),
        lambda: torch.unique(VALUES),
        lambda: VALUES.new_tensor([1, 2]),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: VALUES.to("meta"),
        lambda: torch.empty(3, device="meta").copy_(VALUES),
    ],
)
def test_an_operation_that_makes_the_host_wait_is_counted(wait: Callable[[], object]) -> None:
    with HostWaits() as waits:
        wait()
    assert waits.count == 1


def test_other_operations_are_not_counted() -> None:
    with HostWaits() as waits:
        total = VALUES[torch.arange(2)] * 2 + VALUES.where(MASK, 0)[:2]
        torch.repeat_interleave(total, torch.arange(1, 3), output_size=3)
        VALUES.to("meta", non_blocking=True)
    assert waits.count == 0


def test_operations_of_backward_passes_are_counted() -> None:
    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * gradient.sum().item()

    loss = Wait.apply(VALUES.clone().requires_grad_()).sum()
    with HostWaits() as waits:
        loss.backward()
    assert waits.count == 1


def test_waits_are_counted_by_line_of_the_package() -> None:
    joints = torch.ones(1, 1, 18, 3)
    with HostWaits() as waits:
        CellLists(TargetsConfig(), COCO).render_keypoints(joints, 8, 8)
    line = "sample, person, keypoint = torch.nonzero(joints[..., 2] > 0, as_tuple=True)  # (M,) each"
    assert waits.lines[f"data/targets.py: render_keypoints: {line}"] == 1


def test_whole_maps_are_rendered_without_waiting() -> None:
    joints = torch.ones(1, 1, 18, 3)
    renderer = WholeMaps(TargetsConfig(), COCO)
    with HostWaits() as waits:
        renderer.render_keypoints(joints, 8, 8)
        renderer.render_parts(joints, 8, 8)
    assert not waits.lines

"""Synchronized BatchNorm for CPUs with Gloo, which ``torch.nn.SyncBatchNorm`` does not support."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SumOverRanks(torch.autograd.Function):
    """Sum over all ranks of a group: of the values in the forward pass, of the gradients in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return SumOverRanks.apply(gradient.contiguous(), ctx.group), None  # type: ignore[no-untyped-call]


class GroupBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that normalizes over the batches of all ranks in training.

    For the m values x that all ranks together have of one channel (Ioffe and Szegedy, arXiv 1502.03167, algorithm 1):

        mean = sum(x) / m
        variance = sum((x - mean)^2) / m
        y = weight * (x - mean) / sqrt(variance + eps) + bias

    Each sum is one all-reduce. Computing the variance as sum(x^2) / m - mean^2 would save the second one, but loses
    digits if the mean is large. The running variance is the unbiased one, with m - 1.
    """

    group: dist.ProcessGroup | None = None
    """The ranks; None is the default group."""

    @classmethod
    def convert(cls, module: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
        """Make every ``nn.BatchNorm2d`` of a module one of this class; parameters and buffers stay the same objects."""
        for child in module.modules():
            if isinstance(child, nn.BatchNorm2d):
                child.__class__ = cls  # which has the same attributes, and the group
                cast(GroupBatchNorm2d, child).group = group
        return module

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (N, C, h, w) of any floating-point dtype; sums are computed in float32 or float64."""
        if not self.training:
            return super().forward(x)
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        local_count = values.new_tensor([values.numel() / self.num_features])  # (1,)
        sums = self._sum_over_ranks(torch.cat([values.sum((0, 2, 3)), local_count]))  # (C + 1,)
        count = sums[-1].detach()
        mean = sums[:-1] / count  # (C,)
        centred = values - mean[:, None, None]
        variance = self._sum_over_ranks(centred.square().sum((0, 2, 3))) / count  # (C,)
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        total: Tensor = SumOverRanks.apply(values, self.group)  # type: ignore[no-untyped-call]
        return total

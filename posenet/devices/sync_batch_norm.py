"""BatchNorm over all processes for devices that torch.nn.SyncBatchNorm refuses, the CPU first of all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class AllReduce(torch.autograd.Function):
    """Sum over processes, of the values forward and of the gradients backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class GroupBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` whose training statistics are those of all processes' batches together.

    It keeps names, parameters and, in evaluation mode, the behaviour of what it stands for.
    """

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        """Replace every ``nn.BatchNorm2d`` in a module; parameters stay the same objects."""
        for name, child in module.named_children():
            setattr(module, name, cls._like(child) if type(child) is nn.BatchNorm2d else cls.convert(child))
        return module

    @classmethod
    def _like(cls, norm: nn.BatchNorm2d) -> GroupBatchNorm2d:
        new = cls(norm.num_features, norm.eps, norm.momentum)
        new.weight, new.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers(recurse=False):
            setattr(new, name, buffer)
        return new.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, h, w) in any floating-point dtype; statistics are float32 at least."""
        if not self.training:
            return super().forward(x)
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        number = values.new_tensor([values.numel() / self.num_features])
        summed = AllReduce.apply(torch.cat([values.sum((0, 2, 3)), number]))
        count, mean = summed[-1].detach(), summed[:-1] / summed[-1].detach()
        # Squares of what the mean leaves, in a second exchange, lose no digits where the mean is large.
        centred = values - _per_channel(mean)
        variance = AllReduce.apply(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * _per_channel(scale) + _per_channel(self.bias)).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked += 1


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None]

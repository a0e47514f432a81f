"""Freezing parameters by name; the BatchNorm layers of a model, which keep their statistics where they are frozen."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.model.posenet import PoseNet

ALL_BUT_HEADS = "all-but-heads"
"""The pattern that stands for every parameter outside the heads."""


def freeze(network: PoseNet, patterns: Iterable[str]) -> list[str]:
    """Freeze the parameters whose names match a pattern, and return the names; ``ConfigError`` if one matches none."""
    parameters = dict(network.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        if pattern == ALL_BUT_HEADS:
            matched = parameters.keys() - set(network.head_parameter_names())
        else:
            matched = set(fnmatch.filter(parameters, pattern))
        if not matched:
            example = next(iter(parameters))
            raise ConfigError(f"train.freeze: {pattern!r} matches no parameter; names look like {example!r}")
        frozen |= matched
    for name in frozen:
        parameters[name].requires_grad_(False)
    return sorted(frozen)


def set_train_mode(model: nn.Module) -> None:
    """Put a model into training mode, except for frozen BatchNorm layers."""
    model.train()
    for layer in batch_norm_layers(model):
        parameters = list(layer.parameters(recurse=False))
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            layer.eval()


def batch_norm_layers(model: nn.Module) -> list[nn.Module]:
    """Every BatchNorm layer, synchronized ones included."""
    return [module for module in model.modules() if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm))]


class BatchNormStatistics:
    """The statistics of all BatchNorm layers of a model: running mean, running variance and number of batches.

    They are read as one tensor per dtype, because a network can have more than a thousand of them.
    """

    def __init__(self, model: nn.Module) -> None:
        buffers = [buffer for layer in batch_norm_layers(model) for buffer in layer.buffers(recurse=False)]
        dtypes = dict.fromkeys(buffer.dtype for buffer in buffers)
        self._groups = [[buffer for buffer in buffers if buffer.dtype == dtype] for dtype in dtypes]

    def read(self) -> list[Tensor]:
        """A copy of the statistics: for each dtype a tensor of one dimension."""
        return [torch.cat([buffer.view(-1) for buffer in buffers]) for buffers in self._groups]

    def write(self, statistics: Sequence[Tensor]) -> None:
        """Overwrite the statistics with those that ``read`` has returned."""
        for buffers, values in zip(self._groups, statistics):
            parts = values.split_with_sizes([buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts):
                buffer.copy_(part.view_as(buffer))

"""BatchNorm layers of a model: their statistics, and a snapshot to undo a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm layer, synchronized ones included."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def batch_norm_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers of all BatchNorm layers: running mean, running variance and number of batches."""
    return [buffer for layer in batch_norm_layers(model) for buffer in layer.buffers(recurse=False)]


class BatchNormSnapshot:
    """A copy of the BatchNorm statistics, to undo the forward pass of a skipped step.

    The copies are allocated once and filled by a single call. Cloning every buffer in every step would take about a
    thousand small operations on the device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._statistics = batch_norm_statistics(model)
        self._copies = [statistic.clone() for statistic in self._statistics]

    def save(self) -> None:
        if self._statistics:
            torch._foreach_copy_(self._copies, self._statistics)

    def restore(self) -> None:
        if self._statistics:
            torch._foreach_copy_(self._statistics, self._copies)

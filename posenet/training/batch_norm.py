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
    """A copy of the BatchNorm statistics, to undo the forward passes of a skipped step.

    All statistics of one dtype are copied into one tensor, by a single call. Handling each of the buffers, of which
    there may be a thousand, would take as many small operations on the device.
    """

    def __init__(self, model: nn.Module) -> None:
        statistics = batch_norm_statistics(model)
        dtypes = dict.fromkeys(statistic.dtype for statistic in statistics)
        self._statistics = [[each.view(-1) for each in statistics if each.dtype == dtype] for dtype in dtypes]
        self._copies = [torch.cat(group) for group in self._statistics]

    def save(self) -> None:
        for group, copy in zip(self._statistics, self._copies):
            torch.cat(group, out=copy)

    def restore(self) -> None:
        for group, copy in zip(self._statistics, self._copies):
            torch._foreach_copy_(group, _split_like(copy, group))

    def restore_if(self, condition: Tensor) -> None:
        """Restore the statistics if ``condition``, a boolean on the device, is true. The host does not read it."""
        for group, copy in zip(self._statistics, self._copies):
            chosen = torch.where(condition, copy, torch.cat(group))
            torch._foreach_copy_(group, _split_like(chosen, group))


def _split_like(tensor: Tensor, parts: list[Tensor]) -> list[Tensor]:
    return list(tensor.split_with_sizes([len(part) for part in parts]))

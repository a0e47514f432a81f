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
        self._groups = [_StatisticsOfOneType([each for each in statistics if each.dtype == dtype]) for dtype in dtypes]

    def save(self) -> None:
        for group in self._groups:
            torch.cat(group.statistics, out=group.saved)

    def restore(self) -> None:
        for group in self._groups:
            group.restored.copy_(group.saved)
            torch._foreach_copy_(group.statistics, group.restored_parts)

    def restore_if(self, condition: Tensor) -> None:
        """Restore the statistics if ``condition``, a boolean on the device, is true. The host does not read it."""
        for group in self._groups:
            torch.cat(group.statistics, out=group.restored)
            torch.where(condition, group.saved, group.restored, out=group.restored)
            torch._foreach_copy_(group.statistics, group.restored_parts)


class _StatisticsOfOneType:
    """Statistics of one dtype, with memory for copies of them: all in one tensor, and as parts of it."""

    def __init__(self, statistics: list[Tensor]) -> None:
        self.statistics = [statistic.view(-1) for statistic in statistics]
        self.saved = torch.cat(self.statistics)
        self.restored = self.saved.clone()
        self.restored_parts = list(self.restored.split_with_sizes([len(part) for part in self.statistics]))

"""The BatchNorm layers of a model, and copies of their statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def batch_norm_layers(model: nn.Module) -> list[nn.Module]:
    """Every BatchNorm layer, synchronized ones included."""
    return [module for module in model.modules() if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm))]


class BatchNormStatistics:
    """The statistics of all BatchNorm layers of a model: running mean, running variance and number of batches.

    They are read as one tensor per dtype, because a network can have more than a thousand of them. Views of them are
    made once, because every step reads them; so the model must be on its device already.
    """

    def __init__(self, model: nn.Module) -> None:
        buffers = [buffer.view(-1) for layer in batch_norm_layers(model) for buffer in layer.buffers(recurse=False)]
        dtypes = dict.fromkeys(buffer.dtype for buffer in buffers)
        self._groups = [[buffer for buffer in buffers if buffer.dtype == dtype] for dtype in dtypes]

    def read(self) -> list[Tensor]:
        """A copy of the statistics: for each dtype a tensor of one dimension."""
        return [torch.cat(buffers) for buffers in self._groups]

    def write(self, statistics: Sequence[Tensor]) -> None:
        """Overwrite the statistics with those that ``read`` has returned."""
        for buffers, values in zip(self._groups, statistics):
            parts = values.split_with_sizes([buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts):
                buffer.copy_(part)

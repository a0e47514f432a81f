"""Copying arrays to a device without waiting for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from posenet.devices.device import supports_pinned_memory

_has_pinned_memory = functools.cache(supports_pinned_memory)


class DeviceCopies:
    """Copies of arrays in the memory of a device, through pinned memory where the device supports it.

    Attributes:
        tensors: the copies, in the order of the arrays.
    """

    def __init__(self, arrays: Sequence[np.ndarray], device: torch.device) -> None:
        self._sources = [torch.from_numpy(array) for array in arrays]
        if _has_pinned_memory(device):
            self._sources = [source.pin_memory() for source in self._sources]
        self.tensors = [source.to(device, non_blocking=True) for source in self._sources]

    def release(self) -> None:
        """Free the memory on the host. Call this when the device has finished the copies."""
        self._sources.clear()

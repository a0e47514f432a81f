"""Copies between the host and an accelerator that do not make the host wait."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from posenet.devices.capabilities import supports_pinned_memory

_has_pinned_memory = functools.cache(supports_pinned_memory)


class Upload:
    """Copies arrays to a device through pinned memory, where the device supports it.

    Attributes:
        tensors: the arrays on the device, in the given order.
    """

    def __init__(self, arrays: Sequence[np.ndarray], device: torch.device) -> None:
        self._sources = [torch.from_numpy(array) for array in arrays]
        if _has_pinned_memory(device):
            self._sources = [source.pin_memory() for source in self._sources]
        self.tensors = [source.to(device, non_blocking=True) for source in self._sources]

    def release(self) -> None:
        """Free the memory on the host. Call this when the device has ended the copies."""
        self._sources.clear()


class Download:
    """Copies tensors to the host while the caller goes on; ``wait`` returns the arrays.

    The copies start behind the work that the current stream of the device already has. A device without pinned memory
    copies at once.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self._event: torch.Event | None = None
        if not _has_pinned_memory(device):
            self._copies = [tensor.cpu() for tensor in tensors]
            return
        self._copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors):
            copy.copy_(tensor, non_blocking=True)
        self._event = torch.accelerator.current_stream(device).record_event()

    def wait(self) -> list[np.ndarray]:
        """Wait until the copies are complete; return them. Any thread may call this."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]

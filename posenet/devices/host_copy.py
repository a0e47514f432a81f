"""Copying tensors to host memory without waiting for the device."""

from __future__ import annotations

import functools
import logging
from types import ModuleType

import torch
from torch import Tensor

BLOCK_BYTES = 2**26
"""Size of a block of pinned memory, a power of two: PyTorch rounds allocations of pinned memory up to one."""
ALIGNMENT = 64
"""Offset in bytes between tensors in a block, a multiple of the size of every dtype."""

_log = logging.getLogger(__name__)


def module_with_streams(device: torch.device) -> ModuleType | None:
    """The module of a device type that has streams, such as ``torch.cuda``; None for other types."""
    if device.type == "cpu":
        return None
    module: ModuleType = torch.get_device_module(device)
    return module if hasattr(module, "Stream") and hasattr(module, "current_stream") else None


class HostCopy:
    """A copy of a small tensor in host memory.

    The constructor queues the copy behind the work that the device has been given so far, and returns at once. ``read``
    waits for that work. The tensor must not change in between.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copied: torch.Event | None = None
        self._tensor = tensor
        self._device = tensor.device
        module = module_with_streams(tensor.device)
        if module is not None:
            memory = pinned_memory(tensor.numel() * tensor.element_size())
            self._tensor = memory.view(tensor.dtype).view(tensor.shape)
            self._tensor.copy_(tensor, non_blocking=True)
            self._copied = module.current_stream(tensor.device).record_event()

    def read(self) -> Tensor:
        """The tensor in host memory."""
        if self._copied is not None:
            # Another thread may read. Its current device is the first one, on which waiting would open a context.
            with torch.accelerator.device_index(self._device.index):
                self._copied.synchronize()
        return self._tensor.cpu()


class StagingArea:
    """Pinned memory through which many tensors are copied to the host at once, and which is used again and again.

    A device copies to pinned memory in the background, so a thousand tensors cost one wait instead of a thousand. The
    memory grows to the size of the largest set of tensors.
    """

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._block = 0  # index of the block that is being filled
        self._offset = 0  # bytes of it that are used
        self._devices: set[torch.device] = set()

    def restart(self) -> None:
        """Use the memory again: the copies so far become invalid."""
        self._block = 0
        self._offset = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy in host memory, which is complete after ``wait`` and valid until ``restart``.

        A tensor in host memory, or on a device without streams, is copied at once to memory of its own.
        """
        if module_with_streams(tensor.device) is None or not tensor.numel():
            return tensor.to("cpu", copy=True)
        copy = self._allocate(tensor)
        copy.copy_(tensor, non_blocking=True)
        self._devices.add(tensor.device)
        return copy

    def wait(self) -> None:
        """Wait until all copies are complete."""
        for device in self._devices:
            module = module_with_streams(device)
            assert module is not None
            module.current_stream(device).record_event().synchronize()
        self._devices.clear()

    def _allocate(self, tensor: Tensor) -> Tensor:
        """An uninitialized tensor in the pinned memory, with the layout that ``tensor.to("cpu")`` has."""
        size = tensor.numel() * tensor.element_size()
        while self._block < len(self._blocks) and self._offset + size > len(self._blocks[self._block]):
            self._block += 1
            self._offset = 0
        if self._block == len(self._blocks):
            self._blocks.append(pinned_memory(max(BLOCK_BYTES, size)))
        part = self._blocks[self._block][self._offset : self._offset + size]
        self._offset += -(-size // ALIGNMENT) * ALIGNMENT
        # By way of NumPy, the tensor has a storage of its own. ``torch.save`` writes whole storages: otherwise it would
        # write the block instead of the tensor.
        flat = torch.from_numpy(part.numpy()).view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def pinned_memory(size: int) -> Tensor:
    """Bytes of pinned memory; of other memory, which makes copies wait, if the system does not allow so much."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        _warn_of_slow_copies(str(error))
        return torch.empty(size, dtype=torch.uint8)


@functools.cache  # every step would warn again
def _warn_of_slow_copies(reason: str) -> None:
    _log.warning("WARNING: cannot pin memory, so copying from the device takes longer: %s", reason)

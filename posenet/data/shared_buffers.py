"""Memory that the worker processes of a loader share with the main process, reused from batch to batch.

With fresh shared memory for every batch, the system clears its pages and maps them again on both sides, which takes
three quarters of a millisecond per sample. Instead, a worker writes its batches to a few buffers in turn. It sends each
buffer to the main process once, and from then on only the buffer's number. The main process copies every batch out of
its buffer on arrival.

This also keeps every message in the workers' pipe below 4096 bytes. Linux writes such a message either completely or
not at all. A worker that is killed while it writes a longer message leaves half of it in the pipe, and the main process
would wait forever for the rest.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from posenet.errors import DataError

PREFETCH_FACTOR = 2
"""Batches that a worker may be ahead of the main process: ``prefetch_factor`` of PyTorch's loader. The loader requests
a further batch only after it has copied the first of them, so a buffer is never overwritten too early."""
BUFFERS_PER_WORKER = 2 * PREFETCH_FACTOR
"""A batch takes two buffers: one for its images and masks, one for its joints."""


class BufferMessage(NamedTuple):
    """The message that a worker sends instead of the contents of a buffer."""

    process_id: int
    number: int
    buffer: Tensor | None
    """The buffer itself the first time it is sent, None afterwards."""


class SharedBufferPool:
    """The shared buffers of this worker process.

    PyTorch sends a batch on another thread while the worker fills the next one. The list of buffers therefore never
    changes its length.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor | None] = [None] * BUFFERS_PER_WORKER
        self._unsent: set[int] = set()
        self._num_acquired = 0

    def acquire(self, size: int, num_workers: int) -> Tensor:
        """The next buffer in turn, as (size,) uint8. It may be overwritten ``BUFFERS_PER_WORKER`` calls later.

        Raises:
            DataError: too little shared memory is left for all ``num_workers``, which may need a new buffer at the same
                time. Writing beyond it would end the process by a bus error.
        """
        number = self._num_acquired % BUFFERS_PER_WORKER
        self._num_acquired += 1
        buffer = self._buffers[number]
        if buffer is None or buffer.nbytes < size:
            free = free_shared_memory()
            if free is not None and free < size * num_workers:
                raise DataError(
                    f"{free / 1e6:.0f} MB of shared memory (/dev/shm) are left, too few for batches of "
                    f"{size / 1e6:.1f} MB from {num_workers} workers; lower data.workers or train.batch_size, or "
                    "provide more (docker run --shm-size=8g)"
                )
            # PyTorch's default collate function also allocates shared memory in this way.
            storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # PyTorch lacks the types
            buffer = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._buffers[number] = buffer
            self._unsent.add(number)
        return buffer[:size]

    def find(self, tensor: Tensor) -> int | None:
        """The number of the buffer that contains a tensor; None if none of them does."""
        address = tensor.untyped_storage().data_ptr()
        for number, buffer in enumerate(self._buffers):
            if buffer is not None and buffer.data_ptr() == address:
                return number
        return None

    def message(self, number: int) -> BufferMessage:
        """Create the message to send to the main process instead of the contents of a buffer."""
        if number not in self._unsent:
            return BufferMessage(os.getpid(), number, None)
        self._unsent.discard(number)
        return BufferMessage(os.getpid(), number, self._buffers[number])


class ReceivedBuffers:
    """The buffers that this main process has received from its workers."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int], Tensor] = {}
        """By process id and number."""

    def copy_out(self, message: BufferMessage, size: int) -> Tensor:
        """The first ``size`` bytes of a buffer as (size,) uint8 in ordinary memory."""
        key = (message.process_id, message.number)
        if message.buffer is not None:
            self._buffers[key] = message.buffer
        return self._buffers[key][:size].clone()

    def release(self, process_id: int) -> None:
        """Release the buffers of a worker that has ended."""
        for key in list(self._buffers):
            if key[0] == process_id:
                del self._buffers[key]

    def release_all(self) -> None:
        self._buffers.clear()


worker_buffers = SharedBufferPool()
"""The buffers that this process writes to if it is a worker."""
received_buffers = ReceivedBuffers()
"""The buffers of this process's workers."""


def free_shared_memory() -> int | None:
    """Bytes of shared memory that are left; None if the system does not limit it."""
    try:
        space = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return space.f_bavail * space.f_frsize

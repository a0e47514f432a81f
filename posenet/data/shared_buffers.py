"""Memory that a loader's workers share with the main process, used over and over.

Fresh shared memory for every batch has the system clear its pages and map them anew on both sides, three quarters of a
millisecond a sample. Here a worker writes to a few pieces in turn, and the main process copies every batch out of its
piece as it arrives.

What goes through the workers' pipe so stays below 4096 bytes, which Linux writes whole or not at all. Otherwise a
worker that is killed while the pipe is full leaves half a message, for whose rest the main process waits for ever.
"""

from __future__ import annotations

import itertools
import os

import torch
from torch import Tensor

from posenet.devices.cpu import free_shared_memory
from posenet.errors import DataError

AHEAD = 2
"""How many batches a worker may be ahead (PyTorch's ``prefetch_factor``). It is asked for another one only when the
first of them has arrived, so that it never writes to a piece that is still to be copied."""
PIECES = 2 * AHEAD
"""Pieces of a worker: a batch takes one for its images and masks, then one for its joints."""

Address = tuple[int, int]
"""Process and number of a piece."""

_turns = itertools.count()
_own: list[Tensor | None] = [None] * PIECES
"""In a worker: its pieces. A thread of PyTorch's sends one while the next is taken, so that the list never changes its
length."""
_unsent: set[int] = set()
"""In a worker: pieces that the main process does not have yet."""
_received: dict[Address, Tensor] = {}
"""In the main process: the pieces of all workers."""


def next_piece(size: int, workers: int) -> Tensor:
    """(size,) uint8 for a worker's next batch, its images and masks or its joints.

    Args:
        workers: how many there are; all may ask at once, and more than there is would be a bus error.

    Raises:
        DataError: too little shared memory is left.
    """
    number = next(_turns) % PIECES
    piece = _own[number]
    if piece is None or piece.nbytes < size:
        free = free_shared_memory()
        if free is not None and free < size * workers:
            raise DataError(
                f"{free / 1e6:.0f} MB of shared memory (/dev/shm) are left, too few for batches of "
                f"{size / 1e6:.1f} MB from {workers} workers; lower data.workers or train.batch_size, or "
                "give more (docker run --shm-size=8g)"
            )
        # As PyTorch's own collate function does.
        piece = _own[number] = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))
        _unsent.add(number)
    return piece[:size]


def send(memory: Tensor) -> tuple[Address | None, Tensor | None]:
    """What tells ``receive`` of a batch's memory: a piece is sent once and from then on its address alone."""
    for number, piece in enumerate(_own):
        if piece is not None and piece.data_ptr() == memory.data_ptr():
            first = number in _unsent
            _unsent.discard(number)
            return (os.getpid(), number), piece if first else None
    return None, memory


def receive(address: Address | None, memory: Tensor | None, size: int) -> Tensor:
    """(size,) uint8, a batch's memory, no longer shared if it came in a piece."""
    if address is None:
        return memory
    if memory is not None:
        _received[address] = memory
    return _received[address][:size].clone()


def forget(process: int | None = None) -> None:
    """Give up the pieces of a worker that has ended, or of all."""
    for address in [address for address in _received if process in (None, address[0])]:
        del _received[address]

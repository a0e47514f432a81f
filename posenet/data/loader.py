"""Loaders that make batches in worker processes."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from posenet.data.dataset import Batch, SampleKey

PREFETCH_FACTOR = 2
"""Batches that a worker may be ahead of the main process."""


class _Sender:
    """Sends the batches of a worker process through blocks of shared memory, which are used again.

    The first byte of a block is 1 while a batch is on its way: the worker sets it, and the main process clears it when
    it has copied the batch. A worker without a free block makes another one, so that nobody ever waits. With a fresh
    block for every batch, the system would clear its pages and map them again each time, which can take half as long as
    decoding the images.
    """

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def __call__(self, batch: Any) -> Any:
        """Copy what a worker has loaded into a block; in the main process, return it as it is.

        The arrays and the rest of the batch, pickled, follow each other in the block. The message contains the block
        and the sizes alone, so that it stays below the 4096 bytes that Linux writes completely or not at all: of a
        longer one, a worker that is killed can leave a half, for whose rest the main process would wait forever.
        """
        if get_worker_info() is None or not isinstance(batch, Batch):
            return batch
        arrays: list[pickle.PickleBuffer] = []
        fields = [value.numpy() if isinstance(value, Tensor) else value for value in batch]
        pickled = pickle.dumps(fields, protocol=5, buffer_callback=arrays.append)
        parts = [np.frombuffer(pickled, np.uint8), *(np.frombuffer(array.raw(), np.uint8) for array in arrays)]
        sizes = list(map(len, parts))
        block = self._free_block(sum(map(_aligned, (1, *sizes))))
        for target, part in zip(_split_block(block, sizes), parts):
            target[:] = part
        block[0] = 1
        return _Message(block, sizes)

    def _free_block(self, size: int) -> Tensor:
        """A block of ``size`` bytes or more that holds no batch on its way."""
        free = [block for block in self._blocks if not block[0]]  # once, since the main process changes it meanwhile
        for block in free:
            if len(block) >= size:
                return block
        self._blocks = [block for block in self._blocks if not any(block is other for other in free)]
        self._blocks.append(torch.zeros(size, dtype=torch.uint8).share_memory_())  # type: ignore[no-untyped-call]
        return self._blocks[-1]


class _Message(NamedTuple):
    """A batch in a block of shared memory. Unpickling it, in the main process, gives the batch."""

    block: Tensor
    sizes: list[int]

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_batch, tuple(self)


def _receive_batch(block: Tensor, sizes: list[int]) -> Batch:
    """Copy a batch out of the block, and give the block back to its worker."""
    pickled, *arrays = _split_block(block.clone(), sizes)
    block[0] = 0
    fields = pickle.loads(pickled.tobytes(), buffers=arrays)
    return Batch._make(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in fields)


def _split_block(block: Tensor, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of a block, which follow its first byte, each at an aligned address."""
    starts = np.cumsum([_aligned(size) for size in (1, *sizes)]).tolist()
    return [block.numpy()[start : start + size] for start, size in zip(starts, sizes)]


def _aligned(size: int) -> int:
    """The next multiple of the 64 bytes at which PyTorch aligns tensors."""
    return -(-size // 64) * 64


def _worker_name() -> str:
    """The name of the workers of this process. Those of a process that it was forked from have another one."""
    return f"posenet data worker of {os.getpid()}"


def _end_workers() -> None:
    """End the workers at the exit of this process, before Python waits for them: they ignore its SIGTERM."""
    for process in multiprocessing.active_children():
        if process.name == _worker_name():
            process.kill()
            process.join()


@functools.cache
def _end_workers_at_exit(process_id: int) -> None:
    """Once in each process, also in those that multiprocessing has started, where atexit does nothing."""
    Finalize(None, _end_workers, exitpriority=100)


class _Loader(DataLoader[Batch]):
    """A loader whose workers end with this process, also if a loop over it is left early."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # PyTorch's type is a private class
        others = multiprocessing.active_children()
        has_signal = hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGCHLD) if has_signal else None
        batches = super().__iter__()
        # PyTorch's handler raises an error wherever the main process is, perhaps in the middle of a step or of a
        # checkpoint, when a worker has died. Iterating reports that too.
        if handler is not None:
            signal.signal(signal.SIGCHLD, handler)
        started = [process for process in multiprocessing.active_children() if process not in others]
        for process in started:
            process.name = _worker_name()
        if started:
            _end_workers_at_exit(os.getpid())
        return batches


def make_loader(
    dataset: Dataset[Batch], batches: Iterable[list[SampleKey]], workers: int, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Create a loader that yields one batch for each list of keys. With 0 workers it loads in this process."""
    # PyTorch warns about more workers than cores, but their number is the user's choice.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    return _Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_Sender(),
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        generator=torch.Generator(),  # without it, the loader would advance PyTorch's global random state
    )


def _start_worker(_: int) -> None:
    # A forked worker must not collect objects of the main process, whose ends could wait for threads that the fork has
    # not copied. Visiting them would also copy the memory that both processes share.
    gc.freeze()
    # One thread per worker: OpenCV's thread pool would compete with the other workers for the same cores.
    cv2.setNumThreads(0)
    # Ctrl-C and a scheduler's signals reach every process, but the main process finishes its step first and then ends
    # its workers. Workers without a main process end themselves.
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

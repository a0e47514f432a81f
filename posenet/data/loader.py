"""Loaders that make batches in worker processes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from posenet.data.dataset import Batch, SampleKey

PREFETCH_FACTOR = 2
"""Batches that a worker may be ahead of the main process."""
KEPT_BLOCKS = 64
"""Blocks of shared memory that the main process keeps mapped: those of some 20 workers."""
GRACE_SECONDS = 300
"""Time that a worker continues after SIGTERM, so that the current training step can finish."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


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


_received_blocks: deque[Tensor] = deque(maxlen=KEPT_BLOCKS)
"""While a block is referenced, PyTorch need not map it again when it is received the next time. The end of a loader
releases them all; another loader that is still in use maps its blocks again."""


def _receive_batch(block: Tensor, sizes: list[int]) -> Batch:
    """Copy a batch out of the block, and give the block back to its worker."""
    _received_blocks.append(block)
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


_worker_processes: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""The workers that this process has started."""


def _end_workers() -> None:
    """End the workers at the exit of this process.

    Python would send them SIGTERM, after which they continue for ``GRACE_SECONDS``, and wait for them.
    """
    for worker in list(_worker_processes):
        worker.kill()
        worker.join()


atexit.register(_end_workers)  # runs before Python's own function, which was registered earlier
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker_processes.clear)


@contextlib.contextmanager
def _without_sigchld_handler() -> Iterator[None]:
    """Remove the signal handler with which PyTorch reports the death of a worker; iterating reports it too.

    The handler raises an error wherever the main process is, perhaps in the middle of a step or a checkpoint, or while
    ``_end_workers`` ends the others.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if _is_of_torch(signal.getsignal(signal.SIGCHLD)):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None or _is_of_torch(before) else before)


def _is_of_torch(handler: object) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("torch.")


class _Loader(DataLoader[Batch]):
    """A loader whose workers end with this process, also if a loop over it is left early."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # PyTorch's type is a private class
        others = set(multiprocessing.active_children())
        with _without_sigchld_handler():
            batches = super().__iter__()
        started = set(multiprocessing.active_children()) - others
        _worker_processes.update(process for process in started if process.daemon)
        return batches


def make_loader(
    dataset: Dataset[Batch], batches: Iterable[list[SampleKey]], workers: int, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Create a loader that yields one batch for each list of keys. With 0 workers it loads in this process."""
    # PyTorch warns about more workers than cores, but their number is the user's choice.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    loader = _Loader(
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
    weakref.finalize(loader, _received_blocks.clear)
    return loader


def keep_freed_memory() -> None:
    """Reuse freed memory for the next images instead of returning it to the system. Does nothing without glibc.

    By default, the C library returns the memory of every image and requests it again for the next one. This takes a
    fifth of the time of decoding the image.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest value that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 2**30)


def _start_worker(_: int) -> None:
    # A forked worker must not collect objects of the main process, whose ends could wait for threads that the fork has
    # not copied. Visiting them would also copy the memory that both processes share.
    gc.freeze()
    keep_freed_memory()
    # One thread per worker: OpenCV's thread pool would compete with the other workers for the same cores.
    cv2.setNumThreads(0)
    # Ctrl-C and a scheduler's SIGTERM reach every process, but the main process finishes its step first and then ends
    # its workers. If it fails to do so, the alarm ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))

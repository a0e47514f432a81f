"""Batches of samples, and loaders that make them in worker processes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import signal
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

from posenet.data.sampler import SampleKey
from posenet.settings import MAP_STRIDE

PEOPLE_MULTIPLE = 4
"""Batches are padded to a multiple of this number of people, because a compiled step has one graph for two people or
more, and another one for a single person."""
PREFETCH_FACTOR = 2
"""Batches that a worker may be ahead of the main process."""
KEPT_BLOCKS = 64
"""Blocks of shared memory that the main process keeps mapped: those of up to 16 workers."""
GRACE_SECONDS = 300
"""Time that a worker continues after SIGTERM, so that the current training step can finish."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


class Batch(NamedTuple):
    """Stacked samples, about 0.8 MB each at 512 x 512. Target maps are rendered from them on the device.

    Samples with fewer than P people are padded with zeros; P is a multiple of ``PEOPLE_MULTIPLE``.
    """

    images: Tensor  # (N, H, W, 3) BGR uint8
    joints: Tensor  # (N, P, K, 3) float32: x, y in network-input pixels, visibility
    person_mask: Tensor  # (N, H/4, W/4) uint8, 255 on people
    mask_miss: Tensor  # (N, H/4, W/4) uint8, 255 where the loss supervises
    image_ids: Tensor  # (N,) int64
    faults: tuple[str, ...] = ()  # error messages of the unreadable samples that were replaced by others
    set_indices: Tensor | None = None  # (N,) int16, the data sets of the samples, if there are several
    supervised: Tensor | None = None  # (N, C) uint8, 1 for the channels that each sample supervises; None means all

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device. The copying may still be in progress on return."""
        return Batch._make(
            value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for value in self
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a batch of a worker process as two blocks of ``BatchMemory``; see ``_receive_batch``.

        The rest is sent by value, because every tensor in a message costs the main process time. The message stays
        below the 4096 bytes that Linux writes completely or not at all: of a longer one, a worker that is killed can
        leave a half, for whose rest the main process would wait forever.
        """
        if get_worker_info() is None:
            return Batch, tuple(self)
        count, height, width, _ = self.images.shape
        pixels = self.images.as_strided((_pixel_bytes(count, height, width),), (1,))
        set_indices = None if self.set_indices is None else self.set_indices.numpy()
        supervised = None if self.supervised is None else np.packbits(self.supervised.numpy(), axis=1)
        num_channels = 0 if self.supervised is None else self.supervised.shape[1]
        sizes = (count, height, width)
        ids = self.image_ids.numpy()
        return _receive_batch, (pixels, self.joints, sizes, ids, self.faults, set_indices, supervised, num_channels)


_received_blocks: deque[Tensor] = deque(maxlen=KEPT_BLOCKS)
"""While a block is referenced, PyTorch need not map it again when it is received the next time. The end of a loader
releases them all; another loader that is still in use maps its blocks again."""


def _receive_batch(
    pixels: Tensor,
    joints: Tensor,
    sizes: tuple[int, int, int],
    image_ids: np.ndarray,
    faults: tuple[str, ...],
    set_indices: np.ndarray | None,
    supervised: np.ndarray | None,
    num_channels: int,
) -> Batch:
    """Unpickle a batch in the main process: copy it out of the blocks, which the worker will use again."""
    _received_blocks.extend((pixels, joints))
    images, person_mask, mask_miss = _split_pixels(pixels.clone(), *sizes)
    indices = None if set_indices is None else torch.from_numpy(set_indices)
    channels = None
    if supervised is not None:
        channels = torch.from_numpy(np.unpackbits(supervised, axis=1, count=num_channels))
    ids = torch.from_numpy(image_ids)
    return Batch(images, joints.clone(), person_mask, mask_miss, ids, faults, indices, channels)


class BatchMemory:
    """The memory of batches. In a worker process, it is shared with the main process.

    A worker uses a block of shared memory again for the ``PREFETCH_FACTOR``-th batch after it, which the loader
    requests only after it has received, and so copied, this one. With fresh blocks, the system would clear their pages
    and map them again for every batch, which can take half as long as decoding the images.
    """

    def __init__(self) -> None:
        self._blocks = [torch.empty(0, dtype=torch.uint8)] * 2 * PREFETCH_FACTOR
        self._num_used = 0

    def allocate_pixels(self, count: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors ``images``, ``person_mask`` and ``mask_miss`` of a ``Batch``, not filled."""
        return _split_pixels(self._next_block(_pixel_bytes(count, height, width)), count, height, width)

    def allocate_joints(self, joints: Sequence[np.ndarray]) -> Tensor:
        """The tensor ``joints`` of a ``Batch`` with the (P, K, 3) joints of every sample."""
        most_people = max(map(len, joints))
        num_people = PEOPLE_MULTIPLE * max(1, math.ceil(most_people / PEOPLE_MULTIPLE))
        shape = (len(joints), num_people, *joints[0].shape[1:])
        padded = self._next_block(4 * math.prod(shape)).view(torch.float32).view(shape).zero_()
        for row, of_sample in zip(padded.numpy(), joints):
            row[: len(of_sample)] = of_sample
        return padded

    def _next_block(self, size: int) -> Tensor:
        """(size,) uint8."""
        if get_worker_info() is None:
            return torch.empty(size, dtype=torch.uint8)
        number = self._num_used % len(self._blocks)  # blocks for pixels and for joints alternate
        self._num_used += 1
        if self._blocks[number].nbytes < size:
            self._blocks[number] = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        return self._blocks[number][:size]


def _pixel_bytes(count: int, height: int, width: int) -> int:
    """Bytes of the images and the masks of a batch."""
    return count * (height * width * 3 + 2 * (height // MAP_STRIDE) * (width // MAP_STRIDE))


def _split_pixels(memory: Tensor, count: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of (bytes,) uint8 memory: first all images, then all person masks, then all supervision masks."""
    image_bytes = count * height * width * 3
    masks = memory[image_bytes:].view(2, count, height // MAP_STRIDE, width // MAP_STRIDE)
    return memory[:image_bytes].view(count, height, width, 3), masks[0], masks[1]


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


class _Loader(DataLoader[Batch]):
    """A loader whose workers end with this process, also if a loop over it is left early."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # PyTorch's type is a private class
        others = set(multiprocessing.active_children())
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
        collate_fn=_keep_batch,
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


def _keep_batch(batch: Any) -> Any:
    """Collate nothing: the data set already returns a ``Batch``."""
    return batch


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

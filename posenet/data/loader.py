"""Loaders of batches and their worker processes."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import warnings
from collections.abc import Iterable
from typing import Any, cast

import cv2
import torch
from torch.utils.data import DataLoader

from posenet.data.dataset import Batch, PoseDataset
from posenet.data.sampler import SampleKey

PREFETCH_FACTOR = 2
"""Batches that a worker may be ahead of the main process."""
GRACE_SECONDS = 300
"""Time that a worker continues after SIGTERM, so that the current training step can finish."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


def make_loader(
    dataset: PoseDataset, batches: Iterable[list[SampleKey]], workers: int, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Create a loader that yields one batch for each list of keys. With 0 workers it loads in this process."""
    # PyTorch warns about more workers than cores, but their number is the user's choice.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    loader = DataLoader(
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
    # PyTorch's type names the samples, but the loader yields batches.
    return cast("DataLoader[Batch]", loader)


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

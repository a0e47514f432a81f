"""Loaders of batches and their worker processes."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterable

import cv2
import torch
from torch.utils.data import DataLoader, get_worker_info

from posenet.data import shared_buffers as ring
from posenet.data.batch import Batch
from posenet.data.dataset import PoseDataset
from posenet.data.sampler import Key
from posenet.devices.cpu import keep_freed_memory

GRACE_SECONDS = 300
"""How long a worker outlives SIGTERM, so that the step under way can end."""


def make_loader(
    dataset: PoseDataset, batches: Iterable[list[Key]], workers: int, pin_memory: bool = False
) -> DataLoader:
    """A loader of ``Batch``, one for each list of keys; its workers live for the whole run."""
    # PyTorch doubts, at length, more workers than cores; they are the user's to choose.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        persistent_workers=workers > 0,
        prefetch_factor=ring.AHEAD if workers else None,
        # A loader draws from PyTorch's global generator unless it has its own.
        generator=torch.Generator(),
    )


def close_loader(loader: DataLoader) -> None:
    """End a loader's workers now, rather than when Python ends."""
    if loader._iterator is not None:
        workers = loader._iterator._workers
        loader._iterator._shutdown_workers()
        loader._iterator = None
        for worker in workers:
            # One that another's death has blocked heeds nothing less, and none has anything to lose.
            worker.kill()
            worker.join()
            ring.forget(worker.pid)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _start_worker(_: int) -> None:
    get_worker_info().dataset.store.close()  # a forked worker's copy of the handle
    ring.forget()  # and of other workers' memory, which would so outlive them
    keep_freed_memory()
    # One thread a worker: OpenCV's own pool would fight the other workers for the same cores.
    cv2.setNumThreads(0)
    # Ctrl-C and a scheduler's SIGTERM reach every process, but the main one is to finish its step first: it ends its
    # workers itself. Should it fail to, the alarm does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))

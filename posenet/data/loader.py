"""Batches from worker processes, by PyTorch's ``DataLoader``."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import cv2
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from posenet.data.dataset import Batch, SampleKey
from posenet.errors import DataError, PosenetError
from posenet.messages import first_sentence, is_out_of_memory, without_worker_traceback

MAX_SECONDS = 600.0
"""A batch that takes longer than this ends with an error: a worker waits for something that does not come."""
DESCRIPTORS = 32
"""How many a worker opens at most: two for each tensor of three batches, and those of a server."""

_REMEDY = (
    "lower data.workers, free some memory, or allow more shared memory (docker run --shm-size=8g), open files "
    "(ulimit -n) and processes (ulimit -u)"
)
_SYSTEM_REFUSES = re.compile(
    r"DataLoader worker \(pid.* (exited unexpectedly|is killed by)|/torch_|No space left on device|"
    r"Too many open files|ancdata|Resource temporarily unavailable"
)
"""In messages of PyTorch and of the system, which workers send without the number of the error. Data are only read, so
that nothing but shared memory needs space."""


class BatchLoader:
    """One batch for each list of keys, made by ``workers`` processes, or with 0 in this process.

    It can be iterated any number of times, by the same workers. They end with ``close``, or with this process.

    Attributes:
        num_samples: size of the data set.
    """

    def __init__(
        self, dataset: Dataset[Batch], batches: Iterable[list[SampleKey]], workers: int, pin_memory: bool = False
    ) -> None:
        self.num_samples = len(dataset)  # type: ignore[arg-type]
        with _without_warning():
            self._loader: DataLoader[Batch] | None = DataLoader(
                dataset,
                batch_sampler=batches,
                num_workers=workers,
                collate_fn=_share_memory,  # type: ignore[arg-type]  # a batch is made at once
                pin_memory=pin_memory,
                worker_init_fn=_start_worker,
                persistent_workers=workers > 0,
                generator=torch.Generator(),  # without it, the loader would advance PyTorch's global random state
            )
        self._workers: list[BaseProcess] = []
        self._is_late = False

    def __len__(self) -> int:
        """Batches of one iteration."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """All batches; ``DataError`` if workers cannot be started, die or hang, or if samples cannot be read."""
        with self._explained_errors():
            batches = self._start()
        while True:
            with self._explained_errors():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def close(self) -> None:
        """End the workers. There are no batches afterwards."""
        self._loader = None  # unless an error refers to it, this ends them
        for worker in self._workers:
            worker.kill()  # one that is stopped reacts to nothing else
            worker.join()
        self._workers = []

    def _start(self) -> Iterator[Batch]:
        """Start an iteration, and the workers if there are none."""
        assert self._loader is not None, "the loader is closed"
        others = set(multiprocessing.active_children()) - set(self._workers)
        is_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGCHLD) if is_main_thread and hasattr(signal, "SIGCHLD") else None
        try:
            with _without_warning():
                return iter(self._loader)
        finally:
            self._workers = [process for process in multiprocessing.active_children() if process not in others]
            # PyTorch's handler raises an error wherever the main process is, perhaps in the middle of a step or of a
            # checkpoint, when a worker has died. Asking for the next batch reports that too.
            if handler is not None:
                signal.signal(signal.SIGCHLD, handler)

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Within this context, a failure of the workers is a ``DataError``, in seconds or after a limit."""
        # DataLoader's own ``timeout`` looks for dead workers only when it has passed, and not every five seconds.
        timer = threading.Timer(MAX_SECONDS, self._end_late_workers)
        timer.daemon = True
        try:
            if self._workers:
                timer.start()
            yield
        except PosenetError as error:
            raise type(error)(without_worker_traceback(str(error))) from error
        except Exception as error:
            if self._is_late:
                explanation = f"the data workers have made no batch in {MAX_SECONDS:g} s; check the disk"
                raise DataError(f"{explanation} and data.transform") from error
            reason = first_sentence(Exception(without_worker_traceback(str(error))))
            if ended := self._describe_dead_worker():
                raise DataError(f"a data worker ended with {ended}; {_REMEDY}") from error
            if _SYSTEM_REFUSES.search(reason) or is_out_of_memory(error):
                raise DataError(f"the system refuses what data workers need ({reason}); {_REMEDY}") from error
            raise
        finally:
            timer.cancel()

    def _end_late_workers(self) -> None:
        """End the workers, which the main process notices."""
        self._is_late = True
        for worker in self._workers:
            worker.kill()

    def _describe_dead_worker(self) -> str:
        """How a worker has ended; empty if all are alive or there are none."""
        # A broken pipe may be noticed before the death that caused it, and the end of a process before its exit status.
        ended = wait([worker.sentinel for worker in self._workers], timeout=1.0)
        for worker in self._workers:
            if worker.sentinel in ended:
                worker.join(timeout=1.0)
                status = worker.exitcode or 0
                return signal.Signals(-status).name if status < 0 else f"status {status}"
        return ""


def _without_warning() -> contextlib.AbstractContextManager[object]:
    """A context without PyTorch's warning of more workers than cores: their number is the user's choice."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _share_memory(batch: Batch) -> Batch:
    """Move what a worker has loaded to shared memory.

    PyTorch would do so in a thread, whose errors, such as too little memory, would not reach the main process.
    """
    if get_worker_info() is not None:
        for value in batch:
            if isinstance(value, Tensor):
                value.share_memory_()  # type: ignore[no-untyped-call]
    return batch


def _start_worker(_: int) -> None:
    # A forked worker must not collect objects of the main process, whose ends could wait for threads that the fork has
    # not copied. Visiting them would also copy the memory that both processes share.
    gc.freeze()
    # One thread per worker: OpenCV's thread pool would compete with the other workers for the same cores.
    cv2.setNumThreads(0)
    # Ctrl-C reaches every process. The main process finishes its step first and then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A lack of descriptors in the thread that sends batches would be printed, and the main process would wait.
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened += os.pipe()
    finally:
        for descriptor in opened:
            os.close(descriptor)

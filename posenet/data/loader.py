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

_MEMORY_REMEDY = "provide more shared memory (docker run --shm-size=8g), free some memory, or lower data.workers"
_LIMIT_REMEDY = "lower data.workers, or allow more open files (ulimit -n), processes (ulimit -u) and memory"
_WORKER_ENDED = re.compile(r"DataLoader worker \(pid.* (exited unexpectedly|is killed by)")
"""PyTorch's message. A worker that has ended before the last one was started is in no list of processes any more."""
_NO_SHARED_MEMORY = re.compile("/torch_|No space left on device")
"""In messages of PyTorch and of the system; data are only read, so that nothing else needs space."""
_LIMIT_REACHED = re.compile("Too many open files|ancdata|Resource temporarily unavailable")
"""In messages of PyTorch and of the system, which workers send without the number of the error."""


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
        end = object()
        with self._explained_errors():
            batches = self._start()
        while True:
            with self._explained_errors():
                batch = next(batches, end)
            if not isinstance(batch, Batch):
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
        """Within this context, a failure of the workers ends with a ``DataError`` in seconds, or after a limit."""
        timer = threading.Timer(MAX_SECONDS, self._end_late_workers)
        timer.daemon = True
        try:
            if self._workers:
                timer.start()
            yield
        except PosenetError as error:
            raise type(error)(without_worker_traceback(str(error))) from error
        except Exception as error:
            explanation = self._explain(error)
            if not explanation:
                raise
            raise DataError(explanation) from error
        finally:
            timer.cancel()

    def _end_late_workers(self) -> None:
        """End the workers, which the main process notices."""
        self._is_late = True
        for worker in self._workers:
            worker.kill()

    def _explain(self, error: Exception) -> str:
        """Why the workers have failed, and a remedy; empty for an error of another cause."""
        if self._is_late:
            return f"the data workers have made no batch in {MAX_SECONDS:g} s; check the disk and data.transform"
        status = self._status_of_dead_worker()
        if status is not None:
            if status < 0:
                return f"a data worker was ended by {signal.Signals(-status).name}; {_MEMORY_REMEDY}"
            # Workers send the errors of samples. What they cannot send, such as a lack of threads, Python prints.
            return f"a data worker ended with status {status}; {_LIMIT_REMEDY}"
        reason = first_sentence(Exception(without_worker_traceback(str(error))))
        if _WORKER_ENDED.match(reason):
            return f"a data worker has ended at its start; {_MEMORY_REMEDY}"
        if _NO_SHARED_MEMORY.search(reason):
            return f"too little shared memory for data workers ({reason}); {_MEMORY_REMEDY}"
        if _LIMIT_REACHED.search(reason) or is_out_of_memory(error):
            return f"the system refuses what data workers need ({reason}); {_LIMIT_REMEDY}"
        return ""

    def _status_of_dead_worker(self) -> int | None:
        """The exit status of a worker that has ended; None if all are alive or there are none."""
        # A broken pipe may be noticed before the death that caused it, and the end of a process before its exit status.
        ended = wait([worker.sentinel for worker in self._workers], timeout=1.0)
        for worker in self._workers:
            if worker.sentinel in ended:
                worker.join(timeout=1.0)
                return worker.exitcode
        return None


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
    _require_descriptors(DESCRIPTORS)
    # Ctrl-C reaches every process. The main process finishes its step first and then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _require_descriptors(count: int) -> None:
    """Raise ``OSError`` if this process may not open as many files.

    A lack of them in the thread that sends batches would be printed, and the main process would wait for the batch.
    """
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened += os.pipe()
    finally:
        for descriptor in opened:
            os.close(descriptor)

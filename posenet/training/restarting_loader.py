"""A data loader that goes on after the death of a worker process."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from torch.utils.data import DataLoader

from posenet.data.dataset import Batch
from posenet.data.sampler import TrainSampler, ValidationSampler
from posenet.errors import ConfigError, DataError
from posenet.messages import without_worker_traceback

MAX_DEATHS = 3
"""The run fails after this many worker deaths without a batch between them."""
_ENDED_BY_ALARM = -signal.SIGALRM if hasattr(signal, "SIGALRM") else None

_log = logging.getLogger(__name__)


class RestartingLoader:
    """A data loader that is made again at its position if a worker process dies, which takes some seconds to notice.

    ``make_loader`` makes one whose ``batch_sampler`` is ``sampler``. ``num_samples`` is the size of the data set.
    """

    def __init__(
        self,
        make_loader: Callable[[], DataLoader[Batch]],
        sampler: TrainSampler | ValidationSampler,
        num_samples: int,
    ) -> None:
        self.make_loader = make_loader
        self.sampler = sampler
        self.num_samples = num_samples
        self._loader: DataLoader[Batch] | None = None
        self._workers: list[BaseProcess] = []

    def __len__(self) -> int:
        """Batches of one iteration."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        """All batches, each once; ``DataError`` if samples cannot be read, or workers die again and again."""
        batches_done = 0
        deaths = 0
        try:
            while True:
                self.sampler.skip = batches_done
                try:
                    for batch in self._start():
                        yield batch
                        batches_done += 1
                        deaths = 0
                    return
                except (ConfigError, DataError) as error:
                    raise type(error)(without_worker_traceback(str(error))) from error
                # A dead worker leaves broken pipes, missing files or half a message, which can cause any exception.
                except Exception as error:
                    status = self._status_of_dead_worker()
                    if status is None:
                        raise
                    cause = (
                        f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
                    )
                    deaths += 1
                    self.close()
                    if deaths == MAX_DEATHS:
                        raise DataError(
                            f"data workers died {deaths} times without a batch in between, the last {cause}; "
                            "free some memory, lower data.workers, or provide more shared memory "
                            "(docker run --shm-size=8g)"
                        ) from error
                    # Workers end themselves by an alarm when a stop takes long; see ``loader.GRACE_SECONDS``.
                    if status != _ENDED_BY_ALARM:
                        _log.warning("a data worker %s; the workers are restarted and nothing is lost", cause)
        finally:
            self.sampler.skip = 0

    def close(self) -> None:
        """End the worker processes; iterating again starts new ones."""
        # A worker may be blocked because another one died; then it reacts to SIGKILL only. No worker has data to lose.
        for worker in self._workers:
            worker.kill()
            worker.join()
        self._workers = []
        self._loader = None

    def _start(self) -> Iterator[Batch]:
        """Start an iteration; workers of an earlier one are used again."""
        if self._loader is None:
            self._loader = self.make_loader()
        others = set(multiprocessing.active_children()) - set(self._workers)
        batches: Iterator[Batch] = iter(self._loader)
        self._workers = [process for process in multiprocessing.active_children() if process not in others]
        return batches

    def _status_of_dead_worker(self) -> int | None:
        """The exit status of a worker process that has ended; None if all are alive or there are none."""
        if not self._workers:
            return None
        # A broken pipe may be noticed before the death that caused it, and the end of a process before its exit status.
        ended = wait([worker.sentinel for worker in self._workers], timeout=1.0)
        for worker in self._workers:
            if worker.sentinel in ended:
                worker.join(timeout=1.0)
        return next((worker.exitcode for worker in self._workers if worker.exitcode is not None), None)

"""What a run is fed with: batches, whatever becomes of the samples and of the processes that read them.

A damaged sample comes replaced and named by the data set; here it is counted. Workers that die are started anew. What
cannot go on ends on all processes at the same step, so that they can still save together.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait

from torch.utils.data import DataLoader

from posenet.data.dataset import Batch
from posenet.data.loader import close_loader
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.messages import without_worker_traceback

MAX_DEATHS = 3
"""How often workers may die before a batch arrives; after that they would for ever."""
NAMED = 10
"""Replaced samples that the log names each time; further ones are counted."""

_log = logging.getLogger(__name__)


class CollectiveDataError(DataError):
    """Raised at the same step by all processes."""


def restart_dead_workers(loader: DataLoader) -> Iterator[Batch]:
    """A loader's batches. Workers that die are started anew and go on with the batch that is due.

    The samples depend on their keys alone, so that nothing else changes. A death is noticed after some seconds.

    Raises:
        DataError: samples that cannot be read, or workers that die again and again.
    """
    done, deaths = 0, 0
    try:
        while True:
            loader.batch_sampler.skip = done
            try:
                batches = iter(loader)
                _ignore_deaths()
                for batch in batches:
                    yield batch
                    done, deaths = done + 1, 0
                return
            except DataError as error:
                raise DataError(without_worker_traceback(str(error))) from error
            # A dead worker leaves broken pipes, missing files or half a message: what it raises can be anything.
            except Exception as error:
                if not (how := _deaths(loader)):
                    raise
                deaths += 1
                close_loader(loader)
                if deaths == MAX_DEATHS:
                    raise DataError(
                        f"data workers died {deaths} times without giving a batch, the last {how}; "
                        "free some memory or lower data.workers"
                    ) from error
                _log.warning("WARNING: a data worker %s; the workers are started anew and nothing is lost", how)
    finally:
        loader.batch_sampler.skip = 0


def raise_on_all_ranks(runtime: Runtime, error: DataError | None, faults: Sequence[str] = ()) -> list[str]:
    """What was wrong with the samples of all processes; all call it at the same step.

    Raises:
        FeedError: on all of them, where any has an ``error``.
    """
    failed, damaged = runtime.vote(error is not None, bool(faults))
    if failed:
        reason = next(filter(None, runtime.gather_objects(error and str(error))))
        raise CollectiveDataError(reason) from error
    return [fault for share in runtime.gather_objects(list(faults)) for fault in share] if damaged else []


class UnreadableSampleBudget:
    """Counts the samples of a pass over a data set that others took the place of.

    Args:
        share: of the samples of ``loader``'s data set, rounded up to whole ones, that may be.
        count: so many have been already.
    """

    def __init__(self, loader: DataLoader, share: float, count: int = 0) -> None:
        self.samples, self.count = len(loader.dataset), count
        self.allowed = math.ceil(share * self.samples)

    def add(self, faults: Sequence[str]) -> None:
        """Count and name further ones; ``CollectiveDataError`` where they are too many."""
        if not faults:
            return
        if self.count + len(faults) > self.allowed:
            raise CollectiveDataError(
                f"more than {self.allowed} of {self.samples} samples cannot be read, the most that "
                f"data.max_unreadable allows; the latest: {faults[0]}"
            )
        self.count += len(faults)
        for fault in faults[:NAMED]:
            _log.warning("WARNING: %s", fault)
        _log.warning(
            "WARNING: samples replaced by others: %d, so far in this epoch %d of at most %d",
            len(faults),
            self.count,
            self.allowed,
        )


def _deaths(loader: DataLoader) -> str:
    """How a worker ended; empty where all are alive, or there are none."""
    workers = getattr(loader._iterator, "_workers", ())
    if not workers:
        return ""
    # A broken pipe may be seen before the death that broke it, and the end of a process before its status.
    ended = wait([worker.sentinel for worker in workers], timeout=1.0)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(timeout=1.0)
    status = next((worker.exitcode for worker in workers if worker.exitcode is not None), None)
    if status is None:
        return ""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _ignore_deaths() -> None:
    """Undo the signal handler by which PyTorch raises a worker's death wherever the main process happens to be.

    That could be halfway through an optimizer step or a checkpoint. The loader looks after its workers anyway.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGCHLD), "__module__", "").startswith("torch."):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

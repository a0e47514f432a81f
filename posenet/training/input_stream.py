"""The input of every training step: batches on the device, even if samples are unreadable or worker processes die.

The data set replaces an unreadable sample by another one and reports it. These reports are counted here. Worker
processes that die are restarted. An error that ends the run is raised on all ranks at the same step, so that they can
still save together.
"""

from __future__ import annotations

import itertools
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait

from torch.utils.data import DataLoader

from posenet.data.loader import Batch
from posenet.data.sampler import TrainSampler, ValidationSampler
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.messages import without_worker_traceback
from posenet.training.device_prefetch import prefetch_to_device
from posenet.training.progress import Progress, SpeedMeter

MAX_DEATHS = 3
"""The run fails after this many worker deaths without a batch between them."""
MAX_NAMED_SAMPLES = 10
"""Unreadable samples of one step that the log names; further ones are only counted."""

_log = logging.getLogger(__name__)


def close_loader(loader: DataLoader[Batch]) -> None:
    """End the workers of a loader now instead of at the end of the program."""
    iterator = loader._iterator
    if iterator is None:
        return
    workers = getattr(iterator, "_workers", [])
    if workers:
        iterator._shutdown_workers()  # type: ignore[attr-defined]
    loader._iterator = None
    for worker in workers:
        # A worker may be blocked because another one died; then it reacts to SIGKILL only. No worker has data to lose.
        worker.kill()
        worker.join()


class CollectiveDataError(DataError):
    """A data error that all ranks raise at the same step."""


class RestartingLoader:
    """A data loader that restarts dead worker processes. ``sampler`` is its ``batch_sampler``.

    Samples depend on their keys alone, so a restart changes no sample. It takes some seconds to notice a death.
    """

    def __init__(self, loader: DataLoader[Batch], sampler: TrainSampler | ValidationSampler) -> None:
        self.loader = loader
        self.sampler = sampler

    def __len__(self) -> int:
        """Batches of one iteration."""
        return len(self.loader)

    @property
    def num_samples(self) -> int:
        """Samples in the data set."""
        return len(self.loader.dataset)  # type: ignore[arg-type]  # PoseDataset has a length

    def close(self) -> None:
        """End the worker processes."""
        close_loader(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """All batches, each once; ``DataError`` if samples cannot be read, or workers die again and again."""
        batches_done = 0
        deaths = 0
        try:
            while True:
                self.sampler.skip = batches_done
                try:
                    batches = iter(self.loader)
                    _remove_sigchld_handler()
                    for batch in batches:
                        yield batch
                        batches_done += 1
                        deaths = 0
                    return
                except DataError as error:
                    raise DataError(without_worker_traceback(str(error))) from error
                # A dead worker leaves broken pipes, missing files or half a message, which can cause any exception.
                except Exception as error:
                    cause = _describe_death(self.loader)
                    if cause is None:
                        raise
                    deaths += 1
                    self.close()
                    if deaths == MAX_DEATHS:
                        raise DataError(
                            f"data workers died {deaths} times without a batch in between, the last {cause}; "
                            "free some memory or lower data.workers"
                        ) from error
                    _log.warning("WARNING: a data worker %s; the workers are restarted and nothing is lost", cause)
        finally:
            self.sampler.skip = 0


class UnreadableSampleBudget:
    """Counts the unreadable samples of one pass over a data set: at most ``max_share`` of all samples, rounded up."""

    def __init__(self, num_samples: int, max_share: float, count: int = 0) -> None:
        self.num_samples = num_samples
        self.limit = math.ceil(max_share * num_samples)
        self.count = count

    def spend(self, faults: Sequence[str]) -> None:
        """Count and log further unreadable samples; ``CollectiveDataError`` if the limit is exceeded.

        ``faults`` are one message per sample, the same on all ranks.
        """
        if not faults:
            return
        if self.count + len(faults) > self.limit:
            raise CollectiveDataError(
                f"more than {self.limit} of {self.num_samples} samples cannot be read, the most that "
                f"data.max_unreadable allows; the latest: {faults[0]}"
            )
        self.count += len(faults)
        for fault in faults[:MAX_NAMED_SAMPLES]:
            _log.warning("WARNING: %s", fault)
        message = "WARNING: samples replaced by others: %d, so far in this pass over the data %d of at most %d"
        _log.warning(message, len(faults), self.count, self.limit)


def exchange_faults(runtime: Runtime, error: DataError | None, faults: Sequence[str] = ()) -> list[str]:
    """Exchange data errors between the ranks, and return the faults of all ranks.

    All ranks must call this at the same step.

    Args:
        error: the error that ends the run on this rank; None if it can continue.
        faults: messages of the samples that were replaced on this rank.

    Raises:
        CollectiveDataError: any rank has an error. All ranks raise it.
    """
    any_error, any_faults = runtime.vote(error is not None, bool(faults))
    if any_error:
        messages = runtime.gather_objects(error and str(error))
        raise CollectiveDataError(next(filter(None, messages))) from error
    if not any_faults:
        return []
    return [fault for rank_faults in runtime.gather_objects(list(faults)) for fault in rank_faults]


class InputStream:
    """The batches of every optimizer step of a run, on the device.

    The stream is continuous over all epochs: during validation, the workers prepare the first batches of the next
    epoch. The stream is repositioned only if the run continues at another step, as after loading a checkpoint.

    Args:
        sampler: the ``batch_sampler`` of the loader.
        accumulate: batches per optimizer step.
        epochs: number of epochs of the run.
        max_unreadable: share of the samples of an epoch that may be unreadable.
    """

    def __init__(
        self,
        loader: DataLoader[Batch],
        sampler: TrainSampler,
        runtime: Runtime,
        *,
        accumulate: int,
        epochs: int,
        max_unreadable: float,
    ) -> None:
        self.loader = RestartingLoader(loader, sampler)
        self.sampler = sampler
        self.runtime = runtime
        self.accumulate = accumulate
        self.epochs = epochs
        self.max_unreadable = max_unreadable
        self.meter = SpeedMeter()
        self._batches: Iterator[Batch] = iter(())
        self._position = -1  # epoch * steps_per_epoch + step of the next step; -1 if the stream has not started

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps

    def close(self) -> None:
        """End the worker processes; using the stream again starts new ones."""
        self.loader.close()
        self._position = -1

    def steps(self, progress: Progress) -> Iterator[list[Batch]]:
        """The batches of each remaining step of the current epoch. Counts replaced samples in ``progress.replaced``.

        Raises:
            CollectiveDataError: any rank cannot continue. All ranks raise it.
        """
        budget = UnreadableSampleBudget(self.sampler.epoch_length, self.max_unreadable, progress.replaced)
        self._seek(progress.epoch, progress.step)
        for _ in range(progress.step, self.steps_per_epoch):
            batches, error = self._take_batches()
            faults = [fault for batch in batches for fault in batch.faults]
            budget.spend(exchange_faults(self.runtime, error, faults))
            progress.replaced = budget.count
            self.meter.samples += sum(len(batch.images) for batch in batches) * self.runtime.world_size
            yield batches

    def _seek(self, epoch: int, step: int) -> None:
        """Position the stream before a step, unless it is already there."""
        position = epoch * self.steps_per_epoch + step
        if self._position != position:
            self.sampler.start(epoch, step, self.epochs)
            self._batches = prefetch_to_device(self.loader, self.runtime)
            self._position = position

    def _take_batches(self) -> tuple[list[Batch], DataError | None]:
        """The batches of one step; after an error, those before it and the error."""
        self._position += 1
        batches: list[Batch] = []
        error = None
        started = time.monotonic()
        try:
            batches += itertools.islice(self._batches, self.accumulate)
        except DataError as caught:
            error = caught
        self.meter.seconds_waited += time.monotonic() - started
        return batches, error


def _describe_death(loader: DataLoader[Batch]) -> str | None:
    """How a worker process ended; None if all are alive or there are none."""
    workers = getattr(loader._iterator, "_workers", ())
    if not workers:
        return None
    # A broken pipe may be noticed before the death that caused it, and the end of a process before its exit status.
    ended = wait([worker.sentinel for worker in workers], timeout=1.0)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(timeout=1.0)
    status = next((worker.exitcode for worker in workers if worker.exitcode is not None), None)
    if status is None:
        return None
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _remove_sigchld_handler() -> None:
    """Remove the signal handler with which PyTorch reports the death of a worker.

    The handler raises an error wherever the main process is at that moment, perhaps in the middle of an optimizer step
    or a checkpoint. The loader notices dead workers without it.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if getattr(handler, "__module__", "").startswith("torch."):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

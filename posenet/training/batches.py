"""The batches of every step, and the unreadable samples in them.

The data set replaces an unreadable sample by another one and reports it; these reports are counted here.
"""

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Iterator

from posenet.data.dataset import Batch, PoseDataset, training_set
from posenet.data.loader import BatchLoader, TrainSampler, validation_batches
from posenet.data.store_list import StoreList
from posenet.devices.device import supports_pinned_memory
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.settings import Config

MAX_UNREADABLE_SAMPLES = 0.01
"""Share of the samples of an epoch that may be replaced because they cannot be read: more is a fault of the data."""
MAX_NAMED_SAMPLES = 10  # unreadable samples of one batch that the log names; further ones are only counted

_log = logging.getLogger(__name__)


class StepBatches:
    """The batches of every optimizer step of a run of ``epochs``, each of ``accumulate`` batches, in host memory.

    They are continuous over all epochs: during validation, the workers prepare the first batches of the next epoch.
    They are repositioned only if the run continues at another step, as after loading a checkpoint.
    """

    def __init__(self, loader: BatchLoader, sampler: TrainSampler, accumulate: int, epochs: int) -> None:
        self.loader = loader
        self.sampler = sampler
        self.accumulate = accumulate
        self.epochs = epochs
        self.steps_per_epoch = sampler.steps
        self.samples_per_epoch = sampler.epoch_length
        self._batches: Iterator[Batch] = iter(())
        self._position = -1  # epoch * steps_per_epoch + step of the next step; -1 if nothing has started
        self.restart_meter()

    def take_step(self, epoch: int, step: int) -> list[Batch]:
        """The batches of one step; ``PosenetError`` or ``OSError`` if they cannot be made."""
        position = epoch * self.steps_per_epoch + step
        if self._position != position:
            self.sampler.start(epoch, step, self.epochs)
            self._batches = iter(self.loader)
        self._position = position + 1
        started = time.monotonic()
        batches = list(itertools.islice(self._batches, self.accumulate))
        self._seconds_waited += time.monotonic() - started
        self._samples += sum(len(batch.images) for batch in batches)
        return batches

    def restart_meter(self) -> None:
        """Begin to measure the speed."""
        self._samples = 0  # of this process
        self._seconds_waited = 0.0  # for data
        self._started_at = time.monotonic()

    def read_speed(self) -> dict[str, float]:
        """Samples per second of this process, and the share of the time that it waited for data; then restart."""
        seconds = max(time.monotonic() - self._started_at, 1e-9)
        speed = {"samples_per_s": self._samples / seconds, "data_wait": self._seconds_waited / seconds}
        self.restart_meter()
        return speed

    def close(self) -> None:
        self._batches = iter(())
        self.loader.close()


def too_many_unreadable(count: int, num_samples: int) -> DataError | None:
    """The error if ``count`` unreadable samples of all ranks are more than that share of a data set, rounded up."""
    limit = math.ceil(MAX_UNREADABLE_SAMPLES * num_samples)
    if count <= limit:
        return None
    return DataError(
        f"more than {limit} of {num_samples} samples cannot be read; the log names them: repair or remove their "
        "images and build the store again"
    )


@contextlib.contextmanager
def errors_of_data() -> Iterator[None]:
    """Within this context, an ``OSError`` becomes a ``DataError``, which ends the run after saving it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read the data: {error}") from error


def log_unreadable(batches: list[Batch]) -> int:
    """Log the unreadable samples that were replaced in the batches, and return their number."""
    faults = [fault for batch in batches for fault in batch.faults]
    for fault in faults[:MAX_NAMED_SAMPLES]:
        _log.warning("%s", fault)
    if faults:
        _log.warning("samples replaced by others: %d", len(faults))
    return len(faults)


def make_step_batches(config: Config, store: StoreList, runtime: Runtime) -> StepBatches:
    """The batches of this rank for the whole run."""
    train, ranks = config.train, (runtime.rank, runtime.world_size)
    dataset = training_set(store, config)
    counts = store.sample_counts(config.data.framing, config.data.background)
    sampler = TrainSampler(
        len(dataset), train.batch_size, train.seed, config.optim.accumulate, *ranks, sample_counts=counts
    )
    loader = BatchLoader(dataset, sampler, config.data.workers, supports_pinned_memory(runtime.device))
    return StepBatches(loader, sampler, config.optim.accumulate, train.epochs)


def make_validation_loader(config: Config, store: StoreList, runtime: Runtime) -> BatchLoader:
    """The validation batches of this rank, without augmentation."""
    dataset = PoseDataset(store, config.train.size, config.data.framing)
    sampler = validation_batches(len(dataset), config.train.batch_size, runtime.rank, runtime.world_size)
    return BatchLoader(dataset, sampler, config.data.workers, supports_pinned_memory(runtime.device))

"""Which samples make the next batch, and batches from worker processes, by PyTorch's ``DataLoader``."""

import gc
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from posenet.data.dataset import Batch, SampleKey
from posenet.data.store_list import SampleCounts
from posenet.errors import DataError, PosenetError
from posenet.messages import first_sentence, is_out_of_memory, without_worker_traceback

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
"""In messages that workers send without the number of the error. Only shared memory needs space: data are read."""


class TrainSampler(Sampler[list[SampleKey]]):
    """Batches of keys, in a new random order every epoch: a function of the seed and the epoch alone.

    All processes divide the same shuffled order into global batches of ``batch_size * world_size`` samples, and each
    yields one slice of every global batch: together they train on what one process would. Samples that do not fill a
    whole optimizer step are left out of the epoch. A data set smaller than one step is repeated to fill it, each time
    with other augmentations.

    With ``sample_counts``, an epoch draws the given number of samples from each of several sets. The samples of a set
    are drawn in rounds, random orders of all its samples, and every epoch continues where the last one has stopped. So
    the numbers of draws of two samples of a set differ by one at most, before the samples of each epoch that do not
    fill a step are left out.

    Args:
        length: samples in the data set.
        batch_size: samples per process and batch.
        batches_per_step: batches per optimizer step; an epoch consists of whole steps.
        sample_counts: those of several sets, whose sizes add up to ``length``; empty draws each sample once.

    Attributes:
        steps, epoch_length: optimizer steps of an epoch, and the samples that it draws.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        batches_per_step: int = 1,
        rank: int = 0,
        world_size: int = 1,
        sample_counts: Sequence[SampleCounts] = (),
    ) -> None:
        self.length = length
        self.sample_counts = sample_counts or [SampleCounts(length, length)]
        self.epoch_length = sum(count for _, count in self.sample_counts)
        self.batch_size = batch_size
        self.seed = seed
        self.batches_per_step = batches_per_step
        self.rank = rank
        self.global_batch_size = batch_size * world_size
        self.steps = max(1, self.epoch_length // (self.global_batch_size * batches_per_step))
        self.batches_per_epoch = self.steps * batches_per_step
        self.start(0)

    def start(self, epoch: int, step: int = 0, epochs: int | None = None) -> None:
        """Let the next iteration start at an optimizer ``step`` of an ``epoch``, and end before the epoch ``epochs``.

        None ends it after the first epoch. In an iteration over all epochs, the workers of a loader go on with the next
        epoch without a pause.
        """
        end_epoch = epoch + 1 if epochs is None else max(epochs, epoch + 1)
        self._first_batch = epoch * self.batches_per_epoch + step * self.batches_per_step
        self._end_batch = end_epoch * self.batches_per_epoch

    def __len__(self) -> int:
        return self._end_batch - self._first_batch

    def __iter__(self) -> Iterator[list[SampleKey]]:
        first_epoch, end_epoch = (batch // self.batches_per_epoch for batch in (self._first_batch, self._end_batch))
        for epoch in range(first_epoch, end_epoch):
            order = np.random.default_rng((self.seed, epoch)).permutation(self.epoch_length)
            order = self._fit_to_whole_steps(self._draw(epoch)[order])
            first_of_epoch = max(self._first_batch - epoch * self.batches_per_epoch, 0)
            for batch in range(first_of_epoch, self.batches_per_epoch):
                start = batch * self.global_batch_size + self.rank * self.batch_size
                yield [(epoch, int(index)) for index in order[start : start + self.batch_size]]

    def _fit_to_whole_steps(self, order: np.ndarray) -> np.ndarray:
        """The indices of an epoch's batches: the start of ``order``, or all of it, with other indices each time."""
        count = self.batches_per_epoch * self.global_batch_size
        # ``order`` may have such indices already: a repetition gets those above all of them.
        indices_per_round = self.length * (1 + int(order.max()) // self.length)
        rounds = np.arange(count) // len(order)
        return np.resize(order, count) + rounds * indices_per_round

    def _draw(self, epoch: int) -> np.ndarray:
        """(epoch_length,) int64: the samples that an epoch draws, set by set, plus ``length`` for each earlier draw."""
        drawn = []
        first_of_set = 0
        for number, (size, count) in enumerate(self.sample_counts):
            first_round = epoch * count // max(size, 1)
            last_round = ((epoch + 1) * count - 1) // max(size, 1)  # before the first one if nothing is drawn
            for round_number in range(first_round, last_round + 1):
                start = max(epoch * count - round_number * size, 0)
                stop = min((epoch + 1) * count - round_number * size, size)
                order = np.arange(size)
                if stop - start < size:
                    order = np.random.default_rng((self.seed, number, round_number)).permutation(size)
                repeat = round_number - first_round
                drawn.append(order[start:stop] + first_of_set + repeat * self.length)
            first_of_set += size
        return np.concatenate(drawn)


def validation_batches(length: int, batch_size: int, rank: int, world_size: int) -> list[list[SampleKey]]:
    """Every index exactly once over all processes, in order. The last batch may be smaller."""
    keys = [(0, index) for index in range(rank, length, world_size)]
    return [keys[start : start + batch_size] for start in range(0, len(keys), batch_size)]


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

    def __len__(self) -> int:
        """Batches of one iteration."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """All batches; ``DataError`` in seconds if workers cannot be started or die, or if samples cannot be read."""
        try:
            yield from self._start()
        except PosenetError as error:
            raise type(error)(without_worker_traceback(str(error))) from error
        except Exception as error:
            reason = first_sentence(Exception(without_worker_traceback(str(error))))
            # A broken pipe may be noticed before the death that caused it.
            dead = wait([worker.sentinel for worker in self._workers], timeout=1.0)
            if dead or _SYSTEM_REFUSES.search(reason) or is_out_of_memory(error):
                raise DataError(f"the data workers failed ({reason}); {_REMEDY}") from error
            raise

    def close(self) -> None:
        """End the workers. There are no batches afterwards."""
        self._loader = None  # unless an error refers to it, this ends them
        for worker in self._workers:
            worker.kill()  # one that is stopped reacts to nothing else
            worker.join()
        self._workers = []

    def _start(self) -> Iterator[Batch]:
        assert self._loader is not None, "the loader is closed"
        others = set(multiprocessing.active_children()) - set(self._workers)
        is_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGCHLD) if is_main_thread and hasattr(signal, "SIGCHLD") else None
        try:
            return iter(self._loader)
        finally:
            self._workers = [process for process in multiprocessing.active_children() if process not in others]
            # PyTorch's handler raises an error wherever the main process is, perhaps in the middle of a step or of a
            # checkpoint, when a worker has died. Asking for the next batch reports that too.
            if handler is not None:
                signal.signal(signal.SIGCHLD, handler)


def _share_memory(batch: Batch) -> Batch:
    """Move what a worker has loaded to shared memory; in PyTorch's thread, errors would not reach the main process."""
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

"""How fast training samples are made, against decoding and warping alone."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from functools import partial

import cv2
import numpy as np
from torch import Tensor
from tqdm import tqdm

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch, median_seconds, minimum_seconds
from posenet.data.batch import Batch, Pixels, Sample, collate
from posenet.data.dataset import Draft, PoseDataset, reduction_of
from posenet.data.loader import close_loader, make_loader
from posenet.data.sampler import Key, TrainSampler
from posenet.data.warping import BORDER_COLOUR, crop_visible, from_reduced, recolour, warp_bgra, warp_joints, warp_mask
from posenet.devices.cpu import keep_freed_memory
from posenet.devices.runtime import Runtime

LOADER_ROUNDS = 4
"""How often a loader's epoch holds every sample, so that filling its queue does not count much."""
RECEIVED = 8
"""Batches whose way from a worker is timed."""
COPIED_BYTES = 2**26
"""Memory that is copied to measure the bandwidth: more than fits into a cache."""


def measure_data(
    dataset: PoseDataset, runtime: Runtime, samples: int, batch_size: int, workers: int, repeats: int
) -> Report:
    """Batches in the order of training, made in this process, and by a loader's workers if there are any.

    Args:
        dataset: framed on persons, with augmentation.
        samples: how many to make, rounded up to whole batches.
        workers: processes of the loader; 0 measures none.

    Raises:
        DataError: a sample that cannot be read.
    """
    keep_freed_memory()  # as a loader's worker does
    batches = draw_batches(dataset, samples, batch_size)
    keys = [key for batch in batches for key in batch]
    seconds = per_sample(dataset, batches, repeats)
    stages = stage_seconds(dataset, batches, repeats, runtime)
    bandwidth = copied_bytes_per_s(repeats)
    full = seconds["full sample"]
    numbers = {
        "samples_per_s": 1 / full,
        "bound_samples_per_s": 1 / seconds["bound: both"],
        "share_of_bound": seconds["bound: both"] / full,
        "bytes_per_sample": bytes_per_sample(dataset, batches),
        "cpu_samples_per_s": 1 / seconds["full sample, CPU time"],
        "cpu_share_of_bound": seconds["bound: both, CPU time"] / seconds["full sample, CPU time"],
        "decode_samples_per_s": 1 / seconds["bound: decode"],
        "warp_samples_per_s": 1 / seconds["bound: warp"],
        "plain_samples_per_s": 1 / seconds["plain OpenCV"],
        "copied_bytes_per_s": bandwidth,
        "stage_ms": {stage: 1000 * value for stage, value in stages.items()},
        "samples": len(keys),
        "batch_size": batch_size,
        "input_size": list(dataset.size),
    }
    rows = [
        (name, 1000 * value, 1 / value if value > 1e-6 else None, percent(value, full))
        for name, value in (stages | seconds).items()
    ]
    notes = [
        f"a sample is shipped as {numbers['bytes_per_sample'] / 1e6:.2f} MB; the store is read from the file "
        "system's cache",
        "bound: decoding the JPEG and warping it without colour jitter, as the sample does it, and nothing else",
        "CPU time leaves out what other programs take of the core",
        "plain OpenCV: the same two by imdecode and warpAffine on whole images",
        f"copying memory at {bandwidth / 1e9:.1f} GB/s moves a sample in "
        f"{1000 * numbers['bytes_per_sample'] / bandwidth:.3f} ms",
    ]
    if workers:
        speed, wait = loader_speed(dataset, batches, workers, repeats)
        numbers |= {"loader_samples_per_s": speed, "receive_ms_per_batch": 1000 * wait, "workers": workers}
        rows.append((f"loader, workers: {workers}", 1000 / speed, speed, None))
        notes.append(f"a batch that a worker has ready is received in {1000 * wait:.2f} ms")
    return Report(
        title=f"data: {len(keys)} samples at {dataset.size[0]} x {dataset.size[1]}, batches of {batch_size}",
        header=("stage", "ms/sample", "samples/s", "of the full sample"),
        rows=rows,
        numbers=numbers,
        notes=notes,
    )


def draw_batches(dataset: PoseDataset, samples: int, batch_size: int) -> list[list[Key]]:
    """The first batches of training, over as many epochs as it takes."""
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    batches: list[list[Key]] = []
    for epoch in itertools.count():
        sampler.start(epoch)
        batches += sampler
        if len(batches) * batch_size >= samples:
            return batches[: -(-samples // batch_size)]


def per_sample(dataset: PoseDataset, batches: Sequence[list[Key]], repeats: int) -> dict[str, float]:
    """Median seconds of a whole sample and of what bounds it."""
    plans = [dataset.plan(key) for batch in batches for key in batch]
    size, watch = dataset.size[::-1], Stopwatch()
    out = np.empty((*dataset.size, 3), np.uint8)

    def full() -> None:
        for batch in batches:
            dataset.__getitems__(batch)

    def both() -> None:
        watch.start_round()
        for record, _, matrix in plans:
            by = reduction_of(record, matrix)
            image = record.decode_image(by)
            watch.lap("bound: decode")
            part, from_part = crop_visible(image, from_reduced(matrix, by), size)
            warp_bgra(recolour(part, None), from_part, size, out)
            watch.lap("bound: warp")

    def plain() -> None:
        for record, _, matrix in plans:
            cv2.warpAffine(record.decode_image(), matrix, size, dst=out, borderValue=BORDER_COLOUR)

    seconds = median_seconds({"full sample": full, "bound: both": both, "plain OpenCV": plain}, repeats)
    tasks = {"full sample, CPU time": full, "bound: both, CPU time": both}
    seconds = watch.stage_medians() | seconds | median_seconds(tasks, repeats, clock=time.process_time)
    return {name: value / len(plans) for name, value in seconds.items()}


def stage_seconds(
    dataset: PoseDataset, batches: Sequence[list[Key]], repeats: int, runtime: Runtime
) -> dict[str, float]:
    """Median seconds of every stage of one sample."""
    watch = Stopwatch()
    for turn in tqdm(range(repeats + 1), desc="stages", leave=False, disable=None):
        watch.start_round()
        for keys in batches:
            pixels = Pixels.make(len(keys), *dataset.size)
            batch = staged_batch(dataset, keys, pixels, watch)
            runtime.to_device(batch)
            runtime.synchronize()
            watch.lap("transfer")
        if not turn:
            watch.reset()
    count = sum(map(len, batches))
    return {stage: seconds / count for stage, seconds in watch.stage_medians().items()}


def staged_batch(dataset: PoseDataset, keys: Sequence[Key], pixels: Pixels, watch: Stopwatch) -> Batch:
    """What ``dataset.__getitems__`` does, with a look at the watch between the stages."""
    size, rows, drafts, samples = dataset.size[::-1], pixels.rows(), [], []
    for key, room in zip(keys, rows):
        record, augmentation, matrix = plan = dataset.plan(key)
        watch.lap("read")
        for runs, border, cells in zip(record.mask_runs(), (0, 1), room[1:]):
            warp_mask(runs, (record.height, record.width), matrix, size, border, out=cells)
        watch.lap("masks")
        drafts.append(Draft(plan, warp_joints(record.joints, augmentation, matrix, dataset.store.skeleton)))
        watch.lap("joints")
    for ((record, augmentation, matrix), joints), room in zip(drafts, rows):
        by = reduction_of(record, matrix)
        picture = record.decode_image(by)
        watch.lap("decode")
        part, from_part = crop_visible(picture, from_reduced(matrix, by), size)
        part = recolour(part, augmentation.jitter)
        watch.lap("colour")
        warp_bgra(part, from_part, size, room[0])
        watch.lap("warp")
        samples.append(Sample(room[0], joints, *room[1:], record.image_id))
    batch = collate(samples, pixels)
    watch.lap("collate")
    return batch


def bytes_per_sample(dataset: PoseDataset, batches: Sequence[list[Key]]) -> float:
    """Mean bytes of one sample of a batch, which is what a worker ships."""
    shipped = sum(
        tensor.nbytes for batch in batches for tensor in dataset.__getitems__(batch) if isinstance(tensor, Tensor)
    )
    return shipped / sum(map(len, batches))


def copied_bytes_per_s(repeats: int) -> float:
    """Memory bandwidth of one core, reading and writing counted once."""
    source = np.ones(COPIED_BYTES, np.uint8)
    return COPIED_BYTES / minimum_seconds(partial(np.copyto, np.empty_like(source), source), repeats)


def loader_speed(dataset: PoseDataset, batches: Sequence[list[Key]], workers: int, repeats: int) -> tuple[float, float]:
    """Samples per second out of a loader's worker processes, and seconds to receive a batch that is ready.

    Starting the workers does not count.
    """
    loader = make_loader(dataset, list(batches) * LOADER_ROUNDS, workers)
    speeds, waits = [], []
    try:
        for turn in tqdm(range(repeats + 1), desc="loader", leave=False, disable=None):
            started = time.perf_counter()
            samples = sum(len(batch.images) for batch in loader)
            if turn:
                speeds.append(samples / (time.perf_counter() - started))
        for _ in zip(range(RECEIVED), iterator := iter(loader)):
            time.sleep(2 * len(batches[0]) / min(speeds))  # the next one is ready now
            started = time.perf_counter()
            next(iterator, None)
            waits.append(time.perf_counter() - started)
    finally:
        close_loader(loader)
    return statistics.median(speeds), statistics.median(waits)

"""How fast training samples are made, compared with only decoding and warping their images."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np
from torch import Tensor

from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch, median_seconds, minimum_seconds
from posenet.data.batch import Batch, BatchBuffers, Sample, collate
from posenet.data.dataset import PartialSample, PoseDataset
from posenet.data.loader import close_loader, keep_freed_memory, make_loader
from posenet.data.sampler import SampleKey, TrainSampler
from posenet.data.warping import (
    BORDER_COLOUR,
    crop_visible,
    jitter_to_bgra,
    matrix_for_reduced_image,
    warp_bgra,
    warp_joints,
)
from posenet.devices.runtime import Runtime
from posenet.progress import progress_bar

LOADER_ROUNDS = 4
"""Number of times that a loader's epoch contains every sample, so that filling its queue takes a small share of it."""
RECEIVED_BATCHES = 8
"""Number of batches for which the transfer from a worker is timed."""
COPIED_BYTES = 2**26
"""Memory to copy to measure the bandwidth: more than fits into a cache."""


def measure_data(
    dataset: PoseDataset, runtime: Runtime, samples: int, batch_size: int, workers: int, repeats: int
) -> Report:
    """Time batches in the order of training, made in this process and by a loader if there are ``workers``.

    ``dataset`` is framed on persons, with augmentation. ``samples`` is rounded up to whole batches.
    """
    keep_freed_memory()  # as a loader's worker does
    batches = training_batches(dataset, samples, batch_size)
    num_samples = sum(len(batch) for batch in batches)
    seconds = measure_samples(dataset, batches, repeats)
    stages = measure_stages(dataset, batches, repeats, runtime)
    bandwidth = measure_bandwidth(repeats)
    bytes_per_sample = mean_sample_bytes(dataset, batches)
    full = seconds["full sample"]
    numbers: dict[str, Any] = {
        "samples_per_s": 1 / full,
        "bound_samples_per_s": 1 / seconds["bound: both"],
        "share_of_bound": seconds["bound: both"] / full,
        "bytes_per_sample": bytes_per_sample,
        "cpu_samples_per_s": 1 / seconds["full sample, CPU time"],
        "cpu_share_of_bound": seconds["bound: both, CPU time"] / seconds["full sample, CPU time"],
        "decode_samples_per_s": 1 / seconds["bound: decode"],
        "warp_samples_per_s": 1 / seconds["bound: warp"],
        "plain_samples_per_s": 1 / seconds["plain OpenCV"],
        "copied_bytes_per_s": bandwidth,
        "stage_ms": {stage: 1000 * value for stage, value in stages.items()},
        "samples": num_samples,
        "batch_size": batch_size,
        "input_size": list(dataset.size),
    }
    rows: list[tuple[Any, ...]] = [
        (name, 1000 * value, 1 / value if value > 1e-6 else None, percent(value, full))
        for name, value in (stages | seconds).items()
    ]
    notes = [
        f"a worker sends {bytes_per_sample / 1e6:.2f} MB per sample; the store is read from the file system's cache",
        "bound: only decoding the JPEG and warping it without colour jitter, by the same functions",
        "CPU time excludes the time that other programs use the core",
        "plain OpenCV: the same two steps by imdecode and warpAffine on whole images",
        f"copying memory at {bandwidth / 1e9:.1f} GB/s moves a sample in {1000 * bytes_per_sample / bandwidth:.3f} ms",
    ]
    if workers:
        speed, wait = measure_loader(dataset, batches, workers, repeats)
        numbers |= {"loader_samples_per_s": speed, "receive_ms_per_batch": 1000 * wait, "workers": workers}
        rows.append((f"loader, workers: {workers}", 1000 / speed, speed, None))
        notes.append(f"receiving a finished batch from a worker takes {1000 * wait:.2f} ms")
    return Report(
        title=f"data: {num_samples} samples at {dataset.size[0]} x {dataset.size[1]}, batches of {batch_size}",
        header=("stage", "ms/sample", "samples/s", "of the full sample"),
        rows=rows,
        numbers=numbers,
        notes=notes,
    )


def training_batches(dataset: PoseDataset, samples: int, batch_size: int) -> list[list[SampleKey]]:
    """The first batches of training with at least ``samples`` samples, over as many epochs as necessary."""
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    num_batches = math.ceil(samples / batch_size)
    sampler.start(0, epochs=math.ceil(num_batches / sampler.steps))
    return list(itertools.islice(sampler, num_batches))


def measure_samples(dataset: PoseDataset, batches: Sequence[list[SampleKey]], repeats: int) -> dict[str, float]:
    """Median seconds per sample: of the whole sample, and of the steps that every implementation needs."""
    framed_records = [dataset.frame_record(key) for batch in batches for key in batch]
    size = dataset.size[::-1]
    watch = Stopwatch()
    out = np.empty((*dataset.size, 3), np.uint8)

    def make_full_samples() -> None:
        for batch in batches:
            dataset.__getitems__(batch)

    def decode_and_warp() -> None:
        watch.start_round()
        for framed in framed_records:
            reduction = framed.decode_reduction
            image = framed.record.decode_image(reduction)
            watch.lap("bound: decode")
            visible, matrix = crop_visible(image, matrix_for_reduced_image(framed.matrix, reduction), size)
            warp_bgra(jitter_to_bgra(visible, None), matrix, size, out)
            watch.lap("bound: warp")

    def decode_and_warp_plainly() -> None:
        for framed in framed_records:
            cv2.warpAffine(framed.record.decode_image(), framed.matrix, size, dst=out, borderValue=BORDER_COLOUR)

    wall_tasks = {
        "full sample": make_full_samples,
        "bound: both": decode_and_warp,
        "plain OpenCV": decode_and_warp_plainly,
    }
    wall_seconds = median_seconds(wall_tasks, repeats)
    stage_seconds = watch.stage_medians()
    cpu_tasks = {"full sample, CPU time": make_full_samples, "bound: both, CPU time": decode_and_warp}
    cpu_seconds = median_seconds(cpu_tasks, repeats, clock=time.process_time)
    seconds = stage_seconds | wall_seconds | cpu_seconds
    return {name: value / len(framed_records) for name, value in seconds.items()}


def measure_stages(
    dataset: PoseDataset, batches: Sequence[list[SampleKey]], repeats: int, runtime: Runtime
) -> dict[str, float]:
    """Median seconds per sample of every stage."""
    watch = Stopwatch()
    for round_index in progress_bar(range(repeats + 1), "stages", unit="round", leave=False):
        watch.start_round()
        for keys in batches:
            batch_buffers = BatchBuffers.allocate(len(keys), *dataset.size)
            batch = make_batch_in_stages(dataset, keys, batch_buffers, watch)
            runtime.to_device(batch)
            runtime.synchronize()
            watch.lap("transfer")
        if not round_index:
            watch.reset()  # the first round warms up
    num_samples = sum(len(batch) for batch in batches)
    return {stage: seconds / num_samples for stage, seconds in watch.stage_medians().items()}


def make_batch_in_stages(
    dataset: PoseDataset, keys: Sequence[SampleKey], batch_buffers: BatchBuffers, watch: Stopwatch
) -> Batch:
    """Make the batch that ``dataset.__getitems__`` makes, and read the watch after every stage."""
    size = dataset.size[::-1]
    sample_buffers = batch_buffers.per_sample()
    partial_samples = []
    for key, buffers in zip(keys, sample_buffers):
        framed = dataset.frame_record(key)
        watch.lap("read")
        dataset.warp_masks(framed, buffers)
        watch.lap("masks")
        joints = warp_joints(framed.record.joints, framed.augmentation, framed.matrix, dataset.store.skeleton)
        partial_samples.append(PartialSample(framed, joints))
        watch.lap("joints")

    samples = []
    for (framed, joints), buffers in zip(partial_samples, sample_buffers):
        reduction = framed.decode_reduction
        image = framed.record.decode_image(reduction)
        watch.lap("decode")
        visible, matrix = crop_visible(image, matrix_for_reduced_image(framed.matrix, reduction), size)
        visible = jitter_to_bgra(visible, framed.augmentation.jitter)
        watch.lap("colour")
        warp_bgra(visible, matrix, size, buffers.image)
        watch.lap("warp")
        samples.append(Sample(buffers.image, joints, buffers.person_mask, buffers.mask_miss, framed.record.image_id))
    batch = collate(samples, batch_buffers)
    watch.lap("collate")
    return batch


def mean_sample_bytes(dataset: PoseDataset, batches: Sequence[list[SampleKey]]) -> float:
    """Mean bytes that a worker sends per sample."""
    num_bytes = sum(
        value.nbytes for batch in batches for value in dataset.__getitems__(batch) if isinstance(value, Tensor)
    )
    return num_bytes / sum(len(batch) for batch in batches)


def measure_bandwidth(repeats: int) -> float:
    """Memory bandwidth of one core in copied bytes per second."""
    source = np.ones(COPIED_BYTES, np.uint8)
    return COPIED_BYTES / minimum_seconds(partial(np.copyto, np.empty_like(source), source), repeats)


def measure_loader(
    dataset: PoseDataset, batches: Sequence[list[SampleKey]], workers: int, repeats: int
) -> tuple[float, float]:
    """Samples per second of a loader after its workers have started, and seconds to receive a finished batch."""
    loader = make_loader(dataset, list(batches) * LOADER_ROUNDS, workers)
    speeds = []
    waits = []
    try:
        for round_index in progress_bar(range(repeats + 1), "loader", unit="round", leave=False):
            started = time.perf_counter()
            num_samples = sum(len(batch.images) for batch in loader)
            if round_index:
                speeds.append(num_samples / (time.perf_counter() - started))
        iterator = iter(loader)
        for _ in zip(range(RECEIVED_BATCHES), iterator):
            time.sleep(2 * len(batches[0]) / min(speeds))  # the next batch is ready after this
            started = time.perf_counter()
            next(iterator, None)
            waits.append(time.perf_counter() - started)
    finally:
        close_loader(loader)
    return statistics.median(speeds), statistics.median(waits)

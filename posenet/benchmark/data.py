"""How fast training samples are made, against decoding and warping alone."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from tqdm import tqdm

from posenet.benchmark.report import Report, share
from posenet.benchmark.timing import Stopwatch, medians
from posenet.data.augment import warp_image, warp_joints, warp_mask
from posenet.data.dataset import Batch, PoseDataset, Sample, collate, make_loader
from posenet.data.sampler import Key, TrainSampler

LOADER_ROUNDS = 4
"""How often a loader's epoch holds every sample, so that filling its queue does not count much."""


def measure_data(dataset: PoseDataset, samples: int, batch_size: int, workers: int, repeats: int) -> Report:
    """Batches in the order of training, made in this process, and by a loader's workers if there are any.

    Args:
        dataset: framed on persons, with augmentation.
        samples: how many to make, rounded up to whole batches.
        workers: processes of the loader; 0 measures none.

    Raises:
        DataError: a sample that cannot be read.
    """
    batches = draw_batches(dataset, samples, batch_size)
    keys = [key for batch in batches for key in batch]
    seconds = per_sample(dataset, batches, repeats)
    stages = stage_seconds(dataset, batches, repeats)
    numbers = {
        "samples_per_s": 1 / seconds["full"], "bound_samples_per_s": 1 / seconds["bound"],
        "share_of_bound": seconds["bound"] / seconds["full"], "bytes_per_sample": bytes_per_sample(dataset, batches),
        "stage_ms": {stage: 1000 * value for stage, value in stages.items()}, "samples": len(keys),
        "batch_size": batch_size, "input_size": list(dataset.size),
    }
    rows = [*((stage, 1000 * value, None, share(value, seconds["full"])) for stage, value in stages.items()),
            ("full sample", 1000 * seconds["full"], 1 / seconds["full"], share(1, 1)),
            ("bound", 1000 * seconds["bound"], 1 / seconds["bound"], share(seconds["bound"], seconds["full"]))]
    if workers:
        speed = loader_speed(dataset, batches, workers, repeats)
        numbers |= {"loader_samples_per_s": speed, "workers": workers}
        rows.append((f"loader, workers: {workers}", 1000 / speed, speed, None))
    return Report(
        title=f"data: {len(keys)} samples at {dataset.size[0]} x {dataset.size[1]}, batches of {batch_size}",
        header=("stage", "ms/sample", "samples/s", "of the full sample"),
        rows=rows,
        numbers=numbers,
        notes=[f"a sample is shipped as {numbers['bytes_per_sample'] / 1e6:.2f} MB; the store is read from the file "
               "system's cache",
               "bound: decoding the JPEG and warping it without colour jitter, and nothing else"],
    )


def draw_batches(dataset: PoseDataset, samples: int, batch_size: int) -> list[list[Key]]:
    """The first batches of training, over as many epochs as it takes."""
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    batches: list[list[Key]] = []
    for epoch in itertools.count():
        sampler.start(epoch)
        batches += sampler
        if len(batches) * batch_size >= samples:
            return batches[:-(-samples // batch_size)]


def per_sample(dataset: PoseDataset, batches: Sequence[list[Key]], repeats: int) -> dict[str, float]:
    """Median seconds of a whole sample (``full``) and of decoding and warping alone (``bound``)."""
    plans = [dataset.plan(key) for batch in batches for key in batch]
    plans = [p._replace(augmentation=replace(p.augmentation, jitter=None)) for p in plans]

    def full() -> None:
        for batch in batches:
            collate([dataset[key] for key in batch])

    def bound() -> None:
        for record, augmentation, matrix in plans:
            warp_image(record.decode_image(), augmentation, matrix, dataset.size[::-1])

    seconds = medians({"full": full, "bound": bound}, repeats)
    return {name: value / len(plans) for name, value in seconds.items()}


def stage_seconds(dataset: PoseDataset, batches: Sequence[list[Key]], repeats: int) -> dict[str, float]:
    """Median seconds of every stage of one sample."""
    watch = Stopwatch()
    for turn in tqdm(range(repeats + 1), desc="stages", leave=False, disable=None):
        watch.start_round()
        for batch in batches:
            samples = [staged_sample(dataset, key, watch) for key in batch]
            collate(samples)
            watch.lap("collate")
        if not turn:
            watch.clear()
    count = sum(map(len, batches))
    return {stage: seconds / count for stage, seconds in watch.medians().items()}


def staged_sample(dataset: PoseDataset, key: Key, watch: Stopwatch) -> Sample:
    """What ``dataset[key]`` does, with a look at the watch between the stages."""
    size = dataset.size[::-1]
    record, augmentation, matrix = dataset.plan(key)
    watch.lap("read")
    image = record.decode_image()
    watch.lap("decode")
    image = warp_image(image, augmentation, matrix, size)
    watch.lap("warp and colour")
    mask_all, mask_miss = record.masks()
    person_mask = warp_mask(mask_all, matrix, size, border=0)
    mask_miss = warp_mask(mask_miss, matrix, size, border=1)
    watch.lap("masks")
    joints = warp_joints(record.joints, augmentation, matrix)
    watch.lap("joints")
    return Sample(image, joints, person_mask, mask_miss, record.image_id)


def bytes_per_sample(dataset: PoseDataset, batches: Sequence[list[Key]]) -> float:
    """Mean bytes of one sample of a collated batch, which is what a worker ships."""
    shipped = sum(sum(tensor.nbytes for tensor in collate([dataset[key] for key in batch])) for batch in batches)
    return shipped / sum(map(len, batches))


def loader_speed(dataset: PoseDataset, batches: Sequence[list[Key]], workers: int, repeats: int) -> float:
    """Samples per second out of a loader's worker processes; starting them does not count."""
    loader = make_loader(dataset, list(batches) * LOADER_ROUNDS, workers)
    speeds = []
    for turn in tqdm(range(repeats + 1), desc="loader", leave=False, disable=None):
        started = time.perf_counter()
        samples = sum(_count(batch) for batch in loader)
        if turn:
            speeds.append(samples / (time.perf_counter() - started))
    return statistics.median(speeds)


def _count(batch: Batch) -> int:
    return len(batch.images)

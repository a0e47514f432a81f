"""Making training samples: samples per second, compared with only decoding and warping their images."""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import Table, measure
from posenet.cli.options import non_negative_int, positive_int
from posenet.data.augment import Augmentation, largest_reduction, matrix_for_reduced_image, warp_image
from posenet.data.dataset import Batch, PoseDataset, SampleKey
from posenet.data.loader import BatchLoader, TrainSampler
from posenet.data.store_list import open_data_sets
from posenet.settings import Config

LOADER_ROUNDS = 4
"""How often a loader makes each sample in one run, so that filling its queue takes a small share of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument("--h5", type=Path, required=True, metavar="FILE", help="store to read, as build-hdf5 writes it")
    parser.add_argument("--samples", type=positive_int, default=400, metavar="N", help="samples; 400 by default")
    parser.add_argument(
        "--workers", type=non_negative_int, default=0, metavar="N", help="measure a loader with N processes too"
    )


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time batches in the order of training, made in this process and, if asked for, by a loader."""
    with open_data_sets(str(args.h5), None) as store:
        dataset = PoseDataset(store, config.train.size, config.data.framing, config.augment, config.train.seed)
        batches = training_batches(dataset, args.samples, config.train.batch_size)
        count = sum(map(len, batches))
        tasks = {
            "full sample": lambda: make_samples(dataset, batches),
            "bound: decode and warp": decode_and_warp(dataset, batches),
        }
        if args.workers:
            loader = BatchLoader(dataset, LOADER_ROUNDS * batches, args.workers)
            tasks[f"loader, workers: {args.workers}"] = lambda: sum(1 for _ in loader)
        seconds = {name: value / count for name, value in measure(tasks, args.repeats).items()}
        sample_bytes = batch_bytes(dataset[batches[0][0]])
    if args.workers:
        seconds[f"loader, workers: {args.workers}"] /= LOADER_ROUNDS
    bound = seconds["bound: decode and warp"]
    height, width = config.train.size
    table = Table(
        title=f"data: {count} samples at {height} x {width}, batches of {config.train.batch_size}",
        header=("task", "ms/sample", "samples/s", "of the bound"),
        notes=[
            f"a sample has {sample_bytes / 1e6:.2f} MB; the store is read from the file system's cache",
            "bound: only decoding the images and warping them without colour jitter, with the same functions",
        ],
    )
    for name, value in seconds.items():
        table.rows.append((name, 1000 * value, 1 / value, f"{bound / value:.0%}"))
    table.numbers = {
        "samples_per_s": 1 / seconds["full sample"],
        "bound_samples_per_s": 1 / bound,
        "share_of_bound": bound / seconds["full sample"],
        "bytes_per_sample": sample_bytes,
        "samples": count,
    }
    if args.workers:
        table.numbers |= {
            "workers": args.workers,
            "loader_samples_per_s": 1 / seconds[f"loader, workers: {args.workers}"],
        }
    return [table]


def training_batches(dataset: PoseDataset, samples: int, batch_size: int) -> list[list[SampleKey]]:
    """The first batches of training with at least ``samples`` samples, over as many epochs as necessary."""
    sampler = TrainSampler(len(dataset), batch_size, dataset.seed)
    num_batches = math.ceil(samples / batch_size)
    sampler.start(0, epochs=math.ceil(num_batches / sampler.steps))
    return list(itertools.islice(sampler, num_batches))


def make_samples(dataset: PoseDataset, batches: list[list[SampleKey]]) -> None:
    """Make the batches, as training needs them."""
    for batch in batches:
        dataset.__getitems__(batch)


def decode_and_warp(dataset: PoseDataset, batches: list[list[SampleKey]]) -> object:
    """A task that decodes and warps the images of the batches, whose records are read before."""
    assert dataset.augment is not None
    samples = []
    for epoch, index in itertools.chain.from_iterable(batches):
        record, person_row = dataset.read_record(index)
        augmentation = Augmentation.draw(dataset.augment, dataset.seed, epoch, index)
        matrix = dataset.warp_matrix(record, person_row, augmentation)
        reduction = largest_reduction(matrix)
        samples.append((record, matrix, reduction if record.allows_reduction(reduction) else 1))
    out = np.empty((*dataset.size, 3), np.uint8)

    def task() -> None:
        for record, matrix, reduction in samples:
            image = record.decode_image(reduction)
            warp_image(image, Augmentation(), matrix_for_reduced_image(matrix, reduction), out)

    return task


def batch_bytes(batch: Batch) -> int:
    """Bytes of the tensors of a batch."""
    return sum(value.nbytes for value in batch if isinstance(value, torch.Tensor))

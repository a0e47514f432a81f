"""Loading the batches of a store, and comparing batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from posenet.data.dataset import PoseDataset
from posenet.data.loader import Batch, make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import Store
from posenet.settings import AugmentConfig


def load_epoch(
    path: Path, workers: int = 0, iterate: Callable[[DataLoader[Batch]], Iterable[Batch]] = iter
) -> list[Batch]:
    """Load the first epoch of a store in batches of two augmented samples of 64 x 64 pixels.

    Args:
        iterate: iterates over the loader.
    """
    dataset = PoseDataset(Store(path), (64, 64), augment=AugmentConfig())
    return list(iterate(make_loader(dataset, TrainSampler(len(dataset), 2, seed=1), workers)))


def same_batches(a: Sequence[Batch], b: Sequence[Batch]) -> bool:
    """Whether two sequences of batches have equal tensors and faults."""
    return len(a) == len(b) and all(map(same_batch, a, b))


def same_batch(a: Batch, b: Batch) -> bool:
    same_tensors = all(torch.equal(x, y) for x, y in zip(a[:5], b[:5]))
    return same_tensors and tuple(a.faults) == tuple(b.faults)

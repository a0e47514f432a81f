"""Comparing batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from posenet.data.dataset import Batch


def same_batches(a: Sequence[Batch], b: Sequence[Batch]) -> bool:
    """Whether two sequences of batches have equal tensors and faults."""
    return len(a) == len(b) and all(map(same_batch, a, b))


def same_batch(a: Batch, b: Batch) -> bool:
    same_tensors = all(torch.equal(x, y) for x, y in zip(a[:5], b[:5]))
    return same_tensors and tuple(a.faults) == tuple(b.faults)

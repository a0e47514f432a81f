"""Flags of cuDNN, the library of convolutions for CUDA devices (MIOpen on ROCm)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def uses_cudnn(device: torch.device) -> bool:
    """Whether the convolutions of a device obey ``torch.backends.cudnn``."""
    return device.type == "cuda" and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def cudnn_flags(*, benchmark: bool, tf32: bool | None = None) -> Iterator[None]:
    """Within this context, cuDNN has these flags; other devices ignore them.

    Args:
        benchmark: try all algorithms for every new shape of input and keep the fastest. This pays for shapes that come
            back often. It is left off if the algorithms must be deterministic, because the choice would not be.
        tf32: let convolutions round float32 to TF32; None changes nothing.
    """
    flags = torch.backends.cudnn
    previous_benchmark = flags.benchmark
    previous_tf32 = flags.allow_tf32
    flags.benchmark = benchmark and not (flags.deterministic or torch.are_deterministic_algorithms_enabled())
    if tf32 is not None:
        flags.allow_tf32 = tf32
    try:
        yield
    finally:
        flags.benchmark = previous_benchmark
        flags.allow_tf32 = previous_tf32

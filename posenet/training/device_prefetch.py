"""Batches on their way to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from posenet.data.batch import Batch
from posenet.devices.runtime import Runtime


def prefetch(batches: Iterable[Batch], runtime: Runtime) -> Iterator[Batch]:
    """Every batch where the network takes it, copied there while the device computes on the one before.

    A CPU has nothing to copy; there, batches pass as they come. On an accelerator one batch is ahead: its copy runs on
    a stream of its own, from the pinned memory that the loader puts it in, and holds up nothing else.
    """
    streams = _streams(runtime.device)
    if streams is None:
        yield from map(runtime.to_device, batches)
        return
    side, ahead = streams.Stream(runtime.device), None
    for batch in batches:
        with streams.stream(side):
            placed = runtime.to_device(batch), side.record_event()
        # Given away only now that its successor is on the way, whose copy so overlaps with the step.
        if ahead is not None:
            yield _ready(*ahead, streams.current_stream(runtime.device))
        ahead = placed
    if ahead is not None:
        yield _ready(*ahead, streams.current_stream(runtime.device))


def _streams(device: torch.device) -> ModuleType | None:
    """What has the streams of a kind of device; None where there are none."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return module if hasattr(module, "Stream") and hasattr(module, "current_stream") else None


def _ready(batch: Batch, copied: torch.Event, current: torch.Stream) -> Batch:
    """The batch, after whose copy alone the current stream goes on."""
    current.wait_event(copied)
    for value in batch:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            value.record_stream(current)  # the memory is the side stream's, which must not reuse it before
    return batch

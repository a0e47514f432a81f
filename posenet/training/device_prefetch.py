"""Copying batches to the device ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from posenet.data.loader import Batch
from posenet.devices.host_copy import module_with_streams
from posenet.devices.runtime import Runtime


def prefetch_to_device(batches: Iterable[Batch], runtime: Runtime) -> Iterator[Batch]:
    """Move every batch to the network's device. An accelerator copies it while it computes on the previous batch.

    On an accelerator, one batch is copied ahead from the loader's pinned memory, on a separate stream, so that the copy
    delays nothing else. On a CPU there is nothing to copy.
    """
    device_module = module_with_streams(runtime.device)
    if device_module is None:
        yield from map(runtime.to_device, batches)
        return
    copy_stream = device_module.Stream(runtime.device)
    ahead = None
    for batch in batches:
        with device_module.stream(copy_stream):
            copying = runtime.to_device(batch), copy_stream.record_event()
        # The earlier batch is yielded only after the copy of this one has started, so that copy and step overlap.
        if ahead is not None:
            yield _wait_for_copy(*ahead, device_module.current_stream(runtime.device))
        ahead = copying
    if ahead is not None:
        yield _wait_for_copy(*ahead, device_module.current_stream(runtime.device))


def _wait_for_copy(batch: Batch, copied: torch.Event, current: torch.Stream) -> Batch:
    """Make the current stream wait for the copy of a batch."""
    current.wait_event(copied)
    for value in batch:
        if isinstance(value, Tensor) and value.device.type != "cpu":
            # The copy stream allocated this memory and must not reuse it before the current stream has read it.
            value.record_stream(current)
    return batch

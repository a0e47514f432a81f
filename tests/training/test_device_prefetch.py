"""Prefetching: the order of batches, and copies that overlap with the step before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenet.devices.runtime import Runtime
from posenet.training import device_prefetch
from posenet.training.device_prefetch import prefetch_to_device
from tests.helpers.tiny_training import CPU


class RecordingRuntime(Runtime):
    """Records the order of events. Its batches are tuples of one number."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.events: list[tuple[str, int]] = []
        self.current_stream = "main stream"

    def to_device(self, batch: Any) -> Any:
        self.events.append((f"copy on {self.current_stream}", batch[0]))
        return batch

    def load_batches(self, count: int) -> Iterator[tuple[int]]:
        for number in range(count):
            self.events.append(("load", number))
            yield (number,)


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch, runtime: RecordingRuntime) -> None:
    """Makes the device one whose streams only record what they are asked to do."""

    class FakeStream:
        def __init__(self, device: torch.device) -> None:
            self.num_events = 0

        def record_event(self) -> int:
            self.num_events += 1
            return self.num_events - 1

        def wait_event(self, event: int) -> None:
            runtime.events.append(("wait for copy", event))

    @contextlib.contextmanager
    def use_stream(stream: FakeStream) -> Iterator[None]:
        runtime.current_stream = "copy stream"
        yield
        runtime.current_stream = "main stream"

    module = SimpleNamespace(Stream=FakeStream, stream=use_stream, current_stream=FakeStream)
    monkeypatch.setattr(device_prefetch, "module_with_streams", lambda device: module)


def test_on_a_cpu_no_batch_is_loaded_ahead(runtime: RecordingRuntime) -> None:
    batches = prefetch_to_device(runtime.load_batches(2), runtime)
    assert next(batches) == (0,)
    assert runtime.events == [("load", 0), ("copy on main stream", 0)]
    assert list(batches) == [(1,)]


def test_on_an_accelerator_the_next_copy_starts_before_a_batch_is_returned(
    runtime: RecordingRuntime, accelerator: None
) -> None:
    batches = prefetch_to_device(runtime.load_batches(3), runtime)
    assert next(batches) == (0,)
    assert runtime.events == [
        ("load", 0),
        ("copy on copy stream", 0),
        ("load", 1),
        ("copy on copy stream", 1),
        ("wait for copy", 0),
    ]
    assert list(batches) == [(1,), (2,)]
    waits = [number for event, number in runtime.events if event == "wait for copy"]
    assert waits == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 1])
def test_on_an_accelerator_no_batch_or_a_single_one_is_returned(
    runtime: RecordingRuntime, accelerator: None, count: int
) -> None:
    assert list(prefetch_to_device(runtime.load_batches(count), runtime)) == [(0,)] * count

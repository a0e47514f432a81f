"""Prefetching: batches come whole and in order, one ahead on an accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenet.devices.runtime import Runtime
from posenet.training import device_prefetch as prefetch_module
from posenet.training.device_prefetch import prefetch_to_device

CPU = torch.device("cpu")


class Placed(tuple):
    """A batch, which the runtime has placed."""


class Recorder(Runtime):
    """Notes what happens in which order."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.events: list[Any] = []
        self.stream = "main"

    def to_device(self, batch: Any) -> Any:
        self.events.append((f"copy on {self.stream}", batch[0]))
        return Placed(batch)

    def loaded(self, count: int) -> Iterator[tuple[int]]:
        for number in range(count):
            self.events.append(("loaded", number))
            yield (number,)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """A device whose streams only note what is asked of them."""

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device, self.copies = device, 0

        def record_event(self) -> int:
            self.copies += 1
            return self.copies - 1

        def wait_event(self, event: int) -> None:
            recorder.events.append(("wait for copy", event))

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        recorder.stream = "side"
        yield
        recorder.stream = "main"

    fake = SimpleNamespace(Stream=Stream, stream=on, current_stream=Stream)
    monkeypatch.setattr(prefetch_module, "_module_with_streams", lambda device: fake)


def test_a_cpu_takes_batches_as_they_come(recorder: Recorder) -> None:
    found = prefetch_to_device(recorder.loaded(2), recorder)
    assert next(found) == (0,)
    assert recorder.events == [("loaded", 0), ("copy on main", 0)]
    assert list(found) == [(1,)]


def test_a_copy_begins_before_the_batch_ahead_of_it_is_given_away(recorder: Recorder, accelerator: None) -> None:
    found = prefetch_to_device(recorder.loaded(3), recorder)
    assert next(found) == (0,)
    assert recorder.events == [
        ("loaded", 0),
        ("copy on side", 0),
        ("loaded", 1),
        ("copy on side", 1),
        ("wait for copy", 0),
    ]
    assert [*found] == [(1,), (2,)]
    waits = [number for what, number in recorder.events if what == "wait for copy"]
    assert waits == [0, 1, 2]  # for its own copy, never for the next one's


def test_an_empty_loader_gives_nothing(recorder: Recorder, accelerator: None) -> None:
    assert list(prefetch_to_device(recorder.loaded(0), recorder)) == []


def test_the_last_of_an_odd_or_single_batch_comes(recorder: Recorder, accelerator: None) -> None:
    assert list(prefetch_to_device(recorder.loaded(1), recorder)) == [(0,)]

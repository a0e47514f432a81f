"""Copies in host memory, of tensors of a fake device that counts how often the host waits for it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenet.devices import host_copy
from posenet.devices.host_copy import HostCopy, StagingArea


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the CPU a device with streams and pinned memory; collects the waits for it."""
    events: list[str] = []

    class FakeStream:
        def __init__(self, device: torch.device) -> None:
            pass

        def record_event(self) -> SimpleNamespace:
            return SimpleNamespace(synchronize=lambda: events.append("wait"))

    module = SimpleNamespace(Stream=FakeStream, current_stream=FakeStream)
    monkeypatch.setattr(host_copy, "module_with_streams", lambda device: module)
    monkeypatch.setattr(host_copy, "pinned_memory", lambda size: torch.empty(size, dtype=torch.uint8))
    return events


def example_tensors() -> list[Tensor]:
    return [
        torch.randn(3, 5, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(4, 3).t(),
        torch.tensor(7),
        torch.randn(5).to(torch.bfloat16),
        torch.tensor([True, False, True]),
        torch.empty(0, 3),
        torch.randn(6)[::2],
        torch.randn(1).expand(3),
    ]


def assert_copies(copies: list[Tensor], tensors: list[Tensor]) -> None:
    for copy, tensor in zip(copies, tensors, strict=True):
        assert torch.equal(copy, tensor)
        assert (copy.dtype, copy.stride()) == (tensor.dtype, tensor.to("cpu", copy=True).stride())


def test_tensors_are_staged_with_their_values_and_layouts_and_one_wait(waits: list[str]) -> None:
    tensors = example_tensors()
    staging = StagingArea()
    copies = [staging.copy(tensor) for tensor in tensors]
    assert waits == []
    staging.wait()
    assert waits == ["wait"]
    assert_copies(copies, tensors)
    tensors[0].zero_()
    assert copies[0].any()


def test_staged_tensors_are_saved_as_any_others(waits: list[str]) -> None:
    """A view of the staging memory would be saved with all of that memory."""
    tensors = example_tensors()
    staging = StagingArea()
    files = []
    for copy in (staging.copy, lambda tensor: tensor.to("cpu", copy=True)):
        file = io.BytesIO()
        torch.save([copy(tensor) for tensor in tensors], file)
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_staging_memory_is_used_again_and_grows_only_to_the_largest_set(
    waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copy, "BLOCK_BYTES", 256)
    staging = StagingArea()
    allocated: list[int] = []
    sizes_by_set = []
    monkeypatch.setattr(
        host_copy, "pinned_memory", lambda size: allocated.append(size) or torch.empty(size, dtype=torch.uint8)
    )
    sets = [[torch.randn(size) for size in sizes] for sizes in ((10, 40, 50, 3), (200, 5), (10, 40, 50, 3))]
    for tensors in sets:
        staging.restart()
        copies = [staging.copy(tensor) for tensor in tensors]
        staging.wait()
        assert_copies(copies, tensors)
        sizes_by_set.append(allocated.copy())
        allocated.clear()
    assert sizes_by_set == [[256, 256, 256], [800, 256], []]


def test_a_small_tensor_is_read_after_one_wait(waits: list[str]) -> None:
    pending = HostCopy(torch.tensor([1.0, 2.0]))
    assert waits == []
    assert pending.read().tolist() == [1.0, 2.0]
    assert waits == ["wait"]


def test_in_host_memory_nothing_is_pinned_and_nothing_waits() -> None:
    tensors = example_tensors()
    staging = StagingArea()
    copies = [staging.copy(tensor) for tensor in tensors]
    staging.wait()
    assert_copies(copies, tensors)
    assert HostCopy(tensors[0]).read() is tensors[0]


def test_the_device_of_the_tensor_is_the_current_one_while_any_thread_waits_for_it(
    waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def device_index(index: int | None) -> Iterator[None]:
        waits.append(f"enter {index}")
        yield
        waits.append("exit")

    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    copy = HostCopy(torch.ones(2))
    monkeypatch.setattr(copy, "_device", torch.device("cuda:1"))
    assert copy.read().tolist() == [1, 1]
    assert waits == ["enter 1", "wait", "exit"]


def test_memory_that_cannot_be_pinned_is_used_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = torch.empty

    def refuse_to_pin(*size: int, pin_memory: bool = False, **options: torch.dtype) -> Tensor:
        if pin_memory:
            raise RuntimeError("no pinned memory is left")
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", refuse_to_pin)
    assert [len(host_copy.pinned_memory(size)) for size in (8, 16, 32)] == [8, 16, 32]
    assert caplog.text.count("cannot pin memory") == 1

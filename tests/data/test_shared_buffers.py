"""Buffers that workers share with the main process."""

from __future__ import annotations

import pytest
import torch
from posenet.data.shared_buffers import BUFFERS_PER_WORKER, BufferMessage, ReceivedBuffers, SharedBufferPool

from posenet.data import shared_buffers
from posenet.errors import DataError


def test_buffers_are_shared_and_used_in_turn() -> None:
    pool = SharedBufferPool()
    first_round = [pool.acquire(100 + number, 1) for number in range(BUFFERS_PER_WORKER)]
    assert all(buffer.is_shared() for buffer in first_round)
    assert [pool.find(buffer) for buffer in first_round] == list(range(BUFFERS_PER_WORKER))
    second_round = [pool.acquire(50, 1) for _ in range(BUFFERS_PER_WORKER)]
    assert [buffer.data_ptr() for buffer in second_round] == [buffer.data_ptr() for buffer in first_round]
    assert all(buffer.nbytes == 50 for buffer in second_round)
    assert pool.find(torch.zeros(3)) is None


def test_a_buffer_is_sent_once_and_again_when_it_has_grown() -> None:
    pool = SharedBufferPool()
    pool.acquire(10, 1)
    assert pool.message(0).buffer is not None and pool.message(0).buffer is None
    for _ in range(BUFFERS_PER_WORKER):
        pool.acquire(11, 1)
    assert pool.message(0).buffer.nbytes == 11


def test_copies_are_no_longer_the_worker_s_to_change() -> None:
    pool, received = SharedBufferPool(), ReceivedBuffers()
    buffer = pool.acquire(4, 1)
    buffer[:] = 1
    copy = received.copy_out(pool.message(0), 4)
    buffer[:] = 2
    assert copy.tolist() == [1] * 4 and not copy.is_shared()
    assert received.copy_out(pool.message(0), 3).tolist() == [2] * 3


def test_buffers_of_a_worker_are_released() -> None:
    received = ReceivedBuffers()
    for process_id in (1, 2):
        received.copy_out(BufferMessage(process_id, 0, torch.zeros(1, dtype=torch.uint8)), 1)
    received.release(1)
    received.copy_out(BufferMessage(2, 0, None), 1)
    with pytest.raises(KeyError):
        received.copy_out(BufferMessage(1, 0, None), 1)
    received.release_all()
    with pytest.raises(KeyError):
        received.copy_out(BufferMessage(2, 0, None), 1)


def test_too_little_shared_memory_is_an_error_before_it_kills_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_buffers, "free_shared_memory", lambda: 200)
    assert SharedBufferPool().acquire(100, num_workers=2).is_shared()
    with pytest.raises(DataError, match="shared memory .* 2 workers; lower data.workers or train.batch_size"):
        SharedBufferPool().acquire(101, num_workers=2)

"""Naming the processes that do not answer after a collective call has failed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore

from posenet.devices import roll_call
from posenet.devices.rendezvous import ProcessReport
from posenet.devices.roll_call import RollCall

REPORTS = [ProcessReport(rank, f"host{rank // 2}", "", "cpu", "") for rank in range(4)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    monkeypatch.setattr(roll_call, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 2.0)
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def roll_calls(store: TCPStore, *ranks: int) -> list[RollCall]:
    return [RollCall(store, rank, REPORTS) for rank in ranks]


def test_processes_that_do_not_answer_are_named_with_their_hosts(store: TCPStore) -> None:
    first, _ = roll_calls(store, 0, 3)
    assert first.find_culprits() == "ranks 1, 2 (host0, host1) do not answer"


def test_a_process_that_is_alive_but_behind_is_named(store: TCPStore) -> None:
    calls = roll_calls(store, 0, 1, 2, 3)
    for rank, number in enumerate([7, 7, 6, 7]):
        calls[rank].calls = number
    assert calls[0].find_culprits() == "rank 2 (host1) is alive but behind the others"


def test_processes_that_are_all_alive_point_to_the_network(store: TCPStore) -> None:
    assert "the network between them" in roll_calls(store, 0, 1, 2, 3)[1].find_culprits()


def test_processes_that_fail_at_the_same_time_do_not_name_each_other(store: TCPStore) -> None:
    calls = roll_calls(store, 0, 1, 2)
    for call in calls:
        call.close()
    calls[1].find_culprits()
    calls[2].find_culprits()
    assert calls[0].find_culprits() == "rank 3 (host1) does not answer"


def test_a_process_that_has_left_does_not_answer(store: TCPStore) -> None:
    calls = roll_calls(store, 0, 1, 2, 3)
    calls[3].close()
    time.sleep(0.2)
    assert calls[0].find_culprits() == "rank 3 (host1) does not answer"


def test_a_store_that_does_not_answer_does_not_block_for_long(monkeypatch: pytest.MonkeyPatch, store: TCPStore) -> None:
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 0.1)
    (call,) = roll_calls(store, 0)
    call.close()
    monkeypatch.setattr(call, "_ask", lambda: time.sleep(5))
    started = time.monotonic()
    assert "does not answer; its host or the network is down" in call.find_culprits()
    assert time.monotonic() - started < 4

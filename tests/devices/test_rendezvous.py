"""Processes that meet in a store: who is missing, which hosts do not reach each other, which devices differ."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from posenet.devices import rendezvous
from posenet.devices.rank_info import RankInfo
from posenet.devices.rendezvous import ProcessReport, describe_ranks, gloo_address, meet
from posenet.errors import ConfigError, TrainingError

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=20)


@pytest.fixture
def store() -> Iterator[TCPStore]:
    """A store that belongs to no process of a run."""
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_infos(store: TCPStore, world_size: int = 2, run_id: str = "7.0") -> list[RankInfo]:
    url = f"tcp://127.0.0.1:{store.port}"
    return [RankInfo(rank, world_size, rank, url, run_id=run_id) for rank in range(world_size)]


def call_in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that run at the same time; an exception is a result too."""
    results: list[Any] = [None] * len(calls)

    def store_result(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=store_result, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_processes_that_meet_share_a_store_which_other_runs_do_not_see(store: TCPStore) -> None:
    first, second = (
        meeting.store
        for meeting in call_in_threads(*(lambda info=info: meet(info, CPU, TIMEOUT) for info in rank_infos(store)))
    )
    first.set("key", "value")
    assert second.get("key") == b"value"
    others = rank_infos(store, run_id="7.1")
    other, _ = call_in_threads(*(lambda info=info: meet(info, CPU, TIMEOUT) for info in others))
    assert not other.store.check(["key"])


def test_processes_that_do_not_arrive_in_time_are_named(store: TCPStore) -> None:
    infos = rank_infos(store, world_size=4)
    errors = call_in_threads(*(lambda i=i: meet(infos[i], CPU, timedelta(seconds=1)) for i in (0, 2)))
    for error in errors:
        assert isinstance(error, TrainingError)
        assert f"ranks 1, 3 of 4 did not arrive at tcp://127.0.0.1:{store.port} within 1 s" in str(error)


def test_processes_of_another_run_do_not_count(store: TCPStore) -> None:
    infos = [rank_infos(store, run_id="7.0")[0], rank_infos(store, run_id="7.1")[1]]
    errors = call_in_threads(*(lambda info=info: meet(info, CPU, timedelta(seconds=1)) for info in infos))
    assert ["did not arrive" in str(error) for error in errors] == [True, True]


def meet_as_hosts(store: TCPStore, monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> list[Any]:
    """Let processes meet that believe to be on the hosts h0, h1, ... with the given addresses."""
    rank_of_thread = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: f"h{rank_of_thread.rank}")
    monkeypatch.setattr(rendezvous, "gloo_address", lambda: addresses[rank_of_thread.rank])
    infos = rank_infos(store, world_size=len(addresses))

    def meet_as(info: RankInfo) -> Any:
        rank_of_thread.rank = info.rank
        return meet(info, CPU, TIMEOUT)

    return call_in_threads(*(lambda info=info: meet_as(info) for info in infos))


def test_hosts_that_listen_on_the_loopback_interface_are_told_to_set_gloo_socket_ifname(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in meet_as_hosts(store, monkeypatch, ["127.0.1.1", "127.0.0.1"]):
        assert isinstance(error, TrainingError)
        assert "h0, h1 did not reach each other: h0 listens at 127.0.1.1, h1 listens at 127.0.0.1" in str(error)
        assert "GLOO_SOCKET_IFNAME" in str(error)


@pytest.mark.parametrize("addresses", [["127.0.1.1", "10.0.0.2"], ["", ""]])
def test_hosts_that_reach_each_other_all_the_same_are_not_refused(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    assert not any(isinstance(result, Exception) for result in meet_as_hosts(store, monkeypatch, addresses))


def test_hosts_that_cannot_connect_are_named_in_time(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Gloo connectFullMesh failed. GLHF!\nmore")

    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", refuse)
    for error in meet_as_hosts(store, monkeypatch, ["10.0.0.1", "10.0.0.2"]):
        expected = "the 2 processes on h0, h1 did not reach each other (Gloo connectFullMesh failed); set GLOO_SOCKET_"
        assert str(error).startswith(expected)


def test_different_types_of_devices_are_refused(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "device_identity", str)
    infos = rank_infos(store)
    errors = call_in_threads(
        lambda: meet(infos[0], CPU, TIMEOUT), lambda: meet(infos[1], torch.device("cuda", 0), TIMEOUT)
    )
    for error in errors:
        assert isinstance(error, ConfigError)
        assert "cpu on" in str(error) and "but cuda on" in str(error)


def meet_with_devices(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch, hosts: list[str], identities: list[str]
) -> list[Any]:
    """Let processes meet on the given hosts with the devices of the given identities."""
    rank_of_thread = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: hosts[rank_of_thread.rank])
    monkeypatch.setattr(rendezvous, "device_identity", lambda device: identities[rank_of_thread.rank])
    infos = rank_infos(store, world_size=len(hosts))

    def meet_as(info: RankInfo) -> Any:
        rank_of_thread.rank = info.rank
        return meet(info, torch.device("cuda:0"), TIMEOUT)

    return call_in_threads(*(lambda info=info: meet_as(info) for info in infos))


def test_processes_that_use_one_device_are_refused_on_all_ranks(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in meet_with_devices(store, monkeypatch, ["h0", "h0", "h1"], ["a", "a", "b"]):
        assert isinstance(error, ConfigError)
        assert "ranks 0, 1 use the same cuda device of h0; start one process per device" in str(error)


def test_devices_of_different_hosts_or_identities_and_cpus_are_different(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hosts, identities in ((["h0", "h1"], ["a", "a"]), (["h0", "h0"], ["a", "b"]), (["h0", "h0"], ["", ""])):
        monkeypatch.setattr(rendezvous, "_require_connections", lambda *_: None)
        results = meet_with_devices(store, monkeypatch, hosts, identities)
        assert [len(meeting.reports) for meeting in results] == [2, 2]


def test_gloo_listens_at_the_first_own_address_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*addresses: str) -> None:
        entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    resolve("192.0.2.1", "127.0.1.1")  # the first one is reserved for documentation, so it belongs to no host
    assert gloo_address() == "127.0.1.1"
    resolve("192.0.2.1")
    assert gloo_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert gloo_address() == ""


def test_a_host_name_without_an_address_means_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert gloo_address() == "127.0.0.1"
    assert ProcessReport(0, "h", gloo_address(), "cpu", "").listens_on_loopback


def test_many_ranks_are_counted() -> None:
    assert describe_ranks([3]) == "rank 3"
    assert describe_ranks(range(11)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3 more"


def test_processes_of_torchrun_meet_at_its_address(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    infos = [RankInfo(rank, 2, rank) for rank in range(2)]
    results = call_in_threads(*(lambda info=info: meet(info, CPU, TIMEOUT) for info in infos))
    assert [len(meeting.reports) for meeting in results] == [2, 2]


@pytest.mark.parametrize("port", [None, "first"])
def test_an_environment_without_a_meeting_point_is_refused(monkeypatch: pytest.MonkeyPatch, port: str | None) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    if port is not None:
        monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ConfigError, match="set MASTER_ADDR and MASTER_PORT"):
        meet(RankInfo(0, 2, 0), CPU, TIMEOUT)


def test_the_process_that_hosts_the_store_waits_until_all_have_read_why_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    infos = [RankInfo(rank, 2, rank, url, run_id="7.0", hosts_store=rank == 0) for rank in range(2)]
    waited_for: list[list[str]] = []
    wait = rendezvous.PrefixStore.wait

    def record(self: Any, keys: list[str], timeout: timedelta) -> None:
        waited_for.append(keys)
        wait(self, keys, timeout)

    monkeypatch.setattr(rendezvous.PrefixStore, "wait", record)
    call_in_threads(*(lambda info=info: meet(info, CPU, TIMEOUT) for info in infos))
    assert waited_for.count(["read/0", "read/1"]) == 1

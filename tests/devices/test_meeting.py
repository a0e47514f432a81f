"""Processes that cannot meet end in time and say why; what can never succeed ends at once, on every rank."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from posenet.devices.parallel import DistributedRuntime
from posenet.errors import ConfigError, ConnectError
from tests.helpers.process_groups import free_port
from tests.helpers.process_runs import fork_process, wait_for_exit

TIMEOUT_SECONDS = 1.5
"""For the processes of these tests to meet."""
LIMIT_SECONDS = 12
"""Within this time all ranks have ended, also on a busy machine."""


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenet.devices.parallel.FAREWELL_SECONDS", 1.0)


def outcomes(folder: Path, *variables: Mapping[str, object]) -> list[tuple[str, str, float]]:
    """For each process with these variables: the class of its error, the message, and the seconds until then."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def join(number: int) -> None:
        values = place | dict(variables[number])
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
            if values.get(name, "") != "":
                os.environ[name] = str(values[name])
        started = time.monotonic()
        error: Exception | None = None
        try:
            DistributedRuntime(timeout_minutes=TIMEOUT_SECONDS / 60)
        except (ConfigError, ConnectError) as caught:
            error = caught
        seconds = time.monotonic() - started
        (folder / f"{number}.end").write_text(f"{type(error).__name__}\n{error}\n{seconds}")
        os._exit(0)

    numbers = range(len(variables))
    pids = [fork_process(lambda number=number: join(number), folder / f"{number}.txt") for number in numbers]
    assert [wait_for_exit(pid) for pid in pids] == [0] * len(pids), (folder / "0.txt").read_text()
    ends = [(folder / f"{number}.end").read_text().split("\n") for number in numbers]
    found = [(kind, message, float(seconds)) for kind, message, seconds in ends]
    assert max(seconds for *_, seconds in found) < LIMIT_SECONDS, found
    return found


@pytest.mark.parametrize("change, name", [({"MASTER_PORT": "abc"}, "MASTER_PORT=abc"), ({"RANK": 2}, "RANK=2")])
def test_variables_that_can_never_work_end_at_once(tmp_path: Path, change: Mapping[str, object], name: str) -> None:
    [(kind, message, seconds)] = outcomes(tmp_path, {"RANK": 1, "WORLD_SIZE": 2} | dict(change))
    assert kind == "ConfigError" and name in message
    assert seconds < TIMEOUT_SECONDS


def test_other_numbers_of_processes_are_named_on_all_ranks(tmp_path: Path) -> None:
    numbers = [(0, 4), (1, 2), (2, 4)]
    found = outcomes(tmp_path, *({"RANK": rank, "WORLD_SIZE": world_size} for rank, world_size in numbers))
    for kind, message, _ in found:
        assert kind == "ConfigError" and "WORLD_SIZE" in message
        assert all(f"one of {world_size}" in message for _, world_size in numbers)


def test_two_processes_of_one_rank_are_refused(tmp_path: Path) -> None:
    found = outcomes(tmp_path, *({"RANK": rank, "WORLD_SIZE": 3} for rank in (0, 1, 1)))
    assert [(kind, "rank 1" in message) for kind, message, _ in found] == [("ConfigError", True)] * 3


def test_a_rank_that_never_comes_is_named_within_the_time(tmp_path: Path) -> None:
    found = outcomes(tmp_path, *({"RANK": rank, "WORLD_SIZE": 3} for rank in (0, 2)))
    assert [kind for kind, *_ in found] == ["ConnectError"] * 2
    assert any(message.count("--timeout: 1;") for _, message, _ in found)
    [(kind, message, _)] = outcomes(tmp_path, {"RANK": 1, "WORLD_SIZE": 2})  # without rank 0, nobody listens
    assert kind == "ConnectError" and "127.0.0.1:" in message and "GLOO_SOCKET_IFNAME" in message


@pytest.fixture(params=["silent", "answers"])
def other_service(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of another program, which never answers, or answers in its own way and closes the connection."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)

        def serve() -> None:
            open_connections = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if request.param == "answers":
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.close()
                open_connections.append(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_another_program_at_the_port_is_named_within_the_time(tmp_path: Path, other_service: int) -> None:
    found = outcomes(tmp_path, *({"RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": other_service} for rank in (0, 1)))
    for kind, message, _ in found:
        assert kind == "ConnectError"
        assert (
            f" at 127.0.0.1:{other_service} " in message and "another program" in message and "MASTER_PORT" in message
        )

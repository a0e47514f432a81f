"""Processes that cannot meet end in time and say why; what can never succeed is another error, on every rank."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from posenet.devices.parallel import DistributedRuntime
from posenet.errors import ConfigError, ConnectError
from tests.helpers.process_groups import free_port
from tests.helpers.process_runs import fork_process, wait_for_exit

TIMEOUT_SECONDS = 1.5
"""For the processes of these tests to meet."""
LIMIT_SECONDS = 12
"""Within this time all ranks have ended, also on a busy machine."""


def outcomes(folder: Path, *variables: Mapping[str, object]) -> list[tuple[str, str]]:
    """For each process with these variables, the class and the message of its error."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def join(number: int) -> None:
        os.environ.pop("LOCAL_RANK", None)
        os.environ.update({name: str(value) for name, value in (place | dict(variables[number])).items()})
        started = time.monotonic()
        with pytest.raises((ConfigError, ConnectError)) as caught:
            DistributedRuntime(timeout_minutes=TIMEOUT_SECONDS / 60)
        assert time.monotonic() - started < LIMIT_SECONDS
        (folder / f"{number}.end").write_text(f"{caught.type.__name__}\n{caught.value}")
        os._exit(0)

    numbers = range(len(variables))
    pids = [fork_process(lambda number=number: join(number), folder / f"{number}.txt") for number in numbers]
    assert [wait_for_exit(pid) for pid in pids] == [0] * len(pids), (folder / "0.txt").read_text()
    ends = [(folder / f"{number}.end").read_text().split("\n") for number in numbers]
    return [(kind, message) for kind, message in ends]


def ranks(*numbers: tuple[int, int], **others: Any) -> list[dict[str, Any]]:
    """The variables of processes with these ranks and numbers of processes."""
    return [{"RANK": rank, "WORLD_SIZE": world_size, **others} for rank, world_size in numbers]


@pytest.mark.parametrize(
    "variables, kind, words",
    [
        (ranks((2, 2)), "ConfigError", ["RANK=2"]),
        (ranks((1, 2), MASTER_PORT="abc"), "ConfigError", ["MASTER_PORT=abc"]),
        (ranks((0, 4), (1, 2), (2, 4)), "ConfigError", ["WORLD_SIZE", "0 of 4", "1 of 2"]),
        (ranks((0, 3), (1, 3), (1, 3)), "ConfigError", ["rank 1", "RANK"]),
        (ranks((0, 3), (2, 3)), "ConnectError", ["rank 0 of 3", "rank 2 of 3"]),
        (ranks((1, 2)), "ConnectError", ["127.0.0.1:", "GLOO_SOCKET_IFNAME"]),  # without rank 0, nobody listens
    ],
)
def test_processes_that_do_not_meet_say_why(
    tmp_path: Path, variables: list[dict[str, Any]], kind: str, words: list[str]
) -> None:
    for found, message in outcomes(tmp_path, *variables):
        assert found == kind
        assert all(word in message for word in words), message


@pytest.fixture(params=["silent", "answers"])
def other_service(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of another program, which never answers, or answers in its own way and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

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
    for kind, message in outcomes(tmp_path, *ranks((0, 2), (1, 2), MASTER_PORT=other_service)):
        assert kind == "ConnectError"
        assert f"127.0.0.1:{other_service} " in message and "another program" in message and "MASTER_PORT" in message

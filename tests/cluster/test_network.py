"""Training on two hosts: settings, data and folders that differ, host names, links that go down, torchrun."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from posenet.checkpoints.file import read_checkpoint
from tests.helpers.cluster import (
    ENDLESS,
    NODES,
    Cluster,
    Command,
    Outcome,
    error_line,
    status_of,
    steps_in,
    wait_until,
)

pytestmark = pytest.mark.cluster
Observe = Callable[[str], None]

EXIT_BARRIER_SECONDS = 300
"""Time for which torchrun waits at its end for the torchruns of the other hosts."""
HIDE_FOLDER = 'mkdir -p "$1" && mount -t tmpfs none "$1" && shift && exec "$@"'
"""Shell command with which a host has an empty folder in place of one that the hosts share."""


def start_on_both(cluster: Cluster, commands: Sequence[Sequence[str]], **environment: str) -> list[Command]:
    """Start one command per node as the ranks 0 and 1 of a run."""
    started = []
    for rank, (node, command) in enumerate(zip(NODES, commands)):
        variables = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29532", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        started.append(cluster.start(node, *command, environment=variables | {"RANK": str(rank)} | environment))
    return started


def run_on_both(cluster: Cluster, commands: Sequence[Sequence[str]], **environment: str) -> list[Outcome]:
    return [command.wait() for command in start_on_both(cluster, commands, **environment)]


@pytest.mark.case("another learning rate, batch size or width on the second host", 2)
def test_other_settings(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    for key, value in (("optim.lr", "0.1"), ("train.batch_size", "3"), ("model.width", "32")):
        run = tmp_path / key
        outcomes = run_on_both(cluster, [cluster.train(run), [*cluster.train(run), f"{key}={value}"]])
        assert [outcome.status for outcome in outcomes] == [2, 2]
        for outcome in outcomes:
            assert f"the processes differ in {key}: " in error_line(outcome.output)
            assert f"{value} on node2 (rank 1)" in error_line(outcome.output)
            assert "Traceback" not in outcome.output
    observe("status 2 on both hosts, names setting, values and hosts")


@pytest.mark.case("another store on the second host", 2)
def test_other_store(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    train = [*cluster.train(run), "data.val="]
    outcomes = run_on_both(cluster, [train, [*train, f"data.train={cluster.stores['val']}"]])
    assert [outcome.status for outcome in outcomes] == [2, 2]
    assert "the processes differ in data.train: " in error_line(outcomes[0].output)
    observe("status 2 on both hosts, names the stores' contents and the hosts")


@pytest.mark.case("a run folder that the hosts do not share", 2)
def test_folder_that_is_not_shared(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    train = cluster.train(run)
    outcomes = run_on_both(cluster, [train, ["bash", "-c", HIDE_FOLDER, "-", str(run), *train]])
    assert [outcome.status for outcome in outcomes] == [2, 2]
    assert f"{run} is not shared: node2 cannot see" in error_line(outcomes[0].output)
    assert not list(run.glob("*.pth"))
    observe("status 2 on both hosts before the first step")


@pytest.mark.case("host names that resolve to 127.0.1.1, or not at all, `--timeout 0.5`", 2)
def test_host_names_without_address(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    for address in ("127.0.1.1", None):
        for node in NODES:
            cluster.name_hosts(node, address)
        train = cluster.train(tmp_path / "run", "--timeout", "0.5")
        outcomes = run_on_both(cluster, [train, train])
        assert [outcome.status for outcome in outcomes] == [2, 2]
        for outcome in outcomes:
            assert "on node1, node2 did not reach each other" in error_line(outcome.output)
            assert "GLOO_SOCKET_IFNAME" in error_line(outcome.output)
    observe("status 2 on both hosts at once, names `GLOO_SOCKET_IFNAME`")


@pytest.mark.case("the same with `GLOO_SOCKET_IFNAME=eth0`", 2)
def test_host_names_without_address_and_interface(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    for node in NODES:
        cluster.name_hosts(node, "127.0.1.1")
    train = cluster.train(tmp_path / "run")
    outcomes = run_on_both(cluster, [train, train], GLOO_SOCKET_IFNAME="eth0")
    assert [outcome.status for outcome in outcomes] == [0, 0]
    observe("status 0")


@pytest.mark.case("a second host that never starts, `--timeout 0.5`", 2)
def test_missing_host(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    train = cluster.train(tmp_path / "run", "--timeout", "0.5")
    outcome = start_on_both(cluster, [train])[0].wait()
    assert outcome.status == 2
    assert "rank 1 of 2 did not arrive" in error_line(outcome.output)
    observe("status 2, names rank 1")


@pytest.mark.case("a link that is down for 3 seconds", 2)
def test_short_interruption(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    train = cluster.train(run, *ENDLESS)
    commands = start_on_both(cluster, [train, train])
    wait_until(lambda: steps_in(run) >= 3)
    cluster.link("node2", "down")
    time.sleep(3)
    cluster.link("node2", "up")
    reached = steps_in(run)
    wait_until(lambda: steps_in(run) > reached + 3)
    commands[0].kill()
    observe("the run waits and continues")


@pytest.mark.case("a link that goes down for good in a long epoch, `--timeout 0.5`, `checkpoint.every_steps=10`", 3)
def test_link_down_for_good(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    long_epoch = f'data.train=[{{path="{cluster.stores["train"]}", weight=1000}}]'
    saves = ["checkpoint.every_steps=10", "log.every_steps=1"]
    train = [*cluster.train(run, *ENDLESS, "--timeout", "0.5"), long_epoch, *saves]
    commands = start_on_both(cluster, [train, train])
    wait_until(lambda: steps_in(run) >= 20)
    cluster.link("node2", "down")
    outcomes = [command.wait() for command in commands]
    assert [outcome.status for outcome in outcomes] == [2, 2]
    logged = (run / "log.jsonl").read_text().splitlines()
    last_step = max(int(line.partition('"step": ')[2].partition(",")[0]) for line in logged)
    # Of several data sets, the losses are added up over the hosts before a step is logged. If that fails, the step is
    # saved but not logged.
    assert steps_in(run) - last_step in (0, 1)
    observe("status 2 on both hosts, no step lost")


@pytest.mark.case("torchrun on two hosts, static rendezvous", 2)
def test_torchrun(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    train = cluster.train(tmp_path / "run")[1:]
    commands = [cluster.start(node, *cluster.torchrun(rank), *train) for rank, node in enumerate(NODES)]
    outcomes = [command.wait() for command in commands]
    assert [outcome.status for outcome in outcomes] == [0, 0]
    assert len(read_checkpoint(tmp_path / "run" / "last.pth")["random"]) == 2
    observe("status 0")


@pytest.mark.case("SIGTERM to the torchrun of the first host (`--node-rank 0`)", 2)
def test_sigterm_to_the_first_torchrun(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    seconds, status = seconds_until_the_other_torchrun_ends(cluster, tmp_path / "run", signalled=0)
    assert seconds < EXIT_BARRIER_SECONDS / 2
    observe(f"saved, `stopped`; the other torchrun ends soon, status {status}")


@pytest.mark.case("SIGTERM to the torchrun of the second host", 1)
def test_sigterm_to_the_second_torchrun(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    seconds, status = seconds_until_the_other_torchrun_ends(cluster, tmp_path / "run", signalled=1)
    waits = "waits 300 s" if seconds > EXIT_BARRIER_SECONDS - 30 else "ends soon"
    observe(f"saved, `stopped`; the other torchrun {waits}, status {status}")


def seconds_until_the_other_torchrun_ends(cluster: Cluster, run: Path, signalled: int) -> tuple[float, int]:
    """Send SIGTERM to one of two torchruns; return the seconds until the other has ended, and its status."""
    train = cluster.train(run, *ENDLESS)[1:]
    commands = [cluster.start(node, *cluster.torchrun(rank), *train) for rank, node in enumerate(NODES)]
    wait_until(lambda: steps_in(run) >= 3)
    commands[signalled].send_signal(signal.SIGTERM)
    start = time.monotonic()
    assert commands[signalled].wait().status != 0
    other = commands[1 - signalled].wait(EXIT_BARRIER_SECONDS + 120)
    seconds = time.monotonic() - start
    assert status_of(run) == "stopped"
    assert f"Stopped after step {steps_in(run)} " in commands[0].read()
    return seconds, other.status

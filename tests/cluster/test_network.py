"""Training on two hosts: a folder that only one has, and a link that goes down."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.cluster import ENDLESS, NODES, Cluster, Command, error_line, steps_in, wait_until
from tests.helpers.process_runs import assert_same_run

pytestmark = pytest.mark.cluster

HIDE_FOLDER = 'mkdir -p "$1" && mount -t tmpfs none "$1" && shift && exec "$@"'
"""Shell command with which a host has an empty folder in place of one that the hosts share."""


def start_on_both(cluster: Cluster, commands: Sequence[Sequence[str]]) -> list[Command]:
    """Start one command per node as the ranks 0 and 1 of a run."""
    started = []
    for rank, (node, command) in enumerate(zip(NODES, commands)):
        variables = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29532", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        started.append(cluster.start(node, *command, environment=variables | {"RANK": str(rank)}))
    return started


def test_only_the_first_host_needs_the_folder_of_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 alone writes checkpoints and reads them, so the hosts need not share the folder."""
    run = tmp_path / "run"

    def train(*flags: str) -> None:
        command = cluster.train(run, *flags)
        hiding = ["bash", "-c", HIDE_FOLDER, "-", str(run), *command]
        outcomes = [started.wait() for started in start_on_both(cluster, [command, hiding])]
        assert [outcome.status for outcome in outcomes] == [0, 0], outcomes

    train("--max-steps", "3")
    train("--resume")
    outcome = cluster.on("node1", *cluster.train(tmp_path / "reference", "--nproc", "2"))
    assert outcome.status == 0, outcome.output
    assert_same_run(run, tmp_path / "reference")


def test_run_ends_on_both_hosts_when_a_link_goes_down_for_good(cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = [*cluster.train(run, *ENDLESS, "--timeout", "0.5"), "checkpoint.every_steps=10"]
    commands = start_on_both(cluster, [train, train])
    wait_until(lambda: steps_in(run) >= 20)
    cluster.link("node2", "down")
    outcomes = [command.wait() for command in commands]
    assert [outcome.status for outcome in outcomes] == [2, 2]
    for outcome in outcomes:
        assert "waited 0.5 minutes" in error_line(outcome.output)
        assert outcome.output.count("error: ") == 1
        assert "Traceback" not in outcome.output
    assert steps_in(run) >= 20

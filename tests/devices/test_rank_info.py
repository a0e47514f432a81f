"""The rank that launchers assign through the environment."""

from __future__ import annotations

import pytest

from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo, first_host, rank_info_from_environment
from posenet.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "40123",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


def test_torchrun_and_the_old_launcher_assign_the_rank() -> None:
    assert rank_info_from_environment(TORCHRUN) == RankInfo(5, 8, 1, restarts=2)
    old_launcher = {"RANK": "5", "WORLD_SIZE": "8"}
    assert rank_info_from_environment(old_launcher) == RankInfo(5, 8, 0)
    assert rank_info_from_environment({"RANK": "0", "WORLD_SIZE": "1"}) == RankInfo(0, 1, 0)
    assert rank_info_from_environment(old_launcher, local_rank=1) == RankInfo(5, 8, 1)
    assert rank_info_from_environment(TORCHRUN, local_rank=3) == RankInfo(5, 8, 3, restarts=2)


def test_slurm_assigns_the_rank() -> None:
    assert rank_info_from_environment(SLURM) == RankInfo(3, 4, 1, "tcp://gpu07:20123")
    first_of_two = SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    assert rank_info_from_environment(first_of_two) == RankInfo(0, 2, 0, "tcp://gpu07:20123")
    step = SLURM | {"SLURM_STEP_NODELIST": "gpu08", "SLURM_RESTART_COUNT": "1"}
    assert rank_info_from_environment(step) == RankInfo(3, 4, 1, "tcp://gpu08:20123", restarts=1)
    with_address = SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "9"}
    assert rank_info_from_environment(with_address) == RankInfo(3, 4, 1, "tcp://here:9")


def test_a_single_process_has_rank_0_of_1() -> None:
    assert (SINGLE_PROCESS.rank, SINGLE_PROCESS.world_size, SINGLE_PROCESS.local_rank) == (0, 1, 0)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"},
        SLURM | {"SLURM_NTASKS": "1"},
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
    ],
)
def test_a_process_without_a_launcher_has_no_rank(environment: dict[str, str]) -> None:
    assert rank_info_from_environment(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN | {"RANK": "8"},
        TORCHRUN | {"RANK": "-1"},
        TORCHRUN | {"LOCAL_RANK": "-1"},
        TORCHRUN | {"RANK": "first"},
        SLURM | {"SLURM_JOB_NODELIST": "[3]"},
        {name: value for name, value in SLURM.items() if name != "SLURM_LOCALID"},
    ],
)
def test_an_incomplete_or_impossible_environment_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--nproc"):
        rank_info_from_environment(environment)


@pytest.mark.parametrize(
    "node_list, host",
    [
        ("one", "one"),
        ("gpu[07-09,12],big1", "gpu07"),
        ("a,b", "a"),
        ("n[3]", "n3"),
        ("rack2-node[001-100]", "rack2-node001"),
        ("n[1,5].cluster", "n1.cluster"),
        ("n[1,5].cluster,m2", "n1.cluster"),
    ],
)
def test_the_first_host_of_a_slurm_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host

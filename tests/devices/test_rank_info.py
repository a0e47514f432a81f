"""The rank that launchers assign through the environment."""

from __future__ import annotations

import pytest

from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo, first_host, rank_info_from_environment
from posenet.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
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


def slurm_rank_info(**changes: str) -> RankInfo:
    rank_info = rank_info_from_environment(SLURM | changes)
    assert rank_info is not None
    return rank_info


def test_slurm_assigns_the_rank() -> None:
    assert slurm_rank_info() == RankInfo(3, 4, 1, "tcp://gpu07:20123", run_id="40123.0")
    step = slurm_rank_info(SLURM_STEP_NODELIST="gpu08", SLURM_RESTART_COUNT="1")
    assert step == RankInfo(3, 4, 1, "tcp://gpu08:20123", restarts=1, run_id="40123.0")


def test_the_number_of_processes_is_that_of_the_step() -> None:
    assert slurm_rank_info(SLURM_NTASKS="8").world_size == 4
    # Releases of SLURM that do not set the number of the step's tasks set that of the job in every step.
    without_step_tasks = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"}
    rank_info = rank_info_from_environment(without_step_tasks)
    assert rank_info is not None and rank_info.world_size == 4


def test_the_shell_of_an_interactive_allocation_is_no_process_of_a_run() -> None:
    shell = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
    assert rank_info_from_environment(SLURM | shell) is None


def test_the_steps_of_a_job_and_jobs_with_near_ids_meet_at_different_ports_under_different_names() -> None:
    runs = [
        slurm_rank_info(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)) for job in range(500, 550) for step in range(50)
    ]
    assert len({rank_info.init_method for rank_info in runs}) == len(runs)
    assert len({rank_info.run_id for rank_info in runs}) == len(runs)


def test_a_process_on_the_first_host_hosts_the_store_whichever_rank_it_has() -> None:
    assert slurm_rank_info(SLURMD_NODENAME="gpu07", SLURM_LOCALID="0").hosts_store
    assert not slurm_rank_info(SLURMD_NODENAME="gpu07", SLURM_LOCALID="1").hosts_store
    assert not slurm_rank_info(SLURMD_NODENAME="gpu08", SLURM_LOCALID="0", SLURM_PROCID="0").hosts_store
    assert slurm_rank_info(SLURM_PROCID="0").hosts_store


def test_rank_0_hosts_the_store_at_the_address_that_the_user_names() -> None:
    address = {"MASTER_ADDR": "here", "MASTER_PORT": "9", "SLURMD_NODENAME": "gpu07", "SLURM_LOCALID": "0"}
    assert slurm_rank_info(**address) == RankInfo(3, 4, 0, "tcp://here:9", run_id="40123.0")
    assert slurm_rank_info(**address, SLURM_PROCID="0").hosts_store


def test_a_single_process_has_rank_0_of_1() -> None:
    assert (SINGLE_PROCESS.rank, SINGLE_PROCESS.world_size, SINGLE_PROCESS.local_rank) == (0, 1, 0)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"},
        SLURM | {"SLURM_STEP_NUM_TASKS": "1"},
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

"""What launchers say in the environment; and a script that one has started several times is one run of all."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import posenet
from posenet.devices.ranks import (
    LAUNCHERS,
    RankInfo,
    Ranks,
    first_host,
    is_restarted,
    join_ranks,
    rank_info,
    rank_of_process,
    rendezvous_address,
    run_in_all_processes,
)
from posenet.errors import ConfigError
from tests.helpers.process_groups import fork_ranks, need_processes
from tests.helpers.process_runs import wait_for_exit
from tests.helpers.source_files import ROOT
from tests.helpers.spot_networks import write_spot_split
from tests.helpers.tiny_training import TINY, Recorder, Stores, data_settings, last, train_tiny

SCRIPT = """
import os, sys
import posenet
import torch.distributed as dist

class Count(posenet.TrainingCallback):
    steps = 0

    def on_step(self, step, values):
        self.steps += 1

folder, *settings = sys.argv[1:]
callback = Count()
posenet.train(None, settings + [f"checkpoint.path={folder}/run"], callbacks=[callback], progress=False)
with open(f"{folder}/steps-{os.getpid()}", "w") as file:
    file.write(f"{callback.steps} {dist.is_initialized()}")
"""


def numbers(names: str, values: str) -> dict[str, str]:
    """The variables with these names and values."""
    return dict(zip(names.split(), values.split(), strict=True))


TORCHRUN = numbers("RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT", "5 8 1 gpu01 29400")
SLURM = numbers(
    "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_LOCALID SLURM_JOB_ID SLURM_STEP_ID SLURM_JOB_NODELIST",
    "3 4 8 1 40123 0 gpu[07-08]",
)
OPEN_MPI = numbers(" ".join((*LAUNCHERS["mpirun"], "OMPI_MCA_ess_base_jobid")), "1 2 1 2 46333953")
MPICH = numbers("PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS", "1 2 1 2")
HOROVOD = numbers(" ".join((*LAUNCHERS["horovodrun"], "HOROVOD_GLOO_RENDEZVOUS_PORT")), "1 2 1 2 41234")
INTERACTIVE = numbers("SLURM_PROCID SLURM_LOCALID SLURM_STEP_NUM_TASKS", "0 0 1")


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(
    "environment, expected",
    [
        (TORCHRUN, (5, 8, 1, "torchrun")),
        (without(TORCHRUN, "LOCAL_RANK"), (5, 8, None, "torchrun")),  # of the old launcher
        (TORCHRUN | SLURM, (5, 8, 1, "torchrun")),
        (SLURM, (3, 4, 1, "srun")),  # the number of processes is that of the step
        (OPEN_MPI, (1, 2, 1, "mpirun")),
        (OPEN_MPI | SLURM, (1, 2, 1, "mpirun")),  # which starts one process on each machine by srun
        (MPICH, (1, 2, 1, "mpiexec")),
        (HOROVOD | OPEN_MPI, (1, 2, 1, "horovodrun")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, None, "torchrun")),
        (SLURM | INTERACTIVE, (0, 1, 0, "srun")),  # the shell of an interactive allocation
        ({}, RankInfo()[:4]),
        (without(SLURM, "SLURM_STEP_ID"), RankInfo()[:4]),
        ({"WORLD_SIZE": "1"}, RankInfo()[:4]),
        ({"RANK": ""}, RankInfo()[:4]),
    ],
)
def test_the_numbers_of_a_process_are_those_of_its_launcher(
    environment: dict[str, str], expected: tuple[int, int, int | None, str]
) -> None:
    assert rank_info(environment)[:4] == expected
    assert rank_of_process(environment) == expected[0]


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"RANK": "0"}, "RANK=0, WORLD_SIZE=,"),
        ({"WORLD_SIZE": "2"}, "RANK=, WORLD_SIZE=2,"),
        (TORCHRUN | {"RANK": "8"}, "RANK=8, WORLD_SIZE=8,"),
        (TORCHRUN | {"RANK": "first"}, "RANK=first,"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE=,"),
    ],
)
def test_incomplete_or_impossible_numbers_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_info(environment)
    assert rank_of_process(environment) == 0


def where(environment: dict[str, str]) -> tuple[str, int]:
    return rendezvous_address(rank_info(environment), environment)


def test_processes_meet_where_the_user_or_the_launcher_says() -> None:
    assert where(TORCHRUN) == ("gpu01", 29400)
    host, port = where(SLURM)
    assert host == "gpu07" and 20000 <= port < 29000
    assert where(SLURM | {"SLURM_STEP_NODELIST": "gpu08"}) == ("gpu08", port)
    for environment in (SLURM, OPEN_MPI, MPICH, HOROVOD):
        assert where(environment | {"MASTER_ADDR": "here", "MASTER_PORT": "9"}) == ("here", 9)
    assert len({where(SLURM | {"SLURM_JOB_ID": str(job)})[1] for job in range(500, 600)}) > 95
    # On one machine; the port differs between jobs where these have numbers.
    assert where(MPICH) == ("127.0.0.1", 29500)
    others = [where(OPEN_MPI), where(OPEN_MPI | {"OMPI_MCA_ess_base_jobid": "46333954"}), where(HOROVOD)]
    assert {host for host, _ in others} == {"127.0.0.1"} and len({port for _, port in others}) == 3
    # In a job of SLURM, mpirun puts rank 0 on the first host.
    assert where(SLURM | OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})[0] == "gpu07"


@pytest.mark.parametrize(
    "environment, name",
    [
        (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR"),
        (TORCHRUN | {"MASTER_PORT": "abc"}, "MASTER_PORT=abc"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR"),  # on two machines
    ],
)
def test_an_unknown_rendezvous_is_refused(environment: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        where(environment)


def test_restarts_are_known() -> None:
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        assert [is_restarted({name: count}) for count in ("", "0", "1")] == [False, False, True]
    assert not is_restarted({})


@pytest.mark.parametrize(
    "node_list, host",
    [
        ("gpu[07-09,12],big1", "gpu07"),
        ("n[3]", "n3"),
        ("rack[1-2]n[03-09],m2", "rack1n03"),
    ],
)
def test_the_first_host_of_a_slurm_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", *(name for names in LAUNCHERS.values() for name in names if name)):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2",
        f"mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 {sys.executable}",
        f"mpiexec.hydra -n 2 {sys.executable}",
    ],
    ids=["torchrun", "Open MPI", "MPICH"],
)
def test_a_script_of_a_launcher_is_one_run_whose_callbacks_are_those_of_rank_0(
    stores: Stores, tmp_path: Path, command: str
) -> None:
    need_processes()
    program, *words = command.split()
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    settings = [*TINY, *data_settings(stores), "train.device=cpu", "train.epochs=1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [program, *words, script, tmp_path, *settings], capture_output=True, text=True, env=environment, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = last(tmp_path / "run")
    assert state["world_size"] == 2
    steps = {path.read_text() for path in tmp_path.glob("steps-*")}
    assert steps == {"0 False", f"{state['progress']['total_steps']} False"}


def run_two(folder: Path, task: Callable[[int], Any]) -> None:
    """Call ``task(rank)`` in two processes of a launcher."""
    statuses = [wait_for_exit(pid) for pid in fork_ranks(2, task, folder)]
    assert statuses == [0, 0], "".join((folder / f"{rank}.txt").read_text() for rank in range(2))


def test_two_processes_of_a_launcher_are_one_run_and_may_meet_again(stores: Stores, tmp_path: Path) -> None:
    """One sample on each of two processes is enough for a synchronized BatchNorm."""
    settings = ("train.batch_size=1", "parallel.sync_bn=true")

    def train(rank: int) -> None:
        recorder = Recorder()
        for folder in ("one", "two"):
            train_tiny(stores, tmp_path / folder, *settings, callbacks=[recorder], max_steps=1)
            assert not dist.is_initialized()
        assert bool(recorder.steps) == (rank == 0)

    run_two(tmp_path / "log", train)
    assert {last(tmp_path / folder)["world_size"] for folder in ("one", "two")} == {2}
    with pytest.raises(ConfigError, match="train.batch_size"):
        train_tiny(stores, tmp_path / "alone", *settings)


def test_an_evaluation_is_shared_and_one_within_a_run_is_not(tmp_path: Path) -> None:
    shared: list[Any] = []

    @run_in_all_processes("ranks")
    def work(ranks: Ranks | None = None) -> None:
        shared.append(ranks and ranks.gather_objects(ranks.local_rank))
        if ranks is not None and ranks.world_size == 2 and ranks.is_main:
            work()  # as a callback does

    def run(rank: int) -> None:
        work()
        work(ranks=Ranks())
        torch.save(shared, tmp_path / f"{rank}.pt")

    run_two(tmp_path / "log", run)
    alone = [0]
    assert torch.load(tmp_path / "0.pt") == [[0, 1], None, alone]
    assert torch.load(tmp_path / "1.pt") == [[0, 1], alone]


def test_evaluate_in_two_processes_gives_rank_0_the_metrics_of_one(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path / "split")

    def evaluate() -> Any:
        return posenet.evaluate(
            spot_file, annotations.parent, annotations, backend="onnxruntime", device="cpu", progress=False
        )

    expected = evaluate()

    def run(rank: int) -> None:
        found = evaluate()
        assert found is None if rank else found == expected

    run_two(tmp_path / "log", run)


def test_a_process_alone_joins_nobody_and_a_group_that_exists_is_used_and_kept(tmp_path: Path) -> None:
    """All of the run goes through a group of its own, because the backend of the program's may be for other devices."""
    assert join_ranks(1) is None

    def run(rank: int) -> None:
        dist.init_process_group("gloo")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            del os.environ[name]
        default = dist.group.WORLD
        ranks = join_ranks(1)
        assert isinstance(ranks, need_processes().DistributedRuntime)
        assert (ranks.rank, ranks.world_size, ranks.local_rank) == (rank, 2, rank)
        reduce = dist.all_reduce

        def reduce_in_own_group(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
            assert group not in (None, default)
            reduce(tensor, group=group)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_reduce", reduce_in_own_group)
            norm = ranks.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(1, momentum=1.0)))
            norm(torch.full((1, 1, 2, 2), float(rank))).sum().backward()
            assert norm[0].running_mean.item() == 0.5
            assert ranks.sum_over_ranks(rank) == [1]
        assert ranks.gather_objects(rank) == [0, 1]
        ranks.close()
        assert dist.group.WORLD is default
        dist.barrier()

    run_two(tmp_path, run)

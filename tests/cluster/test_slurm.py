"""Training under a real SLURM: steps, stops, requeues, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.signals import STOPPED_STATUS
from tests.helpers.cluster import ENDLESS, ROOT, Cluster, Command, error_line, status_of, steps_in, wait_until
from tests.helpers.process_runs import assert_same_run

pytestmark = pytest.mark.cluster
Observe = Callable[[str], None]
SRUN = ("srun", "-N2", "-n2")


@pytest.fixture
def reference(cluster: Cluster, tmp_path: Path) -> Path:
    """The folder of the same run in two processes on one machine, without SLURM."""
    run = tmp_path / "reference"
    outcome = cluster.on("node1", *cluster.train(run, "--nproc", "2"))
    assert outcome.status == 0, outcome.output
    return run


@pytest.mark.case("`srun -N2 -n2`: two nodes train one network", 3)
def test_two_nodes_train_as_two_processes_do(
    cluster: Cluster, tmp_path: Path, reference: Path, observe: Observe
) -> None:
    outcome = cluster.on("ctl", *SRUN, *cluster.train(tmp_path / "run"))
    assert outcome.status == 0, outcome.output
    assert_same_run(tmp_path / "run", reference)
    observe("status 0; losses and weights equal those of `--nproc 2` bit by bit")


@pytest.mark.case("`srun -m arbitrary`: rank 0 is not on the first node", 3)
def test_arbitrary_distribution(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node2\nnode1\n")
    command = ["salloc", "-N2", "-n2", "srun", "-m", "arbitrary", "-n2", *cluster.train(tmp_path / "run")]
    outcome = cluster.on("ctl", *command, environment={"SLURM_HOSTFILE": str(hosts)})
    assert outcome.status == 0, outcome.output
    assert len(read_checkpoint(tmp_path / "run" / "last.pth")["random"]) == 2
    observe("status 0, one run")


@pytest.mark.case("a heterogeneous step, rank 0 on the second node", 2)
def test_heterogeneous_step(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    train = cluster.train(tmp_path / "run")
    outcome = cluster.on("ctl", "srun", "-w", "node2", "-n1", *train, ":", "-w", "node1", "-n2", *train)
    assert outcome.status == 0, outcome.output
    assert len(read_checkpoint(tmp_path / "run" / "last.pth")["random"]) == 3
    observe("status 0, one run of three processes")


@pytest.mark.case("two steps of one allocation at once", 3)
def test_two_steps_at_once(cluster: Cluster, tmp_path: Path, reference: Path, observe: Observe) -> None:
    script = tmp_path / "steps.sh"
    runs = [tmp_path / name for name in ("one", "two")]
    lines = [f"srun --exact -N2 -n2 {' '.join(cluster.train(run))} &\n" for run in runs]
    script.write_text("#!/bin/bash\n" + "".join(lines) + "wait -n || exit; wait -n\n")
    outcome = cluster.on("ctl", "salloc", "-N2", "-n4", "bash", script)
    assert outcome.status == 0, outcome.output
    for run in runs:
        assert_same_run(run, reference)
    observe("both end with status 0, as if each were alone")


@pytest.mark.case("interactive `salloc` (use_interactive_step): no launcher, and `--nproc 2`", 2)
def test_interactive_shell(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    commands = [
        " ".join(cluster.train(tmp_path / "alone")),
        " ".join(cluster.train(tmp_path / "two", "--nproc", "2")),
    ]
    shell = tmp_path / "shell.sh"
    shell.write_text(" && ".join(commands) + "\nexit\n")
    # Without the trap, the kernel stops srun in the background when it restores the settings of the terminal.
    outcome = cluster.on("ctl", "script", "-qec", f"trap '' TTOU; salloc -N2 -n2 < {shell}", "/dev/null")
    for name, processes in (("alone", 1), ("two", 2)):
        assert (tmp_path / name / "last.pth").exists(), outcome.output
        assert len(read_checkpoint(tmp_path / name / "last.pth")["random"]) == processes
        assert status_of(tmp_path / name) == "finished"
    observe("both train")


@pytest.mark.case("a job array: one folder per task", 2)
def test_job_array(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    command = " ".join(cluster.train(tmp_path / "run-TASK")).replace("run-TASK", "run-$SLURM_ARRAY_TASK_ID")
    job = cluster.submit("-N2", "-n2", "--array=1-2", "-o", tmp_path / "%a.log", "--wrap", f"srun {command}")
    cluster.wait_for_job(f"{job}_1", ["COMPLETED", "FAILED"])
    cluster.wait_for_job(f"{job}_2", ["COMPLETED", "FAILED"])
    for task in (1, 2):
        assert status_of(tmp_path / f"run-{task}") == "finished", (tmp_path / f"{task}.log").read_text()
    observe("two runs, both finished")


@pytest.mark.case("`srun -n2 tools/train.py`", 2)
def test_the_tool_for_one_process(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    outcome = cluster.on("ctl", *SRUN, *cluster.train(tmp_path / "run", tool=ROOT / "tools" / "train.py"))
    assert outcome.status == 2
    assert "a launcher has started 2 processes of this tool" in error_line(outcome.output)
    assert not (tmp_path / "run").exists()
    observe("status 2, names `tools/train_distributed.py`")


def start_endless_run(cluster: Cluster, run: Path, *options: str) -> tuple[Command, str]:
    """Start a run with srun on both nodes; return the command and the id of the job when it has made some steps."""
    command = cluster.start("ctl", *SRUN, *options, *cluster.train(run, *ENDLESS))
    wait_until(lambda: steps_in(run) >= 3 or command.process.poll() is not None)
    job = cluster.on("ctl", "squeue", "-h", "-o", "%i").output.strip()
    assert job, command.read()
    return command, job


@pytest.mark.case("`scancel --signal=USR1 JOB` during `srun`", 3)
def test_signal_to_the_step(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command, job = start_endless_run(cluster, run)
    cluster.on("ctl", "scancel", "--signal=USR1", job)
    outcome = command.wait()
    assert f"Stopped after step {steps_in(run)} " in outcome.output
    assert status_of(run) == "stopped"
    assert outcome.status == STOPPED_STATUS
    observe("saved at the last step, `stopped`, status 75")


@pytest.mark.case("`scancel --signal=USR1 JOB` during `srun --kill-on-bad-exit=1`", 3)
def test_signal_to_the_step_that_ends_all_tasks(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command, job = start_endless_run(cluster, run, "--kill-on-bad-exit=1")
    cluster.on("ctl", "scancel", "--signal=USR1", job)
    outcome = command.wait()
    assert f"Stopped after step {steps_in(run)} " in outcome.output
    assert status_of(run) == "stopped"
    assert outcome.status != 0
    observe(f"saved at the last step, `stopped`, status {outcome.status}")


@pytest.mark.case("`scancel JOB` (SIGTERM, and SIGKILL after KillWait = 30 s)", 3)
def test_cancelled_job(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command, job = start_endless_run(cluster, run)
    cluster.on("ctl", "scancel", job)
    outcome = command.wait()
    assert f"Stopped after step {steps_in(run)} " in outcome.output
    wait_until(lambda: status_of(run) == "stopped", 40)
    observe("saved at the last step, `stopped`")


@pytest.mark.case("Ctrl-C twice within a second at `srun`", 3)
def test_ctrl_c_at_srun(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command, _ = start_endless_run(cluster, run)
    before = steps_in(run)
    for _ in range(2):
        command.send_signal(signal.SIGINT)
        time.sleep(0.3)
    outcome = command.wait()
    stopped = "Stopped after step" in outcome.output
    assert steps_in(run) >= before
    observe("saved at the last step" if stopped else f"killed, `{status_of(run)}`: resumes from the last checkpoint")


def sbatch(cluster: Cluster, run: Path, *options: str, flags: tuple[str, ...] = ("--epochs", "40")) -> str:
    """Submit tools/train.sbatch for a run of two tasks; return the id of the job."""
    sizes = ["-N2", "--ntasks-per-node=1", "-o", str(run.parent / "job.log"), "--export=ALL"]
    data = [f"data.train={cluster.stores['train']}", f"data.val={cluster.stores['val']}"]
    template = ROOT / "tools" / "train.sbatch"
    return cluster.submit(*sizes, *options, template, run, *cluster.flags(*flags), *data)


@pytest.mark.case("`tools/train.sbatch`, stopped by SIGUSR1 twice", 2)
def test_template_requeues_until_the_run_is_finished(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    job = sbatch(cluster, run)
    for _ in range(2):
        reached = steps_in(run)
        wait_until(lambda: steps_in(run) > reached + 3 and status_of(run) == "running")
        cluster.on("ctl", "scancel", "--signal=USR1", job)
        wait_until(lambda: cluster.is_requeued(job))
    state = cluster.wait_for_job(job, ["COMPLETED", "FAILED", "CANCELLED"], 500)
    log = (tmp_path / "job.log").read_text()
    assert state == "COMPLETED", log[-3000:]
    assert status_of(run) == "finished"
    assert log.count("Stopped after step") == 2 and log.count("Resuming from") == 2
    observe("requeued twice, one log, finished")


@pytest.mark.case("`tools/train.sbatch` with `--time=2 --signal=USR1@70`: the time limit approaches", 1)
def test_template_at_the_time_limit(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    job = sbatch(cluster, run, "--time=2", "--signal=USR1@70")
    wait_until(lambda: cluster.is_requeued(job) or status_of(run) == "finished")
    log = (tmp_path / "job.log").read_text()
    assert log.count("Stopped after step") == 1, log[-3000:]
    observe("stopped before the limit, requeued")


@pytest.mark.case("`tools/train.sbatch` after a stopped run, with a setting that is refused", 2)
def test_template_does_not_requeue_a_failed_run(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.status").write_text("stopped\n")
    job = sbatch(cluster, run, "--job-name=refused", flags=("--lr", "-1"))
    assert cluster.wait_for_job(job, ["COMPLETED", "FAILED"]) == "FAILED"
    assert "Restarts=0" in cluster.on("ctl", "scontrol", "show", "job", job).output
    assert "optim.lr must be positive" in (tmp_path / "job.log").read_text()
    observe("job FAILED, not requeued")


@pytest.mark.case("`scancel JOB` of `tools/train.sbatch`", 2)
def test_template_does_not_requeue_a_cancelled_run(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    job = sbatch(cluster, run)
    wait_until(lambda: steps_in(run) >= 3)
    cluster.on("ctl", "scancel", job)
    wait_until(lambda: status_of(run) == "stopped", 60)
    time.sleep(5)
    shown = cluster.on("ctl", "scontrol", "show", "job", job).output
    assert "JobState=CANCELLED" in shown and "Restarts=0" in shown
    observe("saved at the last step, not requeued")


@pytest.mark.case("`scontrol requeue` of a running job by hand", 2)
def test_requeue_by_hand(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    job = sbatch(cluster, run)
    wait_until(lambda: steps_in(run) >= 3)
    cluster.on("ctl", "scontrol", "requeue", job)
    wait_until(lambda: cluster.is_requeued(job))
    assert cluster.wait_for_job(job, ["COMPLETED", "FAILED"], 500) == "COMPLETED"
    assert status_of(run) == "finished"
    assert "Resuming from" in (tmp_path / "job.log").read_text()
    observe("resumed and finished")


@pytest.mark.case("SIGKILL of one rank during `srun --kill-on-bad-exit=1`", 3)
def test_killed_rank(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command, _ = start_endless_run(cluster, run, "--kill-on-bad-exit=1")
    kill_rank(run, 1, "KILL")
    outcome = command.wait()
    assert outcome.status != 0
    assert "task 1: Killed" in outcome.output
    observe(f"status {outcome.status}, srun names task 1")


@pytest.mark.case("a rank that hangs (SIGSTOP), `--timeout 0.5`", 3)
def test_hanging_rank(cluster: Cluster, tmp_path: Path, observe: Observe) -> None:
    run = tmp_path / "run"
    command = cluster.start("ctl", *SRUN, "--kill-on-bad-exit=1", *cluster.train(run, *ENDLESS, "--timeout", "0.5"))
    wait_until(lambda: steps_in(run) >= 3)
    kill_rank(run, 1, "STOP")
    outcome = command.wait()
    assert outcome.status != 0
    # SLURM wakes rank 1 when it ends the step, so that rank 1 may report the loss of rank 0 afterwards.
    assert re.search(r"error: lost .*: rank 1 \(node2\) does not answer", outcome.output), outcome.output[-3000:]
    observe("status not 0; the message names rank 1 and its host")


def kill_rank(run: Path, rank: int, name: str) -> None:
    """Send a signal to the training process of one rank of a run, as SLURM has numbered it."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run).encode() in command and b"python" in command[0] and f"SLURM_PROCID={rank}".encode() in environment:
            os.kill(int(folder.name), signal.Signals[f"SIG{name}"])
            return
    raise AssertionError(f"rank {rank} does not run")

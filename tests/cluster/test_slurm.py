"""Training under a real SLURM: steps, stops, requeues, and what is refused."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.signals import STOPPED_STATUS
from tests.helpers.cluster import ENDLESS, NODES, ROOT, Cluster, Command, status_of, steps_in, wait_until
from tests.helpers.process_runs import assert_same_run, find_differences

pytestmark = pytest.mark.cluster
SRUN = ("srun", "-N2", "-n2")


def reference_run(cluster: Cluster, run: Path, *flags: str) -> Path:
    """The folder of the same run in two processes on one machine, without SLURM and without interruption."""
    outcome = cluster.on("node1", *cluster.train(run, "--nproc", "2", *flags))
    assert outcome.status == 0, outcome.output
    return run


def test_two_nodes_train_as_two_processes_do(cluster: Cluster, tmp_path: Path) -> None:
    outcome = cluster.on("ctl", *SRUN, *cluster.train(tmp_path / "run"))
    assert outcome.status == 0, outcome.output
    assert_same_run(tmp_path / "run", reference_run(cluster, tmp_path / "reference"))


def start_endless_run(cluster: Cluster, run: Path, *options: str, timeout: str = "10") -> tuple[Command, str]:
    """Start a run with srun on both nodes; return the command and the id of the job when it has made some steps."""
    command = cluster.start("ctl", *SRUN, *options, *cluster.train(run, *ENDLESS, "--timeout", timeout))
    wait_until(lambda: steps_in(run) >= 3 or command.process.poll() is not None)
    job = cluster.on("ctl", "squeue", "-h", "-o", "%i").output.strip()
    assert job, command.read()
    return command, job


@pytest.mark.parametrize("options", [(), ("--kill-on-bad-exit=1",)], ids=["plain", "kill-on-bad-exit"])
def test_signal_to_the_step(cluster: Cluster, tmp_path: Path, options: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    command, job = start_endless_run(cluster, run, *options)
    cluster.on("ctl", "scancel", "--signal=USR1", job)
    outcome = command.wait()
    assert f"Stopped after step {steps_in(run)} " in outcome.output
    assert status_of(run) == "stopped"
    # With the option, srun may report the signal with which it has ended the other task.
    assert outcome.status != 0 if options else outcome.status == STOPPED_STATUS


@pytest.mark.parametrize("name, message", [("KILL", "task 1: Killed"), ("STOP", "waited 0.5 minutes")])
def test_killed_or_hanging_rank(cluster: Cluster, tmp_path: Path, name: str, message: str) -> None:
    run = tmp_path / "run"
    command, _ = start_endless_run(cluster, run, "--kill-on-bad-exit=1", timeout="0.5")
    kill_rank(run, 1, name)
    outcome = command.wait()
    assert outcome.status != 0 and outcome.seconds < 120
    assert message in outcome.output, outcome.output[-3000:]
    assert steps_in(run) >= 3


def kill_rank(run: Path, rank: int, name: str) -> None:
    """Send a signal to the training process of one rank of a run, as SLURM has numbered it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            command = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
            is_training = str(run).encode() in command and b"python" in command[0]
            if is_training and f"SLURM_PROCID={rank}".encode() in environment:
                os.kill(int(folder.name), signal.Signals[f"SIG{name}"])
                return
    raise AssertionError(f"rank {rank} does not run")


class TemplateJob:
    """A job of ``tools/train.sbatch`` with two tasks that trains until ``finish_after`` says when to end."""

    def __init__(self, cluster: Cluster, folder: Path, *options: str, flags: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.run = folder / "run"
        self.log_file = folder / "job.log"
        self.experiment = folder / "experiment.toml"
        self.finish_after(99999)
        sizes = ["-N2", "--ntasks-per-node=1", "--gpus-per-node=0", "-o", str(self.log_file), "--export=ALL"]
        settings = [setting for setting in cluster.settings() if not setting.startswith("train.epochs")]
        training = ["--config", str(self.experiment), *flags, *settings]
        self.id = cluster.submit(*sizes, *options, ROOT / "tools" / "train.sbatch", self.run, *training)

    def finish_after(self, epochs: int) -> None:
        """Let the job end after so many epochs when it starts the next time: a resumed run reads the file again."""
        self.experiment.write_text(f"[train]\nepochs = {epochs}\n")

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def wait_for_steps(self) -> None:
        """Wait until the run has made some steps since its last start."""
        reached = steps_in(self.run)
        wait_until(lambda: steps_in(self.run) > reached + 3 and status_of(self.run) == "running")

    def wait_for_requeue(self, interrupt: Callable[[], object]) -> None:
        """Interrupt the job, and wait until SLURM has put it into the queue again."""
        restarts = self._restarts()
        interrupt()
        wait_until(lambda: self._restarts() > restarts)

    def wait_for_end(self) -> str:
        return self.cluster.wait_for_job(self.id, ["COMPLETED", "FAILED", "CANCELLED"])

    def signal(self) -> None:
        self.cluster.on("ctl", "scancel", "--signal=USR1", self.id)

    def shown(self) -> str:
        """What SLURM says of the job."""
        return self.cluster.on("ctl", "scontrol", "show", "job", self.id).output

    def _restarts(self) -> int:
        return int(self.shown().partition("Restarts=")[2].split()[0])

    def assert_finishes_like_an_uninterrupted_run(self, reference: Path) -> None:
        """Let the job that waits in the queue train two more epochs; compare it with two processes on one machine."""
        epochs = read_checkpoint(self.run / "last.pth")["progress"]["epoch"] + 2
        self.finish_after(epochs)
        assert self.wait_for_end() == "COMPLETED", self.log()[-3000:]
        assert status_of(self.run) == "finished"
        assert "Resuming from" in self.log()
        reference_run(self.cluster, reference, "--epochs", str(epochs))
        # The best checkpoints may differ in the setting train.epochs, which was another one when they were written.
        states = [read_checkpoint(folder / "last.pth") for folder in (self.run, reference)]
        for state in states:
            del state["config"]["checkpoint"]["path"]
        assert find_differences(*states) == []


def test_template_resumes_after_every_stop(cluster: Cluster, tmp_path: Path) -> None:
    job = TemplateJob(cluster, tmp_path)
    for _ in range(2):
        job.wait_for_steps()
        job.wait_for_requeue(job.signal)
    job.assert_finishes_like_an_uninterrupted_run(tmp_path / "reference")
    assert job.log().count("Stopped after step") == 2 and job.log().count("Resuming from") == 2


def test_template_tries_again_when_the_hosts_do_not_reach_each_other(cluster: Cluster, tmp_path: Path) -> None:
    for node in NODES:
        cluster.name_hosts(node, "127.0.1.1")
    job = TemplateJob(cluster, tmp_path, flags=("--timeout", "0.5"))
    job.wait_for_requeue(lambda: None)
    assert "GLOO_SOCKET_IFNAME" in job.log()
    for node in NODES:
        cluster.name_hosts(node)
    job.wait_for_steps()
    job.wait_for_requeue(job.signal)
    job.assert_finishes_like_an_uninterrupted_run(tmp_path / "reference")
    assert not (job.run / "failed-starts").exists()


def test_template_does_not_requeue_a_run_with_a_refused_setting(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.status").write_text("stopped\n")
    job = TemplateJob(cluster, tmp_path, flags=("--lr", "-1"))
    assert job.wait_for_end() == "FAILED"
    assert "Restarts=0" in job.shown()
    assert "optim.lr must be positive" in job.log()


def test_template_does_not_requeue_a_cancelled_run(cluster: Cluster, tmp_path: Path) -> None:
    job = TemplateJob(cluster, tmp_path)
    job.wait_for_steps()
    cluster.on("ctl", "scancel", job.id)
    wait_until(lambda: status_of(job.run) == "stopped", 60)
    assert job.wait_for_end() == "CANCELLED" and "Restarts=0" in job.shown()

"""The hosts of tests/cluster/cluster.sh: commands on them, and training runs under SLURM and torchrun."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from posenet.checkpoints.file import read_checkpoint
from tests.helpers.tiny_training import TINY, data_settings

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "cluster" / "cluster.sh"
TRAIN = ROOT / "tools" / "train_distributed.py"
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "nsenter")
NODES = ("node1", "node2")
TIMEOUT_SECONDS = 600
"""Time limit of a command; most take ten to thirty seconds on a machine that does nothing else."""

SETTINGS = [*TINY, "checkpoint.every_steps=1"]
ENDLESS = ("--epochs", "99999")
"""A run that lasts until something ends it."""


class Outcome(NamedTuple):
    """How a command ended."""

    status: int
    output: str  # standard output and standard error, with a line for every state of a progress bar
    seconds: float


class Command:
    """A command that runs on a host in the background."""

    def __init__(self, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        self.output = output
        self._started = time.monotonic()
        with open(output, "w") as file:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> Outcome:
        """Wait for the end of the command."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {timeout} s: {self.read()[-3000:]}") from None
        return Outcome(status, self.read(), time.monotonic() - self._started)

    def read(self) -> str:
        return self.output.read_text(errors="replace").replace("\r", "\n")

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the command and all processes that it has started on this machine in its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Cluster:
    """A controller and two nodes; ``folder`` is shared by all of them."""

    def __init__(self, folder: Path, stores: Mapping[str, Path]) -> None:
        self.folder = folder
        self.stores = stores
        self._commands: list[Command] = []
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not re.match("SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_|GLOO_", name)
        } | {
            "CLUSTER": str(folder),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def up(self) -> None:
        """Start the hosts, replacing those of an earlier run that was killed."""
        self.down()
        subprocess.run([SCRIPT, "up", self.folder], check=True, env=self._environment)

    def down(self) -> None:
        for command in self._commands:
            command.kill()
        subprocess.run([SCRIPT, "down", self.folder], check=True, env=self._environment)

    def reset(self) -> None:
        """Cancel all jobs, end all commands, connect all hosts, and restore their names."""
        for command in self._commands:
            command.kill()
        self._commands.clear()
        for node in NODES:
            self.link(node, "up")
            self.name_hosts(node)
        self.on("ctl", "scancel", "--full", "--signal=KILL", "--user=root")
        self.on("ctl", "scancel", "--user=root")
        wait_until(lambda: not self.on("ctl", "squeue", "-h").output.strip())
        wait_until(lambda: "2 idle" in self.on("ctl", "sinfo", "-h", "-o", "%D %t").output)

    def start(self, host: str, *command: str | Path, environment: Mapping[str, str] | None = None) -> Command:
        """Start a command on a host."""
        output = self.folder / f"output-{len(list(self.folder.glob('output-*')))}"
        arguments = [str(SCRIPT), "on", host, *map(str, command)]
        started = Command(arguments, output, self._environment | dict(environment or {}))
        self._commands.append(started)
        return started

    def on(self, host: str, *command: str | Path, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run a command on a host."""
        return self.start(host, *command, environment=environment).wait()

    def link(self, node: str, state: str) -> None:
        """Connect a node ("up"), or cut its connection ("down")."""
        subprocess.run([SCRIPT, "link", node, state], check=True, env=self._environment)

    def name_hosts(self, node: str, own_address: str | None = "") -> None:
        """Write the /etc/hosts of a node. Its own name has another address, or none if ``own_address`` is None."""
        addresses = {"localhost": "127.0.0.1", "ctl": "10.77.0.254", "node1": "10.77.0.1", "node2": "10.77.0.2"}
        if own_address is None:
            del addresses[node]
        elif own_address:
            addresses[node] = own_address
        # In place, because the hosts have mounted this file.
        (self.folder / "hosts" / node).write_text("".join(f"{ip} {name}\n" for name, ip in addresses.items()))

    def train(self, run: Path, *flags: str, tool: Path = TRAIN) -> list[str]:
        """The command of a tiny training run in the folder ``run``."""
        return [sys.executable, str(tool), "-p", str(run), *flags, *self.settings()]

    def settings(self) -> list[str]:
        """The settings of a tiny training run; others may follow them."""
        return ["--device", "cpu", "--set", *SETTINGS, *data_settings(self.stores)]

    def wait_for_job(self, job: str, states: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> str:
        """Wait until a job is in one of the states; return the state."""
        state = ""

        def reached() -> bool:
            nonlocal state
            shown = self.on("ctl", "scontrol", "show", "job", job).output
            found = re.search(r"JobState=(\w+)", shown)
            state = found[1] if found else ""
            return state in states

        wait_until(reached, timeout)
        return state

    def submit(self, *command: str | Path) -> str:
        """Submit a batch job; return its id."""
        output = self.on("ctl", "sbatch", "--parsable", *command)
        assert output.status == 0, output
        return output.output.strip().splitlines()[-1]


def missing_requirement() -> str:
    """Why no cluster can be started here; empty if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the cluster needs Linux and root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found; apt-get install slurm-wlm munge iproute2"
    probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "this system does not allow network namespaces"


def wait_until(condition: Callable[[], bool], timeout: float = TIMEOUT_SECONDS) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "nothing has happened in time"
        time.sleep(0.2)


def steps_in(run: Path) -> int:
    """Steps of the newest checkpoint of a run; 0 if it has none."""
    last = run / "last.pth"
    return int(read_checkpoint(last)["progress"]["total_steps"]) if last.exists() else 0


def status_of(run: Path) -> str:
    """The word in ``run.status``."""
    path = run / "run.status"
    return path.read_text().strip() if path.exists() else "no status"


def error_line(output: str) -> str:
    """The last line of an output that a tool of posenet has written as an error."""
    lines = [line for line in output.splitlines() if ".py: error: " in line]
    return lines[-1] if lines else ""

"""Running a tool in several processes: its flags, starting the processes with torchrun, and how they end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from posenet.cli.main import run_and_report
from posenet.cli.options import ArgumentContainer, non_negative_int, positive_int
from posenet.devices.ranks import SHARE_TIMEOUT_MINUTES, Ranks, join_ranks, rank_info
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError, PosenetError

STATUS_FILE_VARIABLE = "POSENET_STATUS_FILE"
"""Environment variable with the file into which rank 0 writes its exit status."""


def add_process_options(parser: argparse.ArgumentParser) -> ArgumentContainer:
    """Declare the flags of a tool that can run in several processes; return their group."""
    group = parser.add_argument_group("processes")
    group.add_argument(
        "--nproc",
        type=positive_int,
        default=1,
        metavar="N",
        help="start N processes on this machine; 1 runs in this process, or in those of a launcher such as torchrun",
    )
    return group


def add_local_rank(container: ArgumentContainer) -> None:
    """Accept the flag that torch.distributed.launch adds; the number is in the environment, too."""
    container.add_argument("--local-rank", type=non_negative_int, help=argparse.SUPPRESS)


def refuse_launcher(remedy: str) -> None:
    """Raise ``ConfigError`` if a launcher has started several processes of a tool that runs in one process."""
    info = rank_info(os.environ)
    if info.world_size > 1:
        raise ConfigError(
            f"{info.launcher} has started {info.world_size} processes of this tool, and each would be a run of "
            f"its own; {remedy}, or start one process"
        )


def was_started_by_us() -> bool:
    """Whether ``--nproc`` has started this process."""
    return STATUS_FILE_VARIABLE in os.environ


def run_on_ranks(
    args: argparse.Namespace,
    task: Callable[[Ranks], int | None],
    check: Callable[[], object] = lambda: None,
    join: Callable[[], Ranks | None] = lambda: join_ranks(SHARE_TIMEOUT_MINUTES),
) -> int:
    """Run a tool as one of several processes, or start the ``--nproc`` processes that do; return the exit status.

    Args:
        task: does the part of one process, and returns its exit status. If it fails, the process reports its error and
            ends, whatever the others do.
        check: refuses bad input before this process starts others, of which each would first import PyTorch.
        join: joins the processes that a launcher has started with this one.
    """
    if args.nproc > 1 and not was_started_by_us():
        if rank_info(os.environ).world_size > 1:
            raise ConfigError("a launcher has started this process; leave out --nproc")
        check()
        return run_processes(args.nproc, args.command)
    if was_started_by_us():
        stop_with_parent()
    ranks = join() or Ranks()
    try:
        status = run_and_report(lambda: task(ranks), args.prog)
    except Exception:  # a fault of the program
        traceback.print_exc()
        status = 1
    if was_started_by_us() and ranks.is_main:
        Path(os.environ[STATUS_FILE_VARIABLE]).write_text(str(status), encoding="utf-8")
    if status in (0, STOPPED_STATUS) or ranks.world_size == 1:
        ranks.close()
    else:
        # Leaving the process group, or the end of the interpreter, could wait for a process that hangs.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    # srun reports the highest status of its processes, so one with the status of a stopped run is enough. It is rank 0,
    # which writes the checkpoint: with --kill-on-bad-exit the first such process ends all others. A torchrun of the
    # user may start a process again that ends with an error.
    is_of_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not was_started_by_us()
    return 0 if status == STOPPED_STATUS and (is_of_torchrun or not ranks.is_main) else status


def run_processes(count: int, arguments: Sequence[str]) -> int:
    """Run ``posenet ARGUMENTS`` in ``count`` processes on this machine with torchrun, until all have ended.

    Stop signals are passed on to them. The exit status is 0, or that of the first process that failed; after a signal,
    that of rank 0. ``PosenetError`` if a process was killed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Seconds in which they can finish their step and save after a stop signal, or end after another one has failed.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    if hasattr(signal, "SIGUSR1"):  # torchrun forwards only the other two
        signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="posenet-") as folder:
        status_file = Path(folder) / "status"
        os.environ[STATUS_FILE_VARIABLE] = str(status_file)
        logging.disable()  # the processes report their errors themselves
        try:
            # Without "--", torchrun takes some flags of the tool for its own.
            torchrun.main(["--standalone", f"--nproc-per-node={count}", "--module", "--", "posenet", *arguments])
        except SignalException as error:
            # torchrun does not tell how the processes have ended.
            return int(status_file.read_text(encoding="utf-8")) if status_file.exists() else 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:
                name = signal.Signals(-failure.exitcode).name
                raise PosenetError(
                    f"rank {rank} of {count} was ended by {name}, and with it the others; lines above may say why; "
                    "without memory (SIGKILL, SIGBUS), lower data.workers or train.batch_size"
                ) from error
            return failure.exitcode
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[STATUS_FILE_VARIABLE]
    return 0


def stop_with_parent() -> None:
    """Let SIGTERM stop this process, which ``run_processes`` has started, when that has been killed.

    Otherwise the ranks would train on, and nobody would know of them.
    """

    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()

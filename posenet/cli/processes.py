"""Running a tool in several processes: its flags, starting the processes, and how they end."""

import argparse
import functools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import FrameType

from posenet.cli.main import run_and_report, run_tool
from posenet.cli.options import ArgumentContainer, positive_int
from posenet.devices.ranks import SHARE_TIMEOUT_MINUTES, Ranks, join_ranks, rank_info
from posenet.devices.signals import STOP_SIGNALS, STOPPED_STATUS
from posenet.errors import ConfigError, PosenetError

GRACE_SECONDS = 10.0
"""Time in which the others end by themselves after a process has failed, and again after they have got SIGTERM."""


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


def refuse_launcher(remedy: str) -> None:
    """Raise ``ConfigError`` if a launcher has started several processes of a tool that runs in one process."""
    info = rank_info(os.environ)
    if info.world_size > 1:
        raise ConfigError(
            f"{info.launcher} has started {info.world_size} processes of this tool, and each would be a run of "
            f"its own; {remedy}, or start one process"
        )


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
    is_started_by_nproc = multiprocessing.parent_process() is not None
    if args.nproc > 1 and not is_started_by_nproc:
        if rank_info(os.environ).world_size > 1:
            raise ConfigError("a launcher has started this process; leave out --nproc")
        check()
        import posenet.devices.parallel  # noqa: F401  # where it has been removed, this process alone says so

        name, *words = args.command
        return run_processes(args.nproc, functools.partial(run_tool, name, words, args.prog))
    ranks = join() or Ranks()
    try:
        status = run_and_report(lambda: task(ranks), args.prog)
    except Exception:  # a fault of the program
        traceback.print_exc()
        status = 1
    if status in (0, STOPPED_STATUS) or ranks.world_size == 1:
        ranks.close()
    else:
        # Leaving the process group, or the end of the interpreter, could wait for a process that hangs.
        if sys.stdout is not None:  # else it is closed
            sys.stdout.flush()
        os._exit(status)
    # srun reports the highest status of its processes, so one with the status of a stopped run is enough. It is rank 0,
    # which writes the checkpoint: with --kill-on-bad-exit the first such process ends all others. torchrun may start a
    # process again that ends with an error.
    is_of_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    return 0 if status == STOPPED_STATUS and (is_of_torchrun or not ranks.is_main) else status


def run_processes(count: int, task: Callable[[], int]) -> int:
    """Run a task, which can be pickled and returns an exit status, in ``count`` processes of this machine.

    Stop signals are passed on to them, and they end when this process is killed. Returns 0, or the exit status of the
    first process that failed. ``PosenetError`` if a process was killed.
    """
    from torch.multiprocessing.spawn import ProcessExitedException, spawn

    logging.getLogger("torch.multiprocessing").setLevel(logging.ERROR)  # the processes report their errors themselves
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = spawn(_run_rank, (count, port, task), count, join=False)  # type: ignore[no-untyped-call]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in context.processes:
            if process.is_alive():
                os.kill(process.pid, number)

    handlers = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        while not context.join(grace_period=GRACE_SECONDS):
            pass
    except ProcessExitedException as error:
        if error.exit_code >= 0:
            return error.exit_code
        raise PosenetError(
            f"rank {error.error_index} of {count} was ended by {error.signal_name}, and with it the others; lines "
            "above may say why; without memory (SIGKILL, SIGBUS), lower data.workers or train.batch_size"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


def _run_rank(rank: int, count: int, port: int, task: Callable[[], int]) -> None:
    """Run a task with the environment of torchrun."""
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal would send it Ctrl-C too, which would count twice
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    multiprocessing.set_start_method(None, force=True)  # data workers are started as in a process alone
    sys.exit(task())

"""Running a tool in several processes: its flags, starting the processes, and how they end."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable

from posenet.cli.main import run_and_report
from posenet.cli.options import ArgumentContainer, non_negative_int, positive_int
from posenet.devices.launch import rank_info, run_processes, stop_with_parent, was_started_by_us
from posenet.devices.ranks import SHARE_TIMEOUT_MINUTES, Ranks, join_ranks
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import ConfigError
from posenet.messages import pluralize
from posenet.threads import usable_cores

_log = logging.getLogger(__name__)

MAX_PROCESSES = 64
"""Processes that ``--nproc`` may start on any machine; on one with more cores, as many as those."""


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
    if info.launcher and info.world_size > 1:
        raise ConfigError(
            f"{info.launcher.name} has started {info.world_size} processes of this tool, and each would be a run of "
            f"its own; {remedy}, or start one process"
        )


def run_on_ranks(
    args: argparse.Namespace,
    task: Callable[[Ranks], int | None],
    check: Callable[[], object] = lambda: None,
    join: Callable[[], Ranks | None] = lambda: join_ranks(SHARE_TIMEOUT_MINUTES),
) -> int:
    """Run a tool as one of several processes, or start the ``--nproc`` processes that do.

    Args:
        task: does the part of one process, and returns its exit status.
        check: refuses bad input before this process starts others, of which each would first import PyTorch.
        join: joins the processes that a launcher has started with this one.

    Returns:
        The exit status. If a process fails, it reports its error and ends, whatever the others do.
    """
    started_by_us = was_started_by_us(os.environ)
    if args.nproc > 1 and not started_by_us:
        if rank_info(os.environ).world_size > 1:
            raise ConfigError("a launcher has started this process; leave out --nproc")
        limit = max(MAX_PROCESSES, os.cpu_count() or 1)
        if args.nproc > limit:
            raise ConfigError(f"--nproc {args.nproc}: too many processes for this machine; start {limit} at most")
        check()
        cores = usable_cores()
        if args.nproc > cores:
            _log.warning(
                "--nproc %d: this machine has only %s for them, so the processes wait for each other; start one "
                "process for each device, and at most one for each core",
                args.nproc,
                pluralize(cores, "core"),
            )
        return run_processes(args.nproc, args.command)
    if started_by_us:
        stop_with_parent()
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
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    # srun reports the highest status of its processes, so one with the status of a stopped run is enough. It is rank 0,
    # which writes the checkpoint: with --kill-on-bad-exit the first such process ends all others. A torchrun of the
    # user may start a process again that ends with an error.
    is_of_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not started_by_us
    return 0 if status == STOPPED_STATUS and (is_of_torchrun or not ranks.is_main) else status

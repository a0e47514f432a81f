"""Train a PoseNet in several processes, on one machine or several (DistributedDataParallel).

Under torchrun, srun or the old launcher this is one of the processes. Without a launcher it starts ``--nproc`` of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch

from posenet.cli.logging_setup import log_to_stderr
from posenet.cli.main import run_and_report
from posenet.cli.options import non_negative_int, positive_int
from posenet.cli.training import train
from posenet.cli.training_options import add_training_options, flag_overrides
from posenet.devices.distributed import (
    DistributedRuntime,
    device_of_rank,
    is_lost_contact,
    require_devices,
)
from posenet.devices.launch import launch
from posenet.devices.rank_info import SINGLE_PROCESS, RankInfo, rank_info_from_environment
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES
from posenet.errors import ConfigError, PosenetError
from posenet.settings import load_config

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train-distributed``."""
    add_training_options(parser)
    parser.add_argument(
        "--nproc",
        type=positive_int,
        metavar="N",
        help="start N processes on this machine; by default, train in this process",
    )
    parser.add_argument(
        "--local-rank",
        type=non_negative_int,
        metavar="R",
        help="number of this process on its machine, as the old torch.distributed.launch passes it; by default, that "
        "of the environment",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_MINUTES,
        metavar="MIN",
        help="minutes that a process waits for the others before it fails",
    )


def run(args: argparse.Namespace) -> int:
    """Train as one process of a launcher, or start --nproc processes that train; return the exit status."""
    rank_info = rank_info_from_environment(os.environ, args.local_rank)
    if rank_info is not None and args.nproc:
        raise ConfigError("a launcher has started this process; leave out --nproc")
    if args.nproc and args.nproc > 1:
        if args.resume is None:  # else the device may be that of the checkpoint
            require_devices(load_config(args.config, args.overrides + flag_overrides(args)).train.device, args.nproc)
        return launch(args.nproc, _run_launched_process, args)
    status = _train(args, rank_info or SINGLE_PROCESS)
    # torchrun takes any other status than 0 for a failure and would start the run again.
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else status


def _run_launched_process(rank_info: RankInfo, args: argparse.Namespace) -> None:
    """The task of every process that ``launch`` starts."""
    with log_to_stderr(args.log_format, args.quiet):
        status = run_and_report(lambda: _train(args, rank_info), "train_distributed.py")
    if status:
        sys.exit(status)


def _train(args: argparse.Namespace, rank_info: RankInfo) -> int:
    """Train as one process of a run; return the exit status."""
    if rank_info.rank:
        logging.getLogger("posenet").setLevel(logging.ERROR)
    if rank_info.restarts:
        _resume_after_restart(args, rank_info)
    if torch.accelerator.is_available():
        # From here on, "cuda" means the device of this process.
        torch.accelerator.set_device_index(rank_info.local_rank % torch.accelerator.device_count())
    runtimes: list[DistributedRuntime] = []

    def make_runtime(device: torch.device) -> DistributedRuntime:
        runtime = DistributedRuntime(device_of_rank(device, rank_info), rank_info, args.timeout)
        runtimes.append(runtime)
        _log.info("Process %d of %d on %s", rank_info.rank, rank_info.world_size, runtime.device)
        return runtime

    try:
        status = train(args, make_runtime)
    except PosenetError as error:
        if rank_info.local_rank and (not runtimes or error.on_all_ranks):
            # All processes of a host have the same error, so only the first one reports it.
            sys.exit(2)
        raise _name_rank(error, rank_info) from error
    except RuntimeError as error:
        if not is_lost_contact(error):
            raise
        raise _name_rank(runtimes[0].explain_lost_contact(error), rank_info) from error
    # srun reports the highest status of its processes, so one process with a status other than 0 is enough. It is rank
    # 0, which writes the checkpoint: with --kill-on-bad-exit the first such process ends all others.
    return status if rank_info.rank == 0 else 0


def _name_rank(error: PosenetError, rank_info: RankInfo) -> PosenetError:
    """The same error with the rank in its message, except for rank 0."""
    return type(error)(f"rank {rank_info.rank}: {error}") if rank_info.rank else error


def _resume_after_restart(args: argparse.Namespace, rank_info: RankInfo) -> None:
    """Let a run that an elastic launcher has restarted resume from the newest checkpoint of its folder."""
    if not args.resume or args.checkpoint_path:
        args.resume = ""
    elif Path(args.resume).is_file():
        args.resume = str(Path(args.resume).parent)
    _log.info("Restart %d by the launcher: resuming", rank_info.restarts)

"""Train a PoseNet in many processes, on one machine or several (DistributedDataParallel).

Under torchrun, srun or the old launcher this is one of the processes; by itself it starts --nproc of them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch

from posenet.cli.logging_setup import messages
from posenet.cli.main import status_of
from posenet.cli.options import natural, positive
from posenet.cli.training import train
from posenet.cli.training_options import add_training_options
from posenet.devices.distributed import DistributedRuntime, device_of_rank, is_lost_contact
from posenet.devices.launch import launch
from posenet.devices.rank_info import SINGLE_PROCESS_INIT_METHOD, RankInfo, rank_info_from_environment
from posenet.errors import ConfigError, PosenetError, TrainingError

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_options(parser)
    parser.add_argument(
        "--nproc",
        type=positive,
        metavar="N",
        help="start N processes on this machine; unset and without a launcher, train in this one",
    )
    parser.add_argument(
        "--local-rank",
        type=natural,
        metavar="R",
        help="this process's number on its machine, as the old torch.distributed.launch gives it",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="MIN",
        help="minutes that a process waits for the others before it gives up",
    )


def run(args: argparse.Namespace) -> None:
    place = rank_info_from_environment(os.environ, args.local_rank)
    if place is not None and args.nproc:
        raise ConfigError("a launcher has started this process; leave out --nproc")
    if args.nproc and args.nproc > 1:
        launch(args.nproc, _started, args)
    else:
        _train(args, place or RankInfo(0, 1, 0, SINGLE_PROCESS_INIT_METHOD))


def _started(args: argparse.Namespace) -> None:
    """What a process of ``launch`` runs."""
    with messages(args.log_format):
        status = status_of(lambda: _train(args, rank_info_from_environment(os.environ)), "train_distributed.py")
    if status:
        sys.exit(status)


def _train(args: argparse.Namespace, place: RankInfo) -> None:
    if place.rank:
        logging.getLogger("posenet").setLevel(logging.ERROR)
    if place.restarts:
        _resume_by_itself(args, place)
    if torch.accelerator.is_available():
        # So that "cuda" means this process's own one from the start.
        torch.accelerator.set_device_index(place.local_rank % torch.accelerator.device_count())
    joined = []

    def make_runtime(device: torch.device) -> DistributedRuntime:
        joined.append(DistributedRuntime(device_of_rank(device, place), place, args.timeout))
        _log.info("Process %d of %d on %s", place.rank, place.world_size, joined[0].device)
        return joined[0]

    try:
        train(args, make_runtime)
    except PosenetError as error:
        if place.local_rank and not joined:
            # The same flags and files: the machine's first process says what is wrong with them.
            sys.exit(2)
        raise type(error)(f"rank {place.rank}: {error}" if place.rank else str(error)) from error
    except RuntimeError as error:
        if not is_lost_contact(error):
            raise
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise TrainingError(
            f"rank {place.rank} has lost the other processes ({reason}); the launcher names the one that failed first"
        ) from error


def _resume_by_itself(args: argparse.Namespace, place: RankInfo) -> None:
    """An elastic launcher has started the run again: go on from the newest checkpoint of the run's folder."""
    if not args.resume or args.checkpoint_path:
        args.resume = ""
    elif Path(args.resume).is_file():
        args.resume = str(Path(args.resume).parent)
    _log.info("Restart %d by the launcher: resuming", place.restarts)

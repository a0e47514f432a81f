"""Train a PoseNet in several processes, on one machine or several (DistributedDataParallel).

Under torchrun or srun this is one of the processes. Without a launcher it starts ``--nproc`` of them.
"""

import argparse
from typing import TYPE_CHECKING, cast

from posenet.cli import train
from posenet.cli.options import minutes
from posenet.cli.processes import add_process_options, run_on_ranks
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, join_ranks

if TYPE_CHECKING:
    from posenet.devices.runtime import Runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``train-distributed``."""
    train.add_arguments(parser)
    add_process_options(parser).add_argument(
        "--timeout",
        type=minutes,
        default=DEFAULT_TIMEOUT_MINUTES,
        metavar="MIN",
        help="minutes that a process waits for the others before it fails",
    )


def run(args: argparse.Namespace) -> int:
    """Train as one process of a launcher, or start --nproc processes that train; return the exit status."""
    return run_on_ranks(
        args,
        task=lambda ranks: train.train_with_flags(args, cast("Runtime", ranks) if ranks.world_size > 1 else None),
        check=lambda: _check(args),
        join=lambda: join_ranks(args.timeout, args.timeout),
    )


def _check(args: argparse.Namespace) -> None:
    train.check_settings(args)
    if args.data is not None:  # here, so that the processes need not wait for it: they find the stores up to date
        from posenet.training.from_annotations import prepare

        sources = {"images": args.images, "val": args.val, "val_images": args.val_images}
        prepare(args.data, train.overrides(args), experiment=args.config, resume=args.resume, **sources)

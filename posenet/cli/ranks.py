"""Running a tool in several processes: flags, starting the processes, and what they agree on before they work."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from posenet.cli.options import non_negative_int, positive_int
from posenet.devices.launch import launched_processes, run_processes, was_started_by_us
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, Ranks
from posenet.errors import ConfigError, DataError, PosenetError
from posenet.files import write_atomically
from posenet.inference.backends.loading import is_exported_file
from posenet.inference.shared_work import Team

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

Result = TypeVar("Result")
Task = Callable[[argparse.Namespace, "RankInfo"], None]

EXCHANGE_MARKER = "exchange.id"
"""A file in every exchange folder. Its text differs from run to run."""

_log = logging.getLogger(__name__)


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a tool that several processes can share."""
    add = parser.add_argument
    add(
        "--nproc",
        type=positive_int,
        metavar="N",
        help="start N processes on this machine, which share the work; by default, one process, or those that torchrun "
        "or srun has started",
    )
    add("--local-rank", type=non_negative_int, metavar="R", help=argparse.SUPPRESS)
    add(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_MINUTES,
        metavar="MIN",
        help="minutes that a process waits for another one that shows no sign of life",
    )
    add(
        "--threads",
        type=positive_int,
        metavar="N",
        help="CPU threads of each process. On a CPU their number affects the last bits of the results. By default, as "
        "many as one process uses",
    )


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """The rank of this process, from the variables of its launcher."""

    rank: int
    world_size: int


def run_on_ranks(args: argparse.Namespace, task: Task) -> int:
    """Call ``task(args, rank_info)`` in this process, or in each of the ``--nproc`` processes that this one starts.

    Args:
        task: a function of a module, so that other processes can import it.
    """
    world_size = launched_processes(os.environ)
    if args.nproc and args.nproc > 1 and not was_started_by_us(os.environ):
        if world_size > 1:
            raise ConfigError("a launcher has started this process; leave out --nproc")
        return run_processes(args.nproc, args.command)
    rank = int(os.environ["RANK"]) if world_size > 1 else 0
    _run_as_rank(args, RankInfo(rank, world_size), task)
    return 0


def _run_as_rank(args: argparse.Namespace, rank_info: RankInfo, task: Task) -> None:
    if args.threads and not is_exported_file(args.checkpoint):  # without PyTorch, the backend sets its threads
        import torch

        torch.set_num_threads(args.threads)
    if rank_info.world_size == 1:
        task(args, rank_info)
        return
    task(args, rank_info)


def use_device_of_rank(args: argparse.Namespace, rank_info: RankInfo) -> None:
    """Let ``--device`` name the device of this process: the one with its local rank as index, as in training."""
    if rank_info.world_size > 1 and args.backend in (None, "torch") and not is_exported_file(args.checkpoint):
        from posenet.devices.runtime import device_of_rank

        args.device = str(device_of_rank(args.device, int(os.environ.get("LOCAL_RANK", 0))))


@contextlib.contextmanager
def open_runtime(args: argparse.Namespace, rank_info: RankInfo) -> Iterator[Ranks]:
    """What the processes need to agree before they work; they exchange nothing over it while they work."""
    if rank_info.world_size == 1:
        yield Ranks()
        return
    from posenet.devices.runtime import DistributedRuntime

    with contextlib.closing(DistributedRuntime(args.timeout)) as runtime:
        yield runtime


def run_on_main(runtime: Ranks, function: Callable[[], Result]) -> Result:
    """The result of a function that only rank 0 calls. If it fails, rank 0 raises the error and the others exit."""
    result: Result | None = None
    error: Exception | None = None
    if runtime.is_main:
        try:
            result = function()
        except (PosenetError, OSError) as caught:
            error = caught
    has_failed, result = runtime.broadcast_object((error is not None, result))
    if error is not None:
        raise error
    if has_failed:
        sys.exit(2)
    return result


def run_on_all(runtime: Ranks, function: Callable[[], Result]) -> Result:
    """The result of a function that every rank calls. If it fails anywhere, one rank raises its error, all others exit.

    So an error that all ranks have is reported once.
    """
    error: Exception | None = None
    result: Result | None = None
    try:
        result = function()
    except (PosenetError, OSError) as caught:
        error = caught
    failed = [rank for rank, has_failed in enumerate(runtime.gather_objects(error is not None)) if has_failed]
    if error is not None and runtime.rank == failed[0]:
        raise error
    if failed:
        sys.exit(2)
    return result  # type: ignore[return-value]  # only a function that has failed has no result


@contextlib.contextmanager
def form_team(
    args: argparse.Namespace, runtime: Ranks, folder: Path | None, *, resume: bool = False, keep: bool = False
) -> Iterator[Team | None]:
    """The team of all ranks, with an exchange folder that rank 0 makes and removes; None for a single process.

    Args:
        folder: path of the exchange folder; None for a temporary one.
        resume: use the results that an earlier run has left in the folder.
        keep: keep the folder if the context ends with an error or an interruption, for another run with ``resume``.

    Raises:
        DataError: a rank does not see the folder, or it is not an exchange folder.
    """
    if runtime.world_size == 1 and not (resume and folder is not None and _is_exchange_folder(folder)):
        if folder is not None and _is_exchange_folder(folder):
            _remove_folder(folder)
        yield None
        return
    folder, run_id = run_on_main(runtime, functools.partial(_make_exchange_folder, folder, resume))
    run_on_all(runtime, functools.partial(_check_folder, folder, run_id))
    try:
        yield Team(runtime.rank, runtime.world_size, folder, args.timeout * 60)
    finally:
        # Rank 0 ends with units missing if it was interrupted or has failed.
        is_complete = not any(folder.glob("*.jsonl")) and sys.exc_info()[0] is None
        if runtime.is_main and (is_complete or not keep):
            _remove_folder(folder)


def _make_exchange_folder(folder: Path | None, resume: bool) -> tuple[Path, str]:
    """Make the folder; return its path and the text of its marker."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="posenet-"))
    elif folder.exists() and not _is_exchange_folder(folder):
        raise DataError(
            f"{folder} is needed to exchange results, but this tool has not made it; rename it, or choose another "
            "output"
        )
    elif not resume:
        _remove_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in [*folder.glob("rank-*.json"), *folder.glob("*.tmp")]:
        leftover.unlink()
    run_id = uuid.uuid4().hex
    write_atomically(folder / EXCHANGE_MARKER, run_id.encode())
    return folder.absolute(), run_id


def _is_exchange_folder(folder: Path) -> bool:
    """Whether ``form_team`` has made the folder. One that was removed incompletely may lack the marker."""
    if not folder.is_dir():
        return False
    names = os.listdir(folder)
    return EXCHANGE_MARKER in names or all(re.match(r"\.?rank-\d+\.json", name) for name in names)


def _remove_folder(folder: Path) -> None:
    """Remove a folder into which other ranks may still write their last signs of life."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def _check_folder(folder: Path, run_id: str) -> None:
    try:
        is_shared = (folder / EXCHANGE_MARKER).read_text(encoding="utf-8") == run_id
    except OSError:
        is_shared = False
    if not is_shared:
        raise DataError(
            f"{folder} is not the same folder on all machines; write the results into a folder that all of them share"
        )

"""The processes of a run, what they tell each other, and finding them, so that a call in a script of each is one run.

This module does not import PyTorch: a single process predicts with an exported file without it.
"""

from __future__ import annotations

import contextvars
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from posenet.devices.launch import rank_info
from posenet.errors import OtherRankError, PosenetError

DEFAULT_TIMEOUT_MINUTES = 10.0
"""Time for which a rank waits for the others in a collective call."""
SHARE_TIMEOUT_MINUTES = 24 * 60.0
"""Time for which a rank that has predicted its share waits for the others: a launcher ends all if one fails."""

Result = TypeVar("Result")
Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])
_is_running = contextvars.ContextVar("_is_running", default=False)


class Ranks:
    """All processes of a run, as one of them sees them; here a single one."""

    rank = 0  # index of this process among all processes of the run
    world_size = 1  # number of processes of the run
    local_rank = 0  # index of this process among those of this machine

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes the files of a run."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """The part of this rank: the parts of all ranks, in rank order, are of about equal size, and are the whole."""
        rank, count = self.rank, self.world_size
        return items[len(items) * rank // count : len(items) * (rank + 1) // count]

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0."""
        return value

    def raise_on_all(self, error: Exception | None) -> None:
        """End all ranks if one of them has an error. All ranks call this at the same point; None means no error.

        Raises:
            Exception: ``error``, on the first rank that has one.
            OtherRankError: on all other ranks.
        """
        failed = [rank for rank, has_error in enumerate(self.gather_objects(error is not None)) if has_error]
        if not failed:
            return
        if error is not None and self.rank == failed[0]:
            raise error
        raise OtherRankError(f"rank {failed[0]} has failed and reports why")

    def run_on_all(self, function: Callable[[], Result]) -> Result:
        """The result of a function that every rank calls. If it fails on one, all ranks end; see ``raise_on_all``.

        Errors are ``PosenetError`` and ``OSError``. Any other exception is a fault of the program: it is not shared,
        and ends the other ranks when this one ends.
        """
        error = None
        try:
            result = function()
        except (PosenetError, OSError) as caught:
            error = caught
        self.raise_on_all(error)
        return result

    def run_on_main(self, function: Callable[[], Result]) -> Result | None:
        """The result of a function that rank 0 calls; None on the other ranks. Errors: see ``run_on_all``."""
        return self.run_on_all(lambda: function() if self.is_main else None)

    def close(self) -> None:
        """Leave the processes, at the end of a run."""


def join_ranks(timeout_minutes: float, meet_minutes: float = DEFAULT_TIMEOUT_MINUTES) -> Ranks | None:
    """Join the processes of the process group that exists, or else those that a launcher has started with this one.

    None if this process is alone; it does not import PyTorch then. Arguments and errors: see ``DistributedRuntime``.
    """
    distributed = sys.modules.get("torch.distributed")
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not has_group and rank_info(os.environ).world_size == 1:
        return None
    from posenet.devices.parallel import DistributedRuntime

    return DistributedRuntime(timeout_minutes, meet_minutes)


def run_in_all_processes(
    parameter: str, timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES
) -> Callable[[Function], Function]:
    """A decorator: the function gets those of ``join_ranks`` as the argument ``parameter``, unless the caller gives it.

    So each process calls the function, and all calls are one run. A call within a run, as in a callback, which only
    rank 0 makes, concerns this process alone. After an error the processes stay joined: leaving could wait for one
    that hangs.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            is_outermost = not _is_running.get()
            token = _is_running.set(True)
            try:
                if is_outermost and options.get(parameter) is None and (ranks := join_ranks(timeout_minutes)):
                    result = function(*args, **options | {parameter: ranks})
                    ranks.close()
                    return result
                return function(*args, **options)
            finally:
                _is_running.reset(token)

        return cast(Function, call)

    return decorate

"""Finding the processes that work together with this one, so that a call in a script of each is one run of all."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from posenet.devices.launch import rank_info
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, Ranks

Function = TypeVar("Function", bound=Callable[..., Any])
_is_running = contextvars.ContextVar("_is_running", default=False)


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
            joins = not _is_running.get() and options.get(parameter) is None
            token = _is_running.set(True)
            try:
                ranks = join_ranks(timeout_minutes) if joins else None
                if ranks is None:
                    return function(*args, **options)
                result = function(*args, **options | {parameter: ranks})
                ranks.close()
                return result
            finally:
                _is_running.reset(token)

        return cast(Function, call)

    return decorate

"""Computing results in threads before they are needed, and how many threads there should be."""

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Number of CPU cores that this process may use; containers and schedulers can limit it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1, ahead: int = 1
) -> Generator[Result, None, None]:
    """Like ``map``, with the same order of results, but the calls run on ``workers`` threads before they are needed.

    Items are read on the caller's thread. At most ``ahead`` calls are started before their results are requested. If
    reading an item fails, the results of those before it come first, as with ``map``.
    """
    failures: list[Exception] = []
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in keep_failure(items, failures):
                pending.append(pool.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            for failure in failures:
                raise failure
        finally:  # after an error, or if the results are no longer wanted, calls that have not started are dropped
            for call in pending:
                call.cancel()


def read_ahead(items: Iterable[Item], ahead: int) -> Generator[Item, None, None]:
    """The same items, ``ahead`` of them read on another thread before they are needed."""
    end = object()
    iterator = iter(items)
    # One worker, so that the calls follow each other.
    results = map_in_threads(lambda _: next(iterator, end), itertools.repeat(None), ahead=ahead)
    with contextlib.closing(results):
        for item in results:
            if item is end:
                return
            yield cast(Item, item)


def keep_failure(items: Iterable[Item], failures: list[Exception]) -> Iterator[Item]:
    """The same items; an error of ``items`` ends them, and is appended to ``failures`` instead of raised."""
    try:
        yield from items
    except Exception as error:
        failures.append(error)

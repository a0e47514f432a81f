"""Computing results in threads before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1, ahead: int = 1
) -> Generator[Result, None, None]:
    """Like ``map``, with the same order of results, but the calls run on ``workers`` threads before they are needed.

    Items are read on the caller's thread. At most ``ahead`` calls are started before their results are requested. If
    reading an item fails, the results of those before it come first, as with ``map``.
    """
    failure: Exception | None = None
    iterator = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            while True:
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                pending.append(pool.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            if failure is not None:
                raise failure
        finally:  # after an error, or if the results are no longer wanted, calls that have not started are dropped
            for future in pending:
                future.cancel()

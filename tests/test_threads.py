"""Work on background threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from posenet.threads import map_in_threads, read_ahead


def test_results_keep_the_order_of_the_items() -> None:
    assert list(map_in_threads(lambda item: item**2, range(20), workers=3, ahead=5)) == [i**2 for i in range(20)]
    assert list(map_in_threads(str, [])) == []


def test_calls_run_on_other_threads_and_only_so_many_ahead() -> None:
    main = threading.get_ident()
    read = []

    def items():
        for number in range(10):
            assert threading.get_ident() == main
            read.append(number)
            yield number

    results = map_in_threads(lambda _: threading.get_ident(), items(), workers=2, ahead=3)
    assert next(results) != main
    assert read == [0, 1, 2, 3]
    assert main not in list(results)


def test_an_error_reaches_the_caller_at_its_item() -> None:
    results = map_in_threads(lambda item: 1 // item, [1, 0], ahead=4)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("max_size, expected", [(25, 3), (30, 4), (99, 5)])
def test_so_many_are_read_ahead_that_their_results_are_not_too_large_together(max_size: int, expected: int) -> None:
    computed: list[int] = []
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            while len(computed) < number:
                time.sleep(0.001)
            read.append(number)
            yield number

    def compute(item: int) -> int:
        computed.append(item)
        return item

    results = map_in_threads(compute, items(), ahead=4, size_of=lambda result: 10, max_size=max_size)
    assert next(results) == 0 and 2 <= len(read) <= expected  # fewer while the size of the first is not known
    outstanding = []
    for number, result in enumerate(results, 1):
        assert result == number
        outstanding.append(len(read) - number)
    assert len(outstanding) == 8 and max(outstanding) == expected


def test_only_as_many_as_there_are_threads_are_read_while_the_size_of_results_is_unknown() -> None:
    read: list[int] = []
    read_during_first: list[int] = []

    def compute(item: int) -> int:
        if item == 0:
            time.sleep(0.1)
            read_during_first.append(len(read))
        return item

    items = (read.append(number) or number for number in range(9))
    results = map_in_threads(compute, items, ahead=4, size_of=lambda result: 10, max_size=99)
    assert list(results) == list(range(9)) and read_during_first[0] <= 2


def test_items_are_read_on_another_thread_and_come_before_the_error_of_reading_the_next() -> None:
    readers = []

    def items() -> Iterator[str]:
        for text in ("a", "bb"):
            readers.append(threading.get_ident())
            yield text
        raise OSError("the camera is gone")

    received: list[str] = []
    for results in (read_ahead(items(), ahead=9, size_of=len, max_size=99), map_in_threads(str, items(), ahead=9)):
        with pytest.raises(OSError, match="the camera is gone"):
            received.extend(results)
    assert received == ["a", "bb"] * 2
    main = threading.get_ident()
    assert [reader == main for reader in readers] == [False, False, True, True]
    assert list(read_ahead("abc", ahead=1, size_of=len, max_size=1)) == ["a", "b", "c"]


def test_calls_that_have_not_started_are_dropped_with_the_iterator() -> None:
    started: list[int] = []
    may_end = threading.Event()

    def work(item: int) -> int:
        started.append(item)
        if item == 1:
            may_end.wait(timeout=20)
        return item

    results = map_in_threads(work, range(9), ahead=3)
    assert next(results) == 0
    threading.Timer(0.3, may_end.set).start()  # closing waits for the call that runs
    results.close()
    assert started in ([0], [0, 1])  # 2 and 3 were waiting

"""Work on background threads."""

import threading
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


def test_items_are_read_on_another_thread_and_come_before_the_error_of_reading_the_next() -> None:
    readers = []

    def items() -> Iterator[str]:
        for text in ("a", "bb"):
            readers.append(threading.get_ident())
            yield text
        raise OSError("the camera is gone")

    received: list[str] = []
    for results in (read_ahead(items(), 9), map_in_threads(str, items(), ahead=9)):
        with pytest.raises(OSError, match="the camera is gone"):
            received.extend(results)
    assert received == ["a", "bb"] * 2
    main = threading.get_ident()
    assert [reader == main for reader in readers] == [False, False, True, True]
    assert list(read_ahead("abc", 1)) == ["a", "b", "c"]


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

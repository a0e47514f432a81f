"""Stop signals become a flag."""

import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, NoReturn

import pytest

from posenet.devices.signals import STOP_SIGNALS, catch_stop_signals, repeat_lost_interrupts


def current_handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_sets_the_flag_and_the_old_handlers_are_restored(number: int) -> None:
    before = current_handlers()
    with catch_stop_signals() as stop_requested:
        assert not stop_requested()
        os.kill(os.getpid(), number)
        assert stop_requested()
        signal.raise_signal(signal.SIGUSR1)  # a second signal does not interrupt
        if number != signal.SIGINT:
            signal.raise_signal(signal.SIGTERM)  # SLURM may repeat it
    assert current_handlers() == before


@pytest.mark.parametrize(
    "first, second", [*((first, signal.SIGINT) for first in STOP_SIGNALS), (signal.SIGINT, signal.SIGTERM)]
)
def test_ctrl_c_after_another_signal_interrupts_at_once_and_so_does_sigterm_after_ctrl_c(
    first: int, second: int
) -> None:
    before = current_handlers()
    with pytest.raises(KeyboardInterrupt), catch_stop_signals():
        signal.raise_signal(first)
        signal.raise_signal(second)
    assert current_handlers() == before


def test_outside_the_main_thread_handlers_stay_as_they_are() -> None:
    before = current_handlers()
    found: list[object] = []

    def read_in_thread() -> None:
        with catch_stop_signals() as stop_requested:
            found.extend([stop_requested(), current_handlers()])

    thread = threading.Thread(target=read_in_thread)
    thread.start()
    thread.join()
    assert found == [False, before]


def raise_where_python_ignores_it(error: type[BaseException]) -> None:
    """Raise an error in the callback of a weak reference, as h5py runs after every read."""

    def fail(reference: object) -> NoReturn:
        raise error

    referenced = threading.Event()
    reference = weakref.ref(referenced, fail)
    del referenced
    assert reference() is None


def test_ctrl_c_that_python_ignores_is_repeated_and_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: shown.append(ignored.exc_type))
    # Programs that a shell starts in the background ignore Ctrl-C, and the tests may be one of them.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt), repeat_lost_interrupts():
            raise_where_python_ignores_it(ValueError)
            raise_where_python_ignores_it(KeyboardInterrupt)
            time.sleep(30)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.monotonic() - start < 20
    raise_where_python_ignores_it(OSError)
    assert shown == [ValueError, OSError]

"""Stop signals become a flag."""

import os
import signal
import threading

import pytest

from posenet.devices.signals import STOP_SIGNALS, catch_stop_signals


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

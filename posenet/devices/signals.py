"""Stop requests: Ctrl-C, SIGTERM and SIGUSR1 as a flag that the running step is finished before."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))


class StopRequested(Exception):
    """A signal came while the network was validated."""


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, SIGTERM and SIGUSR1 into a flag, so that a step in progress ends well.

    SIGTERM and SIGUSR1 are how SLURM announces the end of a job (``--signal=USR1@120``).

    Yields a function that tells whether a signal has come. A second Ctrl-C interrupts at once. Outside the
    main thread, where Python lets nobody catch signals, it never has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    previous = {number: signal.signal(number, remember) for number in STOP_SIGNALS}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

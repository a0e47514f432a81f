"""Stop signals: Ctrl-C, SIGTERM and SIGUSR1 set a flag, so that a run can finish its step and save."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))
"""Signals that ask a run to stop. SLURM announces the end of a job with SIGTERM or SIGUSR1 (``--signal=USR1@120``)."""

STOPPED_STATUS = 75
"""Exit status of a run that a stop signal has ended early and that ``--resume`` continues (EX_TEMPFAIL of sysexits.h:
try again). It is not 0, so that ``train && evaluate`` does not evaluate an unfinished run."""


class StopRequested(Exception):
    """Ends an epoch or a validation early, because the run has to stop on all ranks."""


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[Callable[[], bool]]:
    """Within this context, a stop signal ends nothing; yields a function that tells whether one has arrived.

    Ctrl-C after another signal raises ``KeyboardInterrupt``, and so does SIGTERM after Ctrl-C: torchrun sends that to
    the processes of a user who presses Ctrl-C twice. SLURM never sends Ctrl-C, so its second signal does not disturb a
    save. Outside the main thread, Python cannot catch signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if (number == signal.SIGINT and caught) or (number == signal.SIGTERM and signal.SIGINT in caught):
            raise KeyboardInterrupt
        caught.append(number)

    previous = {number: signal.signal(number, record) for number in STOP_SIGNALS}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Within this context, a Ctrl-C that Python ignores is repeated.

    Python ignores the exceptions of callbacks of weak references, ``KeyboardInterrupt`` included. h5py runs such
    callbacks after every read and write, so many a signal is handled there.
    """
    show_ignored = sys.unraisablehook

    def repeat_interrupt(ignored: Any) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            # After the callback, and by a signal to the main thread, so that it also ends a wait of that.
            main_thread = threading.main_thread().ident
            threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
        else:
            show_ignored(ignored)

    sys.unraisablehook = repeat_interrupt if hasattr(signal, "pthread_kill") else show_ignored
    try:
        yield
    finally:
        sys.unraisablehook = show_ignored

"""Forked processes, and comparing a run that was interrupted with one that was not."""

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.folder import run_lock
from tests.helpers.run_logs import read_log

TIMEOUT_SECONDS = 120
"""After this time a forked process prints its stack and ends; most processes need one or two seconds."""


def fork_process(task: Callable[[], Any], output: Path | None = None) -> int:
    """Run ``task`` in a forked process, which need not import anything again; return the process id.

    Args:
        output: a file that receives what the process writes to standard output and standard error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        if output is not None:
            sys.stdout = sys.stderr = open(output, "a", buffering=1)
            os.dup2(sys.stderr.fileno(), 1)
            os.dup2(sys.stderr.fileno(), 2)
        # All forked processes share tqdm's lock, and a killed one may never release it.
        tqdm.set_lock(threading.RLock())
        faulthandler.dump_traceback_later(TIMEOUT_SECONDS, exit=True, file=sys.__stderr__)
        task()
        os._exit(0)
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def in_forked_process(test: Callable[..., None]) -> Callable[..., None]:
    """A decorator for tests that compile a network.

    PyTorch with CUDA has started threads of autograd then, also without a GPU, and processes that are forked later
    could not compute gradients.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        assert wait_for_exit(fork_process(lambda: test(*args, **kwargs))) == 0

    return run


def wait_for_exit(pid: int) -> int:
    """Wait for a process; return its exit status, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def locked_by_another_process(folder: Path) -> Iterator[int]:
    """Within this context another process, whose id is yielded, holds the lock of ``folder``."""
    reader, writer = os.pipe()

    def hold_lock() -> None:
        with run_lock(folder):
            os.write(writer, b"x")
            signal.pause()

    pid = fork_process(hold_lock)
    os.read(reader, 1)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the test may have waited for the process
            os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid)
        os.close(reader)
        os.close(writer)


def other_process_can_lock(folder: Path) -> bool:
    """Whether a process other than this one can take the lock of ``folder``."""

    def take_lock() -> None:
        with run_lock(folder):
            pass

    return wait_for_exit(fork_process(take_lock)) == 0


@contextlib.contextmanager
def limit_of_time(seconds: int) -> Iterator[None]:
    """Within this context, a test that hangs fails after so many seconds."""

    def fail(*_: object) -> None:
        pytest.fail(f"nothing has happened in {seconds} seconds")  # no ``Exception``, which the code could explain

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def find_differences(a: Any, b: Any, path: str = "") -> list[str]:
    """The paths at which the contents of two checkpoints are not bit-identical, random states included."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted(a.keys() | b.keys(), key=str)
        return [found for key in keys for found in find_differences(a.get(key), b.get(key), f"{path}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b))
        return [found for i, (one, other) in pairs for found in find_differences(one, other, f"{path}[{i}]")]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a} != {b}"]


def assert_same_run(folder: Path, reference: Path) -> None:
    """Two finished runs have the same losses, scores and skipped steps, and bit-identical checkpoints."""
    assert all(len(values) == 1 for values in _logged_values(reference).values())
    assert _logged_values(folder) == _logged_values(reference)
    for name in ("last", "best"):
        states = [read_checkpoint(path / f"{name}.pth") for path in (folder, reference)]
        for state in states:
            del state["config"]["checkpoint"]["path"]
        assert find_differences(*states) == [], name


def _logged_values(folder: Path) -> dict[tuple[str, int], set[Any]]:
    """All values that a run has logged for each (name, step).

    A step that was repeated after an interruption has one value if the repetition gave the same result.
    """
    values: dict[tuple[str, int], set[Any]] = {}
    for line in read_log(folder):
        for name in ("loss", "train_loss", "val_loss", "AP", "value"):
            if name in line:
                values.setdefault((name, line["step"]), set()).add(line[name])
    return values

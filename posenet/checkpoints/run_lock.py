"""A lock on the folder of a run, so that only one process at a time writes there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from posenet.errors import CheckpointError
from posenet.locks import LockedError, lock_file

LOCK_FILE = "run.lock"


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Within this context, only this process may write into ``folder``, which is created if necessary.

    Raises:
        CheckpointError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file(folder / LOCK_FILE, folder))
        except LockedError as error:
            raise CheckpointError(
                f"{folder} is in use by {error}; wait until it has ended, or choose another folder with "
                "--checkpoint-path"
            ) from error
        yield

"""The folder of a run, where only rank 0 writes: its checkpoints, its lock and its status."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError, DamagedCheckpointError
from posenet.files import atomic_replacement, write_atomically
from posenet.settings import CheckpointConfig

LOCK_FILE = "run.lock"
LOCK_SECONDS = 15.0
"""How long to wait for the lock. Data workers inherit it and end some seconds after a trainer that was killed."""
STATUS_FILE = "run.status"
_TEMPORARY = re.compile(r"\.(step-\d+|last|best)\.pth\.\d+(-\d+)?\.tmp")
"""Names of checkpoints that are being written; see ``files.atomic_replacement``."""

RunStatus = Literal["running", "stopped", "finished", "failed"]
"""running: it has started; if no process of it is left, it was killed. stopped: a signal has stopped it, and --resume
continues it. finished: it has done all epochs or --max-steps, or has stopped early. failed: it has ended with an
error."""

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """The checkpoints of one run: ``step-N.pth``, ``last.pth`` and ``best.pth``.

    ``last`` and ``best`` are hard links to numbered files, so they need no disk space until those are deleted. The
    first save creates the folder. Only the ``keep`` newest numbered checkpoints are kept.
    """

    def __init__(self, path: Path, keep: int = CheckpointConfig.keep) -> None:
        self.path = path
        self.keep = keep
        self.last = path / "last.pth"
        self.best = path / "best.pth"

    def has_checkpoints(self) -> bool:
        """Whether the folder contains any checkpoint."""
        return any(self.path.glob("*.pth"))

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Write the checkpoint after ``step``; link ``best.pth``, if ``best``, and ``last.pth`` to it; delete old ones.

        ``CheckpointError`` or ``OSError`` if it cannot be written; older ones are intact.
        """
        for temporary in self.path.glob(".*.tmp"):
            if _TEMPORARY.fullmatch(temporary.name):  # a killed process has left it
                temporary.unlink(missing_ok=True)
        numbered = self.path / f"step-{step:08d}.pth"
        write_checkpoint(numbered, state)
        if best:
            _link(self.best, numbered)
        _link(self.last, numbered)  # last of all: a run that is killed before this repeats the step with its best.pth
        for old in self.history(step)[self.keep :]:
            old.unlink(missing_ok=True)

    def history(self, last_step: int | None = None) -> list[Path]:
        """The numbered checkpoints, newest first.

        After a return to an older checkpoint, the steps beyond ``last_step``, that of ``last.pth``, are the oldest.
        Times do not count, because copies of files have others. None looks for the step of ``last.pth``.
        """
        names = (re.fullmatch(r"step-(\d+)\.pth", path.name) for path in self.path.glob("step-*.pth"))
        paths = {int(name[1]): self.path / name[0] for name in names if name}
        if last_step is None:
            same = [step for step, path in paths.items() if self.last.exists() and path.samefile(self.last)]
            last_step = max(same or paths, default=0)
        return [paths[step] for step in sorted(paths, key=lambda step: (step <= last_step, step), reverse=True)]

    def newest_intact(
        self, accept: Callable[[dict[str, Any]], bool] = lambda state: True
    ) -> tuple[Path, dict[str, Any]] | None:
        """Path and content of the newest intact checkpoint that ``accept`` accepts; None if there is none.

        Damaged checkpoints are logged as warnings. ``CheckpointError`` if all are damaged, or if one cannot be read for
        another reason, such as too little memory: going back to an older one would lose work that is not lost.
        """
        num_intact = num_damaged = 0
        for path in filter(Path.exists, [self.last, *self.history(), self.best]):
            try:
                state = read_checkpoint(path)
            except DamagedCheckpointError as error:
                _log.warning("%s", error)
                num_damaged += 1
                continue
            if accept(state):
                if num_damaged:
                    _log.warning("using %s instead", path)
                return path, state
            num_intact += 1
        if num_damaged and not num_intact:
            raise CheckpointError(f"every checkpoint in {self.path} is damaged; start a new run in another folder")
        return None


def _link(name: Path, target: Path) -> None:
    """Make ``name`` a hard link to ``target``, atomically; a copy where the file system has no hard links."""
    with atomic_replacement(name) as temporary:
        temporary.unlink()  # a link needs a free name
        try:
            os.link(target, temporary)
        except OSError:
            shutil.copyfile(target, temporary)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Within this context, only this process may write into ``folder``, which is created; else ``CheckpointError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot create the folder {folder} ({error.strerror}); choose another one with checkpoint.path=DIR"
        ) from error
    lock = FileLock(folder / LOCK_FILE)
    in_use = f"{folder} is in use by another process"
    try:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            _log.info("%s; waiting %g s for it to end", in_use, LOCK_SECONDS)
            lock.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise CheckpointError(f"{in_use}; wait until that has ended, or set checkpoint.path=DIR") from error
    try:
        yield
    finally:
        lock.release()


def refuse_run_in_use(folder: Path) -> None:
    """Raise ``CheckpointError`` if another process holds the lock of a run. This leaves no file and no lock."""
    if (folder / LOCK_FILE).is_file():
        with run_lock(folder):
            pass


class RunStatusFile:
    """The status of a run, a word in a file of its folder: running within this context, then one of the others.

    Scripts read it, because torchrun turns every exit status into 0 or 1, and srun reports the highest of all tasks.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATUS_FILE
        self.final: RunStatus = "finished"  # the status after the context, unless that ends with an error

    def __enter__(self) -> RunStatusFile:
        self._write("running")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.final = "stopped" if issubclass(kind, KeyboardInterrupt) else "failed"
        self._write(self.final)

    def _write(self, status: RunStatus) -> None:
        with contextlib.suppress(OSError):  # as on a full disk: training goes on without it
            write_atomically(self.path, f"{status}\n".encode())

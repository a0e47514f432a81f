"""The folder of a run, where only rank 0 writes: its checkpoints and when they are written, its lock and its status."""

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from filelock import Timeout

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError, DamagedCheckpointError
from posenet.files import acquire_lock, atomic_replacement, remove_leftovers, write_atomically
from posenet.settings import CheckpointConfig

LOCK_FILE = "run.lock"
LOCK_SECONDS = 15.0
"""How long to wait for the lock. Data workers inherit it and end some seconds after a trainer that was killed."""
RunStatus = Literal["running", "stopped", "finished", "failed"]
"""running: it has started; if no process of it is left, it was killed. stopped: a signal has stopped it, and --resume
continues it. finished: it has done all epochs or --max-steps, or has stopped early. failed: it has ended with an
error."""

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """The checkpoints of one run: ``step-N.pth``, ``last.pth`` and ``best.pth``, and when they are written.

    ``last`` and ``best`` are hard links to numbered files, so they need no disk space until those are deleted. The
    first save creates the folder. Only the newest numbered checkpoints are kept.
    """

    def __init__(self, path: Path, settings: CheckpointConfig | None = None) -> None:
        self.path = path
        self.settings = settings or CheckpointConfig()
        self.last = path / "last.pth"
        self.best = path / "best.pth"
        self.saved_step = 0  # the step of the newest checkpoint, written or attempted
        self._saved_at = time.monotonic()
        self._failure = ""  # why the newest checkpoint could not be written

    def has_checkpoints(self) -> bool:
        """Whether the folder contains any checkpoint."""
        return any(self.path.glob("*.pth"))

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after the run's ``step``-th step."""
        if step == self.saved_step:
            return False
        every_steps, every_seconds = self.settings.every_steps, 60 * self.settings.every_minutes
        if every_steps and step % every_steps == 0:
            return True
        return bool(every_seconds) and time.monotonic() - self._saved_at >= every_seconds

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> bool:
        """Write the checkpoint after ``step``, link ``best.pth``, if ``best``, and ``last.pth`` to it, delete old ones.

        Return whether that succeeded. A failure is a warning: training continues.
        """
        self._failure = ""
        try:
            self._save(copy_to_host(state), step, best)
        except Exception as error:  # such as a full disk or too little memory: the next one may succeed
            self._failure = str(error) or repr(error)  # a MemoryError has no text
            _log.warning("step %d is not saved, training continues: %s", step, self._failure)
        self.saved_step = step
        self._saved_at = time.monotonic()
        return not self._failure

    def require_saved(self) -> None:
        """Raise ``CheckpointError`` if the newest checkpoint could not be written."""
        if self._failure:
            raise CheckpointError(
                f"the last step of the run is not saved; resuming continues from an earlier one: {self._failure}"
            )

    def _save(self, state: Mapping[str, Any], step: int, best: bool) -> None:
        if self.path.is_dir():
            numbers = {path.name.split(".")[1] for path in self.path.glob(".step-*.pth.*.tmp")}
            remove_leftovers(self.last, self.best, *(self.path / f"{number}.pth" for number in numbers))
        numbered = self.path / f"step-{step:08d}.pth"
        write_checkpoint(numbered, state)
        if best:
            _link(self.best, numbered)
        _link(self.last, numbered)  # last of all: a run that is killed before this repeats the step with its best.pth
        for old in self.history(step)[self.settings.keep :]:
            old.unlink(missing_ok=True)

    def history(self, last_step: int | None = None) -> list[Path]:
        """The numbered checkpoints, newest first.

        After a return to an older checkpoint, files of later steps than ``last_step``, that of ``last.pth``, are left:
        they are older than all others. The times of files do not tell this, because copies have others. None looks for
        the step of ``last.pth``.
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


def copy_to_host(value: Any) -> Any:
    """A deep copy in host memory, so that a checkpoint can be read where the device is missing."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copy_to_host(item) for item in value)
    return value


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Within this context, only this process may write into ``folder``, which is created; else ``CheckpointError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = acquire_lock(folder / LOCK_FILE)
        except Timeout:
            _log.info("another process uses %s; waiting up to %g s for its end", folder, LOCK_SECONDS)
            lock = acquire_lock(folder / LOCK_FILE, LOCK_SECONDS)
    except OSError as error:
        reason = "it is in use by another process" if isinstance(error, Timeout) else error.strerror
        raise CheckpointError(
            f"cannot use the folder {folder} ({reason}); choose another one with --set checkpoint.path=DIR"
        ) from error
    try:
        yield
    finally:
        lock.release()


def write_status(folder: Path, status: RunStatus) -> None:
    """Write the status of a run, a word in the file ``run.status`` of its folder.

    Scripts read it, because torchrun turns every exit status into 0 or 1, and srun reports the highest of all tasks.
    """
    with contextlib.suppress(OSError):  # as on a full disk: training goes on without it
        write_atomically(folder / "run.status", f"{status}\n".encode())

"""The checkpoints of one run: numbered ones, the last and the best."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError
from posenet.files import atomic_replacement
from posenet.settings import CheckpointConfig

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
        self._created = False

    def has_checkpoints(self) -> bool:
        """Whether the folder contains any checkpoint."""
        return any(self.path.glob("*.pth"))

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Write the checkpoint after ``step`` as the last one, and as the best one if it is; delete old ones.

        Raises:
            CheckpointError, OSError: the checkpoint cannot be written; older ones are intact.
        """
        if self._created and not self.path.is_dir():
            _log.warning("WARNING: %s was removed during the run; creating it again for new checkpoints", self.path)
        self._created = True
        self._delete_temporary_files()
        numbered = self.path / f"step-{step:08d}.pth"
        write_checkpoint(numbered, state)
        _link(self.last, numbered)
        if best:
            _link(self.best, numbered)
        for old in self.history()[self.keep :]:
            old.unlink(missing_ok=True)

    def _delete_temporary_files(self) -> None:
        """Delete the temporary files of a killed process; files with other names may belong to another program."""
        for name in ("step-*", "last", "best"):
            for temporary in self.path.glob(f".{name}.pth.*.tmp"):
                temporary.unlink(missing_ok=True)

    def history(self) -> list[Path]:
        """The numbered checkpoints, newest first.

        They are sorted by time, because a run that returns to an older checkpoint writes lower numbers again.
        """
        numbered = [path for path in self.path.glob("step-*.pth") if re.fullmatch(r"step-\d+\.pth", path.name)]
        return sorted(numbered, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)

    def newest_intact(
        self, accept: Callable[[dict[str, Any]], bool] = lambda state: True
    ) -> tuple[Path, dict[str, Any]] | None:
        """Path and content of the newest intact checkpoint that ``accept`` accepts; None if there is none.

        Damaged checkpoints are logged as warnings.

        Raises:
            CheckpointError: there are checkpoints, and all of them are damaged.
        """
        paths = [path for path in [self.last, *self.history(), self.best] if path.exists()]
        num_damaged = 0
        for path in paths:
            try:
                state = read_checkpoint(path)
            except (CheckpointError, OSError) as error:
                _log.warning("WARNING: %s", error)
                num_damaged += 1
                continue
            if accept(state):
                if num_damaged:
                    _log.warning("WARNING: using %s instead", path)
                return path, state
        if paths and num_damaged == len(paths):
            raise CheckpointError(f"every checkpoint in {self.path} is damaged; start a new run in another folder")
        return None


def _link(name: Path, target: Path) -> None:
    """Make ``name`` a hard link to ``target``, atomically; a copy where the file system has no hard links."""
    with atomic_replacement(name) as temporary:
        try:
            os.link(target, temporary)
        except OSError:
            shutil.copyfile(target, temporary)

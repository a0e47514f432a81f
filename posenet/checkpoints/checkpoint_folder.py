"""The checkpoints of one run: the newest, the last and the best."""

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

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """The checkpoints of one run: ``step-N.pth``, the newest ``keep`` of them; ``last.pth`` and ``best.pth``.

    ``last`` and ``best`` are hard links of numbered files, which take room of their own once those are dropped.
    """

    def __init__(self, path: Path, keep: int = 3) -> None:
        self.path, self.keep, self._made = path, keep, False
        self.last, self.best = path / "last.pth", path / "best.pth"

    def holds_run(self) -> bool:
        return any(self.path.glob("*.pth"))

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Write ``state`` as the newest checkpoint, and as the best one where it is.

        Args:
            step: optimizer steps of the run so far.

        Raises:
            CheckpointError, OSError: it cannot be written; what was there before is intact.
        """
        if self._made and not self.path.is_dir():
            _log.warning(
                "WARNING: %s was removed under the run; making it anew, with what is saved from now on", self.path
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._made = True
        for name in ("step-*", "last", "best"):
            for left_by_a_kill in self.path.glob(f".{name}.pth.*.tmp"):
                left_by_a_kill.unlink(missing_ok=True)
        numbered = self.path / f"step-{step:08d}.pth"
        write_checkpoint(numbered, state)
        _point(self.last, numbered)
        if best:
            _point(self.best, numbered)
        for old in self.history()[self.keep :]:
            old.unlink(missing_ok=True)

    def history(self) -> list[Path]:
        """The numbered checkpoints, newest first: by time, as a run may have gone back to an older one."""
        found = [p for p in self.path.glob("step-*.pth") if re.fullmatch(r"step-\d+\.pth", p.name)]
        return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True)

    def newest_intact(
        self,
        wanted: Callable[[dict[str, Any]], bool] = lambda state: True,
    ) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that can be read and is ``wanted``, with its content; None where there is none.

        Damaged ones are named in a warning.

        Raises:
            CheckpointError: there are checkpoints, all of them damaged.
        """
        candidates = [p for p in [self.last, *self.history(), self.best] if p.exists()]
        damaged = []
        for path in candidates:
            try:
                state = read_checkpoint(path)
            except (CheckpointError, OSError) as error:
                _log.warning("WARNING: %s", error)
                damaged.append(path)
                continue
            if not wanted(state):
                continue
            if damaged:
                _log.warning("WARNING: going on from %s instead", path)
            return path, state
        if damaged and len(damaged) == len(candidates):
            raise CheckpointError(f"every checkpoint in {self.path} is damaged; start anew in another folder")
        return None


def _point(name: Path, target: Path) -> None:
    """Make ``name`` the same file as ``target``, atomically; a copy where the file system has no hard links."""
    with atomic_replacement(name) as temporary:
        try:
            os.link(target, temporary)
        except OSError:
            shutil.copyfile(target, temporary)

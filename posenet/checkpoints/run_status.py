"""The status of a run, a word in a file of its folder that scripts can read: running, stopped, finished or failed.

An exit status does not serve scripts well if a launcher is between: torchrun turns every status into 0 or 1, and srun
reports the highest status of all processes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from posenet.files import write_atomically

STATUS_FILE = "run.status"

RunStatus = Literal["running", "stopped", "finished", "failed"]
"""running: it has started; if no process of it is left, it was killed. stopped: a signal has stopped it, and --resume
continues it. finished: it has done all epochs or --max-steps, or has stopped early. failed: it has ended with an
error."""

_log = logging.getLogger(__name__)


class RunStatusFile:
    """The status file of one run, as a context: within it the run is running, after it finished or failed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STATUS_FILE
        self._final: RunStatus = "finished"

    def set_stopped(self) -> None:
        """Let the status after the context be "stopped"."""
        self._final = "stopped"

    def __enter__(self) -> RunStatusFile:
        self._write("running")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write(self._final)
        else:
            self._write("stopped" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _write(self, status: RunStatus) -> None:
        try:
            write_atomically(self.path, f"{status}\n".encode())
        except OSError as error:
            _log.warning("WARNING: cannot write %s (%s); its word should be %s", self.path, error.strerror, status)


class NoStatusFile:
    """A ``RunStatusFile`` that writes nothing, for all ranks except rank 0."""

    def set_stopped(self) -> None: ...

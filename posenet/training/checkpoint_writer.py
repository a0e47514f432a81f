"""Writing checkpoints in the background: training waits until the state is copied, and a thread writes the copy."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.devices.host_copy import StagingArea
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of a run one at a time, in a thread.

    If a checkpoint cannot be written, a warning is logged and training continues. ``finish`` raises an error if it was
    the last checkpoint.
    """

    def __init__(self, folder: CheckpointFolder, settings: CheckpointConfig) -> None:
        self.folder = folder
        self.every_steps = settings.every_steps
        self.every_seconds = 60 * settings.every_minutes
        self._staging = StagingArea()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._saved_at = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after the run's ``step``-th step.

        A checkpoint that is due by the clock waits until the previous one is written, so that a slow disk does not slow
        down training. One that is due by steps does not, so that a return to a checkpoint does not depend on the disk.
        """
        if self.every_steps and step % self.every_steps == 0:
            return True
        due_by_clock = bool(self.every_seconds) and time.monotonic() - self._saved_at >= self.every_seconds
        is_writing = self._thread is not None and self._thread.is_alive()
        return due_by_clock and not is_writing

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Copy ``state`` and write the copy in the background, after the previous checkpoint."""
        self.wait()
        self._staging.restart()
        copy = copy_to_host(state, self._staging)
        self._staging.wait()
        self._thread = threading.Thread(target=self._write, args=(copy, step, best), name="checkpoint")
        self._thread.start()
        self._saved_at = time.monotonic()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Wait until nothing is being written; ``CheckpointError`` if the newest checkpoint could not be written."""
        self.wait()
        if self._failure:
            raise CheckpointError(
                f"the last step of the run is not saved; --resume will continue from an earlier one: {self._failure}"
            ) from self._failure

    def _write(self, state: Mapping[str, Any], step: int, best: bool) -> None:
        try:
            self.folder.save(state, step, best)
            self._failure = None
        except Exception as error:  # a thread cannot raise to its caller
            self._failure = error
            _log.warning("WARNING: step %d is not saved, training continues: %s", step, error)


def copy_to_host(value: Any, staging: StagingArea) -> Any:
    """A deep copy in host memory, which later changes to the tensors do not affect; ``staging`` copies the tensors."""
    if isinstance(value, Tensor):
        return staging.copy(value.detach())
    if isinstance(value, Mapping):
        return {key: copy_to_host(item, staging) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copy_to_host(item, staging) for item in value)
    return value

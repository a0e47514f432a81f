"""Writing the checkpoints of a run in a thread, while training goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from posenet.checkpoints.folder import CheckpointFolder
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of a run one at a time, in a thread. Training waits only until the state is copied.

    If a checkpoint cannot be written, a warning is logged and training continues.
    """

    def __init__(self, folder: CheckpointFolder, settings: CheckpointConfig) -> None:
        self.folder = folder
        self.every_steps = settings.every_steps
        self.every_seconds = 60 * settings.every_minutes
        self.saved_step = 0  # the step of the newest checkpoint
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Exception | None] | None = None
        self._saved_at = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after the run's ``step``-th step.

        One that is due by the clock waits until the previous one is written, so that a slow disk does not slow down
        training. One that is due by steps does not, so that a return to a checkpoint does not depend on the disk.
        """
        if step == self.saved_step:
            return False
        if self.every_steps and step % self.every_steps == 0:
            return True
        due_by_clock = bool(self.every_seconds) and time.monotonic() - self._saved_at >= self.every_seconds
        return due_by_clock and (self._writing is None or self._writing.done())

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Copy ``state`` and write the copy in the background, after the previous checkpoint."""
        self.wait()
        self._writing = self._thread.submit(self._write, copy_to_host(state), step, best)
        self.saved_step = step
        self._saved_at = time.monotonic()

    def wait(self) -> Exception | None:
        """Wait until nothing is being written; return the error with which the newest checkpoint has failed."""
        return self._writing.result() if self._writing is not None else None

    def finish(self) -> None:
        """Wait until nothing is being written; ``CheckpointError`` if the newest checkpoint could not be written."""
        if failure := self.wait():
            raise CheckpointError(
                f"the last step of the run is not saved; resuming continues from an earlier one: {failure}"
            ) from failure

    def _write(self, state: Mapping[str, Any], step: int, best: bool) -> Exception | None:
        try:
            self.folder.save(state, step, best)
        except Exception as error:  # a thread cannot raise to its caller
            _log.warning("step %d is not saved, training continues: %s", step, error)
            return error
        return None


def copy_to_host(value: Any) -> Any:
    """A deep copy in host memory, which later changes to the tensors do not affect."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copy_to_host(item) for item in value)
    return value

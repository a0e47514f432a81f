"""When a run writes its checkpoints, and what happens if one cannot be written."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from posenet.checkpoints.folder import CheckpointFolder
from posenet.errors import CheckpointError
from posenet.settings import CheckpointConfig

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of a run. If one cannot be written, a warning is logged and training continues."""

    def __init__(self, folder: CheckpointFolder, settings: CheckpointConfig) -> None:
        self.folder = folder
        self.every_steps = settings.every_steps
        self.every_seconds = 60 * settings.every_minutes
        self.saved_step = 0  # the step of the newest checkpoint
        self._failure = ""  # why the newest checkpoint could not be written
        self._saved_at = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after the run's ``step``-th step."""
        if step == self.saved_step:
            return False
        if self.every_steps and step % self.every_steps == 0:
            return True
        return bool(self.every_seconds) and time.monotonic() - self._saved_at >= self.every_seconds

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> bool:
        """Write ``state`` as the checkpoint after ``step``; return whether that succeeded."""
        self._failure = ""
        try:
            self.folder.save(copy_to_host(state), step, best)
        except Exception as error:  # such as a full disk or too little memory: the next one may succeed
            self._failure = str(error) or repr(error)  # a MemoryError has no text
            _log.warning("step %d is not saved, training continues: %s", step, self._failure)
        self.saved_step = step
        self._saved_at = time.monotonic()
        return not self._failure

    def finish(self) -> None:
        """Raise ``CheckpointError`` if the newest checkpoint could not be written."""
        if self._failure:
            raise CheckpointError(
                f"the last step of the run is not saved; resuming continues from an earlier one: {self._failure}"
            )


def copy_to_host(value: Any) -> Any:
    """A deep copy in host memory, so that a checkpoint can be read where the device is missing."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copy_to_host(item) for item in value)
    return value

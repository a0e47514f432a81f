"""The state of a run: everything that training changes and a checkpoint restores."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from posenet.checkpoints.file import FORMAT
from posenet.checkpoints.weights import load_weights
from posenet.devices.random_state import set_random_state
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError
from posenet.messages import truncate_for_message
from posenet.model.posenet import PoseNet
from posenet.training.loss_guard import LossGuard
from posenet.training.optimizer import restore_optimizer
from posenet.training.progress import Progress
from posenet.training.weight_averaging import NoAverage, trained_weights

_log = logging.getLogger(__name__)


@dataclass
class RunState:
    """Everything that training changes. ``average`` is a ``WeightAverage`` if averaging is configured."""

    network: PoseNet
    average: NoAverage
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    guard: LossGuard
    progress: Progress = field(default_factory=Progress)

    def state_dict(self, steps_per_epoch: int, config: dict[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint except the random states: tensors and plain values only.

        ``config`` is the settings of the run as plain tables.
        """
        return {
            "format": FORMAT,
            **self.average.state_dict(self.network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": self.guard.state_dict(),
            "progress": asdict(self.progress),
            "steps_per_epoch": steps_per_epoch,
            "config": config,
        }

    def load_state_dict(self, state: dict[str, Any], path: str, steps_per_epoch: int, runtime: Runtime) -> None:
        """Restore the run of the checkpoint at ``path``.

        ``steps_per_epoch`` is that of this run. Its data set, batch size or number of processes may have changed.

        Raises:
            CheckpointError: it is not the checkpoint of a run, or belongs to another network or optimizer.
        """
        require_run(state, path)
        try:
            self.load_weights(state, path)
            self.guard.load_state_dict(state["guard"])
            self.progress = Progress.from_state(state["progress"])
            self.progress.rescale_epoch(state["steps_per_epoch"], steps_per_epoch)
            _restore_random_state(state.get("random", []), runtime)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} contains no valid run ({truncate_for_message(error)}); use an older checkpoint"
            ) from error

    def load_weights(self, state: dict[str, Any], path: str) -> None:
        """Restore the weights, their average, the state of the optimizer and the loss scale.

        ``CheckpointError`` if they belong to another network or optimizer.
        """
        load_weights(self.network, path, state={"model": trained_weights(state)}, min_loaded_share=0).require_all()
        self.average.load_state_dict(state)
        try:
            restore_optimizer(self.optimizer, state["optimizer"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path} was saved by another optimizer or other frozen parameters; keep optim.name "
                "and train.freeze, or use --weights instead of --resume"
            ) from error
        if _has_dynamic_scale(self.scaler) and state["scaler"].get("backoff_factor", 1) < 1:
            self.scaler.load_state_dict(state["scaler"])


def require_run(state: dict[str, Any], path: str | Path) -> None:
    """Raise ``CheckpointError`` if a checkpoint has no run to resume but, for example, only weights."""
    for key in ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch", "config"):
        if key not in state:
            raise CheckpointError(f"{path} contains no run to resume (no {key}); fine-tune from it with --weights")


def _has_dynamic_scale(scaler: torch.amp.GradScaler) -> bool:
    """Whether the loss scale changes during training. A fixed one is a setting and has the backoff factor 1."""
    return scaler.is_enabled() and scaler.get_backoff_factor() < 1


def _restore_random_state(states: list[dict[str, Any]], runtime: Runtime) -> None:
    """Restore the random state of this rank from those of all ranks."""
    if states and len(states) != runtime.world_size:
        _log.info("The run had %d processes and continues with %d", len(states), runtime.world_size)
    if runtime.rank < len(states):
        set_random_state(states[runtime.rank], runtime.device)

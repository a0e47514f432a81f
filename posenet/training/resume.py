"""Which run to start or resume, with which settings, and the state of a run that a checkpoint restores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from posenet.checkpoints.file import FORMAT, read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.checkpoints.weights import (
    config_of_checkpoint,
    extract_weights,
    require_fitting_weights,
    require_usable_weights,
)
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import is_out_of_memory, pluralize, truncate_for_message
from posenet.model.posenet import PoseNet
from posenet.settings import Config, config_differences, load_config
from posenet.training.averaging import WeightAverage, trained_weights
from posenet.training.freezing import names_to_freeze
from posenet.training.guard import LossGuard
from posenet.training.optimizer import restore_optimizer
from posenet.training.progress import Progress
from posenet.training.run_settings import folder_of_run, settings_of_new_run, with_folder, with_warmup

_log = logging.getLogger(__name__)


class FoundCheckpoint(NamedTuple):
    """The checkpoint to resume, and its content."""

    path: Path
    state: dict[str, Any]


def configure_run(
    config: Config | str | Path | None,
    overrides: Sequence[str],
    resume: bool | str | Path,
    warmup: bool,
    runtime: Runtime,
    restarted: bool = False,
) -> tuple[Config, FoundCheckpoint | None]:
    """The settings of a run and the checkpoint to resume, None for a new run. The arguments are those of ``train``.

    Rank 0 alone looks for the checkpoint and reads it, so that no rank can use another one.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged, contains no run or does not fit the settings.
        ConfigError: the settings are not valid.
        OtherRankError: one of these on another rank.
    """
    found = runtime.run_on_main(lambda: find_checkpoint(config, overrides, resume, restarted))
    checkpoint: FoundCheckpoint | None = runtime.broadcast_object(found)
    if checkpoint is None:
        return runtime.run_on_all(lambda: settings_of_new_run(config, overrides, warmup)), None
    return runtime.run_on_all(lambda: settings_of_resumed_run(config, overrides, warmup, checkpoint)), checkpoint


def find_checkpoint(
    config: Config | str | Path | None, overrides: Sequence[str], resume: bool | str | Path, restarted: bool = False
) -> FoundCheckpoint | None:
    """The checkpoint to resume; None for a new run. The arguments are those of ``train``; see ``configure_run``."""
    if restarted and (saved := _saved_before_restart(config, overrides, resume)) is not None:
        return saved
    if resume is False:
        return None
    if resume is True:
        path = Path(settings_of_new_run(config, overrides).checkpoint.path)
    else:
        path = Path(resume)
    is_file = resume is not True and not path.is_dir()
    folder = CheckpointFolder(path.parent if is_file else path)
    found = (path, read_checkpoint(path)) if is_file else folder.newest_intact()
    if found is None and resume is True:
        _log.info(
            "%s contains no checkpoint: starting a new run; to resume another one, use --resume FOLDER/last.pth", path
        )
        return None
    if found is None:
        raise CheckpointError(f"{path} contains no checkpoint to resume; leave out --resume to start a new run")
    return _require_run(FoundCheckpoint(*found))


def _saved_before_restart(
    config: Config | str | Path | None, overrides: Sequence[str], resume: bool | str | Path
) -> FoundCheckpoint | None:
    """The newest checkpoint that a run has saved before it was started again; None if there is none.

    Where ``resume`` is a checkpoint of the run's own folder, the run has returned to it: other checkpoints of the
    folder belong to this run only if they say that it has returned there.
    """
    folder = CheckpointFolder(folder_of_run(config, overrides, resume))
    returned_to = ""
    if not isinstance(resume, bool) and not Path(resume).is_dir():
        path = Path(resume).resolve()
        if path.parent == folder.path.resolve() and path.name != folder.last.name:
            returned_to = path.name
    found = folder.newest_intact(lambda state: not returned_to or state.get("returned_to") == returned_to)
    return None if found is None else _require_run(FoundCheckpoint(*found))


def _require_run(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """The checkpoint, or ``CheckpointError`` if it contains weights alone."""
    for key in ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch", "config"):
        if key not in checkpoint.state:
            raise CheckpointError(
                f"{checkpoint.path} contains no run to resume (no {key}); fine-tune from it with --weights"
            )
    return checkpoint


def settings_of_resumed_run(
    config: Config | str | Path | None, overrides: Sequence[str], warmup: bool, checkpoint: FoundCheckpoint
) -> Config:
    """The settings in the checkpoint, except those in an experiment file and overrides; a ``Config`` replaces all."""
    path, state = checkpoint.path, checkpoint.state
    saved = config_of_checkpoint(state, path) or Config()
    # The folder may have moved since the checkpoint was written.
    saved = with_folder(saved, path.parent)
    if isinstance(config, Config):
        base = config if config.checkpoint.path else with_folder(config, path.parent)
        settings = load_config(None, overrides, base=base)
    else:
        settings = load_config(config, overrides, base=saved)
    settings = with_warmup(settings) if warmup else settings
    if not settings.model.skeleton.predicts_like(saved.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton; leave that out, or start "
            "a new run with --weights in another folder"
        )
    changed = config_differences(saved, settings)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    if settings.train.weights not in ("", saved.train.weights):
        _log.warning("train.weights is only for new runs; this one continues with the weights in %s", path)
    require_fitting_weights(settings, state, path)
    return settings


@dataclass
class RunState:
    """Everything that training changes; a checkpoint contains it."""

    network: PoseNet
    average: WeightAverage | None
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    guard: LossGuard
    progress: Progress = field(default_factory=Progress)

    def state_dict(self, steps_per_epoch: int, config: dict[str, Any]) -> dict[str, Any]:
        """The state of the run; ``config`` is the settings as plain tables."""
        weights = self.network.state_dict()
        return {
            "format": FORMAT,
            **({"model": weights} if self.average is None else self.average.state_dict(weights)),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": self.guard.state_dict(),
            "progress": asdict(self.progress),
            "steps_per_epoch": steps_per_epoch,
            "config": config,
        }

    def load_state_dict(self, checkpoint: FoundCheckpoint, steps_per_epoch: int, runtime: Runtime) -> None:
        """Restore the run of a checkpoint, whose epochs may have had another number of steps.

        ``CheckpointError`` if the checkpoint belongs to another network or optimizer, or is not valid.
        """
        state = checkpoint.state
        try:
            self.load_weights(checkpoint)
            self.guard.load_state_dict(state["guard"])
            self.progress = Progress.from_state(state["progress"])
            self.progress.rescale_epoch(state["steps_per_epoch"], steps_per_epoch)
            before, now = state.get("world_size", runtime.world_size), runtime.world_size
            if before != now:
                _log.info("The run had %s and continues with %d", pluralize(before, "process", "processes"), now)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise  # the checkpoint is not damaged
            raise CheckpointError(
                f"{checkpoint.path} contains no valid run ({truncate_for_message(error)}); use an older checkpoint"
            ) from error

    def load_weights(self, checkpoint: FoundCheckpoint) -> None:
        """Restore the weights, their average, the state of the optimizer and the loss scale, or ``CheckpointError``."""
        path, state = checkpoint.path, checkpoint.state
        self._require_same_frozen_parameters(checkpoint)
        weights = extract_weights({"model": trained_weights(state)}, path)
        require_usable_weights(weights, path)
        self.network.load_state_dict(weights)
        if self.average is not None:
            self.average.load_state_dict(state)
        try:
            restore_optimizer(self.optimizer, state["optimizer"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path} was saved by another optimizer, or its state is not valid; keep optim.name and "
                "optim.decay_norms_and_biases, or use --weights instead of --resume"
            ) from error
        # A fixed loss scale is a setting; it has the backoff factor 1.
        is_dynamic = self.scaler.is_enabled() and self.scaler.get_backoff_factor() < 1
        if is_dynamic and state["scaler"].get("backoff_factor", 1) < 1:
            self.scaler.load_state_dict(state["scaler"])

    def _require_same_frozen_parameters(self, checkpoint: FoundCheckpoint) -> None:
        """Raise ``CheckpointError`` if the run of a checkpoint has frozen other parameters.

        The state of an optimizer knows its parameters by their numbers among those that are not frozen. So with others
        it belongs to other parameters, perhaps of equal shapes.
        """
        saved = config_of_checkpoint(checkpoint.state, checkpoint.path) or Config()
        frozen_before = names_to_freeze(self.network, saved.train.freeze)
        frozen_now = {name for name, parameter in self.network.named_parameters() if not parameter.requires_grad}
        if changed := sorted(frozen_before ^ frozen_now):
            verb = "froze" if changed[0] in frozen_before else "did not freeze"
            raise CheckpointError(
                f"{checkpoint.path} was saved by a run that {verb} {changed[0]}; keep its train.freeze, or "
                "start a new run in another folder with --weights instead of --resume"
            )

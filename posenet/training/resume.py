"""Resuming: which checkpoint a run continues, with which settings, and the state that is saved and restored.

The parts of a run do not know how they are saved: ``state_of`` reads their values, and ``restore_run`` writes them.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenet.checkpoints.file import FORMAT, read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.checkpoints.weights import (
    config_of_checkpoint,
    extract_weights,
    require_fitting_weights,
    require_usable_weights,
)
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import is_out_of_memory, pluralize, truncate_for_message
from posenet.settings import Config, config_differences, config_to_dict, load_config
from posenet.settings.earlier import require_same_constants
from posenet.training.freezing import names_to_freeze
from posenet.training.optimizer import restore_optimizer
from posenet.training.progress import Progress
from posenet.training.run import Run
from posenet.training.run_settings import Experiment, config_of_new_run, with_settings

Checkpoint = tuple[Path, dict[str, Any]]
"""The path and the content of a checkpoint."""

_log = logging.getLogger(__name__)


def find_checkpoint(folder: Path, resume: bool | str | Path, restarted: bool = False) -> Checkpoint | None:
    """The checkpoint to resume in the folder of a run; None for a new run. Rank 0 alone calls this.

    ``resume`` is the argument of ``train``; ``restarted`` says that a launcher has started the run again.
    ``CheckpointError`` if there is no such checkpoint, if it is damaged or contains no run, or if the folder contains
    another run.
    """
    own = CheckpointFolder(folder)
    found = None
    if restarted:
        _log.info("The launcher has started the run again: resuming from its newest checkpoint, if it has saved one")
        found = own.newest_intact(lambda state: _has_resumed(state, resume))
    if found is None and resume is True:
        found = own.newest_intact()
        if found is None:
            remedy = "to resume another one, use --resume FOLDER/last.pth"
            _log.info("%s contains no checkpoint: starting a new run; %s", folder, remedy)
    elif found is None and not isinstance(resume, bool):
        path = Path(resume)
        found = CheckpointFolder(path).newest_intact() if path.is_dir() else (path, read_checkpoint(path))
        if found is None:
            raise CheckpointError(
                f"{path} contains no checkpoint to resume; give another one, or leave it out to start a new run"
            )
    if found is None:
        if own.has_checkpoints():
            raise CheckpointError(
                f"{folder} already contains a run; continue it with --resume, or choose another folder with "
                "checkpoint.path=DIR"
            )
        return None
    path, state = found
    for key in ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch", "config"):
        if key not in state or (key == "config" and not isinstance(state[key], dict)):
            raise CheckpointError(
                f"{path} contains no run to resume (no {key}); fine-tune from it with train.weights=FILE"
            )
    if path.parent.resolve() != folder.resolve() and own.has_checkpoints():
        raise CheckpointError(
            f"{folder} contains another run than {path}; choose another folder with checkpoint.path=DIR"
        )
    return found


def _has_resumed(state: Mapping[str, Any], resume: bool | str | Path) -> bool:
    """Whether a checkpoint was saved by a run that has continued from what ``resume`` names."""
    progress = state.get("progress")
    if isinstance(resume, bool) or not isinstance(progress, Mapping):
        return True
    return bool(progress.get("resumed", str(resume)) == str(resume))  # a version before 0.7 does not say it


def config_of_run(
    experiment: Experiment, overrides: Sequence[str], folder: Path, checkpoint: Checkpoint | None
) -> Config:
    """The settings of a run in a folder.

    A run that continues a checkpoint keeps the settings in it, except those in an experiment file and in overrides; a
    ``Config`` replaces all.

    Raises:
        CheckpointError: the checkpoint is of another architecture.
        ConfigError: the settings are not valid, or of another skeleton.
    """
    if checkpoint is None:
        return config_of_new_run(experiment, overrides)
    path, state = checkpoint
    saved = config_of_checkpoint(state, path) or Config()
    require_same_constants(state["config"], path)
    # The folder may have moved since the checkpoint was written.
    saved = with_settings(saved, "checkpoint", path=str(path.parent))
    config = with_settings(load_config(experiment, overrides, base=saved), "checkpoint", path=str(folder))
    if changes := saved.model.skeleton.changes_of_network(config.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton (other {', '.join(changes)}); keep that of "
            "the run, or start a new run with train.weights=FILE in another folder"
        )
    if config.train.weights not in ("", saved.train.weights):
        _log.warning("train.weights is only for new runs; this one continues with the weights in %s", path)
        config = with_settings(config, "train", weights=saved.train.weights)
    changed = config_differences(saved, config)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(config, state, path)
    return config


def state_of(run: Run) -> dict[str, Any]:
    """Everything that training changes, as plain values and tensors: the content of a checkpoint.

    ``model`` has the weights that are used: the average of the weights if there is one. The trained weights are then in
    ``average``.
    """
    weights, average = run.network.state_dict(), run.average
    state: dict[str, Any] = {
        "format": FORMAT,
        "model": weights,
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state_dict(),
        "guard": run.bad_steps.state(),
        "progress": dataclasses.asdict(run.progress),
        "steps_per_epoch": run.batches.steps_per_epoch,
        "config": config_to_dict(run.config),
        "world_size": run.runtime.world_size,
        "validation": run.validation_digest,
    }
    if run.model.teacher is not None:
        state["teacher"] = run.model.teacher.digest
    if average is not None:
        state["average"] = {"count": average.count, "epochs": average.epochs, "trained": {}}
    if average is not None and average.count:
        state["model"] = weights | average.values
        trained = {name: weights[name] for name in average.values}
        state["average"] |= {"kind": average.settings.kind, "trained": trained}
    return state


def restore_run(run: Run, checkpoint: Checkpoint) -> None:
    """Continue the run of a checkpoint, whose epochs may have had another number of steps.

    Without the ``best.pth`` of its best score, as in another folder, or with other validation data it forgets that
    score.
    ``CheckpointError`` if the checkpoint belongs to another network, optimizer or teacher, or is not valid.
    """
    path, state = checkpoint
    teacher = run.model.teacher
    if teacher is not None and state.get("teacher", teacher.digest) != teacher.digest:
        raise CheckpointError(
            f"{path} was trained with another teacher than the file that train.teacher names now; restore that file, "
            "or start a new run in another folder with train.weights=FILE"
        )
    try:
        restore_weights(run, path, state)
        run.bad_steps.restore(state["guard"])
        run.progress = Progress(**state["progress"])
        run.progress.rescale_epoch(state["steps_per_epoch"], run.batches.steps_per_epoch)
        before, now = state.get("world_size", run.runtime.world_size), run.runtime.world_size
        if before != now:
            _log.info("The run had %s and continues with %d", pluralize(before, "process", "processes"), now)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # the checkpoint is not damaged
        raise CheckpointError(
            f"{path} contains no valid run ({truncate_for_message(error)}); use an older checkpoint"
        ) from error
    run.writer.saved_step = run.progress.total_steps
    if not is_last(run, path) and not _has_best_of(run, state):
        run.progress.forget_scores()
    saved = str(state.get("validation"))
    is_digest = re.fullmatch("[0-9a-f]{64}", saved)  # versions before 0.7 wrote a text that may be as long, or nothing
    if run.progress.best_score and is_digest and saved != run.validation_digest:
        run.progress.forget_scores()
        _log.warning("The validation data have changed: the scores of earlier epochs count no more")
    position = f"epoch {run.progress.epoch + 1}, step {run.progress.step} of {run.batches.steps_per_epoch}"
    _log.info("Resuming from %s: %s", path, position)


def is_last(run: Run, path: Path) -> bool:
    """Whether ``--resume`` alone finds this checkpoint: it is the last one of the run's folder."""
    return path.resolve() == run.folder.last.resolve()


def _has_best_of(run: Run, state: dict[str, Any]) -> bool:
    """Whether ``best.pth`` in the run's folder has the best score of a checkpoint."""
    try:
        return bool(read_checkpoint(run.folder.best)["progress"]["best"] == state["progress"]["best"])
    except (CheckpointError, LookupError, TypeError):
        return False


def restore_weights(run: Run, path: Path, state: Mapping[str, Any]) -> None:
    """Restore the weights, their average, the state of the optimizer and the loss scale from a checkpoint.

    ``CheckpointError`` if it has other parameters or another optimizer.
    """
    _require_same_frozen_parameters(run, path, state)
    trained = {**state["model"], **state.get("average", {}).get("trained", {})}  # "model" may be the average
    weights = extract_weights({"model": trained, "config": state["config"]}, path)
    require_usable_weights(weights, path)
    run.network.load_state_dict(weights)
    if run.average is not None:
        saved = state.get("average", {})
        is_continued = saved.get("kind", run.average.settings.kind) == run.average.settings.kind
        saved = saved if is_continued else {}
        run.average.restore(state["model"], saved.get("count", 0), saved.get("epochs", 0))
    try:
        restore_optimizer(run.optimizer, state["optimizer"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} was saved by another optimizer, or its state is not valid; keep optim.name, or start a "
            "new run with train.weights=FILE"
        ) from error
    # A fixed loss scale is a setting; it has the backoff factor 1.
    is_dynamic = run.scaler.is_enabled() and run.scaler.get_backoff_factor() < 1
    if is_dynamic and state["scaler"].get("backoff_factor", 1) < 1:
        run.scaler.load_state_dict(state["scaler"])


def _require_same_frozen_parameters(run: Run, path: Path, state: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` if the run of a checkpoint has frozen other parameters.

    The state of an optimizer knows its parameters by their numbers among those that are not frozen. So with others it
    belongs to other parameters, perhaps of equal shapes.
    """
    saved = config_of_checkpoint(state, path) or Config()
    frozen_before = names_to_freeze(run.network, saved.train.freeze)
    frozen_now = {name for name, parameter in run.network.named_parameters() if not parameter.requires_grad}
    if changed := sorted(frozen_before ^ frozen_now):
        verb = "froze" if changed[0] in frozen_before else "did not freeze"
        raise CheckpointError(
            f"{path} was saved by a run that {verb} {changed[0]}; keep its train.freeze, or "
            "start a new run in another folder with train.weights=FILE"
        )

"""Resuming: which checkpoint a run continues, with which settings, and the state that is saved and restored.

The parts of a run do not know of checkpoints: ``state_of`` reads their values, and ``restore_run`` writes them.
"""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

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
from posenet.training.bad_steps import BadStepCounts
from posenet.training.freezing import names_to_freeze
from posenet.training.optimizer import restore_optimizer
from posenet.training.progress import Progress
from posenet.training.run import Run
from posenet.training.run_settings import another_run_error, config_of_new_run, with_folder, with_warmup
from posenet.training.teacher import Teacher

Values = TypeVar("Values")

_log = logging.getLogger(__name__)


class FoundCheckpoint(NamedTuple):
    """The checkpoint to resume, its content, and what it is to the folder of the run."""

    path: Path
    state: dict[str, Any]
    is_in_folder: bool = True
    """Whether it is in the folder of the run. If not, the run continues it in a folder of its own."""
    is_last: bool = True
    """Whether ``--resume`` alone would find it, because it is the last one of the folder."""
    has_best: bool = True
    """Whether ``best.pth`` of the folder has its best score."""


def find_checkpoint(folder: Path, resume: bool | str | Path, restarted: bool = False) -> FoundCheckpoint | None:
    """The checkpoint to resume in the folder of a run; None for a new run. Rank 0 alone calls this.

    ``resume`` is the argument of ``train``; ``restarted`` says that a launcher has started the run again.
    ``CheckpointError`` if there is no such checkpoint, if it is damaged or contains no run, or if the folder contains
    another run.
    """
    own = CheckpointFolder(folder)
    if restarted:
        _log.info("The launcher has started the run again: resuming from its newest checkpoint, if it has saved one")
    found = (_saved_before_restart(own, resume) if restarted else None) or _read_requested(own, resume)
    if found is None:
        if own.has_checkpoints():
            raise another_run_error(folder)
        return None
    path, state = found
    for key in ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch", "config"):
        if key not in state:
            raise CheckpointError(
                f"{path} contains no run to resume (no {key}); fine-tune from it with train.weights=FILE"
            )
    is_in_folder = path.parent.resolve() == folder.resolve()
    if not is_in_folder and own.has_checkpoints():
        raise another_run_error(folder, path)
    is_last = is_in_folder and path.name == own.last.name
    has_best = is_last or (is_in_folder and _have_same_best_score(own.best, state))
    return FoundCheckpoint(path, state, is_in_folder, is_last, has_best)


def _have_same_best_score(best: Path, state: dict[str, Any]) -> bool:
    """Whether a checkpoint, if it is intact, has the best score of the content of another one."""
    try:
        return bool(read_checkpoint(best)["progress"]["best"] == state["progress"]["best"])
    except (CheckpointError, LookupError, TypeError):
        return False


def _read_requested(own: CheckpointFolder, resume: bool | str | Path) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that ``resume`` names, and its content; None for a new run."""
    if resume is False:
        return None
    if resume is True:
        found = own.newest_intact()
        if found is None:
            _log.info(
                "%s contains no checkpoint: starting a new run; to resume another one, use --resume FOLDER/last.pth",
                own.path,
            )
        return found
    path = Path(resume)
    if not path.is_dir():
        return path, read_checkpoint(path)
    found = CheckpointFolder(path).newest_intact()
    if found is None:
        raise CheckpointError(
            f"{path} contains no checkpoint to resume; give another one, or leave it out to start a new run"
        )
    return found


def _saved_before_restart(own: CheckpointFolder, resume: bool | str | Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that a run has saved before it was started again; None if there is none.

    Where ``resume`` is a checkpoint of the run's own folder, the run has returned to it: other checkpoints of the
    folder belong to this run only if they say that it has returned there.
    """
    returned_to = ""
    if not isinstance(resume, bool) and not Path(resume).is_dir():
        path = Path(resume).resolve()
        if path.parent == own.path.resolve() and path.name != own.last.name:
            returned_to = path.name
    return own.newest_intact(lambda state: not returned_to or state.get("returned_to") == returned_to)


def config_of_run(
    experiment: Config | str | Path | None,
    overrides: Sequence[str],
    warmup: bool,
    folder: Path,
    checkpoint: FoundCheckpoint | None,
) -> Config:
    """The settings of a run in a folder.

    A run that continues a checkpoint keeps the settings in it, except those in an experiment file and in overrides; a
    ``Config`` replaces all.

    Raises:
        CheckpointError: the checkpoint is of another architecture.
        ConfigError: the settings are not valid, or of another skeleton.
    """
    if checkpoint is None:
        return config_of_new_run(experiment, overrides, warmup)
    path, state = checkpoint.path, checkpoint.state
    require_same_constants(state["config"], path)
    # The folder may have moved since the checkpoint was written.
    saved = with_folder(config_of_checkpoint(state, path) or Config(), path.parent)
    if isinstance(experiment, Config):
        config = load_config(None, overrides, base=experiment)
    else:
        config = load_config(experiment, overrides, base=saved)
    config = with_folder(config, folder)
    config = with_warmup(config) if warmup else config
    if changes := saved.model.skeleton.changes_of_network(config.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton (other {', '.join(changes)}); keep that of "
            "the run, or start a new run with train.weights=FILE in another folder"
        )
    if config.train.weights not in ("", saved.train.weights):
        _log.warning("train.weights is only for new runs; this one continues with the weights in %s", path)
        train = dataclasses.replace(config.train, weights=saved.train.weights)
        config = dataclasses.replace(config, train=train)
    changed = config_differences(saved, config)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(config, state, path)
    return config


def state_of(run: Run) -> dict[str, Any]:
    """Everything that training changes, as plain values and tensors: the content of a checkpoint.

    ``model`` has the weights that are used: the average of the weights if there is one. The trained weights are then in
    ``average``.
    """
    state = {
        "format": FORMAT,
        **_weights_of(run),
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
    if run.returned_to:
        state["returned_to"] = run.returned_to
    return state


def _weights_of(run: Run) -> dict[str, Any]:
    weights, average = run.network.state_dict(), run.average
    if average is None:
        return {"model": weights}
    saved = {"count": average.count, "epochs": average.epochs, "trained": {}}
    if not average.count:
        return {"model": weights, "average": saved}
    saved["trained"] = {name: weights[name] for name in average.values}
    return {"model": weights | average.values, "average": {"kind": average.settings.kind} | saved}


def _require_same_teacher(teacher: Teacher | None, path: Path, state: dict[str, Any]) -> None:
    """Raise ``CheckpointError`` if the checkpoint at ``path`` was trained with a teacher, but now has another one."""
    if teacher is not None and state.get("teacher", teacher.digest) != teacher.digest:
        raise CheckpointError(
            f"{path} was trained with another teacher than the file that train.teacher names now; restore that file, "
            "or start a new run in another folder with train.weights=FILE"
        )


def restore_run(run: Run, checkpoint: FoundCheckpoint) -> None:
    """Continue the run of a checkpoint, whose epochs may have had another number of steps.

    Without the ``best.pth`` of its best score, as in another folder, or with other validation data it forgets that
    score.
    ``CheckpointError`` if the checkpoint belongs to another network, optimizer or teacher, or is not valid.
    """
    path, state = checkpoint.path, checkpoint.state
    _require_same_teacher(run.model.teacher, path, state)
    try:
        restore_weights(run, path, state)
        counts = {field.name: state["guard"][field.name] for field in dataclasses.fields(BadStepCounts)}
        run.bad_steps.counts = restore_values(BadStepCounts, counts)
        if not run.bad_steps.restore_history(state["guard"]):
            _log.info(
                "The guard has no history of losses yet: the checkpoint has none, or its data or settings were others"
            )
        run.progress = restore_values(Progress, state["progress"])
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
    if checkpoint.is_in_folder:
        run.returned_to = state.get("returned_to", "") if checkpoint.is_last else path.name
    if not checkpoint.has_best:
        run.progress.forget_scores()
    if run.progress.best_score and state.get("validation", run.validation_digest) != run.validation_digest:
        run.progress.forget_scores()
        _log.warning("The validation data have changed: the scores of earlier epochs count no more")
    position = f"epoch {run.progress.epoch + 1}, step {run.progress.step} of {run.batches.steps_per_epoch}"
    _log.info("Resuming from %s: %s", path, position)


def restore_weights(run: Run, path: Path, state: Mapping[str, Any]) -> None:
    """Restore the weights, their average, the state of the optimizer and the loss scale from a checkpoint.

    ``CheckpointError`` if it has other parameters or another optimizer.
    """
    _require_same_frozen_parameters(run, path, state)
    weights = extract_weights({"model": trained_weights(state), "config": state["config"]}, path)
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
            f"{path} was saved by another optimizer, or its state is not valid; keep optim.name and "
            "optim.decay_norms_and_biases, or start a new run with train.weights=FILE"
        ) from error
    # A fixed loss scale is a setting; it has the backoff factor 1.
    is_dynamic = run.scaler.is_enabled() and run.scaler.get_backoff_factor() < 1
    if is_dynamic and state["scaler"].get("backoff_factor", 1) < 1:
        run.scaler.load_state_dict(state["scaler"])


def trained_weights(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights that the run of a checkpoint was training; its ``model`` may be their average."""
    weights: dict[str, Tensor] = dict(state["model"])
    weights.update(state.get("average", {}).get("trained", {}))
    return weights


def restore_values(kind: type[Values], values: Mapping[str, Any]) -> Values:
    """A dataclass of numbers and texts; ``TypeError`` or ``ValueError`` if the values do not have its types."""
    restored = kind(**values)
    for name, expected in typing.get_type_hints(kind).items():
        value = getattr(restored, name)
        if type(value) is bool or not isinstance(value, expected) or (type(value) is int and value < 0):
            raise ValueError(f"{name} is {truncate_for_message(value)}")
    return restored


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

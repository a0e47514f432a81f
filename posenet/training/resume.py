"""Resuming: which checkpoint a run continues, with which settings, and the state that is saved.

The parts of a run do not know how they are saved: ``state_of`` reads their values, and ``restore_run`` writes them.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenet.checkpoints.file import FORMAT, read_checkpoint
from posenet.checkpoints.folder import CheckpointFolder
from posenet.checkpoints.weights import (
    config_of_checkpoint,
    extract_weights,
    require_fitting_weights,
    require_usable_weights,
)
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import is_out_of_memory, truncate_for_message
from posenet.settings import Config, config_differences, config_to_dict, load_config
from posenet.settings.earlier import require_same_constants
from posenet.training.inputs import Experiment, describe_inputs, with_settings
from posenet.training.optimizer import names_to_freeze, restore_optimizer
from posenet.training.progress import Progress

if TYPE_CHECKING:
    from posenet.training.run import Run

Checkpoint = tuple[Path, dict[str, Any]]  # the path and the content of a checkpoint

_NO_EFFECT = "log. checkpoint. inference. tracking. train.epochs train.patience train.evaluate_every data.val"
NO_EFFECT_ON_LOSSES = tuple(_NO_EFFECT.split())
"""Settings, by the beginnings of their names, that do not change how large losses are."""

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
    if isinstance(resume, bool):
        found = own.newest_intact() if restarted or resume else None
    elif restarted:  # checkpoints of an earlier run in this folder do not count
        found = own.newest_intact(lambda state: state.get("progress", {}).get("resumed") == str(resume))
    if found is None and not isinstance(resume, bool):
        path = Path(resume)
        found = CheckpointFolder(path).newest_intact() if path.is_dir() else (path, read_checkpoint(path))
        if found is None:
            raise CheckpointError(
                f"{path} contains no checkpoint to resume; give another one, or leave it out to start a new run"
            )
    is_own = found is not None and found[0].parent.resolve() == folder.resolve()
    if own.has_checkpoints() and not is_own:
        kept = "a run; continue it with --resume, or" if found is None else f"another run than {found[0]};"
        raise CheckpointError(f"{folder} already contains {kept} choose another folder with --set checkpoint.path=DIR")
    if found is None:
        if resume:
            _log.info("%s contains no checkpoint: starting a new run", folder)
        return None
    path, state = found
    if "optimizer" not in state or not isinstance(state.get("config"), dict):
        raise CheckpointError(f"{path} contains no run to resume; fine-tune from it with --set train.weights=FILE")
    return found


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
        return with_settings(load_config(experiment, overrides), "checkpoint", path=str(folder))
    path, state = checkpoint
    saved = config_of_checkpoint(state, path) or Config()
    require_same_constants(state["config"], path)
    config = with_settings(load_config(experiment, overrides, base=saved), "checkpoint", path=str(folder))
    if changes := saved.model.skeleton.changes_of_network(config.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton (other {', '.join(changes)}); keep that of "
            "the run, or start a new run with --set train.weights=FILE in another folder"
        )
    if config.train.weights not in ("", saved.train.weights):
        _log.warning("train.weights is only for new runs; this one continues with the weights in %s", path)
        config = with_settings(config, "train", weights=saved.train.weights)
    changed = config_differences(saved, config)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(config, state, path)
    return config


def state_of(run: "Run") -> dict[str, Any]:
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
        "contents": run.contents,
        "world_size": run.runtime.world_size,
    }
    if average is not None:
        state["average"] = {"count": average.count, "epochs": average.epochs, "trained": {}}
        if average.count:
            state["model"] = weights | average.values
            trained = {name: weights[name] for name in average.values}
            state["average"] |= {"kind": average.settings.kind, "trained": trained}
    return state


def restore_run(run: "Run", checkpoint: Checkpoint) -> None:
    """Continue the run of a checkpoint, whose epochs may have had another number of steps.

    With other validation data, it forgets the best score. ``CheckpointError`` if the checkpoint belongs to another
    network, optimizer or teacher, or is not valid.
    """
    path, state = checkpoint
    try:
        # A version before 0.7 saves no contents but the digest of a teacher.
        before = state.get("contents", {"train.teacher": state["teacher"]} if "teacher" in state else {})
        changed = [name for name, value in run.contents.items() if before.get(name, value) != value]
        if "train.teacher" in changed:
            raise CheckpointError(
                f"{path} was trained with another teacher than the file that train.teacher names now; restore that "
                "file, or start a new run in another folder with --set train.weights=FILE"
            )
        restore_weights(run, checkpoint)
        run.bad_steps.restore_counts(state["guard"])
        names = {field.name for field in dataclasses.fields(Progress)}
        run.progress = Progress(**{name: value for name, value in state["progress"].items() if name in names})
        # Of an epoch that has another number of steps now, the completed share counts.
        steps, position = state["steps_per_epoch"], run.progress.step
        if type(steps) is not int or position > steps:
            raise ValueError(f"step {position} of an epoch of {truncate_for_message(steps)} steps")
        run.progress.step = position * run.batches.steps_per_epoch // steps
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # the checkpoint is not damaged
        raise CheckpointError(
            f"{path} contains no valid run ({truncate_for_message(error)}); use an older checkpoint"
        ) from error
    run.folder.saved_step = run.progress.total_steps
    if changed:
        _log.info("Changed since the checkpoint was saved: %s", ", ".join(changed))
    if {"data.val", "data.val_annotations"} & set(changed):
        run.progress.forget_scores()
    where = f"epoch {run.progress.epoch + 1}, step {run.progress.step} of {run.batches.steps_per_epoch}"
    _log.info("Resuming from %s: %s", path, where)


def is_last(run: "Run", path: Path) -> bool:
    """Whether ``--resume`` alone finds this checkpoint: it is the last one of the run's folder."""
    return path.resolve() == run.folder.last.resolve()


def has_best_weights(run: "Run", checkpoint: Checkpoint) -> bool:
    """Whether ``best.pth`` in the run's folder has the best score of a checkpoint. Rank 0 alone calls this."""
    path, state = checkpoint
    if is_last(run, path):
        return run.folder.best.is_file()
    try:
        return bool(read_checkpoint(run.folder.best)["progress"]["best"] == state["progress"]["best"])
    except (CheckpointError, LookupError, TypeError):
        return False


def restore_weights(run: "Run", checkpoint: Checkpoint) -> None:
    """Restore the weights, their average, the state of the optimizer, the loss scale and what the guard knows.

    ``CheckpointError`` if it has other parameters or another optimizer.
    """
    path, state = checkpoint
    saved = config_of_checkpoint(state, path) or Config()
    # The state of an optimizer knows its parameters by their numbers among those that are not frozen. So with others it
    # belongs to other parameters, perhaps of equal shapes.
    frozen_before = names_to_freeze(run.network, saved.train.freeze)
    frozen_now = {name for name, parameter in run.network.named_parameters() if not parameter.requires_grad}
    if frozen_before != frozen_now:
        raise CheckpointError(
            f"{path} was saved by a run with other frozen parameters; keep its train.freeze, or start a new run in "
            "another folder with --set train.weights=FILE"
        )
    average = state.get("average", {})
    trained = {**state["model"], **average.get("trained", {})}  # "model" may be the average
    weights = extract_weights({"model": trained, "config": state["config"]}, path)
    require_usable_weights(weights, path)
    run.network.load_state_dict(weights)
    if run.average is not None:
        kind = run.average.settings.kind
        average = average if average.get("kind", kind) == kind else {}
        run.average.restore(state["model"], average.get("count", 0), average.get("epochs", 0))
    try:
        if saved.optim.name != run.config.optim.name:
            raise ValueError(saved.optim.name)
        restore_optimizer(run.optimizer, state["optimizer"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} was saved by another optimizer, or its state is not valid; keep optim.name, or start a "
            "new run with --set train.weights=FILE"
        ) from error
    # A fixed loss scale is a setting; it has the backoff factor 1.
    is_dynamic = run.scaler.is_enabled() and run.scaler.get_backoff_factor() < 1
    if is_dynamic and state["scaler"].get("backoff_factor", 1) < 1:
        run.scaler.load_state_dict(state["scaler"])
    # With other data or settings, losses may have another size, so the history of the guard says nothing.
    before, now = describe_inputs(saved, state.get("contents", {})), describe_inputs(run.config, run.contents)
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    is_same = state.get("world_size") == run.runtime.world_size
    is_same &= all(name.startswith(NO_EFFECT_ON_LOSSES) for name in changed)
    run.bad_steps.restore_history(state["guard"] if is_same else {})

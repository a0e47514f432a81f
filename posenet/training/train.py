"""A training run: how it is built, its loops over epochs and steps, and how it saves and stops.

``train`` builds the run, ``Trainer.run`` is the loop over the epochs, ``Trainer.train_one_epoch`` the loop over the
steps; ``step.TrainStep`` is one step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm

from posenet.checkpoints.folder import CheckpointFolder, CheckpointWriter, RunStatusFile, run_lock
from posenet.checkpoints.weights import load_weights
from posenet.data.loader import Batch
from posenet.devices.device import cudnn_flags
from posenet.devices.precision import describe_training_mode, make_grad_scaler, select_training_mode
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested, catch_stop_signals
from posenet.errors import CheckpointError, DataError, OtherRankError, TrainingError
from posenet.messages import pluralize
from posenet.model.posenet import PoseNet
from posenet.progress import progress_bar
from posenet.settings import Config, config_to_dict
from posenet.training.agreement import require_same_run
from posenet.training.averaging import WeightAverage
from posenet.training.batch_norm import BatchNormStatistics
from posenet.training.data_set_losses import DataSetLosses, format_losses
from posenet.training.freezing import freeze, set_train_mode
from posenet.training.guard import GuardAction, LossGuard
from posenet.training.input import (
    RestartingLoader,
    UnreadableSampleLimit,
    as_data_error,
    log_unreadable,
    make_input_stream,
    make_validation_loader,
)
from posenet.training.log import CallbackList, TextLog, TrainingCallback, logs_of_run
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import learning_rate, lr_factor, make_optimizer, set_lr
from posenet.training.progress import Progress
from posenet.training.resume import (
    FoundCheckpoint,
    RunState,
    configure_run,
    get_random_state,
)
from posenet.training.step import StepResult, TrainStep
from posenet.training.stores import TrainingStores, describe_contents, describe_paths, open_stores
from posenet.training.teacher import Teacher, load_teacher, require_same_teacher
from posenet.training.validation import CocoValidation, validation_loss

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """Where a run is when ``train`` returns."""

    folder: Path
    """Folder of the run: ``last.pth``, ``best.pth``, ``log.txt``, ``log.jsonl`` and so on."""
    finished: bool
    """Whether the last epoch was completed. False after a stop signal, ``max_steps`` or early stopping."""
    epochs: int
    """Completed epochs."""
    steps: int
    """Optimizer steps since the start of the run, skipped ones included."""
    best: dict[str, float]
    """The score of ``best.pth`` by name, "AP" or "val_loss"; empty if there is none."""
    stopped: bool = False
    """Whether a stop signal has ended the run early; ``resume`` continues it."""


def train(
    config: Config | str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    resume: bool | str | Path = False,
    warmup: bool = False,
    max_steps: int = 0,
    callbacks: Sequence[TrainingCallback] = (),
    progress: bool = True,
    runtime: Runtime | None = None,
) -> TrainingResult:
    """Train a network, as ``posenet train`` does, and save it in the folder ``checkpoint.path``.

    Ctrl-C, SIGTERM and SIGUSR1 finish the step, save and return; a second Ctrl-C raises ``KeyboardInterrupt``. This
    works only in the main thread. With workers for data (``data.workers``), a script calls this function below
    ``if __name__ == "__main__":``.

    Args:
        config: an experiment file, or all settings of the run. None means the defaults.
        overrides: ``"section.key=value"`` pairs that override settings.
        resume: True continues from the newest intact checkpoint of the run's folder, or starts a new run if there is
            none. A path is a checkpoint or the folder of a run. The settings in the checkpoint are kept, except those
            in an experiment file and in ``overrides``; a ``Config`` replaces them all.
        warmup: if ``optim.warmup_epochs`` is 0, use its default.
        max_steps: stop after this many optimizer steps since the start of the run; 0 does not stop.
        callbacks: receive the measurements, in addition to the logs in the run's folder.
        progress: whether to show progress bars.
        runtime: how to use devices and processes; None means one process on the configured device.

    Raises:
        PosenetError: a setting, a file or the data cannot be used, or the training cannot continue.
    """
    runtime = runtime or Runtime()
    pairs = [overrides] if isinstance(overrides, str) else list(overrides)
    with runtime.explain_errors(), catch_stop_signals() as stop_requested, contextlib.ExitStack() as stack:
        text_log = TextLog()
        if runtime.is_main:
            stack.enter_context(text_log)

        # The settings, and the checkpoint if the run is resumed.
        settings, checkpoint = configure_run(config, pairs, resume, warmup, runtime)
        folder = CheckpointFolder(Path(settings.checkpoint.path), settings.checkpoint.keep)
        continues_run = checkpoint is not None and checkpoint.path.parent.resolve() == folder.path.resolve()
        version = checkpoint.folder_version if checkpoint is not None and continues_run else None
        runtime.run_on_main(lambda: _refuse_another_run(folder, version))
        if settings.train.threads:
            torch.set_num_threads(settings.train.threads)
        torch.manual_seed(settings.train.seed)

        # The device. All training batches have the same shape.
        runtime.select_device(settings.train.device)
        stack.enter_context(cudnn_flags(benchmark=True, tf32=settings.train.tf32))
        _log.info(describe_training_mode(runtime.device, settings.train))
        settings = _with_device_settings(settings, runtime)

        # What the run is made of.
        shows_progress = progress and runtime.is_main
        is_new = checkpoint is None
        parts = runtime.run_on_all(lambda: _build_parts(settings, runtime, stack, is_new, shows_progress))
        contents = describe_contents(settings, parts.stores) | {"--max-steps": max_steps}
        if parts.teacher is not None:
            contents["train.teacher"] = f"a file with the digest {parts.teacher.digest[:8]}"
        require_same_run(runtime, settings, contents)

        # The folder of the run and its logs, on rank 0.
        logs = [*logs_of_run(settings.log), *callbacks] if runtime.is_main else []
        log = stack.enter_context(CallbackList(logs))
        status = runtime.run_on_main(lambda: _open_folder(folder, version, settings, text_log, log, stack))
        _log.info(_describe_run(settings, parts, folder.path))

        # Training.
        trainer = Trainer(settings, parts, runtime, folder, log, max_steps, stop_requested, shows_progress)
        stack.callback(trainer.close)
        if checkpoint is not None:
            runtime.run_on_all(functools.partial(trainer.resume, checkpoint, continues_run))
            checkpoint = None  # it takes as much memory as the run
        if trainer.progress.epoch >= settings.train.epochs:
            epochs = pluralize(settings.train.epochs, "epoch")
            _log.info("%s has completed its %s already; --epochs adds more", folder.path, epochs)
            return trainer.result(finished=True)
        _log.info(_describe_lr(settings, runtime.world_size))
        result = trainer.result(finished=trainer.run())
        if status is not None and result.stopped:
            status.final = "stopped"
        return result


def _with_device_settings(settings: Config, runtime: Runtime) -> Config:
    """The settings with values in place of ``train.amp = "auto"`` and ``train.channels_last = "auto"``.

    Checkpoints contain the values, so that a resumed run keeps them on any device.
    """
    mode = select_training_mode(runtime.device, settings.train)
    return dataclasses.replace(settings, train=dataclasses.replace(settings.train, **mode._asdict()))


class Parts(NamedTuple):
    """What a run is made of, built from its settings by each rank."""

    stores: TrainingStores
    network: PoseNet
    """On the device of the rank."""
    optimizer: Optimizer
    average: WeightAverage | None
    teacher: Teacher | None
    evaluate: CocoValidation | None
    """Computes COCO's scores; None without images and annotations for it."""


def _build_parts(
    settings: Config, runtime: Runtime, stack: contextlib.ExitStack, is_new: bool, shows_progress: bool
) -> Parts:
    """Open the stores, which ``stack`` closes, and build the network. A new run starts from ``train.weights``."""
    stores = open_stores(settings, stack)
    network = PoseNet.from_config(settings)
    if settings.train.weights and is_new:
        _log.info("Fine-tuning. %s", load_weights(network, settings.train.weights))
    if frozen := freeze(network, settings.train.freeze):
        _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
    network.channels_last = select_training_mode(runtime.device, settings.train).channels_last
    layout = torch.channels_last if network.channels_last else torch.contiguous_format
    network.to(device=runtime.device, memory_format=layout)  # type: ignore[call-overload]
    if settings.parallel.sync_bn:
        network = cast(PoseNet, runtime.convert_sync_batch_norm(network))
    return Parts(
        stores,
        network,
        optimizer=make_optimizer(network, settings.optim),
        average=None if settings.average.kind == "off" else WeightAverage(network, settings.average),
        teacher=load_teacher(settings, runtime.device),
        evaluate=CocoValidation.from_config(settings, network, runtime, shows_progress),
    )


def _refuse_another_run(folder: CheckpointFolder, version: int | None) -> None:
    """Raise ``CheckpointError`` if the folder contains a run that this one does not continue.

    Args:
        version: ``folder.version()`` when the checkpoint was read that this run continues; None for a run that is new
            in the folder.
    """
    if version is None and folder.has_checkpoints():
        raise CheckpointError(
            f"{folder.path} already contains a run; continue it with --resume, or choose another folder "
            "with --checkpoint-path"
        )
    if version is not None and version != folder.version():
        raise CheckpointError(
            f"another process has saved the run in {folder.path} after this one had read it; when it has ended, start "
            "again with --resume"
        )


def _open_folder(
    folder: CheckpointFolder,
    version: int | None,
    settings: Config,
    text_log: TextLog,
    log: TrainingCallback,
    stack: contextlib.ExitStack,
) -> RunStatusFile:
    """Lock the folder of the run and write its status, until ``stack`` is closed, and start the logs there."""
    stack.enter_context(run_lock(folder.path))
    # Another process may have written checkpoints before this one had the lock.
    _refuse_another_run(folder, version)
    status = stack.enter_context(RunStatusFile(folder.path))
    text_log.open(folder.path)
    log.on_start(settings, folder.path)
    return status


def _describe_run(settings: Config, parts: Parts, folder: Path) -> str:
    """The network, the data and the folder of a run."""
    model = settings.model
    parameters = sum(parameter.numel() for parameter in parts.network.parameters()) / 1e6
    stacks = pluralize(model.stacks, "stack")
    samples = parts.stores.num_samples(settings.data.framing)
    return (
        f"Training a network of {stacks}, width {model.width}, growth {model.growth} ({parameters:.1f} M parameters) "
        f"on {pluralize(samples, 'sample')} of {describe_paths(settings.data.train)}; the run is in {folder}"
    )


def _describe_lr(config: Config, world_size: int) -> str:
    """The learning rate of all processes together, and the settings that determine it."""
    samples = config.train.batch_size * world_size * config.optim.accumulate
    lr = config.optim.lr * lr_factor(config.optim, world_size)
    processes = pluralize(world_size, "process", "processes")
    rule = f"optim.lr {config.optim.lr:g} x {processes}" if config.optim.scale_lr else "optim.lr, not scaled"
    return f"Learning rate {lr:g} ({rule}) for steps of {samples} samples"


class Trainer:
    """Trains one network over epochs that can be interrupted at any step.

    Args:
        config: the settings of the run; every checkpoint contains them.
        folder: where rank 0 writes the checkpoints.
        parts: what the run is made of.
        runtime: the device, and the other processes.
        log: receives the measurements.
        max_steps: stop after this many steps since the start of the run; 0 never stops.
        stop_requested: whether a stop signal has arrived.
        shows_progress: whether to show progress bars.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        runtime: Runtime,
        folder: CheckpointFolder,
        log: TrainingCallback,
        max_steps: int,
        stop_requested: Callable[[], bool],
        shows_progress: bool,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.log = log
        self.max_steps = max_steps
        self.stop_requested = stop_requested
        self.shows_progress = shows_progress
        self.stopped = False  # whether a stop signal, on any rank, has ended ``run``

        self.teacher = parts.teacher
        self.model = ModelWithLoss.from_config(parts.network, config, parts.teacher)
        self.wrapped_model = runtime.wrap(self.model)
        self.batch_norm = BatchNormStatistics(self.model)
        self.optimizer = parts.optimizer
        self.average = parts.average
        if self.average is not None:
            self.average.start()  # from the weights of rank 0, which all ranks have now
        self.scaler = make_grad_scaler(runtime.device, self.model.amp, config.train.loss_scale)
        self.guard = LossGuard(config.guard)
        self.set_losses = DataSetLosses(parts.stores.set_names, runtime) if parts.stores.set_names else None
        self.train_step = TrainStep(
            self.wrapped_model,
            self.optimizer,
            self.scaler,
            self.guard,
            runtime,
            config.optim.max_grad_norm,
            self.set_losses,
        )
        self.state = RunState(parts.network, self.average, self.optimizer, self.scaler, self.guard)

        self.input = make_input_stream(config, parts.stores.train, runtime)
        self.unreadable_limit = UnreadableSampleLimit(self.input.samples_per_epoch, config.data.max_unreadable)
        self.validation_loader: RestartingLoader | None = None
        if parts.stores.val is not None:
            self.validation_loader = make_validation_loader(config, parts.stores.val, runtime)
        self.evaluate = parts.evaluate
        self.folder = folder
        self.writer = CheckpointWriter(folder, config.checkpoint)

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def resume(self, checkpoint: FoundCheckpoint, same_folder: bool) -> None:
        """Continue the run of a checkpoint; see ``RunState.load_state_dict``.

        In another folder, which has no ``best.pth`` yet, the best score is forgotten.
        """
        require_same_teacher(checkpoint.state, self.teacher, checkpoint.path)
        self.state.load_state_dict(checkpoint, self.input.steps_per_epoch, self.runtime)
        progress = self.progress
        if not same_folder:
            progress.forget_scores()
        self.writer.saved_step = progress.total_steps
        position = f"epoch {progress.epoch + 1}, step {progress.step} of {self.input.steps_per_epoch}"
        _log.info("Resuming from %s: %s", checkpoint.path, position)

    def run(self) -> bool:
        """Train to the last epoch, to ``max_steps`` or to a stop signal.

        Returns:
            Whether the last epoch was completed.

        Raises:
            TrainingError: the loss explodes again shortly after a return to a checkpoint.
            CheckpointError: the last checkpoint could not be written.
            DataError: the samples or validation images cannot be read any more; the run has been saved.
            OtherRankError: one of these on another rank.
        """
        progress = self.progress
        try:
            while progress.epoch < self.config.train.epochs:
                if 0 < self.config.train.patience <= progress.stale:
                    self.writer.finish()
                    _log.info("Stopped early: no better score for %d epochs", progress.stale)
                    return False
                if not (self.train_one_epoch() and self.finish_epoch()):
                    self.save()
                    self.writer.finish()
                    position = f"step {progress.total_steps} (epoch {progress.epoch + 1})"
                    _log.info("Stopped after %s, saved in %s; --resume continues", position, self.folder.last)
                    self.stopped = not self._has_done_max_steps()
                    return False
            self.writer.finish()
        finally:
            self.writer.wait()
        _log.info("Finished %s; the run is in %s", pluralize(self.config.train.epochs, "epoch"), self.folder.path)
        return True

    def train_one_epoch(self) -> bool:
        """Train from the current step to the end of the epoch; return False if the run was stopped before that."""
        progress = self.progress
        steps = self.input.steps_per_epoch
        set_train_mode(self.model)
        self.input.meter.restart()
        with self._progress_bar() as bar:
            while progress.step < steps:
                # Take the batches of this rank; then all ranks agree whether to fail, to save or to stop.
                batches, error = self._take_batches()
                if self._vote(error, log_unreadable(batches)):
                    return False
                # Step.
                lr = learning_rate(self.config, self.runtime.world_size, progress.epoch, progress.step, steps)
                set_lr(self.optimizer, lr)
                result = self.train_step(batches)
                progress.count_step()
                self._react(result, batches)
                # Log.
                bar.update()
                if progress.total_steps % self.config.log.every_steps == 0 or progress.step == steps:
                    self._log_step(bar, lr)
        # For the last step: it counts and may save. A stop is left to the validation or the next epoch.
        self._vote()
        return True

    def _take_batches(self) -> tuple[list[Batch], DataError | None]:
        """The batches of the next step, or the error that ends the run."""
        try:
            return self.input.take_step(self.progress.epoch, self.progress.step), None
        except (DataError, OSError) as error:
            return [], as_data_error(error)

    def _vote(self, error: DataError | None = None, num_replaced: int = 0) -> bool:
        """Decide with the other ranks whether to fail, to save and to stop; return whether to stop.

        Rank 0 knows when a checkpoint is due; a signal or an error may reach any rank.

        Args:
            error: why this rank cannot continue, if it cannot.
            num_replaced: unreadable samples that were replaced since the last vote.

        Raises:
            DataError: this rank cannot continue, or too many samples are unreadable. The run has been saved.
            OtherRankError: likewise, on the other ranks.
        """
        progress = self.progress
        # A run of as many steps as whole epochs ends after the validation.
        steps_done = self._has_done_max_steps() and progress.step < self.input.steps_per_epoch
        stop_due = self.stop_requested() or steps_done
        save_due = self.runtime.is_main and self.writer.is_due(progress.total_steps)
        stop, save, failed, replaced = self.runtime.sum_over_ranks(stop_due, save_due, error is not None, num_replaced)
        too_many = self.unreadable_limit.exceeded_by(progress.replaced + replaced) if replaced else None
        if failed or too_many:
            self._save_before_failing()
            self.runtime.raise_on_all(error or too_many)
        # Not while steps are bad: a return to a checkpoint must find weights from before them.
        if save and not stop and not self.guard.bad_in_a_row:
            self.save()
        if not stop:  # the samples belong to the coming step, which a stopped run has still to do
            progress.replaced += replaced
        return bool(stop)

    def _save_before_failing(self) -> None:
        """Save the run before all ranks end with an error of the data. All ranks call this at the same step."""
        if not self.guard.bad_in_a_row:
            self.save()
        self.writer.wait()
        # The launcher ends all processes when one ends, so no rank may end before rank 0 has written the file.
        self.runtime.sum_over_ranks(0)

    def _react(self, result: StepResult, batches: Sequence[Batch]) -> None:
        """Record the loss of a step and update the average of the weights, or let the guard react to a bad step."""
        if result.loss is not None:
            self.progress.record_loss(result.loss)
            self.guard.record_outcome(bad=False)
            if self.average is not None:
                self.average.after_step()
            return
        self.progress.skipped += 1
        if result.bad_value is not None:
            self._react_to_bad_step(result.bad_value, [batch.image_ids for batch in batches])

    def _react_to_bad_step(self, bad_value: float, own_image_ids: Sequence[Tensor]) -> None:
        step = self.progress.total_steps
        value, image_ids = self._find_cause(bad_value, own_image_ids)
        _log.warning("Step %d skipped: loss or gradient norm %g; image ids %s", step, value, image_ids)
        self.log.on_skip(step, {"value": str(value), "image_ids": image_ids})
        action = self.guard.record_outcome(bad=True)
        if action is GuardAction.FAIL:
            self.runtime.raise_on_all(
                TrainingError(
                    f"the loss explodes again after a return to a checkpoint (step {step}, value {value:g}); lower "
                    f"optim.lr or look at images {image_ids}"
                )
            )
        if action is GuardAction.ROLL_BACK:
            self._return_to_checkpoint()

    def _find_cause(self, value: float, image_ids: Sequence[Tensor]) -> tuple[float, list[int]]:
        """The bad value and the image ids of the ranks that have one.

        If only some ranks have a bad loss, their images are the cause. A bad gradient norm is the same on all ranks.
        """
        report = value, [image_id for batch_ids in image_ids for image_id in batch_ids.tolist()]
        reports = self.runtime.gather_objects(report)
        # A float32 loss that is bad on the device may round to the threshold itself here.
        bad_reports = [other for other in reports if self.guard.is_bad(other[0])] or reports
        return bad_reports[0][0], [image_id for _, ids in bad_reports for image_id in ids]

    def _return_to_checkpoint(self) -> None:
        """Restore the weights of the last checkpoint, but continue with the next batches."""
        found = None
        if self.runtime.is_main:
            self.writer.wait()
            found = self.folder.newest_intact(lambda state: not state["guard"]["bad_in_a_row"])
        found = self.runtime.broadcast_object(found)
        if found is None:
            self.runtime.raise_on_all(
                TrainingError(
                    f"{self.guard.max_skips} steps in a row were skipped before the first checkpoint; lower optim.lr "
                    "or raise optim.warmup_epochs"
                )
            )
        checkpoint = FoundCheckpoint(*found)
        _log.warning("%d steps skipped in a row: returning to %s", self.guard.max_skips, checkpoint.path)
        self.state.load_weights(checkpoint)

    def finish_epoch(self) -> bool:
        """Validate, log and save; return False, with the epoch still unfinished, after a stop signal."""
        progress = self.progress
        epoch = progress.epoch + 1
        values: dict[str, Any] = {"epoch": epoch, "train_loss": progress.mean_loss}
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read_epoch()
        if self.average is not None:
            self.average.after_epoch(epoch)
        try:
            with contextlib.nullcontext() if self.average is None else self.average.applied():
                values |= self._validate(epoch)
        except StopRequested:
            return False
        except (DataError, OtherRankError):
            self._save_before_failing()
            raise
        self._report_epoch(values)
        score = "val_loss" if self.evaluate is None else "AP"
        is_best = progress.record_score(score, values.get(score))
        progress.start_next_epoch()
        self.save(is_best)
        return True

    def _validate(self, epoch: int) -> dict[str, Any]:
        """The validation loss, None without validation samples, and every few epochs COCO's scores.

        ``StopRequested`` after a stop signal on any rank.
        """
        # The BatchNorm statistics differ between the ranks. A checkpoint contains those of rank 0, so all ranks
        # validate with them.
        statistics = self.batch_norm.read()
        self.runtime.broadcast_tensors(statistics)
        self.batch_norm.write(statistics)
        self.model.eval()
        values: dict[str, Any] = {"val_loss": None}
        if self.validation_loader is not None:
            values["val_loss"] = validation_loss(
                self.wrapped_model,
                self.validation_loader,
                self.config.data.max_unreadable,
                self.runtime,
                self.stop_requested,
                self.shows_progress,
            )
        settings = self.config.train
        if self.evaluate and (epoch % settings.evaluate_every == 0 or epoch == settings.epochs):
            scores, drawing = self.evaluate(self.stop_requested)
            values |= scores
            if drawing is not None:
                self.log.on_drawing(self.progress.total_steps, f"epoch_{epoch:04d}", drawing)
        return values

    def _report_epoch(self, values: dict[str, Any]) -> None:
        progress = self.progress
        epoch = values["epoch"]
        self.log.on_epoch(progress.total_steps, values)
        if self.set_losses is not None:
            _log.info("Epoch %d  losses of the data sets: %s", epoch, format_losses(values["sets"]))
        if progress.skipped:
            _log.warning(
                "epoch %d: %d of %d steps were skipped: a bad loss or gradient, or a loss scale of fp16 that "
                "was too large",
                epoch,
                progress.skipped,
                progress.step,
            )
        if values["val_loss"] is not None and not math.isfinite(values["val_loss"]):
            _log.warning("epoch %d: the validation loss is not finite; lower optim.lr", epoch)

    def save(self, best: bool = False) -> None:
        """Save everything that a resumed run needs. This waits for a copy, not for the disk. All ranks call it."""
        random_states = self.runtime.gather_objects(get_random_state(self.runtime.device))
        if not self.runtime.is_main:
            return
        state = self.state.state_dict(self.input.steps_per_epoch, config_to_dict(self.config))
        if self.teacher is not None:
            state["teacher"] = self.teacher.digest
        self.writer.save(state | {"random": random_states}, self.progress.total_steps, best)

    def result(self, finished: bool) -> TrainingResult:
        """Where the run is now."""
        progress = self.progress
        best = {}
        if math.isfinite(progress.best):
            best[progress.best_kind] = -progress.best if progress.best_kind == "val_loss" else progress.best
        return TrainingResult(self.folder.path, finished, progress.epoch, progress.total_steps, best, self.stopped)

    def close(self) -> None:
        """End the data workers, and wait for a checkpoint that is being written."""
        self.writer.wait()
        self.input.close()
        if self.validation_loader is not None:
            self.validation_loader.close()

    def _progress_bar(self) -> tqdm[Any]:
        """The bar over the steps of the current epoch."""
        progress = self.progress
        steps = self.input.steps_per_epoch
        epochs = self.config.train.epochs
        following = (epochs - progress.epoch - 1) * steps
        if self.max_steps:
            following = min(following, self.max_steps - progress.total_steps - (steps - progress.step))
        return progress_bar(
            title=f"epoch {progress.epoch + 1}/{epochs}",
            total=steps,
            unit="step",
            done=progress.step,
            following=following,
            leave=False,
            disable=not self.shows_progress,
        )

    def _log_step(self, bar: tqdm[Any], lr: float) -> None:
        progress = self.progress
        loss = progress.mean_loss
        speed = self.input.meter.read()
        speed["samples_per_s"] *= self.runtime.world_size
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{speed['samples_per_s']:.1f} samples/s, data wait {speed['data_wait']:.0%}"
        )
        terms = self.train_step.terms.read()
        values: dict[str, Any] = {"epoch": progress.epoch, "loss": loss, "lr": lr, **speed, "terms": terms}
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read()
        self.log.on_step(progress.total_steps, values)

    def _has_done_max_steps(self) -> bool:
        return bool(self.max_steps) and self.progress.total_steps >= self.max_steps

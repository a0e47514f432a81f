"""A training run: its parts, and its loops over epochs and steps.

All ranks go through the loops together. Before every step they decide in ``_vote`` whether to save, to stop or to fail.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posenet.checkpoints.folder import CheckpointFolder
from posenet.checkpoints.weights import load_weights
from posenet.data.dataset import Batch
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import ConfigError, PosenetError, TrainingError
from posenet.model.build import build_network
from posenet.model.posenet import PoseNet
from posenet.settings import INPUT_MULTIPLE, Config
from posenet.training.bad_steps import MAX_SKIPS, BadStepPolicy, BadValue
from posenet.training.batches import (
    errors_of_data,
    log_unreadable,
    make_step_batches,
    make_validation_loader,
    too_many_unreadable,
)
from posenet.training.inputs import (
    describe_contents,
    describe_inputs,
    open_train_data,
    open_val_data,
    refuse_trained_images,
    require_same_run,
)
from posenet.training.log import Report
from posenet.training.optimizer import freeze, learning_rate, make_optimizer, set_train_mode
from posenet.training.progress import Progress
from posenet.training.resume import restore_weights, state_of
from posenet.training.step import TrainStep, build_model
from posenet.training.validation import CocoValidation, validation_loss
from posenet.training.weight_average import WeightAverage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """Where a run is when ``train`` returns."""

    folder: Path
    """Folder of the run: ``last.pth``, ``best.pth``, ``log.txt``, ``log.jsonl`` and so on."""
    finished: bool
    """Whether all epochs were completed. False after a stop signal, ``max_steps`` or early stopping."""
    epochs: int
    """Completed epochs."""
    steps: int
    """Optimizer steps since the start of the run, skipped ones included."""
    best: dict[str, float]
    """The score of ``best.pth`` by name, "AP" or "val_loss"; empty if there is none."""
    stopped: bool = False
    """Whether a stop signal has ended the run early; ``resume`` continues it."""
    stopped_early: bool = False
    """Whether the run has ended because its scores did not become better any more (``train.patience``)."""


class Run:
    """The parts of a run on the device of the runtime, and its loops, which can be interrupted at any step.

    Args:
        config: the settings, with values in place of "auto" and the folder of the run.
        is_new: the run does not continue a checkpoint, so it starts from ``train.weights``.
        max_steps: the argument of ``train``, which must be the same on all ranks.
        stop_requested: whether a stop signal has arrived on this rank.

    Raises:
        PosenetError: a setting or a file cannot be used, or differs between the ranks.
        OtherRankError: one of these on another rank.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        is_new: bool,
        max_steps: int,
        stop_requested: Callable[[], bool],
    ) -> None:
        on_all = runtime.run_on_all  # for what may fail on some ranks only
        self.config = config
        self.runtime = runtime
        self.max_steps = max_steps
        self.stop_requested = stop_requested
        self.progress = Progress()
        self.folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint)
        self.train_data = on_all(lambda: open_train_data(config))
        self.val_data = on_all(lambda: open_val_data(config, self.train_data))  # None without data.val
        self.network = on_all(lambda: _make_network(config, runtime, is_new))
        self.model = on_all(lambda: build_model(config, self.network, runtime.device))
        self.optimizer = on_all(lambda: make_optimizer(self.network, config.optim))
        self.coco_validation = on_all(self._make_coco_validation)  # None without images for an AP
        self.batches = on_all(lambda: make_step_batches(config, self.train_data, runtime))
        val_data, has_ap = self.val_data, self.coco_validation is not None
        self.validation_batches = None if val_data is None else make_validation_loader(config, val_data, runtime)

        # The ranks are compared. From here on, all have the weights of rank 0.
        self.contents = on_all(lambda: describe_contents(config, self.train_data, val_data, has_ap))
        require_same_run(runtime, describe_inputs(config, self.contents | {"--max-steps": max_steps}))
        self.wrapped_model = runtime.wrap(self.model)
        is_averaged = config.average.kind != "off"
        self.average = on_all(lambda: WeightAverage(self.network, config.average) if is_averaged else None)
        self.scaler = make_grad_scaler(runtime.device, self.model.amp, config.train.loss_scale)
        self.bad_steps = BadStepPolicy(config.guard)
        self.train_step = TrainStep(
            self.wrapped_model, self.optimizer, self.scaler, self.bad_steps, runtime, config.optim.max_grad_norm
        )

    def _make_coco_validation(self) -> CocoValidation | None:
        """What computes the AP; None if the settings name no images for it."""
        data, train = self.config.data, self.config.train
        if bool(data.val_images) != bool(data.val_annotations):
            given, missing = ("val_images", "val_annotations") if data.val_images else ("val_annotations", "val_images")
            raise ConfigError(f"data.{given} needs data.{missing}: an AP is computed from both; set both or none")
        if not (data.val_images and train.evaluate_every):
            if train.patience and not data.val:
                raise ConfigError(
                    "train.patience needs a score; set data.val, or data.val_images and data.val_annotations"
                )
            return None
        validation = CocoValidation(self.config, self.network, self.runtime)
        refuse_trained_images(self.config, self.train_data, [image for image, _ in validation.share])
        return validation

    def close(self) -> None:
        """End the data workers, and close the data."""
        for part in (self.batches, self.validation_batches, self.train_data, self.val_data):
            if part is not None:
                part.close()

    def train(self, report: Report) -> TrainingResult:
        """Train to the last epoch, to ``max_steps`` or to a stop signal.

        ``TrainingError`` if the loss explodes again after a return to a checkpoint, ``CheckpointError`` if the last
        checkpoint could not be written; any other ``PosenetError`` is one of the data, and the run has been saved.
        """
        progress = self.progress
        try:
            while not self._has_ended():
                self._train_one_epoch(report)
                self._finish_epoch(report)
                if self._has_done_max_steps():
                    break
        except StopRequested:
            self.save()
        self.folder.require_saved()
        if self._has_ended():
            report.end()
        else:
            report.stopped(self._has_done_max_steps())
        finished = progress.epoch >= self.config.train.epochs
        return TrainingResult(
            folder=self.folder.path,
            finished=finished,
            epochs=progress.epoch,
            steps=progress.total_steps,
            best=progress.best_score,
            stopped=not (self._has_ended() or self._has_done_max_steps()),
            stopped_early=self._has_ended() and not finished,
        )

    def _train_one_epoch(self, report: Report) -> None:
        """Train from the current step to the end of the epoch; ``StopRequested`` if the run has to stop before that."""
        progress, steps = self.progress, self.batches.steps_per_epoch
        set_train_mode(self.model)
        self.batches.restart_meter()
        with report.epoch_bar() as bar:
            while progress.step < steps:
                batches = self._take_batches()
                # Warmup, then the schedule of ``optim.schedule``.
                lr = learning_rate(self.config, self.runtime.world_size, progress.epoch, progress.step, steps)
                for group in self.optimizer.param_groups:
                    group["lr"] = lr
                result = self.train_step(batches)
                progress.count_step(result.loss)
                if result.loss is not None and self.average is not None:
                    self.average.after_step()
                if result.bad is not None:
                    self._react(result.bad, batches, report)
                report.step(bar, lr)
        self._vote()  # if a save is due, it happens here; a validation asks again whether to stop

    def _take_batches(self) -> list[Batch]:
        """The batches of this rank for the next step. All ranks stop or fail together."""
        batches: list[Batch] = []
        error: PosenetError | None = None
        try:
            with errors_of_data():
                batches = self.batches.take_step(self.progress.epoch, self.progress.step)
        except PosenetError as caught:
            if not self.stop_requested():  # the signal may have ended the data workers too
                error = caught
        if self._vote(error, log_unreadable(batches)):
            raise StopRequested
        return batches

    def _vote(self, error: PosenetError | None = None, num_replaced: int = 0) -> bool:
        """Decide with the other ranks whether to fail, to save and to stop; return whether to stop.

        ``error`` is why this rank cannot continue, if it cannot: the run is saved, and all ranks end with an error.
        ``num_replaced`` unreadable samples were replaced since the last call.
        """
        progress, batches = self.progress, self.batches
        # If ``max_steps`` is the last step of an epoch, the run stops in ``train``, after the validation.
        steps_done = self._has_done_max_steps() and progress.step < batches.steps_per_epoch
        stop_due = self.stop_requested() or steps_done
        save_due = self.runtime.is_main and self.folder.is_due(progress.total_steps)
        stop, save, failed, replaced = self.runtime.sum_over_ranks(stop_due, save_due, error is not None, num_replaced)
        too_many = too_many_unreadable(progress.replaced + replaced, batches.samples_per_epoch) if replaced else None
        if failed or too_many:
            if progress.total_steps:  # a run without a step leaves no checkpoint: the same command can start it
                self.save()
            self.runtime.raise_on_all(error or too_many)  # here the ranks wait until rank 0 has saved
        # Not while steps are bad: a return to a checkpoint must find weights from before them.
        if save and not stop and not self.bad_steps.bad_in_a_row:
            self.save()
        if not stop:  # a stopped run has not done the step; when resumed, it reads and counts these samples again
            progress.replaced += replaced
        return bool(stop)

    def _react(self, own_bad: BadValue, batches: Sequence[Batch], report: Report) -> None:
        """Report a bad step, and act on it."""
        # If only some ranks have a bad loss, their images are the cause. A bad gradient norm is the same on all ranks.
        own = own_bad, [image_id for batch in batches for image_id in batch.image_ids.tolist()]
        votes = [vote for vote in self.runtime.gather_objects(own) if vote[0].is_own]
        bad, image_ids = votes[0][0], [image_id for _, ids in votes for image_id in ids]
        report.skipped_step(bad, image_ids)
        action = self.bad_steps.record_bad()
        if action == "fail":
            self.runtime.raise_on_all(
                TrainingError(
                    f"the loss explodes again after a return to a checkpoint: {bad} at images {image_ids}; lower "
                    "optim.lr, or raise guard.factor if such values are right"
                )
            )
        if action == "roll back":
            self._return_to_checkpoint()

    def _return_to_checkpoint(self) -> None:
        """Restore the weights of the last checkpoint, but continue with the next batches."""
        find = functools.partial(self.folder.newest_intact, lambda state: not state["guard"]["bad_in_a_row"])
        found = self.runtime.broadcast_object(self.runtime.run_on_main(find))
        if found is None:
            self.runtime.raise_on_all(
                TrainingError(
                    f"{MAX_SKIPS} steps in a row were skipped, and there is no checkpoint to return to; lower "
                    "optim.lr or raise optim.warmup_epochs"
                )
            )
        _log.warning("%d steps skipped in a row: returning to %s", MAX_SKIPS, found[0])
        restore_weights(self, found)

    def _finish_epoch(self, report: Report) -> None:
        """Validate, log and save; ``StopRequested``, with the epoch still unfinished, after a stop signal."""
        progress = self.progress
        epoch = progress.epoch + 1
        if self.average is not None:
            self.average.after_epoch(epoch)
        try:
            # The network has the weights that are saved as ``model``.
            with contextlib.nullcontext() if self.average is None else self.average.applied():
                # All ranks validate with the BatchNorm statistics of rank 0, which its checkpoints contain.
                statistics = self.train_step.batch_norm.read()
                self.runtime.broadcast_tensors(statistics)
                self.train_step.batch_norm.write(statistics)
                scores = self._validate(epoch, report)
        except PosenetError:  # on all ranks
            self.save()
            # The launcher ends all processes when one ends, so no rank may end before rank 0 has written the file.
            self.runtime.sum_over_ranks(0)
            raise
        report.epoch(epoch, scores)
        kind = "val_loss" if self.coco_validation is None else "AP"
        before = progress.best, progress.best_kind
        is_best = progress.record_score(kind, scores.get(kind))
        progress.start_next_epoch()
        # Not while steps are bad, as in ``_vote``; but a run that ends is always saved.
        is_over = self._has_ended() or self._has_done_max_steps()
        if is_best or is_over or not self.bad_steps.bad_in_a_row:
            is_saved = self.save(is_best)
            if is_best and self.runtime.sum_over_ranks(not is_saved) != [0]:  # then best.pth is still that of before
                progress.best, progress.best_kind = before

    def _validate(self, epoch: int, report: Report) -> dict[str, Any]:
        """The validation loss, None without validation samples, and every few epochs COCO's scores."""
        settings, batches = self.config.train, self.validation_batches
        self.model.eval()
        scores: dict[str, Any] = {"val_loss": None}
        if batches is not None:
            scores["val_loss"] = validation_loss(self.wrapped_model, batches, self.runtime, self.stop_requested)
        if self.coco_validation and (epoch % settings.evaluate_every == 0 or epoch == settings.epochs):
            coco_scores, drawing = self.coco_validation(self.stop_requested)
            scores |= coco_scores
            if drawing is not None:
                report.call("on_drawing", self.progress.total_steps, f"epoch_{epoch:04d}", drawing)
        return scores

    def save(self, best: bool = False) -> bool:
        """Save everything that a resumed run needs, as step-N.pth and last.pth, and best.pth if it is the ``best``.

        All ranks call it. False on rank 0 if the files could not be written.
        """
        if not self.runtime.is_main:
            return True
        return self.folder.save(state_of(self), self.progress.total_steps, best)

    def _has_done_max_steps(self) -> bool:
        return 0 < self.max_steps <= self.progress.total_steps

    def _has_ended(self) -> bool:
        """Whether all epochs are done, or the scores have not become better ``train.patience`` times."""
        train, progress = self.config.train, self.progress
        return progress.epoch >= train.epochs or 0 < train.patience <= progress.stale


def _make_network(config: Config, runtime: Runtime, is_new: bool) -> PoseNet:
    """The network, with the initial weights and the frozen parameters of the settings."""
    batch_size = config.train.batch_size * (runtime.world_size if config.parallel.sync_bn else 1)
    if batch_size < 2 and max(config.train.size) == INPUT_MULTIPLE:  # the coarsest maps have a single cell
        raise ConfigError("BatchNorm has one cell to compute statistics from; give --set train.batch_size=2 or more")
    network = build_network(config)
    if config.train.weights and is_new and runtime.is_main:  # ``wrap`` sends them to the other ranks
        _log.info("Fine-tuning. %s", load_weights(network, config.train.weights, config.model.skeleton))
    if frozen := freeze(network, config.train.freeze):
        _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
    return cast(PoseNet, runtime.convert_sync_batch_norm(network)) if config.parallel.sync_bn else network

"""The loops of a run over epochs and steps: when it validates, saves, returns to a checkpoint and stops.

All ranks go through the loops together. Before every step they decide in ``_vote`` whether to save, to stop or to fail.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenet.data.dataset import Batch
from posenet.devices.signals import StopRequested
from posenet.errors import PosenetError, TrainingError
from posenet.messages import pluralize
from posenet.training.bad_steps import MAX_SKIPS
from posenet.training.batches import errors_of_data, log_unreadable, too_many_unreadable
from posenet.training.freezing import set_train_mode
from posenet.training.optimizer import learning_rate, set_lr
from posenet.training.report import Report
from posenet.training.resume import restore_weights, state_of
from posenet.training.run import Run
from posenet.training.step import BatchNormStatistics, StepResult
from posenet.training.validation import validation_loss

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


class TrainingLoop:
    """The loops of a run, as it was built or restored from a checkpoint, which can be interrupted at any step.

    ``stop_requested`` says whether a stop signal has arrived on this rank; for ``max_steps`` see ``train``.
    """

    def __init__(self, run: Run, report: Report, stop_requested: Callable[[], bool], max_steps: int) -> None:
        self.run = run
        self.report = report
        self.stop_requested = stop_requested
        self.max_steps = max_steps
        self.progress = run.progress
        self._batch_norm = BatchNormStatistics(run.model)

    def train(self) -> TrainingResult:
        """Train to the last epoch, to ``max_steps`` or to a stop signal.

        Raises:
            TrainingError: the loss explodes again shortly after a return to a checkpoint.
            CheckpointError: the last checkpoint could not be written.
            DataError, ConfigError: the samples or validation images cannot be read any more, the data workers or
                ``data.transform`` have failed; the run has been saved.
            OtherRankError: one of these on another rank.
        """
        run, progress, num_epochs = self.run, self.progress, self.run.config.train.epochs
        is_complete = True
        if progress.epoch >= num_epochs:
            done = pluralize(progress.epoch, "epoch")
            _log.info("%s has completed %s; --epochs with a larger number continues it", run.folder.path, done)
        else:
            while is_complete and progress.epoch < num_epochs and not self._must_stop_early():
                is_complete = self.train_one_epoch() and self.finish_epoch()
            if not is_complete:
                self.save()
            run.writer.finish()
            if is_complete:
                self.report.end()
            else:
                self.report.stopped(self._has_done_max_steps())
        finished = progress.epoch >= num_epochs
        return TrainingResult(
            folder=run.folder.path,
            finished=finished,
            epochs=progress.epoch,
            steps=progress.total_steps,
            best=progress.best_score,
            stopped=not (is_complete or self._has_done_max_steps()),
            stopped_early=is_complete and not finished,
        )

    def train_one_epoch(self) -> bool:
        """Train from the current step to the end of the epoch; return False if the run was stopped before that."""
        run, progress, steps = self.run, self.progress, self.run.batches.steps_per_epoch
        set_train_mode(run.model)
        run.batches.restart_meter()
        with self.report.epoch_bar() as bar:
            while progress.step < steps:
                batches = self._take_batches()
                if batches is None:
                    return False
                # Warmup, then the schedule of ``optim.schedule``.
                lr = learning_rate(run.config, run.runtime.world_size, progress.epoch, progress.step, steps)
                set_lr(run.optimizer, lr)
                result = run.train_step(batches)
                progress.count_step(result.loss)
                self._react(result, batches)
                self.report.step(bar, lr)
        self._vote()  # if a save is due, it happens here; a validation asks again whether to stop
        return True

    def _take_batches(self) -> list[Batch] | None:
        """The batches of this rank for the next step; None if the run has to stop. Else all ranks fail together."""
        batches: list[Batch] = []
        error: PosenetError | None = None
        try:
            with errors_of_data():
                batches = self.run.batches.take_step(self.progress.epoch, self.progress.step)
        except PosenetError as caught:
            if not self.stop_requested():  # the signal may have ended the data workers too
                error = caught
        must_stop = self._vote(error, log_unreadable(batches))
        return None if must_stop else batches

    def _vote(self, error: PosenetError | None = None, num_replaced: int = 0) -> bool:
        """Decide with the other ranks whether to fail, to save and to stop; return whether to stop.

        Args:
            error: why this rank cannot continue, if it cannot. The run is saved before all ranks end with an error.
            num_replaced: unreadable samples that were replaced since the last call.
        """
        run, progress = self.run, self.progress
        # If ``max_steps`` is the last step of an epoch, the run stops in ``train``, after the validation.
        steps_done = self._has_done_max_steps() and progress.step < run.batches.steps_per_epoch
        stop_due = self.stop_requested() or steps_done
        save_due = run.runtime.is_main and run.writer.is_due(progress.total_steps)
        stop, save, failed, replaced = run.runtime.sum_over_ranks(stop_due, save_due, error is not None, num_replaced)
        too_many = (
            too_many_unreadable(progress.replaced + replaced, run.batches.samples_per_epoch) if replaced else None
        )
        if failed or too_many:
            self._save_before_failing()
            run.runtime.raise_on_all(error or too_many)
        # Not while steps are bad: a return to a checkpoint must find weights from before them.
        if save and not stop and not run.bad_steps.bad_in_a_row:
            self.save()
        if not stop:  # a stopped run has not done the step; when resumed, it reads and counts these samples again
            progress.replaced += replaced
        return bool(stop)

    def _react(self, result: StepResult, batches: Sequence[Batch]) -> None:
        """Update the average of the weights after a good step, or act on a bad one."""
        run = self.run
        if result.loss is not None:
            run.bad_steps.next_action(bad=False)
            if run.average is not None:
                run.average.after_step()
            return
        if result.bad is None:
            return
        # If only some ranks have a bad loss, their images are the cause. A bad gradient norm is the same on all ranks.
        own = result.bad, [image_id for batch in batches for image_id in batch.image_ids.tolist()]
        reports = [report for report in run.runtime.gather_objects(own) if report[0].is_own]
        bad, image_ids = reports[0][0], [image_id for _, ids in reports for image_id in ids]
        self.report.skipped_step(bad, image_ids)
        action = run.bad_steps.next_action(bad=True)
        if action == "fail":
            run.runtime.raise_on_all(
                TrainingError(
                    f"the loss explodes again after a return to a checkpoint (step {self.progress.total_steps}, "
                    f"{bad.name} {bad.value:g}, {bad.reason}); lower optim.lr, look at images {image_ids}, or raise "
                    "guard.factor if such values are right"
                )
            )
        if action == "roll back":
            self._return_to_checkpoint()

    def _return_to_checkpoint(self) -> None:
        """Restore the weights of the last checkpoint, but continue with the next batches."""
        run = self.run
        find = functools.partial(run.folder.newest_intact, lambda state: not state["guard"]["bad_in_a_row"])
        found = run.runtime.broadcast_object(run.runtime.run_on_main(find))
        if found is None:
            run.runtime.raise_on_all(
                TrainingError(
                    f"{MAX_SKIPS} steps in a row were skipped before the first checkpoint; lower "
                    "optim.lr or raise optim.warmup_epochs"
                )
            )
        path, state = found
        _log.warning("%d steps skipped in a row: returning to %s", MAX_SKIPS, path)
        restore_weights(run, path, state)
        run.bad_steps.restore_history(state["guard"])

    def finish_epoch(self) -> bool:
        """Validate, log and save; return False, with the epoch still unfinished, after a stop signal."""
        run, progress = self.run, self.progress
        epoch = progress.epoch + 1
        if run.average is not None:
            run.average.after_epoch(epoch)
        try:
            with run.network_to_validate():
                scores = self._validate(epoch)
        except StopRequested:
            return False
        except PosenetError:  # on all ranks
            self._save_before_failing()
            raise
        self.report.epoch(epoch, scores)
        kind = "val_loss" if run.coco_validation is None else "AP"
        before = progress.best, progress.best_loss, progress.best_kind
        is_best = progress.record_score(kind, scores.get(kind), scores["val_loss"])
        progress.start_next_epoch()
        # Not while steps are bad, as in ``_vote``; but a run that ends is always saved.
        is_over = progress.epoch >= run.config.train.epochs or self._must_stop_early()
        if is_best or is_over or not run.bad_steps.bad_in_a_row:
            is_saved = self.save(is_best)
            if is_best and run.runtime.sum_over_ranks(not is_saved) != [0]:  # then best.pth is still that of before
                progress.best, progress.best_loss, progress.best_kind = before
        return True

    def _validate(self, epoch: int) -> dict[str, Any]:
        """The validation loss, None without validation samples, and every few epochs COCO's scores."""
        run, settings = self.run, self.run.config.train
        # The BatchNorm statistics differ between the ranks. A checkpoint contains those of rank 0, so all ranks
        # validate with them.
        statistics = self._batch_norm.read()
        run.runtime.broadcast_tensors(statistics)
        self._batch_norm.write(statistics)
        run.model.eval()
        scores: dict[str, Any] = {"val_loss": None}
        if run.validation_batches is not None:
            scores["val_loss"] = validation_loss(
                run.wrapped_model, run.validation_batches, run.runtime, self.stop_requested
            )
        if run.coco_validation and (epoch % settings.evaluate_every == 0 or epoch == settings.epochs):
            coco_scores, drawing = run.coco_validation(self.stop_requested)
            scores |= coco_scores
            if drawing is not None:
                name = f"epoch_{epoch:04d}"
                self.report.call("on_drawing", self.progress.total_steps, name, drawing)
        return scores

    def save(self, best: bool = False) -> bool:
        """Save everything that a resumed run needs, as step-N.pth and last.pth, and best.pth if it is the ``best``.

        All ranks call it. False on rank 0 if the files could not be written.
        """
        if not self.run.runtime.is_main:
            return True
        return self.run.writer.save(state_of(self.run), self.progress.total_steps, best)

    def _save_before_failing(self) -> None:
        """Save the run before all ranks end with an error of the data. All ranks call this at the same step.

        A run without a step leaves no checkpoint, so that the same command can start it.
        """
        if self.progress.total_steps:
            self.save()
        # The launcher ends all processes when one ends, so no rank may end before rank 0 has written the file.
        self.run.runtime.sum_over_ranks(0)

    def _has_done_max_steps(self) -> bool:
        return 0 < self.max_steps <= self.progress.total_steps

    def _must_stop_early(self) -> bool:
        return 0 < self.run.config.train.patience <= self.progress.stale

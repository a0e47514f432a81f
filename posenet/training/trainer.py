"""The training loop: ``Trainer.train_one_epoch`` is the loop over the steps; ``TrainStep`` is one step.

``Trainer.run`` is the loop over the epochs. It also handles checkpoints, stop signals and errors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.precision import make_grad_scaler
from posenet.devices.random_state import get_random_state
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested, catch_stop_signals
from posenet.errors import DataError, TrainingError
from posenet.model.posenet import PoseNet
from posenet.settings import Config, config_to_dict
from posenet.training.batch_norm import batch_norm_statistics
from posenet.training.checkpoint_writer import CheckpointWriter
from posenet.training.data_set_losses import DataSetLosses, format_losses
from posenet.training.distillation import Teacher, require_same_teacher
from posenet.training.freezing import set_train_mode
from posenet.training.input_stream import CollectiveDataError, InputStream, RestartingLoader
from posenet.training.loss_guard import GuardAction, LossGuard
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import make_optimizer, set_lr
from posenet.training.progress import Progress
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.run_state import RunState
from posenet.training.schedule import learning_rate
from posenet.training.train_step import PendingResult, TrainStep
from posenet.training.validation import validation_loss
from posenet.training.weight_averaging import make_weight_average

_log = logging.getLogger(__name__)

Evaluate = Callable[[int, int, Callable[[], None]], dict[str, float]]
"""Computes named scores of the network, among them "AP". The arguments are the epoch, the step, and a function to call
before every batch, which raises ``StopRequested`` after a stop signal."""


@dataclass(frozen=True)
class UnreadStep:
    """A step with a result that the host has not read yet."""

    number: int
    """Number of the step, counted from 1 at the start of the run."""
    result: PendingResult
    image_ids: list[Tensor]
    """Ids of this rank's images, for each batch."""


class Trainer:
    """Trains one network over epochs that can be interrupted at any step.

    Args:
        config: the settings of the run; every checkpoint contains them.
        network: on the runtime's device; parameters may be frozen.
        validation_loader: this rank's validation samples; None computes no validation loss.
        evaluate: computes COCO's scores every ``train.evaluate_every`` epochs; None computes none.
        max_steps: stop after this many steps since the start of the run; 0 never stops.
        set_names: names of the data sets if there are several, for the log.
        teacher: a stronger network to learn from, if any.
    """

    def __init__(
        self,
        config: Config,
        network: PoseNet,
        runtime: Runtime,
        input_stream: InputStream,
        log: RunLog | SilentLog,
        validation_loader: RestartingLoader | None = None,
        evaluate: Evaluate | None = None,
        max_steps: int = 0,
        set_names: Sequence[str] = (),
        teacher: Teacher | None = None,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.input = input_stream
        self.log = log
        self.validation_loader = validation_loader
        self.evaluate = evaluate
        self.max_steps = max_steps
        self.teacher = teacher
        self.model = ModelWithLoss.from_config(network, config, teacher)
        self.wrapped_model = runtime.wrap(self.model)
        self.optimizer = make_optimizer(network, config.optim)
        self.scaler = make_grad_scaler(runtime.device, self.model.amp, config.train.loss_scale)
        self.guard = LossGuard(config.guard)
        self.average = make_weight_average(network, config.average)
        self.set_losses = DataSetLosses(set_names, runtime) if set_names else None
        self.train_step = TrainStep(
            self.wrapped_model,
            self.optimizer,
            self.scaler,
            self.guard,
            runtime,
            config.optim.max_grad_norm,
            self.set_losses,
        )
        self.state = RunState(network, self.average, self.optimizer, self.scaler, self.guard)
        self.folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep)
        self.writer = CheckpointWriter(self.folder, config.checkpoint)
        self._unread: UnreadStep | None = None
        self.was_interrupted = False  # whether a stop signal, on any rank, has ended ``run``
        self._stop_signal_received: Callable[[], bool] = lambda: False

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def run(self) -> bool:
        """Train to the last epoch, to ``max_steps`` or to a stop signal.

        Returns:
            Whether the last epoch was completed.

        Raises:
            TrainingError: the loss explodes again shortly after a return to a checkpoint; or other processes do not
                answer, and rank 0 has saved the last complete step, unless it was bad.
            CheckpointError: the last checkpoint could not be written.
            DataError: the training samples cannot be read any more; the run has been saved.
        """
        with catch_stop_signals() as self._stop_signal_received:
            try:
                while self.progress.epoch < self.config.train.epochs:
                    if self._is_stale():
                        self.writer.finish()
                        _log.info("Stopped early: no better score for %d epochs", self.progress.stale)
                        return False
                    if self.runtime.any_rank(self._stop_due()) or not (self.train_one_epoch() and self.finish_epoch()):
                        self.save()
                        self.writer.finish()
                        position = f"step {self.progress.total_steps} (epoch {self.progress.epoch + 1})"
                        _log.info("Stopped after %s; --resume continues from there", position)
                        self.was_interrupted = not self._has_done_max_steps()
                        return False
                self.writer.finish()
            except (DataError, OSError) as error:
                self._save_after_error(error)
                raise
            except RuntimeError as error:
                if not self.runtime.has_lost_contact(error):
                    raise
                self._save_alone()
                raise self.runtime.explain_lost_contact(error) from error
            finally:
                self.writer.wait()
        return True

    def train_one_epoch(self) -> bool:
        """Train from the current step to the end of the epoch; return False if the run was stopped before that."""
        config = self.config
        progress = self.progress
        steps = self.input.steps_per_epoch
        set_train_mode(self.model)
        self.input.meter.restart()
        title = f"epoch {progress.epoch + 1}/{config.train.epochs}"
        with self.log.progress_bar(title, steps, progress.step, self._count_later_steps()) as bar:
            for batches in self.input.steps(progress):
                lr = learning_rate(config, self.runtime.world_size, progress.epoch, progress.step, steps)
                set_lr(self.optimizer, lr)
                result = self.train_step(batches)  # forward, backward, vote, clip, update
                # Read the result of the previous step, while the device works on this one.
                self._read_last_result()
                progress.count_step()
                self.average.remember_step()
                self._unread = UnreadStep(progress.total_steps, result, [batch.image_ids for batch in batches])
                if self.guard.may_act_on_next_outcome():
                    self._read_last_result()
                # Log.
                bar.update()
                if progress.total_steps % config.log.every_steps == 0 or progress.step == steps:
                    self._log_step(bar, lr)
                # Save and stop. Rank 0 decides when to save; a stop signal may reach any rank.
                save_due = self.runtime.is_main and self.writer.is_due(progress.total_steps)
                stop_due = progress.step < steps and self._stop_due()
                save, stop = self.runtime.vote(save_due, stop_due)
                if save:
                    self._save_unless_skipping()
                if stop:
                    return False
        return True

    def finish_epoch(self) -> bool:
        """Validate, log and save; return False, with the epoch still unfinished, after a stop signal."""
        self._read_last_result()
        progress = self.progress
        settings = self.config.train
        epoch = progress.epoch + 1
        values: dict[str, Any] = {"train_loss": progress.mean_loss}
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read_epoch()
        self.average.after_epoch(epoch)
        try:
            with self.average.applied():
                # The BatchNorm statistics differ between the ranks. A checkpoint contains those of rank 0, so all ranks
                # validate with them.
                self.runtime.broadcast_tensors(batch_norm_statistics(self.model))
                values["val_loss"] = self.validate()
                if self.evaluate and (epoch % settings.evaluate_every == 0 or epoch == settings.epochs):
                    self.model.eval()
                    values |= self.evaluate(epoch, progress.total_steps, self._raise_if_stopped)
        except StopRequested:
            return False
        random_states = self._gather_random_states()  # if this fails, the epoch stays unfinished
        progress.start_next_epoch()
        self.log.epoch(epoch, progress.total_steps, values)
        if self.set_losses is not None:
            _log.info("Epoch %d  losses of the data sets: %s", epoch, format_losses(values["sets"]))
        score = "AP" if self.evaluate else "val_loss"
        self._write(random_states, best=progress.record_score(score, values.get(score)))
        return True

    def validate(self) -> float | None:
        """Mean validation loss per image over all processes; None without validation samples."""
        if self.validation_loader is None:
            return None
        self.model.eval()
        max_unreadable = self.config.data.max_unreadable
        return validation_loss(
            self.wrapped_model,
            self.validation_loader,
            max_unreadable,
            self.runtime,
            self._stop_signal_received,
            self.log.shows_progress,
        )

    def save(self) -> None:
        """Save everything that a resumed run needs. This waits for a copy, not for the disk."""
        self._read_last_result()
        self._write(self._gather_random_states())

    def load_state_dict(self, state: dict[str, Any], path: str) -> None:
        """Continue the run of the checkpoint at ``path``; see ``RunState.load_state_dict``."""
        require_same_teacher(state, self.teacher, path)
        self.state.load_state_dict(state, path, self.input.steps_per_epoch, self.runtime)

    def close(self) -> None:
        """End the data workers, and wait for a checkpoint that is being written."""
        self.writer.wait()
        self.input.close()
        if self.validation_loader is not None:
            self.validation_loader.close()

    def _read_last_result(self) -> None:
        """Read the result of the last step, unless it is known already, and let the guard decide what to do.

        All ranks must call this after the same step.
        """
        unread = self._unread
        if unread is None:
            return
        result = unread.result.read()
        if result.loss is not None:
            self.progress.record_loss(result.loss)
            self.average.after_step()
            self.guard.record_outcome(bad=False)
        elif result.bad_value is not None:
            # If contact is lost in this call, the step stays unread, so that ``_save_alone`` finds out that it was bad.
            self._react_to_bad_step(unread, result.bad_value)
        self._unread = None

    def _react_to_bad_step(self, step: UnreadStep, bad_value: float) -> None:
        value, image_ids = self._find_cause(bad_value, step.image_ids)
        _log.warning("Step %d skipped: loss or gradient norm %g; image ids %s", step.number, value, image_ids)
        self.log.skip(step.number, {"value": str(value), "image_ids": image_ids})
        action = self.guard.record_outcome(bad=True)
        if action is GuardAction.FAIL:
            raise TrainingError(
                f"the loss explodes again after a return to a checkpoint (step {step.number}, "
                f"value {value:g}); lower optim.lr or look at images {image_ids}"
            )
        if action is GuardAction.ROLL_BACK:
            self._return_to_checkpoint()

    def _find_cause(self, value: float, image_ids: Sequence[Tensor]) -> tuple[float, list[int]]:
        """The bad value and the image ids of the ranks that have one.

        If only some ranks have a bad loss, their images are the cause. A bad gradient norm is the same on all ranks.
        """
        report = value, [image_id for batch_ids in image_ids for image_id in batch_ids.tolist()]
        reports = self.runtime.gather_objects(report)
        bad_reports = [other for other in reports if self.guard.is_bad(other[0])] or [report]
        return bad_reports[0][0], [image_id for _, ids in bad_reports for image_id in ids]

    def _return_to_checkpoint(self) -> None:
        """Restore the weights of the last checkpoint, but continue with the next batches."""
        found = None
        if self.runtime.is_main:
            self.writer.wait()
            found = self.folder.newest_intact(lambda state: not state["guard"]["bad_in_a_row"])
        name = self.runtime.broadcast_object(found and found[0].name)
        if name is None:
            raise TrainingError(
                f"{self.guard.max_skips} steps in a row were skipped before the first checkpoint; "
                "lower optim.lr or raise optim.warmup_epochs"
            )
        path = self.folder.path / name  # hosts may have the folder at different paths
        _log.warning("%d steps skipped in a row: returning to %s", self.guard.max_skips, path)
        self.state.load_weights(found[1] if found else read_checkpoint(path), str(path))

    def _log_step(self, bar: tqdm[Any], lr: float) -> None:
        self._read_last_result()
        self.runtime.synchronize()
        progress = self.progress
        loss = progress.mean_loss
        speed = self.input.meter.read()
        terms = self.model.meter.read()
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{speed['samples_per_s']:.1f} samples/s, data wait {speed['data_wait']:.0%}"
        )
        values: dict[str, Any] = {"epoch": progress.epoch, "loss": loss, "lr": lr, **speed, "terms": terms}
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read()
        self.log.step(progress.total_steps, values)

    def _is_stale(self) -> bool:
        """Whether early stopping ends the run; rank 0 decides."""
        stop = 0 < self.config.train.patience <= self.progress.stale
        return bool(self.runtime.broadcast_object(stop))

    def _count_later_steps(self) -> int:
        """The number of steps after the current epoch; negative if ``max_steps`` ends the run within this epoch."""
        progress = self.progress
        steps = self.input.steps_per_epoch
        if self.max_steps:
            return self.max_steps - progress.total_steps - (steps - progress.step)
        return (self.config.train.epochs - progress.epoch - 1) * steps

    def _stop_due(self) -> bool:
        return self._has_done_max_steps() or self._stop_signal_received()

    def _has_done_max_steps(self) -> bool:
        return bool(self.max_steps) and self.progress.total_steps >= self.max_steps

    def _raise_if_stopped(self) -> None:
        if self._stop_signal_received():
            raise StopRequested

    def _save_unless_skipping(self) -> None:
        """Save, unless the last step was bad: a return to a checkpoint must find weights from before the bad steps."""
        self._read_last_result()
        if not self.guard.bad_in_a_row:
            self.save()

    def _gather_random_states(self) -> list[dict[str, Any]]:
        """The random states of all ranks."""
        return self.runtime.gather_objects(get_random_state(self.runtime.device))

    def _write(self, random_states: list[dict[str, Any]], best: bool = False) -> None:
        if self.runtime.is_main:
            state = self.state.state_dict(self.input.steps_per_epoch, config_to_dict(self.config))
            if self.teacher is not None:
                state["teacher"] = self.teacher.digest
            self.writer.save(state | {"random": random_states}, self.progress.total_steps, best)

    def _save_alone(self) -> None:
        """Save the last complete step after the other ranks were lost, unless it was bad.

        Their random states equal that of rank 0: all ranks start from the same seed and draw equally often.
        """
        if self._unread is not None and self._unread.result.read().bad_value is not None:
            return  # what to do after a bad step is decided with the other ranks
        self._read_last_result()
        if self.progress.total_steps and not self.guard.bad_in_a_row:
            self._write([get_random_state(self.runtime.device)] * self.runtime.world_size)
            self.writer.wait()

    def _save_after_error(self, error: Exception) -> None:
        """Save the run after a data error, unless the other ranks do not know of the error."""
        if self.runtime.world_size == 1 or isinstance(error, CollectiveDataError):
            self._save_unless_skipping()
            self.writer.wait()
            # The launcher ends all processes when one ends, so no rank may end before rank 0 has written the file.
            self.runtime.any_rank(False)

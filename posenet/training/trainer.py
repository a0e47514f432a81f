"""The training loop: steps, validation, checkpoints and the ways a run can stop."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from tqdm import tqdm

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import FORMAT, read_checkpoint
from posenet.data.dataset import Batch
from posenet.data.loader import close_loader
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested, stop_signals
from posenet.errors import CheckpointError, DataError, TrainingError
from posenet.messages import truncate_for_message
from posenet.training.checkpointing import CheckpointWriter, restore
from posenet.training.device_prefetch import prefetch
from posenet.training.freezing import batch_norms, train_mode
from posenet.training.input_stream import (
    CollectiveDataError,
    UnreadableSampleBudget,
    raise_on_all_ranks,
    restart_dead_workers,
)
from posenet.training.loss_guard import GuardAction, LossGuard
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import set_lr
from posenet.training.progress import Limits, Meter, Progress
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.schedule import Schedule
from posenet.training.update import GuardedUpdate
from posenet.training.validation import validation_loss
from posenet.training.weight_averaging import NoAverage

_log = logging.getLogger(__name__)


class Trainer:
    """Trains one network over epochs that can be interrupted at any step.

    Args:
        step: module that gives one loss per image; what is saved is ``step.network``.
        average: of the network's weights; what is validated, and saved as the run's weights.
        evaluate: gives named scores of the network on the validation images, "AP" among them; None
            where there are none. Called every ``limits.evaluate_epochs`` epochs with the epoch, the step and a
            function to call now and then, which breaks it off by an exception.
        config: plain tables to save with every checkpoint.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        step: ModelWithLoss,
        optimizer: Optimizer,
        schedule: Schedule,
        scaler: torch.amp.GradScaler,
        guard: LossGuard,
        train_loader: DataLoader,
        val_loader: DataLoader | None,
        folder: CheckpointFolder,
        log: RunLog | SilentLog,
        limits: Limits,
        average: NoAverage = NoAverage(),
        evaluate: Callable[[int, int, Callable[[], None]], dict[str, float]] | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.runtime, self.step, self.optimizer, self.schedule = runtime, step, optimizer, schedule
        self.scaler, self.guard, self.train_loader, self.val_loader = scaler, guard, train_loader, val_loader
        self.folder, self.log, self.limits, self.evaluate, self.config = folder, log, limits, evaluate, config or {}
        self.average, self.progress = average, Progress()
        self.module = runtime.wrap(step)
        self.update = GuardedUpdate(self.module, optimizer, scaler, guard, runtime, limits.max_grad_norm)
        self.writer = CheckpointWriter(folder, limits.checkpoint_steps, limits.checkpoint_minutes)
        self._stop_asked: Callable[[], bool] = lambda: False
        self._batches: Iterator[Batch] = iter(())
        self._batches_at = -1

    @property
    def sampler(self) -> Any:
        return self.train_loader.batch_sampler

    def close(self) -> None:
        """End the data workers, and wait for a checkpoint that is being written."""
        self.writer.wait()
        for loader in (self.train_loader, self.val_loader):
            if loader is not None:  # one that has no batches left is false as well
                close_loader(loader)
        self._batches_at = -1  # whoever goes on needs new workers

    def fit(self) -> bool:
        """Train to the last epoch, ``max_steps`` or a stop signal; return whether the last epoch was reached.

        Raises:
            TrainingError: the loss explodes again right after a return to the last checkpoint.
            CheckpointError: the last checkpoint could not be written.
        """
        p = self.progress
        with stop_signals() as self._stop_asked:
            try:
                while p.epoch < self.limits.epochs:
                    if self._is_stale():
                        self.writer.finish()
                        _log.info("Stopped early: no better score for %d epochs", p.stale)
                        return False
                    if self.runtime.any_rank(self._stop_due()) or not (self.train_one_epoch() and self._finish_epoch()):
                        self.save()
                        self.writer.finish()
                        _log.info(
                            "Stopped after step %d (epoch %d); --resume goes on from there", p.total_steps, p.epoch + 1
                        )
                        return False
                self.writer.finish()
            except (DataError, OSError) as error:
                # What was learnt outlives a damaged image, unless the other processes do not know of it.
                if self.runtime.world_size == 1 or isinstance(error, CollectiveDataError):
                    self._save_unless_bad()
                    self.writer.wait()
                    self.runtime.any_rank(
                        False
                    )  # who ended before the file is written would have the writer ended, too
                raise
            finally:
                self.writer.wait()
        return True

    def train_one_epoch(self) -> bool:
        """Train from where the epoch stands to its end; return False where it was stopped before that."""
        p, steps = self.progress, self.sampler.steps
        train_mode(self.step)
        meter = Meter(time.monotonic())
        with self.log.progress(f"epoch {p.epoch + 1}/{self.limits.epochs}", steps, p.step) as bar:
            for batches in self._steps(meter):
                lr = self.schedule.lr_at(p.epoch, p.step, steps)
                set_lr(self.optimizer, lr)
                loss = self._train_step(batches)
                p.step, p.total_steps = p.step + 1, p.total_steps + 1
                if loss is not None:
                    self.average.after_step()
                    p.loss_sum, p.loss_steps = p.loss_sum + loss, p.loss_steps + 1
                bar.update()
                if p.total_steps % self.limits.log_steps == 0 or p.step == steps:
                    self._report(bar, meter, lr)
                save, stop = self.runtime.vote(self._save_due(), p.step < steps and self._stop_due())
                if save:
                    self._save_unless_bad()
                if stop:
                    return False
        return True

    def _steps(self, meter: Meter) -> Iterator[list[Batch]]:
        """The batches of one optimizer step at a time, on the device; counts what was waited for and replaced."""
        p, steps = self.progress, self.sampler.steps
        tally = UnreadableSampleBudget(self.train_loader, self.limits.max_unreadable, p.replaced)
        if self._batches_at != p.epoch * steps + p.step:
            # One stream for all epochs: while one is validated, the workers make the next one's first batches.
            self.sampler.start(p.epoch, p.step, self.limits.epochs)
            self._batches = prefetch(restart_dead_workers(self.train_loader), self.runtime)
        for step in range(p.step, steps):
            self._batches_at = p.epoch * steps + step + 1
            asked, batches, error = time.monotonic(), [], None
            try:
                batches += itertools.islice(self._batches, self.limits.accumulate)
            except DataError as caught:
                error = caught
            meter.waited += time.monotonic() - asked
            tally.add(raise_on_all_ranks(self.runtime, error, [fault for batch in batches for fault in batch.faults]))
            p.replaced = tally.count
            meter.samples += sum(len(b.images) for b in batches) * self.runtime.world_size
            yield batches

    def _train_step(self, batches: list[Batch]) -> float | None:
        """One optimizer step; its mean loss, or None where it was dropped."""
        outcome = self.update(batches)
        if outcome.loss is not None:
            self.guard.judge(bad=False)
        elif outcome.bad_value is not None:
            self._judge_bad(batches, outcome.bad_value)
        return outcome.loss

    def _judge_bad(self, batches: list[Batch], value: float) -> None:
        own = value, [int(i) for batch in batches for i in batch.image_ids]
        # Where only some processes' losses are bad, their images are to blame; a bad gradient is everyone's.
        blamed = [said for said in self.runtime.gather_objects(own) if self.guard.is_bad(said[0])] or [own]
        value, ids = blamed[0][0], [i for _, images in blamed for i in images]
        step = self.progress.total_steps + 1
        _log.warning("Step %d skipped: loss or gradient norm %g; image ids %s", step, value, ids)
        self.log.record("skip", step, {"value": str(value), "image_ids": ids})
        verdict = self.guard.judge(bad=True)
        if verdict is GuardAction.FAIL:
            raise TrainingError(
                f"the loss explodes again after a return to a checkpoint (step {step}, "
                f"value {value:g}); lower optim.lr or look at images {ids}"
            )
        if verdict is GuardAction.ROLL_BACK:
            self._roll_back()

    def _roll_back(self) -> None:
        """Back to the last checkpoint's weights, but on with the batches that come next."""
        found = None
        if self.runtime.is_main:
            self.writer.wait()
            found = self.folder.newest_intact(lambda state: not state["guard"]["bad_in_a_row"])
        path = self.runtime.broadcast_object(found and found[0])
        if path is None:
            raise TrainingError(
                f"{self.guard.max_skips} steps in a row exploded before the first checkpoint; "
                "lower optim.lr or raise optim.warmup_epochs"
            )
        _log.warning("%d steps skipped in a row: returning to %s", self.guard.max_skips, path)
        self._restore_weights(found[1] if found else read_checkpoint(path), str(path))

    def validate(self) -> float | None:
        """Mean validation loss per image over all processes; None without a validation set."""
        if self.val_loader is None:
            return None
        self.step.eval()
        return validation_loss(self.module, self.val_loader, self.runtime, self.limits.max_unreadable, self._stop_asked)

    def _finish_epoch(self) -> bool:
        """Validate, log and save; return False, the epoch still unfinished, where a signal came meanwhile."""
        p = self.progress
        values: dict[str, Any] = {"train_loss": p.loss_sum / p.loss_steps if p.loss_steps else None}
        epoch = p.epoch + 1
        self.average.after_epoch(epoch)
        try:
            with self.average.applied():
                # Every process has its own statistics, those of the average too; the main one's are saved, so all
                # validate with them: a resumed run has no others.
                self.runtime.broadcast_tensors(
                    [b for norm in batch_norms(self.step) for b in norm.buffers(recurse=False)]
                )
                values["val_loss"] = self.validate()
                if self.evaluate and (epoch % self.limits.evaluate_epochs == 0 or epoch == self.limits.epochs):
                    self.step.eval()
                    values |= self.evaluate(epoch, p.total_steps, self._check_stop)
        except StopRequested:
            return False
        p.epoch, p.step, p.loss_sum, p.loss_steps, p.replaced = epoch, 0, 0.0, 0, 0
        self.log.epoch(epoch, p.total_steps, values)
        kind = "AP" if self.evaluate else "val_loss"
        self.save(best=p.judge(kind, values.get(kind)))
        return True

    def _is_stale(self) -> bool:
        """Whether early stopping ends the run; the main process decides."""
        return self.runtime.broadcast_object(0 < self.limits.patience <= self.progress.stale)

    def _report(self, bar: tqdm, meter: Meter, lr: float) -> None:
        self.runtime.synchronize()
        p = self.progress
        loss = p.loss_sum / p.loss_steps if p.loss_steps else None
        values = {
            "epoch": p.epoch,
            "loss": loss,
            "lr": lr,
            **meter.read(time.monotonic()),
            "terms": self.step.loss.meter.read(),
        }
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{values['samples_per_s']:.1f} samples/s, data wait {values['data_wait']:.0%}"
        )
        self.log.record("train", p.total_steps, values)

    def _stop_due(self) -> bool:
        done = bool(self.limits.max_steps) and self.progress.total_steps >= self.limits.max_steps
        return done or self._stop_asked()

    def _check_stop(self) -> None:
        if self._stop_asked():
            raise StopRequested

    def _save_due(self) -> bool:
        return self.runtime.is_main and self.writer.due(self.progress.total_steps)

    def _save_unless_bad(self) -> None:
        """In the middle of an explosion the weights may be past saving: a return must find those before it."""
        if not self.guard.bad_in_a_row:
            self.save()

    def save(self, best: bool = False) -> None:
        """Have everything written that the run needs to go on as if it had never stopped; waits for a copy only."""
        random_states = self.runtime.gather_objects(self.runtime.random_state())
        if self.runtime.is_main:
            self.writer.save(self.state_dict() | {"random": random_states}, self.progress.total_steps, best)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and values only, so that ``weights_only=True`` reads them back."""
        return {
            "format": FORMAT,
            **self.average.state_dict(self.step.network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": self.guard.state_dict(),
            "progress": asdict(self.progress),
            "steps_per_epoch": self.sampler.steps,
            "config": self.config,
        }

    def load_state_dict(self, state: dict[str, Any], path: str) -> None:
        """Go on from a checkpoint's state.

        Raises:
            CheckpointError: it is not a run's checkpoint, or belongs to another network or optimizer.
        """
        wanted = ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch")
        if missing := [key for key in wanted if key not in state]:
            raise CheckpointError(f"{path} holds no run to resume (no {missing[0]}); fine-tune from it with --weights")
        try:
            self._take_up(state, path)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} holds no sound run ({truncate_for_message(error)}); use an older checkpoint"
            ) from error

    def _take_up(self, state: dict[str, Any], path: str) -> None:
        self._restore_weights(state, path)
        self.guard.load_state_dict(state["guard"])
        self.progress = Progress.from_state(state["progress"])
        # Another data set, batch size or number of processes may have changed the length of an epoch.
        self.progress.rescale(state["steps_per_epoch"], self.sampler.steps)
        states = state.get("random", [])
        if states and len(states) != self.runtime.world_size:
            _log.info("The run was one of %d processes and goes on with %d", len(states), self.runtime.world_size)
        if self.runtime.rank < len(states):
            self.runtime.set_random_state(states[self.runtime.rank])

    def _restore_weights(self, state: dict[str, Any], path: str) -> None:
        restore(state, path, self.step.network, self.average, self.optimizer, self.scaler)

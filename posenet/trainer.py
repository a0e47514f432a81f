"""The training loop: steps, validation, checkpoints and the ways a run can stop."""

from __future__ import annotations

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

from posenet import checkpoint
from posenet.averaging import NoAverage, trained_weights
from posenet.checkpoint import CheckpointFolder
from posenet.data.dataset import Batch, close_loader
from posenet.errors import CheckpointError, DataError, TrainingError
from posenet.guard import LossGuard, Verdict
from posenet.optim import Schedule, batch_norms, restore_optimizer, set_lr, train_mode
from posenet.prefetch import prefetch
from posenet.progress import Limits, Meter, Progress
from posenet.runlog import RunLog, SilentLog
from posenet.runtime import Runtime, stop_signals
from posenet.step import TrainStep
from posenet.update import GuardedUpdate

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """A signal came while the network was validated."""


class Trainer:
    """Trains one network over epochs that can be interrupted at any step.

    Args:
        step: module that gives one loss per image; what is saved is ``step.network``.
        average: of the network's weights; what is validated, and saved as the run's weights.
        evaluate: gives named scores of the network on the validation pictures, "AP" among them; None
            where there are none. Called every ``limits.evaluate_epochs`` epochs with the epoch, the step and a
            function to call now and then, which breaks it off by an exception.
        config: plain tables to save with every checkpoint.
    """

    def __init__(self, *, runtime: Runtime, step: TrainStep, optimizer: Optimizer, schedule: Schedule,
                 scaler: torch.amp.GradScaler, guard: LossGuard, train_loader: DataLoader,
                 val_loader: DataLoader | None, folder: CheckpointFolder, log: RunLog | SilentLog, limits: Limits,
                 average: NoAverage = NoAverage(),
                 evaluate: Callable[[int, int, Callable[[], None]], dict[str, float]] | None = None,
                 config: dict[str, Any] | None = None) -> None:
        self.runtime, self.step, self.optimizer, self.schedule = runtime, step, optimizer, schedule
        self.scaler, self.guard, self.train_loader, self.val_loader = scaler, guard, train_loader, val_loader
        self.folder, self.log, self.limits, self.evaluate, self.config = folder, log, limits, evaluate, config or {}
        self.average, self.progress = average, Progress()
        self.module = runtime.wrap(step)
        self.update = GuardedUpdate(self.module, optimizer, scaler, guard, runtime, limits.max_grad_norm)
        self._saved_at = time.monotonic()
        self._stop_asked: Callable[[], bool] = lambda: False

    @property
    def sampler(self) -> Any:
        return self.train_loader.batch_sampler

    def close(self) -> None:
        """End the data workers."""
        for loader in filter(None, (self.train_loader, self.val_loader)):
            close_loader(loader)

    def fit(self) -> bool:
        """Train to the last epoch, ``max_steps`` or a stop signal; return whether the last epoch was reached.

        Raises:
            TrainingError: the loss explodes again right after a return to the last checkpoint.
        """
        with stop_signals() as self._stop_asked:
            try:
                while self.progress.epoch < self.limits.epochs:
                    if self._is_stale():
                        _log.info("Stopped early: no better score for %d epochs", self.progress.stale)
                        return False
                    if self.runtime.any(self._stop_due()) or not (self.train_one_epoch() and self._finish_epoch()):
                        self.save()
                        _log.info("Stopped after step %d (epoch %d); --resume goes on from there",
                                  self.progress.total_steps, self.progress.epoch + 1)
                        return False
            except (DataError, OSError):
                if self.runtime.world == 1:     # else the others do not know of it
                    self._save_unless_bad()     # what was learnt outlives a damaged picture
                raise
        return True

    def train_one_epoch(self) -> bool:
        """Train from where the epoch stands to its end; return False where it was stopped before that."""
        p, steps = self.progress, self.sampler.steps
        self.sampler.start(p.epoch, p.step)
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
        """The batches of one optimizer step at a time, on the device; counts what was waited for."""
        batches: list[Batch] = []
        loader = prefetch(self.train_loader, self.runtime)
        while True:
            asked = time.monotonic()
            batch = next(loader, None)
            meter.waited += time.monotonic() - asked
            if batch is None:
                return
            batches.append(batch)
            if len(batches) == self.limits.accumulate:
                meter.samples += sum(len(b.images) for b in batches) * self.runtime.world
                yield batches
                batches = []

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
        blamed = [said for said in self.runtime.gather(own) if self.guard.is_bad(said[0])] or [own]
        value, ids = blamed[0][0], [i for _, images in blamed for i in images]
        step = self.progress.total_steps + 1
        _log.warning("Step %d skipped: loss or gradient norm %g; image ids %s", step, value, ids)
        self.log.record("skip", step, {"value": str(value), "image_ids": ids})
        verdict = self.guard.judge(bad=True)
        if verdict is Verdict.FAIL:
            raise TrainingError(f"the loss explodes again after a return to a checkpoint (step {step}, "
                                f"value {value:g}); lower optim.lr or look at images {ids}")
        if verdict is Verdict.ROLL_BACK:
            self._roll_back()

    def _roll_back(self) -> None:
        """Back to the last checkpoint's weights, but on with the batches that come next."""
        found = self.folder.newest_sound(lambda state: not state["guard"]["bad_in_a_row"])
        if found is None:
            raise TrainingError(f"{self.guard.max_skips} steps in a row exploded before the first checkpoint; "
                                "lower optim.lr or raise optim.warmup_epochs")
        path, state = found
        _log.warning("%d steps skipped in a row: returning to %s", self.guard.max_skips, path)
        self._restore_weights(state, str(path))

    @torch.no_grad()
    def validate(self) -> float | None:
        """Mean validation loss per image over all processes; None without a validation set."""
        if self.val_loader is None:
            return None
        self.step.eval()
        total = torch.zeros(2, dtype=torch.float64)
        for batch in tqdm(self.val_loader, "validate", unit="batch", leave=False, disable=not self.runtime.is_main):
            self._check_stop()
            losses = self.module(*self.runtime.place(batch)[:4]).cpu().double()
            total += torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
        loss, count = self.runtime.sum(total).tolist()
        return loss / count

    def _finish_epoch(self) -> bool:
        """Validate, log and save; return False, the epoch still unfinished, where a signal came meanwhile."""
        p = self.progress
        values: dict[str, Any] = {"train_loss": p.loss_sum / p.loss_steps if p.loss_steps else None}
        epoch = p.epoch + 1
        self.runtime.copy_from_main([b for norm in batch_norms(self.step) for b in norm.buffers(recurse=False)])
        self.average.after_epoch(epoch)
        try:
            with self.average.applied():
                values["val_loss"] = self.validate()
                if self.evaluate and (epoch % self.limits.evaluate_epochs == 0 or epoch == self.limits.epochs):
                    self.step.eval()
                    values |= self.evaluate(epoch, p.total_steps, self._check_stop)
        except _Stopped:
            return False
        p.epoch, p.step, p.loss_sum, p.loss_steps = epoch, 0, 0.0, 0
        self.log.epoch(epoch, p.total_steps, values)
        self.save(best=self._is_best(values))
        return True

    def _is_best(self, values: dict[str, Any]) -> bool:
        """Scores of one kind only are compared: AP where the run is evaluated at all, else the validation loss."""
        p, kind = self.progress, "AP" if self.evaluate else "val_loss"
        if kind != p.best_kind:
            p.best, p.stale, p.best_kind = -math.inf, 0, kind
        if values.get(kind) is None:
            return False
        score = values[kind] if self.evaluate else -values[kind]
        better = score > p.best
        p.best, p.stale = (score, 0) if better else (p.best, p.stale + 1)
        return better

    def _is_stale(self) -> bool:
        """Whether early stopping ends the run; the main process decides."""
        return self.runtime.from_main(0 < self.limits.patience <= self.progress.stale)

    def _report(self, bar: tqdm, meter: Meter, lr: float) -> None:
        self.runtime.synchronize()
        now, p = time.monotonic(), self.progress
        seconds = max(now - meter.started, 1e-9)
        loss = p.loss_sum / p.loss_steps if p.loss_steps else None
        values = {"epoch": p.epoch, "loss": loss, "lr": lr, "samples_per_s": meter.samples / seconds,
                  "data_wait": meter.waited / seconds}
        bar.set_postfix_str(f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
                            f"{values['samples_per_s']:.1f} samples/s, data wait {values['data_wait']:.0%}")
        self.log.record("train", p.total_steps, values)
        meter.started, meter.samples, meter.waited = now, 0, 0.0

    def _stop_due(self) -> bool:
        done = bool(self.limits.max_steps) and self.progress.total_steps >= self.limits.max_steps
        return done or self._stop_asked()

    def _check_stop(self) -> None:
        """Break off a validation that one process alone is busy with; the resumed run repeats it."""
        if self.runtime.world == 1 and self._stop_asked():
            raise _Stopped

    def _save_due(self) -> bool:
        steps, minutes = self.limits.checkpoint_steps, self.limits.checkpoint_minutes
        by_steps = bool(steps) and self.progress.total_steps % steps == 0
        by_time = bool(minutes) and time.monotonic() - self._saved_at >= 60 * minutes
        return by_steps or by_time

    def _save_unless_bad(self) -> None:
        """In the middle of an explosion the weights may be past saving: a return must find those before it."""
        if not self.guard.bad_in_a_row:
            self.save()

    def save(self, best: bool = False) -> None:
        """Write everything the run needs to go on as if it had never stopped."""
        random_states = self.runtime.gather(self.runtime.random_state())
        if self.runtime.is_main:
            self.folder.save(self.state_dict() | {"random": random_states}, self.progress.total_steps, best)
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and values only, so that ``weights_only=True`` reads them back."""
        return {"format": checkpoint.FORMAT, **self.average.state_dict(self.step.network.state_dict()),
                "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict(),
                "guard": self.guard.state_dict(), "progress": asdict(self.progress),
                "steps_per_epoch": self.sampler.steps, "config": self.config}

    def load_state_dict(self, state: dict[str, Any], path: str) -> None:
        """Go on from a checkpoint's state.

        Raises:
            CheckpointError: it is not a run's checkpoint, or belongs to another network or optimizer.
        """
        wanted = ("model", "optimizer", "scaler", "guard", "progress", "steps_per_epoch")
        if missing := [key for key in wanted if key not in state]:
            raise CheckpointError(f"{path} holds no run to resume (no {missing[0]}); fine-tune from it with --weights")
        self._restore_weights(state, path)
        self.guard.load_state_dict(state["guard"])
        self.progress = Progress(**state["progress"])
        if state["steps_per_epoch"] != self.sampler.steps:
            # Another data set or batch size: the same share of the epoch is done.
            self.progress.step = self.progress.step * self.sampler.steps // state["steps_per_epoch"]
        states = state.get("random", [])
        if self.runtime.rank < len(states):
            self.runtime.set_random_state(states[self.runtime.rank])

    def _restore_weights(self, state: dict[str, Any], path: str) -> None:
        trained = {"model": trained_weights(state)}
        checkpoint.load_weights(self.step.network, path, state=trained, least=0).require_all()
        self.average.load_state_dict(state)
        try:
            restore_optimizer(self.optimizer, state["optimizer"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{path} was saved by another optimizer or other frozen parameters; keep optim.name "
                                  "and train.freeze, or use --weights instead of --resume") from error
        # A fixed loss scale, whose backoff is 1, is a setting and no state.
        dynamic = self.scaler.is_enabled() and self.scaler.get_backoff_factor() < 1
        if dynamic and state["scaler"].get("backoff_factor", 1) < 1:
            self.scaler.load_state_dict(state["scaler"])

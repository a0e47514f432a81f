"""What a run reports: its lines in the log, the calls of its callbacks, and its progress bar."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm

from posenet.data.store_list import count_background
from posenet.devices.device import peak_memory, total_memory
from posenet.devices.parallel import Runtime
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import Config
from posenet.training.bad_steps import BadValue
from posenet.training.log import TrainingCallback
from posenet.training.optimizer import lr_factor
from posenet.training.run import Run
from posenet.training.run_data import describe_paths

EPOCH_LINE_SCORES = ("train_loss", "val_loss", "AP", "AR")
"""Scores in the text log's line of an epoch. ``log.jsonl`` has all scores."""
LARGE_ON_CPU = 2e13
"""From this product of parameters and pixels of a step on, which its time is proportional to, a run on a CPU names a
smaller network. Two cores take about 13 seconds for it."""

_log = logging.getLogger(__name__)


def describe_lr(config: Config, runtime: Runtime) -> str:
    """``learning rate 0.001 (optim.lr x 4 processes) for steps of 32 samples``."""
    optim, average, world_size = config.optim, config.average, runtime.world_size
    samples = config.train.batch_size * world_size * optim.accumulate
    key, rates = ("average.cycle_lr", average.cycle_lr) if average.cycle_epochs else ("optim.lr", (optim.lr,))
    lr = " to ".join(f"{rate * lr_factor(optim, world_size):g}" for rate in rates)
    rule = f" x {pluralize(world_size, 'process', 'processes')}" if optim.scale_lr else ", not scaled"
    return f"learning rate {lr} ({key}{rule}) for steps of {samples} samples"


def advise_on_network(run: Run) -> str:
    """What to say about a network that is large for a CPU; empty for others."""
    parameters = _num_parameters(run)
    images = run.config.train.batch_size * run.config.optim.accumulate
    height, width = run.config.train.size
    if run.runtime.device.type != "cpu" or parameters * images * height * width <= LARGE_ON_CPU:
        return ""
    return (
        f"{parameters / 1e6:.1f} M parameters on {pluralize(images, 'image')} of {width} x {height} are many for a "
        "CPU: a step may take minutes; --config tiny is a small network, and posenet config lists all experiments"
    )


def advise_on_devices(runtime: Runtime, device: str) -> str:
    """What to say where one of several accelerators trains and nobody has chosen it; empty otherwise."""
    count = torch.accelerator.device_count()
    if count < 2 or device != "auto" or runtime.device.type == "cpu" or type(runtime) is not Runtime:
        return ""
    return f"this machine has {count} devices, of which one trains; posenet train-distributed --nproc {count} uses all"


def _num_parameters(run: Run) -> int:
    return sum(parameter.numel() for parameter in run.network.parameters())


class Report:
    """Reports the start of a run, its steps and epochs, and its end. All ranks call it; rank 0 alone has callbacks.

    ``says_next`` says whether the last line names the next command, and ``--resume`` continues a stopped run. It is
    false for a run on annotations, which the same command continues.
    """

    def __init__(self, run: Run, callbacks: Sequence[TrainingCallback], says_next: bool) -> None:
        self.run = run
        self.callbacks = callbacks
        self.says_next = says_next
        self._started: list[TrainingCallback] = []
        self._warned: list[TrainingCallback] = []

    def describe_run(self) -> None:
        """Log two lines: the network, the data and the length of the run; its validation and its folder."""
        run, config, data = self.run, self.run.config, self.run.train_data
        samples = data.num_images - count_background(data) if config.data.framing == "image" else len(data)
        length = f"{pluralize(config.train.epochs, 'epoch')} of {pluralize(run.batches.steps_per_epoch, 'step')}"
        _log.info(
            f"Training {pluralize(config.model.stacks, 'stack')} of width {config.model.width} "
            f"({_num_parameters(run) / 1e6:.1f} M parameters) on {pluralize(samples, 'sample')} of "
            f"{describe_paths(config.data.train)}, {length}"
        )
        validation = "no validation loss (data.val)" if run.val_data is None else "validation loss after every epoch"
        if run.coco_validation is not None:
            every = config.train.evaluate_every
            validation += f", AP after every {pluralize(every, 'epoch').removeprefix('1 ')} and the last"
        _log.info("The run is in %s; %s", run.folder.path, validation)

    def start(self) -> None:
        """Call ``on_start`` of each callback, up to the first that raises an exception."""
        for callback in self.callbacks:
            callback.on_start(self.run.config, self.run.folder.path)
            self._started.append(callback)

    def call(self, method: str, *args: Any) -> None:
        """Call another method of each callback; warn of the first exception of each."""
        for callback in self._started:
            try:
                getattr(callback, method)(*args)
            except Exception as error:  # the code of a user can raise anything
                if callback not in self._warned:
                    self._warned.append(callback)
                    name, reason = type(callback).__name__, f"{type(error).__name__}: {error}"
                    _log.warning("the callback %s failed, and training continues: %s", name, reason)

    def close(self) -> None:
        """End the callbacks that were started, the last first."""
        self._started.reverse()
        self.call("on_end")

    def epoch_bar(self) -> tqdm[Any]:
        """The bar over the steps of the current epoch."""
        self._epoch_began = time.monotonic(), self.run.progress.total_steps
        progress, steps = self.run.progress, self.run.batches.steps_per_epoch
        title = f"epoch {progress.epoch + 1}/{self.run.config.train.epochs}"
        return progress_bar(title=title, total=steps, unit="step", done=progress.step, leave=False)

    def step(self, bar: tqdm[Any], lr: float) -> None:
        """Report a step if one is due."""
        run, progress = self.run, self.run.progress
        bar.update()
        if progress.total_steps % run.config.log.every_steps and progress.step < run.batches.steps_per_epoch:
            return
        loss = progress.mean_loss
        speed = run.batches.read_speed()
        speed["samples_per_s"] *= run.runtime.world_size
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{speed['samples_per_s']:.1f} samples/s, data wait {speed['data_wait']:.0%}"
        )
        means = {"terms": run.train_step.terms.read(), "gradient_norm": run.train_step.gradient_norm.read()}
        values = {"epoch": progress.epoch, "loss": loss, "lr": lr, **speed, **means, **self._memory()}
        self.call("on_step", progress.total_steps, values)

    def skipped_step(self, bad: BadValue, image_ids: Sequence[int]) -> None:
        """Report the bad value of a skipped step, and its images."""
        step = self.run.progress.total_steps
        _log.warning("Step %d skipped: %s %g is %s; image ids %s", step, bad.name, bad.value, bad.reason, image_ids)
        values = {"name": bad.name, "value": str(bad.value), "limit": bad.limit, "reason": bad.reason}
        self.call("on_skip", step, values | {"image_ids": image_ids})

    def epoch(self, epoch: int, scores: dict[str, Any]) -> None:
        """Report the scores of an epoch, its losses, and what was wrong in it."""
        run, progress = self.run, self.run.progress
        values: dict[str, Any] = {"epoch": epoch, "train_loss": progress.mean_loss} | scores
        self.call("on_epoch", progress.total_steps, values)
        texts = [f"{name} {values[name]:.4f}" for name in EPOCH_LINE_SCORES if values.get(name) is not None]
        if memory := self._memory():
            texts.append(f"memory {memory['memory_gib']:.1f} GiB ({memory['memory_share']:.0%} of the device's)")
        _log.info("Epoch %d of %d  %s  (%s)", epoch, run.config.train.epochs, "  ".join(texts), self._times(epoch))
        if progress.skipped:
            _log.warning(
                f"epoch {epoch}: {progress.skipped} of {progress.step} steps were skipped: a bad loss or gradient, or "
                "a loss scale of fp16 that was too large"
            )
        if values["val_loss"] is not None and not math.isfinite(values["val_loss"]):
            _log.warning("epoch %d: the validation loss is not finite; lower optim.lr", epoch)

    def _times(self, epoch: int) -> str:
        """The duration of an epoch with its validation, and the time left: ``01:23, 45:00 left``."""
        began, first_step = self._epoch_began
        seconds = time.monotonic() - began
        share = (self.run.progress.total_steps - first_step) / self.run.batches.steps_per_epoch  # less where resumed
        left = self.run.config.train.epochs - epoch
        took = tqdm.format_interval(seconds)
        return f"{took}, {tqdm.format_interval(seconds / share * left)} left" if left and share else took

    def stopped(self, has_done_max_steps: bool) -> None:
        """Report where a run was stopped that can continue, and how."""
        progress = self.run.progress
        how = "--resume" if self.says_next else "the same command"
        if has_done_max_steps:
            how += " with more --max-steps, or without,"
        position = f"step {progress.total_steps} (epoch {progress.epoch + 1})"
        _log.info("Stopped after %s, saved in %s; %s continues", position, self.run.folder.last, how)

    def end(self) -> None:
        """Report why the run has ended, its best score, and the checkpoint to use."""
        run, progress, folder = self.run, self.run.progress, self.run.folder
        why = f"Stopped early after {pluralize(progress.stale, 'score')} without a better one"
        if progress.epoch >= run.config.train.epochs:
            why = f"Finished {pluralize(run.config.train.epochs, 'epoch')}"
        scores = [f"{name} {score:.4f}" for name, score in progress.best_score.items()]
        best = f"Best {scores[0]}: {folder.best}" if scores else f"The weights: {folder.last}"
        command = f"posenet predict IMAGES --checkpoint {folder.best if scores else folder.last}"
        if run.config.model.network:
            command += f" --set model.network={run.config.model.network}"
        _log.info("%s. %s%s", why, best, f"; next: {command}" if self.says_next else "")

    def _memory(self) -> dict[str, float]:
        """The most memory of the device that tensors had so far, in GiB, and its share; empty if it does not tell."""
        peak, total = peak_memory(self.run.runtime.device), total_memory(self.run.runtime.device)
        if peak is None or total is None:
            return {}
        return {"memory_gib": round(peak / 2**30, 2), "memory_share": round(peak / total, 3)}

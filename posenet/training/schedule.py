"""The learning rate of every step, as a pure function of the position in the run."""

from __future__ import annotations

from typing import Protocol

from posenet.settings import AverageConfig, OptimConfig


class Schedule(Protocol):
    """Computes the learning rate of a step."""

    def lr_at(self, epoch: int, step: int, steps_per_epoch: int) -> float:
        """The learning rate of one step.

        Args:
            epoch: epochs completed.
            step: steps completed in this epoch.
            steps_per_epoch: steps of a whole epoch.
        """
        ...


class StepSchedule:
    """Linear warmup, then a drop by a constant factor every few epochs; optionally restarted once.

    With n = steps since the start of the run, the warmup factor is min(1, (n + 1) / (warmup_epochs * steps_per_epoch)).
    From ``restart_epoch`` on, the drops start again from ``restart_lr``.

    Args:
        settings: rates and lengths in epochs.
        lr_factor: multiplies all rates; see ``lr_factor``.
    """

    def __init__(self, settings: OptimConfig, lr_factor: float = 1.0) -> None:
        self.settings = settings
        self.lr = settings.lr * lr_factor
        self.restart_lr = settings.restart_lr * lr_factor

    def lr_at(self, epoch: int, step: int, steps_per_epoch: int) -> float:
        settings = self.settings
        lr = self.lr
        epochs_since_start = epoch
        epochs_per_drop = settings.step_epochs
        if settings.restart_epoch and epoch >= settings.restart_epoch:
            lr = self.restart_lr or self.lr
            epochs_since_start = epoch - settings.restart_epoch
            epochs_per_drop = settings.restart_step_epochs or settings.step_epochs
        drops = epochs_since_start // epochs_per_drop if epochs_per_drop else 0
        warmup_steps = settings.warmup_epochs * steps_per_epoch
        warmup = min(1.0, (1 + step + epoch * steps_per_epoch) / warmup_steps) if warmup_steps else 1.0
        return lr * settings.step_factor**drops * warmup


class CyclicSchedule:
    """In every cycle, a linear fall from the first to the second rate of ``cycle_lr`` (for SWA, arXiv 1803.05407).

    After k of the n steps of a cycle the rate is ``first + (last - first) * (k + 1) / n``.

    Args:
        settings: length of a cycle in epochs, and its two rates.
        lr_factor: multiplies both rates; see ``lr_factor``.
    """

    def __init__(self, settings: AverageConfig, lr_factor: float = 1.0) -> None:
        self.cycle_epochs = settings.cycle_epochs
        self.first_lr, self.last_lr = (lr * lr_factor for lr in settings.cycle_lr)

    def lr_at(self, epoch: int, step: int, steps_per_epoch: int) -> float:
        steps_done = epoch % self.cycle_epochs * steps_per_epoch + step + 1
        share_done = steps_done / (self.cycle_epochs * steps_per_epoch)
        return self.first_lr + (self.last_lr - self.first_lr) * share_done


def lr_factor(settings: OptimConfig, world_size: int) -> int:
    """Number of processes with ``scale_lr``, because the effective batch grows with it; else 1."""
    return world_size if settings.scale_lr else 1


def make_schedule(optim: OptimConfig, average: AverageConfig, world_size: int) -> Schedule:
    """The configured schedule: cyclic if ``average.cycle_epochs`` is set, else stepwise."""
    factor = lr_factor(optim, world_size)
    if average.cycle_epochs:
        return CyclicSchedule(average, factor)
    return StepSchedule(optim, factor)

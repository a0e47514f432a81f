"""The learning rate of every step."""

from __future__ import annotations

from dataclasses import dataclass

from posenet.settings import AverageConfig, OptimConfig


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a pure function of the position in the run.

    Linear warmup over the first epochs, then a fall by ``factor`` every ``step_epochs``; at ``restart_epoch``
    the falls start anew from ``restart_lr``. With ``cycle_epochs`` none of this: the rate falls linearly from the
    first of ``cycle_lr``, exclusive, to the second within every cycle (Izmailov et al., arXiv 1803.05407).
    """

    lr: float
    warmup_epochs: float = 3.0
    step_epochs: int = 15
    factor: float = 0.2
    restart_epoch: int = 0
    restart_lr: float = 0.0
    restart_step_epochs: int = 0
    cycle_epochs: int = 0
    cycle_lr: tuple[float, float] = (4e-5, 2e-5)

    @classmethod
    def from_config(cls, config: OptimConfig, world_size: int = 1, average: AverageConfig | None = None) -> Schedule:
        """The configured schedule; with ``scale_lr`` its rates are multiplied by the number of processes."""
        c, factor, average = config, world_size if config.scale_lr else 1, average or AverageConfig()
        return cls(
            c.lr * factor,
            c.warmup_epochs,
            c.step_epochs,
            c.step_factor,
            c.restart_epoch,
            c.restart_lr * factor,
            c.restart_step_epochs,
            average.cycle_epochs,
            tuple(lr * factor for lr in average.cycle_lr),
        )

    def lr_at(self, epoch: int, step: int, length: int) -> float:
        """Learning rate of one step.

        Args:
            epoch: epochs completed.
            step: steps completed in this epoch.
            length: steps of a whole epoch.
        """
        if self.cycle_epochs:
            first, last = self.cycle_lr
            done = (epoch % self.cycle_epochs * length + step + 1) / (self.cycle_epochs * length)
            return first + (last - first) * done
        lr, since, every = self.lr, epoch, self.step_epochs
        if self.restart_epoch and epoch >= self.restart_epoch:
            lr, since = self.restart_lr or lr, epoch - self.restart_epoch
            every = self.restart_step_epochs or every
        falls = since // every if every else 0
        warmup_steps = self.warmup_epochs * length
        warmup = min(1.0, (1 + step + epoch * length) / warmup_steps) if warmup_steps else 1.0
        return lr * self.factor**falls * warmup

"""Settings of runs on many devices and of weight averaging; part of ``posenet.settings.sections``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ParallelConfig:
    sync_bn: bool = False
    """BatchNorm takes its statistics over the batches of all processes."""
    compile: bool = False
    """Compile the network with torch.compile: a slow first step, faster ones after it."""


@dataclass(frozen=True)
class AverageConfig:
    kind: Literal["off", "ema", "swa"] = "off"
    """What is validated and saved: the weights themselves, their exponential moving average, or the mean of those at
    the end of every cycle (SWA, for which BatchNorm must be frozen)."""
    decay: float = 0.9998
    """Share of the old average that an optimizer step keeps (ema); it grows to this over the first steps."""
    cycle_epochs: int = 0
    """Length of a cycle, over which the learning rate falls from the first of ``cycle_lr`` to the second; 0 keeps
    the schedule of ``optim``."""
    cycle_lr: tuple[float, float] = (4e-5, 2e-5)
    """Learning rates of one process at the start and the end of a cycle."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError("average.decay must lie between 0 and 1")
        if self.cycle_epochs < 0 or min(self.cycle_lr) <= 0:
            raise ValueError("average.cycle_epochs must not be negative, average.cycle_lr must be positive")
        if self.kind == "swa" and not self.cycle_epochs:
            raise ValueError("average.kind = swa averages at the end of every cycle; set average.cycle_epochs")

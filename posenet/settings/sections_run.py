"""Settings of how a run is guarded, saved and told; a part of ``posenet.settings.sections``."""

from __future__ import annotations

from dataclasses import dataclass

from posenet.settings.sections_model import check


@dataclass(frozen=True)
class GuardConfig:
    threshold: float = 2e5
    """A batch with a larger loss is skipped; a non-finite one always is."""
    max_skips: int = 10
    """Skips in a row before the run returns to its last checkpoint."""

    def __post_init__(self) -> None:
        check(self.threshold > 0, "guard.threshold must be positive")
        check(self.max_skips >= 1, "guard.max_skips must be at least 1")


@dataclass(frozen=True)
class CheckpointConfig:
    path: str = ""
    """Folder of the run; empty means checkpoints/<name of the experiment file>."""
    every_steps: int = 0
    """Optimizer steps between checkpoints, besides one per epoch; 0 is off."""
    every_minutes: float = 10.0
    """Minutes between checkpoints, besides one per epoch; 0 is off."""
    keep: int = 3
    """Newest checkpoints to keep; the best one is kept besides."""

    def __post_init__(self) -> None:
        check(min(self.every_steps, self.every_minutes) >= 0, "checkpoint.every_* must not be negative")
        check(self.keep >= 1, "checkpoint.keep must be at least 1")


@dataclass(frozen=True)
class LogConfig:
    every_steps: int = 20
    """Optimizer steps between log lines."""
    tensorboard: bool = True
    """Write TensorBoard events where TensorBoard is installed."""
    curves: bool = True
    """Draw curves.png at each validation where matplotlib is installed."""
    pictures: int = 4
    """Validation images drawn at each evaluation, the truth beside what was found."""

    def __post_init__(self) -> None:
        check(self.every_steps >= 1, "log.every_steps must be at least 1")
        check(self.pictures >= 0, "log.pictures must not be negative")

"""What is trained and how fast: freezing, parameter groups and the learning-rate schedule."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from posenet.errors import ConfigError
from posenet.settings.sections import AverageConfig, OptimConfig

ALL_BUT_HEADS = "all-but-heads"
FUSED_ON = {"cpu", "cuda", "mps", "xpu"}
"""Device types for which PyTorch has fused optimizers."""


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


def make_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The configured optimizer over the parameters that are not frozen.

    Raises:
        ConfigError: everything is frozen.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError("train.freeze leaves nothing to train; freeze fewer parameters")
    # One kernel for all of it: a half to a third of the time on a CPU, and no number read by the host.
    fused = all(p.device.type in FUSED_ON for p in trained)
    if config.name == "sgd":
        return SGD(trained, config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused)
    return AdamW(trained, config.lr, weight_decay=config.weight_decay, fused=fused)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load what the optimizer has gathered, such as momentum; its settings stay as they are configured now.

    Raises:
        ValueError: the state is of another kind of optimizer or of other parameters.
    """
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    if [set(group) for group in state["param_groups"]] != [set(group) for group in optimizer.param_groups]:
        raise ValueError("another kind of optimizer")
    optimizer.load_state_dict(state)
    for parameter, gathered in optimizer.state.items():
        # Single numbers, such as Adam's count of steps, aside.
        if any(isinstance(t, Tensor) and t.ndim and t.shape != parameter.shape for t in gathered.values()):
            raise ValueError("what was gathered is of another shape")
    for group, own in zip(optimizer.param_groups, settings):
        group.update(own)


def freeze(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Freeze the parameters whose names match any glob pattern, and return those names.

    ``"all-but-heads"`` stands for every parameter outside ``model.head_parameter_names()``.

    Raises:
        ConfigError: a pattern that matches no parameter.
    """
    parameters = dict(model.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        if pattern == ALL_BUT_HEADS:
            matched = parameters.keys() - set(model.head_parameter_names())
        else:
            matched = set(fnmatch.filter(parameters, pattern))
        if not matched:
            example = next(iter(parameters))
            raise ConfigError(f"train.freeze: {pattern!r} matches no parameter; names look like {example!r}")
        frozen |= matched
    for name in frozen:
        parameters[name].requires_grad_(False)
    return sorted(frozen)


def train_mode(model: nn.Module) -> None:
    """Training mode, except that a frozen BatchNorm keeps its statistics."""
    model.train()
    for norm in batch_norms(model):
        own = list(norm.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            norm.eval()


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of the model, the synchronised kind included."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm)]

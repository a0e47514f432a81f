"""What is trained and how: frozen parameters, the optimizer, and the learning rate of every step."""

import fnmatch
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from posenet.errors import ConfigError
from posenet.model.posenet import PoseNet
from posenet.settings import Config, OptimConfig

ALL_BUT_HEADS = "all-but-heads"  # the pattern that stands for every parameter outside the heads
MOMENTUM = 0.9
"""Momentum of SGD, as published and nearly everywhere. AdamW has PyTorch's betas, 0.9 and 0.999."""
FUSED_DEVICE_TYPES = frozenset({"cpu", "cuda", "mps", "xpu"})  # device types for which PyTorch has fused optimizers


def freeze(network: PoseNet, patterns: Iterable[str]) -> list[str]:
    """Freeze the parameters whose names match a pattern, and return the names; ``ConfigError`` if one matches none."""
    frozen = names_to_freeze(network, patterns)
    for name in frozen:
        network.get_parameter(name).requires_grad_(False)
    return sorted(frozen)


def names_to_freeze(network: PoseNet, patterns: Iterable[str]) -> set[str]:
    """The names of the parameters that match a pattern; ``ConfigError`` if a pattern matches none."""
    parameters = dict(network.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        if pattern == ALL_BUT_HEADS:
            matched = parameters.keys() - set(network.head_parameter_names())
        else:
            matched = set(fnmatch.filter(parameters, pattern))
        if not matched:
            example = next(iter(parameters))
            raise ConfigError(f"train.freeze: {pattern!r} matches no parameter; names look like {example!r}")
        frozen |= matched
    return frozen


def set_train_mode(model: nn.Module) -> None:
    """Put a model into training mode, except for frozen BatchNorm layers."""
    model.train()
    for layer in batch_norm_layers(model):
        parameters = list(layer.parameters(recurse=False))
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            layer.eval()


def batch_norm_layers(model: nn.Module) -> list[nn.Module]:
    """Every BatchNorm layer, synchronized ones included."""
    return [module for module in model.modules() if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm))]


def make_optimizer(model: nn.Module, settings: OptimConfig) -> Optimizer:
    """The configured optimizer over the parameters that are not frozen; ``ConfigError`` if all are frozen."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("train.freeze leaves nothing to train; freeze fewer parameters")
    # A fused optimizer updates all parameters in one kernel: on a CPU in a third to half of the time.
    fused = all(parameter.device.type in FUSED_DEVICE_TYPES for parameter in parameters)
    if settings.name == "sgd":
        return SGD(parameters, settings.lr, momentum=MOMENTUM, weight_decay=settings.weight_decay, fused=fused)
    return AdamW(parameters, settings.lr, weight_decay=settings.weight_decay, fused=fused)


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore the accumulated state, such as momentum, in the memory format that the parameters have now.

    Hyperparameters keep their current values. ``ValueError`` if the state belongs to other parameters.
    """
    current = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in state["param_groups"]] != [group["params"] for group in current]:
        raise ValueError("other groups of parameters")
    optimizer.load_state_dict({"state": state["state"], "param_groups": current})
    for parameter, parameter_state in optimizer.state.items():
        for key, value in parameter_state.items():
            # Fused kernels pair the numbers of a parameter and of its state by their order in memory. Scalars, such as
            # Adam's number of steps, have none.
            if value.ndim and value.shape != parameter.shape:
                raise ValueError("state of parameters with other shapes")
            if value.ndim and value.stride() != parameter.stride():
                parameter_state[key] = torch.empty_like(parameter).copy_(value)


def learning_rate(config: Config, world_size: int, epoch: int, step: int, steps_per_epoch: int) -> float:
    """The configured learning rate of one step, a pure function of the settings and the position in the run.

    * With ``average.cycle_epochs``, after k of the n steps of a cycle ``first + (last - first) * (k + 1) / n`` of
      ``cycle_lr`` (for SWA, arXiv 1803.05407).
    * With ``optim.schedule`` "cosine", after K of the N steps of the run ``lr * (1 + cos(pi * K / N)) / 2`` (arXiv
      1608.03983, without restarts); with "step", a drop by ``step_factor`` every ``step_epochs``. Both rise linearly at
      first, by the factor ``min(1, (K + 1) / warmup_steps)``.
    """
    optim, average = config.optim, config.average
    factor = world_size if optim.scale_lr else 1  # because the effective batch grows with the number of processes
    if average.cycle_epochs:
        first, last = (lr * factor for lr in average.cycle_lr)
        steps_done = epoch % average.cycle_epochs * steps_per_epoch + step + 1
        return first + (last - first) * (steps_done / (average.cycle_epochs * steps_per_epoch))
    if optim.schedule == "cosine":
        share_done = (epoch + step / steps_per_epoch) / config.train.epochs
        decay = (1 + math.cos(math.pi * share_done)) / 2
    else:
        decay = optim.step_factor ** (epoch // optim.step_epochs if optim.step_epochs else 0)
    warmup_steps = optim.warmup_epochs * steps_per_epoch
    warmup = min(1.0, (1 + step + epoch * steps_per_epoch) / warmup_steps) if warmup_steps else 1.0
    return optim.lr * factor * decay * warmup

"""Freezing parameters by name, and the mode of frozen BatchNorm layers."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from posenet.errors import ConfigError

ALL_BUT_HEADS = "all-but-heads"


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

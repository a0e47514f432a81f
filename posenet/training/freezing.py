"""Freezing parameters by name, with the statistics of BatchNorm layers."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from torch import nn

from posenet.errors import ConfigError
from posenet.model.posenet import PoseNet

ALL_BUT_HEADS = "all-but-heads"
"""The pattern that stands for every parameter outside the heads."""


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

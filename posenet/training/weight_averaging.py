"""Averages of the trained weights: exponential (EMA), or over the ends of learning-rate cycles (SWA)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.settings import AverageConfig
from posenet.training.batch_norm import batch_norm_layers


class NoAverage:
    """No averaging: the trained weights are validated and saved."""

    def remember_step(self) -> None:
        """Remember the weights after an optimizer step, which may turn out to have been skipped."""

    def after_step(self) -> None:
        """Update the average after the step of the last ``remember_step``, which was not skipped.

        The network may have made another step since.
        """

    def after_epoch(self, epochs: int) -> None:
        """Update the average after the run's ``epochs``-th epoch."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the network has the averaged weights."""
        yield

    def state_dict(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """The entries of a checkpoint with weights: ``model``, and ``average`` if there is one.

        ``weights`` is the state dict of the network, with the trained weights.
        """
        return {"model": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the average from a checkpoint, after the network has loaded its ``trained_weights``."""


class WeightAverage(NoAverage):
    """Base of the averages of a network's weights and BatchNorm statistics.

    Until the first update the average equals the trained weights. In a checkpoint, ``model`` is the average, and
    ``average`` contains the trained weights. The average is on the device of the network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.count = 0  # number of updates
        self.epochs = 0  # completed epochs at the last update
        state = network.state_dict()
        self._trained = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
        self._average = {name: tensor.clone() for name, tensor in self._trained.items()}

    @torch.no_grad()
    def _move_towards(self, weights: Mapping[str, Tensor], share: float) -> None:
        """average += share * (weights - average)"""
        torch._foreach_lerp_(list(self._average.values()), list(weights.values()), share)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        backup = {name: tensor.clone() for name, tensor in self._trained.items()}
        if self.count:
            _copy(self._average, self._trained)
        try:
            yield
        finally:
            _copy(backup, self._trained)

    def state_dict(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        if not self.count:
            return {"model": weights, "average": {"count": 0, "epochs": self.epochs, "trained": {}}}
        trained = {name: weights[name] for name in self._trained}
        average = {"count": self.count, "epochs": self.epochs, "trained": trained}
        return {"model": weights | self._average, "average": average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state.get("average", {"count": 0, "epochs": 0})
        self.count = saved["count"]
        self.epochs = saved["epochs"]
        _copy(state["model"] if self.count else self._trained, self._average)


class ExponentialMovingAverage(WeightAverage):
    """average = decay * average + (1 - decay) * trained, after every step (Polyak and Juditsky).

    The decay of the n-th step is min(``decay``, (1 + n) / (10 + n)), so that the first steps are forgotten quickly.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__(network)
        self.decay = decay
        self._remembered = {name: tensor.clone() for name, tensor in self._trained.items()}

    @torch.no_grad()
    def remember_step(self) -> None:
        torch._foreach_copy_(list(self._remembered.values()), list(self._trained.values()))

    def after_step(self) -> None:
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        self._move_towards(self._remembered, 1 - decay)


class StochasticWeightAverage(WeightAverage):
    """Mean of the weights at the end of every cycle of the learning rate (Izmailov et al., arXiv 1803.05407)."""

    def __init__(self, network: nn.Module, cycle_epochs: int) -> None:
        super().__init__(network)
        self.cycle_epochs = cycle_epochs

    def after_epoch(self, epochs: int) -> None:
        # A run that was stopped during validation finishes the same epoch twice.
        if epochs % self.cycle_epochs == 0 and epochs > self.epochs:
            self.count += 1
            self.epochs = epochs
            self._move_towards(self._trained, 1 / self.count)


def make_weight_average(network: nn.Module, settings: AverageConfig) -> NoAverage:
    """The configured average; ``ConfigError`` for SWA of a network with BatchNorm layers that are not frozen."""
    if settings.kind == "ema":
        return ExponentialMovingAverage(network, settings.decay)
    if settings.kind == "swa":
        _require_frozen_batch_norm(network)
        return StochasticWeightAverage(network, settings.cycle_epochs)
    return NoAverage()


def trained_weights(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights that the run of a checkpoint was training; its ``model`` may be their average."""
    weights: dict[str, Tensor] = dict(state["model"])
    weights.update(state.get("average", {}).get("trained", {}))
    return weights


def _require_frozen_batch_norm(network: nn.Module) -> None:
    """Raise ``ConfigError`` unless all BatchNorm layers are frozen: their statistics would not match the average."""
    for layer in batch_norm_layers(network):
        if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
            raise ConfigError(
                "average.kind = swa needs frozen BatchNorm: start from a checkpoint with --weights and add "
                "--freeze '*.norm.*'"
            )


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])

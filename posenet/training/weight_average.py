"""Averages of the weights over training: EMA, an exponential moving one, and SWA, the mean of the ends of cycles."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from posenet.errors import ConfigError
from posenet.settings import AverageConfig
from posenet.training.optimizer import batch_norm_layers


class WeightAverage:
    """An average of a network's weights and BatchNorm statistics, on the device of the network.

    Until the first update the average equals the trained weights. ``ConfigError`` for SWA without frozen BatchNorm,
    whose statistics would not match the averaged weights.
    """

    def __init__(self, network: nn.Module, settings: AverageConfig) -> None:
        if settings.kind == "swa":
            for layer in batch_norm_layers(network):
                if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
                    raise ConfigError(
                        "average.kind = swa needs frozen BatchNorm: start from a checkpoint with --set "
                        "train.weights=FILE train.freeze=['*.norm.*']"
                    )
        self.settings = settings
        self.count = 0  # number of updates
        self.epochs = 0  # completed epochs at the last update of SWA
        state = network.state_dict()
        self._trained = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
        self.values = {name: tensor.clone() for name, tensor in self._trained.items()}  # the averaged weights by name

    def after_step(self) -> None:
        """Update the EMA after an optimizer step that was not skipped (Polyak and Juditsky).

        average = decay * average + (1 - decay) * trained. The decay of the n-th step is min(``average.decay``,
        (1 + n) / (10 + n)), so that the first steps are forgotten quickly.
        """
        if self.settings.kind == "ema":
            self.count += 1
            decay = min(self.settings.decay, (1 + self.count) / (10 + self.count))
            self._update(get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]

    def after_epoch(self, epochs: int) -> None:
        """Update the SWA after the run's ``epochs``-th epoch, if a cycle of the learning rate ends with it.

        The average is the mean of the weights at these epochs (Izmailov et al., arXiv 1803.05407).
        """
        # A run that was stopped during validation finishes the same epoch twice.
        if self.settings.kind == "swa" and epochs % self.settings.cycle_epochs == 0 and epochs > self.epochs:
            self._update(get_swa_multi_avg_fn())  # type: ignore[no-untyped-call]
            self.count += 1
            self.epochs = epochs

    def _update(self, average: Any) -> None:
        """Apply an averaging function of PyTorch, which receives the number of weights that are in the average."""
        average(list(self.values.values()), list(self._trained.values()), self.count)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the network has the averaged weights."""
        backup = {name: tensor.clone() for name, tensor in self._trained.items()}
        if self.count:
            _copy(self.values, self._trained)
        try:
            yield
        finally:
            _copy(backup, self._trained)

    def restore(self, values: Mapping[str, Tensor], count: int, epochs: int) -> None:
        """Continue an average of ``count`` updates; of none, it starts from the weights that the network has now."""
        self.count = count
        self.epochs = epochs
        _copy(values if count else self._trained, self.values)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])

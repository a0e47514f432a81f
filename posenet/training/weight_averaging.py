"""Averages of the weights that are trained: exponential (EMA), or over the ends of cycles (SWA)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def trained_weights(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights a checkpoint's run was training, which are not its ``model`` where that is an average."""
    return dict(state["model"]) | state.get("average", {}).get("trained", {})


class NoAverage:
    """The weights themselves."""

    def after_step(self) -> None:
        """Take notice of an optimizer step."""

    def after_epoch(self, epochs: int) -> None:
        """Take notice of the end of an epoch, the run's ``epochs``-th."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within it, the network has the averaged weights."""
        yield

    def state_dict(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """Parts of a checkpoint: ``model`` and what else is needed to go on; ``weights`` are the trained ones."""
        return {"model": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint whose ``trained_weights`` the network has already."""


class WeightAverage(NoAverage):
    """Averages a network's weights and BatchNorm statistics; until the first update it is the weights themselves.

    EMA after Polyak and Juditsky, its decay rising from 2/11 as (1 + n) / (10 + n) over the first n steps; SWA after
    Izmailov et al., arXiv 1803.05407.

    Args:
        network: on its device; what is averaged stays beside it.
        decay: share of the old average that a step keeps; None averages the ends of cycles alike.
        cycle_epochs: length of a cycle.
    """

    def __init__(self, network: nn.Module, decay: float | None, cycle_epochs: int = 0) -> None:
        self.decay, self.cycle_epochs, self.count, self.epochs = decay, cycle_epochs, 0, 0
        self._live = {n: t for n, t in network.state_dict().items() if t.is_floating_point()}
        self._average = {n: t.clone() for n, t in self._live.items()}

    def after_step(self) -> None:
        if self.decay is not None:
            self.count += 1
            self._move(1 - min(self.decay, (1 + self.count) / (10 + self.count)))

    def after_epoch(self, epochs: int) -> None:
        # A run that was stopped while it validated comes here twice.
        if self.decay is None and epochs % self.cycle_epochs == 0 and epochs > self.epochs:
            self.count, self.epochs = self.count + 1, epochs
            self._move(1 / self.count)

    @torch.no_grad()
    def _move(self, share: float) -> None:
        torch._foreach_lerp_(list(self._average.values()), list(self._live.values()), share)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        trained = {n: t.clone() for n, t in self._live.items()}
        if self.count:
            _copy(self._average, self._live)
        try:
            yield
        finally:
            _copy(trained, self._live)

    def state_dict(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        if not self.count:
            return {"model": weights, "average": {"count": 0, "epochs": self.epochs, "trained": {}}}
        trained = {n: weights[n] for n in self._live}
        return {
            "model": weights | self._average,
            "average": {"count": self.count, "epochs": self.epochs, "trained": trained},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state.get("average", {"count": 0, "epochs": 0})
        self.count, self.epochs = saved["count"], saved["epochs"]
        _copy(state["model"] if self.count else self._live, self._average)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])

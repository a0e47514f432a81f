"""What a run measures between two log lines: loss terms, losses of its data sets, the gradient norm, and its speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenet.devices.runtime import Runtime

SetLosses = dict[str, dict[str, float | int | None]]
"""For every data set, by name: the number of ``samples``, and their mean ``loss``; None if there are none."""


class MeanMeter:
    """The mean of numbers or tensors since the last reading. ``add`` does not wait for a device."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0

    def add(self, total: float | Tensor, count: int = 1) -> None:
        """Add the sum of ``count`` values."""
        self._sum = total if self._sum is None else self._sum + total
        self._count += count

    def read(self) -> Any:
        """Return the mean with five digits, a tensor as lists, and restart; None without values, or if not finite."""
        if self._sum is None:
            return None
        mean = self._sum / self._count
        values = mean.tolist() if isinstance(mean, Tensor) else mean
        self._sum = None
        self._count = 0
        return _five_digits(values) if np.isfinite(values).all() else None


class DataSetLosses:
    """Counts samples and sums losses for every data set, over all processes.

    Losses that are not finite are left out. ``add`` does not wait for the device. All ranks must call ``read`` at the
    same step.
    """

    def __init__(self, names: Sequence[str], runtime: Runtime) -> None:
        self.names = names
        self.runtime = runtime
        # (S, 2): sum of the losses, and number of samples.
        self._rank_totals = torch.zeros(len(names), 2, device=runtime.device)
        self._epoch_totals = torch.zeros(len(names), 2)

    def add(self, losses: Tensor, set_indices: Tensor) -> None:
        """Add the (N,) losses of samples of the sets with these (N,) numbers."""
        losses = losses.detach()
        finite = losses.isfinite()
        values = torch.stack([losses.where(finite, 0), finite.float()], 1)  # (N, 2)
        self._rank_totals.index_add_(0, set_indices.to(losses.device).long(), values)

    def read(self) -> SetLosses:
        """Return the losses since the last reading, and restart."""
        totals = self.runtime.all_reduce_sum(self._rank_totals).cpu()
        self._rank_totals = torch.zeros_like(self._rank_totals)
        self._epoch_totals += totals
        return self._describe(totals)

    def read_epoch(self) -> SetLosses:
        """Return the losses of all readings since the start of the epoch, or of the process, and restart."""
        totals = self._epoch_totals
        self._epoch_totals = torch.zeros_like(totals)
        return self._describe(totals)

    def _describe(self, totals: Tensor) -> SetLosses:
        losses: SetLosses = {}
        for name, (total, count) in zip(self.names, totals.tolist()):
            losses[name] = {"samples": int(count), "loss": _five_digits(total / count) if count else None}
        return losses


def format_losses(losses: SetLosses) -> str:
    """``coco 12.3 (800 samples), faces 8.1 (200 samples)``."""
    texts = []
    for name, values in losses.items():
        loss = "-" if values["loss"] is None else f"{values['loss']:.4f}"
        texts.append(f"{name} {loss} ({values['samples']} samples)")
    return ", ".join(texts)


class SpeedMeter:
    """Speed since the last reading."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.samples = 0  # of this process
        self.seconds_waited = 0.0  # for data
        self._started_at = time.monotonic()

    def read(self) -> dict[str, float]:
        """Return samples per second and the share of the time spent waiting for data; then restart."""
        seconds = max(time.monotonic() - self._started_at, 1e-9)
        speed = {"samples_per_s": self.samples / seconds, "data_wait": self.seconds_waited / seconds}
        self.restart()
        return speed


def _five_digits(value: Any) -> Any:
    """A number for the log, or lists of them: five digits are enough and keep it small."""
    if isinstance(value, list):
        return [_five_digits(item) for item in value]
    return float(f"{value:.5g}")

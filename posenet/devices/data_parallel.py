"""Several devices of one machine in one process: DataParallel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from posenet.devices.device import make_current, select_device
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError

_log = logging.getLogger(__name__)


def select_devices(device: torch.device, indices: Sequence[int] | None = None) -> list[torch.device]:
    """The devices that share each batch: all devices of the type of ``device``, or those with the given indices.

    The first of them becomes the current device of this thread.

    Raises:
        ConfigError: this machine lacks one of the devices, an index appears twice, or DataParallel cannot use them.
    """
    if device.type == "cpu":
        return [device]
    if indices is None:
        indices = range(torch.accelerator.device_count())
    if len(set(indices)) < len(indices):
        raise ConfigError(f"--devices names a device twice ({', '.join(map(str, indices))}); give each once")
    if len(indices) > 1 and not hasattr(torch._C, "_scatter"):  # only builds of PyTorch for CUDA and ROCm have it
        raise ConfigError(
            f"DataParallel cannot use {len(indices)} devices of type {device.type}, only CUDA devices; use "
            f"tools/train_distributed.py --nproc {len(indices)}, or one device with --devices {indices[0]}"
        )
    devices = [select_device(f"{device.type}:{index}") for index in indices]
    make_current(devices[0])
    return devices


class DataParallelRuntime(Runtime):
    """One process that splits every batch over several devices; with a single device it is a plain ``Runtime``.

    The wrapped module renders the targets and computes the loss, so that work is split over the devices too. Batches
    stay in host memory until DataParallel splits them. BatchNorm computes its statistics on each device separately.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__(devices[0])
        self.devices = list(devices)

    def wrap(self, module: nn.Module) -> nn.Module:
        if len(self.devices) == 1:
            _log.info("DataParallel: %s is the only device, so this run is the same as tools/train.py", self.device)
            return super().wrap(module)
        _log.info("DataParallel over %s", ", ".join(map(str, self.devices)))
        return nn.DataParallel(super().wrap(module), device_ids=self.devices)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        if len(self.devices) > 1:
            raise ConfigError("DataParallel cannot synchronize BatchNorm; use tools/train_distributed.py --sync-bn")
        return network

    def to_device(self, batch: Any) -> Any:
        return super().to_device(batch) if len(self.devices) == 1 else batch

    def synchronize(self) -> None:
        for device in self.devices:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)

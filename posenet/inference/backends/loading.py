"""Building the backend that runs a checkpoint or an exported file."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posenet.errors import ConfigError
from posenet.inference.backends.backend import Backend
from posenet.inference.backends.exported_backend import ExportedBackend
from posenet.inference.backends.graph import RUNTIMES, GraphOptions, default_threads, installed_runtimes
from posenet.messages import truncate_for_message
from posenet.settings import Config, InferenceConfig
from posenet.skeleton import Skeleton

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp

_log = logging.getLogger(__name__)

BackendName = Literal["auto", "torch", "openvino", "onnxruntime"]
BACKENDS: tuple[BackendName, ...] = ("auto", "torch", "openvino", "onnxruntime")
"""Software that runs a network; "auto" is the fastest that is installed and as accurate."""

EXPORTED_SUFFIX = ".onnx"

_FREE_SETTINGS = ("height", "max_height", "max_width", "batch_size")
"""Keys of the ``inference`` section that an exported file leaves open."""


@dataclass(frozen=True)
class BackendOptions:
    """Which software runs a network, and how."""

    name: BackendName | None = None
    """None is PyTorch for a checkpoint, and "auto" for an exported file."""
    device: str = "auto"
    amp: Amp | Literal["auto"] = "auto"
    threads: int | None = None
    """CPU threads of other backends than PyTorch, which has ``torch.set_num_threads``."""
    parallel: bool = False
    """Whether batches of a stream should share the threads, if the backend can do so; see ``GraphOptions``."""


def is_exported_file(path: str | Path) -> bool:
    """Whether a path names an exported file, by its suffix."""
    return Path(path).suffix.lower() == EXPORTED_SUFFIX


def override_settings(settings: InferenceConfig, overrides: Mapping[str, Any]) -> InferenceConfig:
    """Settings with other values of some keys; ``ConfigError`` if a value is out of range."""
    changes = dict(overrides)
    if "scales" in changes:
        changes["scales"] = tuple(changes["scales"])  # flags are lists
    try:
        return dataclasses.replace(settings, **changes)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def load_backend(
    path: str | Path, config: Config | None, options: BackendOptions, overrides: Mapping[str, Any]
) -> tuple[Backend, Config]:
    """The backend that runs a file, and the configuration of its network; see ``Predictor.from_checkpoint``."""
    if options.name is not None and options.name not in BACKENDS:
        raise ConfigError(f"backend {truncate_for_message(options.name)} is unknown; use {', '.join(BACKENDS)}")
    if is_exported_file(path):
        return _load_exported_file(path, config, options, overrides)
    return _load_checkpoint(path, config, options, overrides)


def _load_exported_file(
    path: str | Path, config: Config | None, options: BackendOptions, overrides: Mapping[str, Any]
) -> tuple[Backend, Config]:
    """Load an exported file. This does not import PyTorch."""
    if config is not None:
        raise ConfigError(f"{path} is an exported file with settings of its own: it cannot have another configuration")
    threads = options.threads or default_threads()
    graph_options = GraphOptions(options.device, options.amp, threads, options.parallel)
    backend = ExportedBackend(Path(path), _runtime_of_exported_file(path, options.name), graph_options)
    settings = override_settings(backend.settings, overrides)
    for name in overrides:
        if name not in _FREE_SETTINGS and getattr(settings, name) != getattr(backend.settings, name):
            raise ConfigError(
                f"{path} is an exported file, which leaves out flips and several scales and has fixed thresholds: "
                f"leave out {name}, or use its checkpoint"
            )
    if backend.metadata.left_out:
        _log.info("%s leaves out settings of its checkpoint: %s", path, backend.metadata.left_out)
    backend.settings = settings
    config = Config()
    return backend, dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, skeleton=backend.skeleton),
        data=dataclasses.replace(config.data, exif_frame=backend.metadata.exif_frame),
        inference=settings,
    )


def _runtime_of_exported_file(path: str | Path, name: BackendName | None) -> str:
    """The runtime that runs an exported file: the named one, or the fastest installed one."""
    if name == "torch":
        raise ConfigError(f"{path} is an exported file, which PyTorch cannot run; use backend {' or '.join(RUNTIMES)}")
    if name in RUNTIMES:
        return name
    installed = installed_runtimes()
    if not installed:
        extras = " or ".join(f"posenet[{runtime}]" for runtime in RUNTIMES)
        raise ConfigError(f"{path} is an exported file, which needs a package that runs it; install {extras}")
    return installed[0]


def _load_checkpoint(
    path: str | Path, config: Config | None, options: BackendOptions, overrides: Mapping[str, Any]
) -> tuple[Backend, Config]:
    """Load a checkpoint, whichever backend runs its network."""
    from posenet.checkpoints.weights import load_model
    from posenet.devices.device import select_device

    if options.name in (None, "torch", "auto"):
        select_device(options.device)  # an unknown device is reported before a large file is read
    network, config = load_model(path, config)
    settings = override_settings(config.inference, overrides)
    return make_backend(network, settings, config.model.skeleton, options), config


def make_backend(network: nn.Module, settings: InferenceConfig, skeleton: Skeleton, options: BackendOptions) -> Backend:
    """The backend that runs a fused copy of a network.

    Raises:
        ConfigError: the device or the precision cannot be used, or a package is missing.
    """
    import torch

    from posenet.devices.device import select_device
    from posenet.devices.precision import select_amp
    from posenet.inference.backends.converted_network import ConvertedNetwork
    from posenet.inference.backends.torch_backend import TorchBackend
    from posenet.model.fused import FusedNetwork

    cpu = torch.device("cpu")
    name = options.name or "torch"
    device = select_device(options.device) if name in ("auto", "torch") else cpu
    if name == "auto":
        name = _fastest_backend(device, select_amp(device, options.amp))
    amp = options.amp
    if name == "torch":
        network = FusedNetwork(network, select_amp(device, amp))
    else:
        if select_amp(cpu, amp) == "off":
            amp = "off"  # "auto" is no less accurate than with PyTorch
        threads = options.threads or torch.get_num_threads()
        graph_options = GraphOptions(options.device, amp, threads, options.parallel)
        network = ConvertedNetwork(network, name, graph_options)
    return TorchBackend(network, settings, skeleton=skeleton, device=device, amp="off", select=None)


def _fastest_backend(device: torch.device, amp: Amp) -> BackendName:
    """The fastest installed backend that computes in a precision on a CPU, or PyTorch on another device.

    Other backends than PyTorch need the package onnx, too, with which the network is converted.
    OpenVINO is faster than PyTorch in bf16 and in float32. ONNX Runtime is faster than PyTorch in float32, the only
    precision that it has on a CPU. Only PyTorch emulates a precision that the CPU does not compute in.
    """
    from posenet.devices.precision import select_amp

    is_native = amp in ("off", select_amp(device, "auto"))
    can_convert = importlib.util.find_spec("onnx") is not None
    installed = installed_runtimes() if device.type == "cpu" and is_native and can_convert else []
    if "openvino" in installed:
        return "openvino"
    if "onnxruntime" in installed and amp == "off":
        return "onnxruntime"
    return "torch"

"""Networks as functions from images to maps, in the software that serves best.

A network is a ``MapFunction``: in PyTorch a ``TorchNetwork``, in OpenVINO and ONNX Runtime one of ``exports``.
"""

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posenet.checkpoints.file import find_weights
from posenet.errors import ConfigError
from posenet.messages import truncate_for_message
from posenet.settings import Config

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp
    from posenet.devices.ranks import Ranks

MapFunction = Callable[[np.ndarray], np.ndarray]
"""Computes the maps of images: (N, H, W, 3) uint8 BGR, H and W multiples of 64, to (N, C, H/4, W/4) float32.

Several threads may call it at the same time. Its next call on a thread may write to the array again that it returned
there."""

BackendName = Literal["auto", "torch", "openvino", "onnxruntime"]
BACKENDS: tuple[BackendName, ...] = ("auto", "torch", "openvino", "onnxruntime")
"""Software that runs a network; "auto" is the fastest that is installed and as accurate."""
RUNTIMES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
"""Packages that run ONNX files, and what they are called; the fastest on a CPU first. Each is an extra of posenet."""
EXPORTS = "posenet.inference.exports"
"""A part that can be removed."""

_log = logging.getLogger(__name__)


def is_exported_file(path: str | Path) -> bool:
    """Whether a path names an exported file, by its suffix."""
    return Path(path).suffix.lower() == ".onnx"


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def load_network(
    path: Path,
    config: Config | None,
    *,
    device: str,
    amp: 'Amp | Literal["auto"]',
    backend: BackendName,
    num_images: int | None = None,
) -> tuple[MapFunction, Config]:
    """Load a checkpoint or an exported file; the arguments are those of ``Predictor``.

    A checkpoint becomes a fused copy of the network in PyTorch (a network of the user stays as it is), or an ONNX file
    in a runtime, to which it is converted once. Return also the configuration; for published weights, which have none,
    the defaults with the size of their network.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend {truncate_for_message(backend)} is unknown; use {', '.join(BACKENDS)}")
    if (is_exported_file(path) or backend in RUNTIMES) and not is_installed(EXPORTS):
        raise ConfigError(f"{path}: nothing here runs exported files; use a checkpoint in PyTorch")
    if is_exported_file(path):
        if config is not None:
            raise ConfigError(f"{path} is an exported file with settings of its own; leave out another configuration")
        from posenet.inference.exports.runtimes import load_exported_file

        return load_exported_file(path, device, amp, backend)
    if not is_installed("torch"):
        raise ConfigError(f"{path} needs PyTorch: pip install torch, or give a file of posenet export-onnx (.onnx)")
    path = find_weights(path)  # a missing file is reported before PyTorch is imported
    import torch

    from posenet.checkpoints.weights import load_model
    from posenet.devices.device import select_device
    from posenet.devices.precision import select_amp
    from posenet.model.fused import FusedNetwork

    # An unknown device is reported before a large file is read. A runtime has names of its own.
    torch_device = torch.device("cpu") if backend in RUNTIMES else select_device(device)
    torch_amp = select_amp(torch_device, amp)
    runtime = _fastest_backend(torch_device, torch_amp) if backend == "auto" else backend
    loaded = None
    if runtime != "torch":
        from posenet.inference.exports.onnx_export import load_converted

        if device.lower() in ("auto", "cpu") and torch_amp == "off":
            amp = "off"  # "auto" could mean bf16 to the runtime where PyTorch computes in float32: less accurate
        loaded = load_converted(path, config, runtime, device, amp, num_images, is_requested=backend != "auto")
    if backend == "auto":
        _log.info("%s runs with %s on %s", path, RUNTIMES[runtime] if loaded else "PyTorch", torch_device)
    if loaded is not None:
        return loaded
    network, config = load_model(path, config)
    if config.model.network:
        return TorchNetwork(network, torch_device, torch_amp), config
    # The fused network has that precision in itself.
    return TorchNetwork(FusedNetwork(network, torch_amp), torch_device, "off"), config


def _fastest_backend(device: "torch.device", amp: "Amp") -> BackendName:
    """The fastest installed backend that computes in a precision on a CPU, or PyTorch on another device.

    ONNX Runtime has only float32 on a CPU. Only PyTorch emulates a precision that the CPU does not compute in.
    """
    from posenet.devices.precision import select_amp

    is_native = amp in ("off", select_amp(device, "auto"))
    if device.type != "cpu" or not is_native or not (is_installed(EXPORTS) and is_installed("onnx")):
        return "torch"
    if is_installed("openvino"):
        return "openvino"
    return "onnxruntime" if is_installed("onnxruntime") and amp == "off" else "torch"


def device_of_process(path: str | Path, device: str, backend: BackendName, ranks: "Ranks") -> str:
    """The device of this process: that of its local rank if it is one of several in PyTorch, else ``device``."""
    if ranks.world_size == 1 or backend not in ("auto", "torch") or is_exported_file(path):
        return device
    from posenet.devices.parallel import device_of_rank

    return str(device_of_rank(device, ranks.local_rank))


def wrap_network(
    network: "nn.Module | MapFunction",
    device: "torch.device | str | None",
    amp: 'Amp | Literal["auto"] | None',
    backend: BackendName,
) -> MapFunction:
    """A module of PyTorch as a ``MapFunction``; one as it is. ``ConfigError`` if it is neither."""
    if backend not in ("auto", "torch"):
        raise ConfigError(f"backend {backend!r} runs files; give the path of the checkpoint instead of the network")
    is_module = hasattr(network, "parameters")  # what runs an exported file is none, and must not import PyTorch
    if callable(network) and not is_module:
        return network
    if not (is_module and hasattr(network, "heatmaps")):
        raise ConfigError(
            f"a {type(network).__name__} is no network; give a path, a name of weights, a function, or a module with "
            "a method heatmaps(images), such as the .module of a PoseNet that is wrapped"
        )
    import torch

    from posenet.devices.precision import select_amp

    module: Any = network
    weight = next(module.parameters(), torch.empty(0))
    torch_device = weight.device if device is None or device == "auto" else torch.device(device)
    return TorchNetwork(module, torch_device, select_amp(torch_device, amp or "off"))


class TorchNetwork:
    """Runs a network in PyTorch; ``CheckpointError`` if a parameter is not finite."""

    def __init__(self, network: "nn.Module", device: "torch.device | str", amp: "Amp") -> None:
        import torch

        from posenet.checkpoints.weights import require_usable_weights
        from posenet.devices.device import supports_pinned_memory

        # Only parameters, and only numbers: other tensors of a module can have any type and any meaning.
        numbers = {name: value for name, value in network.named_parameters() if value.is_floating_point()}
        require_usable_weights(numbers, "the network")
        self.device = torch.device(device)
        self.amp = amp
        self.network: Any = network.to(self.device).eval()
        self.averages = self.device.type != "cpu"
        """Whether PyTorch also averages the maps, on the device."""
        self.copies_in_background = supports_pinned_memory(self.device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """See ``MapFunction``."""
        import torch

        return self.compute_maps(torch.from_numpy(images).to(self.device)).float().cpu().numpy()

    def compute_maps(self, images: "torch.Tensor") -> "torch.Tensor":
        """The maps of (N, H, W, 3) uint8 BGR images on the network's device: there, and in the network's precision."""
        import torch

        from posenet.devices.precision import autocast
        from posenet.model.layers import images_to_input

        with torch.inference_mode(), autocast(self.device, self.amp):
            channels_last = getattr(self.network, "channels_last", False)
            maps: torch.Tensor = self.network.heatmaps(images_to_input(images, channels_last))
            return maps

    def pin(self, array: np.ndarray) -> "torch.Tensor":
        """An array as a tensor that the device copies in the background, if it can: itself if it is one already."""
        import torch

        # Memory is pinned for the current device of the thread, which may be another one.
        with torch.accelerator.device_index(self.device.index if self.copies_in_background else None):
            tensor = torch.from_numpy(array)
            return tensor.pin_memory() if self.copies_in_background else tensor

    def to_device(self, array: np.ndarray) -> "torch.Tensor":
        """An array on the device, which may still be copying it."""
        return self.pin(array).to(self.device, non_blocking=self.copies_in_background)

    def copy_to_host(self, maps: "torch.Tensor") -> Callable[[], np.ndarray]:
        """Start to copy maps, all at once; what waits for the copy, on any thread, and returns it as float32."""
        import torch

        copy = maps.to("cpu", non_blocking=self.copies_in_background)
        copied = torch.Event(self.device, blocking=True) if self.copies_in_background else None
        if copied is not None:
            copied.record(torch.accelerator.current_stream(self.device))

        def wait() -> np.ndarray:
            if copied is not None:
                copied.synchronize()
            return copy.float().numpy()

        return wait

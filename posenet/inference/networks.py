"""Networks as functions from images to maps, whatever runs them: PyTorch, OpenVINO or ONNX Runtime."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posenet.checkpoints.named import HOME_VARIABLE, cache_folder, find_weights
from posenet.errors import CheckpointError, ConfigError
from posenet.files import read_input
from posenet.inference.exported_file import INPUT, OUTPUT, read_config
from posenet.messages import truncate_for_message
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config

if TYPE_CHECKING:
    import torch
    from torch import nn

    from posenet.devices.precision import Amp

MapFunction = Callable[[np.ndarray], np.ndarray]
"""Computes the maps of images: (N, H, W, 3) uint8 BGR, H and W multiples of 64, to (N, C, H/4, W/4) float32.

Several threads may call it at the same time. Its next call on a thread may write to the array again that it returned
there."""

BackendName = Literal["auto", "torch", "openvino", "onnxruntime"]
BACKENDS: tuple[BackendName, ...] = ("auto", "torch", "openvino", "onnxruntime")
"""Software that runs a network; "auto" is the fastest that is installed and as accurate."""
RUNTIMES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
"""Packages that run ONNX files, and what they are called; the fastest on a CPU first. Each is an extra of posenet."""

_OPENVINO_PRECISIONS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}
_OPENVINO_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16"}
"""What a device lists if it can compute in a precision."""
_CUDA_PROVIDER = "CUDAExecutionProvider"
_TENSORRT_PROVIDER = "TensorrtExecutionProvider"
_ORT_ERRORS_ONLY = 3
"""A logging level of ONNX Runtime."""

_log = logging.getLogger(__name__)


def is_exported_file(path: str | Path) -> bool:
    """Whether a path names an exported file, by its suffix."""
    return Path(path).suffix.lower() == ".onnx"


def load_network(
    path: str | Path, config: Config | None, *, device: str, amp: Amp | Literal["auto"], backend: BackendName | None
) -> tuple[MapFunction, Config]:
    """Load a checkpoint or an exported file, for a device, a precision and a runtime; see ``Predictor``.

    Return also its configuration; for published weights, which have none, the defaults with the size of their network.
    """
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(f"backend {truncate_for_message(backend)} is unknown; use {', '.join(BACKENDS)}")
    if is_exported_file(path):
        if config is not None:
            raise ConfigError(
                f"{path} is an exported file with settings of its own: it cannot have another configuration"
            )
        return _load_exported_file(Path(path), device, amp, backend)
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"{path} needs PyTorch (pip install torch); without it, predict with a file that posenet export-onnx has "
            "written (.onnx)"
        )
    path = find_weights(path)  # a missing file is reported before PyTorch is imported
    return _load_checkpoint(path, config, device, amp, backend or "torch")


def device_of_process(path: str | Path, device: str, backend: BackendName | None, local_rank: int) -> str:
    """The device of one of several processes on this machine, for ``load_network`` with the same path and backend.

    It is of the type that ``device`` names, with the local rank as its index. If this process sees only one device of
    that type, it is that one. ``ConfigError`` if ``device`` has an index, or there are several devices but too few.
    """
    if backend in (None, "auto", "torch") and not is_exported_file(path):
        from posenet.devices.parallel import device_of_rank

        return str(device_of_rank(device, local_rank))
    if re.search(r"[:.]\d+$", device):
        raise ConfigError(f"device {device}: every process uses another device; give only the type of the devices")
    runtime = _choose_runtime(path, device, backend)
    if runtime not in RUNTIMES or not _is_installed(runtime):
        return device  # loading the network reports it
    separator = "." if runtime == "openvino" else ":"
    count = _count_openvino_devices(device) if runtime == "openvino" else _count_cuda_devices(device)
    if local_rank >= count > 1:
        raise ConfigError(
            f"local rank {local_rank} has no device: this machine has only {count}; start one process per device"
        )
    return f"{device}{separator}{local_rank}" if count > 1 else device


def _count_openvino_devices(device: str) -> int:
    """OpenVINO's devices of a type; several have names such as GPU.0. 0 if it fails: loading the network reports it."""
    try:
        names = _openvino_core().available_devices
    except RuntimeError:
        return 0
    return sum(name.startswith(f"{device.upper()}.") for name in names)


def _count_cuda_devices(device: str) -> int:
    """The GPUs that CUDA's driver shows this process, if ONNX Runtime would use one; it does not count them itself."""
    import onnxruntime

    if device == "cpu" or _CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return 0
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return 0
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.pointer(count))
    return 0 if failed else count.value


class TorchNetwork:
    """Runs a network in PyTorch; the arguments are those of ``Predictor``.

    ``CheckpointError`` if a parameter is not finite.
    """

    def __init__(self, network: nn.Module, device: torch.device | str | None, amp: Amp) -> None:
        import torch

        from posenet.checkpoints.weights import require_usable_weights
        from posenet.devices.device import supports_pinned_memory

        # Only parameters, and only numbers: other tensors of a module can have any type and any meaning.
        numbers = {name: value for name, value in network.named_parameters() if value.is_floating_point()}
        require_usable_weights(numbers, "the network")
        weight = next(network.parameters(), torch.empty(0))
        self.device = weight.device if device is None else torch.device(device)
        self.amp = amp
        self.network: Any = network.to(self.device).eval()
        self.on_device = self.device.type != "cpu"
        """Whether the maps are averaged there, too: by PyTorch, while on a CPU OpenCV averages them."""
        self.copies_in_background = supports_pinned_memory(self.device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """See ``MapFunction``."""
        import torch

        return self.compute_maps(torch.from_numpy(images).to(self.device)).float().cpu().numpy()

    def compute_maps(self, images: torch.Tensor) -> torch.Tensor:
        """The maps of (N, H, W, 3) uint8 BGR images on the network's device: there, and in the network's precision."""
        import torch

        from posenet.devices.precision import autocast
        from posenet.model.input_format import images_to_input

        with torch.inference_mode(), autocast(self.device, self.amp):
            channels_last = getattr(self.network, "channels_last", False)
            maps: torch.Tensor = self.network.heatmaps(images_to_input(images, channels_last))
            return maps

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the host, without values, which the device copies in the background if it can."""
        import torch

        # Memory is pinned for the current device of the thread, which may be another one.
        with torch.accelerator.device_index(self.device.index if self.copies_in_background else None):
            return torch.empty(*shape, dtype=dtype, pin_memory=self.copies_in_background)


def _load_checkpoint(
    path: str | Path, config: Config | None, device: str, amp: Amp | Literal["auto"], backend: BackendName
) -> tuple[MapFunction, Config]:
    """A fused copy of the network, in PyTorch or converted to ONNX in memory."""
    import torch

    from posenet.checkpoints.weights import load_model
    from posenet.devices.device import select_device
    from posenet.devices.precision import select_amp
    from posenet.inference.onnx_export import build_onnx
    from posenet.model.fused import FusedNetwork

    cpu = torch.device("cpu")
    # An unknown device is reported before a large file is read.
    torch_device = select_device(device) if backend in ("auto", "torch") else cpu
    network, config = load_model(path, config)
    if config.model.network and backend in ("auto", "torch"):
        # What a network of the user computes may not survive a change of its layers or its type.
        return TorchNetwork(network, torch_device, select_amp(torch_device, amp)), config
    if backend == "auto":
        backend = _fastest_backend(torch_device, select_amp(torch_device, amp))
        _log.info("%s runs with %s on %s", path, RUNTIMES.get(backend, "PyTorch"), torch_device)
    if backend == "torch":
        # The fused network has that precision in itself.
        return TorchNetwork(FusedNetwork(network, select_amp(torch_device, amp)), torch_device, "off"), config
    if device.lower() in ("auto", "cpu") and select_amp(cpu, amp) == "off":
        amp = "off"  # "auto" could mean bf16 to the runtime where PyTorch computes in float32: less accurate
    model = build_onnx(network, config).SerializeToString()
    compute_maps, _ = load_onnx(model, backend, str(path), device=device, amp=amp, threads=torch.get_num_threads())
    return compute_maps, config


def _fastest_backend(device: torch.device, amp: Amp) -> BackendName:
    """The fastest installed backend that computes in a precision on a CPU, or PyTorch on another device.

    OpenVINO is faster than PyTorch in bf16 and in float32; ONNX Runtime in float32, the only precision that it has on a
    CPU. Only PyTorch emulates a precision that the CPU does not compute in.
    """
    from posenet.devices.precision import select_amp

    is_native = amp in ("off", select_amp(device, "auto"))
    can_convert = device.type == "cpu" and is_native and _is_installed("onnx")
    if can_convert and _is_installed("openvino"):
        return "openvino"
    if can_convert and _is_installed("onnxruntime") and amp == "off":
        return "onnxruntime"
    return "torch"


def _load_exported_file(
    path: Path, device: str, amp: Amp | Literal["auto"], backend: BackendName | None
) -> tuple[MapFunction, Config]:
    """Load an exported file. This does not import PyTorch."""
    if backend == "torch":
        raise ConfigError(f"{path} is an exported file, which PyTorch cannot run; use backend {' or '.join(RUNTIMES)}")
    runtime = _choose_runtime(path, device, backend)
    try:
        model = read_input(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; check the path") from error
    text = os.environ.get("OMP_NUM_THREADS", "")  # which PyTorch reads too
    threads = int(text) if text.isdecimal() and int(text) > 0 else None
    compute_maps, properties = load_onnx(model, runtime, str(path), device=device, amp=amp, threads=threads)
    config = read_config(properties, str(path))
    try:
        maps = compute_maps(np.zeros((1, INPUT_MULTIPLE, INPUT_MULTIPLE, 3), np.uint8))
    except Exception as error:  # its input or output has another name; each runtime raises errors of its own classes
        raise CheckpointError(f"{path} is not a file that posenet export-onnx has written; export it again") from error
    size = INPUT_MULTIPLE // MAP_STRIDE
    expected = (1, config.model.skeleton.num_channels, size, size)
    if maps.shape != expected or maps.dtype != np.float32:
        raise CheckpointError(
            f"{path} computes maps of shape {maps.shape} and type {maps.dtype}, but {expected} and float32 belong to "
            "the skeleton in its metadata: the network and the metadata are of different files; export it again"
        )
    # A weight that is not finite spreads: even 0 times it is NaN.
    if not np.isfinite(maps).all():
        raise CheckpointError(
            f"{path}: its output {OUTPUT} is NaN or infinite for a black image; check the weights and export them again"
        )
    return compute_maps, config


def _choose_runtime(path: str | Path, device: str, backend: BackendName | None) -> str:
    """The package that runs an exported file; ``ConfigError`` if none is requested and none is installed."""
    if backend not in (None, "auto"):
        return str(backend)
    names = ["onnxruntime"] if device.startswith(("cuda", "tensorrt")) else list(RUNTIMES)
    installed = [name for name in names if _is_installed(name)]
    if not installed:
        extras = " or ".join(f"'simplepose[{name}]'" for name in names)
        raise ConfigError(f"{path} is an exported file, which needs a package that runs it: pip install {extras}")
    return installed[0]


class ExportedNetwork:
    """Runs an ONNX file in a runtime. A pickle has the file, which is loaded again, on the same kind of device."""

    def __init__(self, compute_maps: MapFunction, arguments: tuple[Any, ...]) -> None:
        self._compute_maps = compute_maps
        self._arguments = arguments

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """See ``MapFunction``."""
        return self._compute_maps(images)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _load_again, self._arguments


def _load_again(
    model: bytes, runtime: str, source: str, device: str, amp: Amp | Literal["auto"], threads: int | None
) -> MapFunction:
    return load_onnx(model, runtime, source, device=device, amp=amp, threads=threads)[0]


LoadedGraph = tuple[MapFunction, Mapping[str, str]]
"""An ONNX file that a runtime has loaded, and the properties in the file."""


def load_onnx(
    model: bytes, runtime: str, source: str, *, device: str, amp: Amp | Literal["auto"], threads: int | None
) -> LoadedGraph:
    """Load an ONNX file, which messages call ``source``, with one of ``RUNTIMES``.

    Args:
        device: a name of PyTorch's devices, a name of the runtime's devices, "tensorrt", or "auto".
        threads: threads on a CPU; None for as many as the runtime chooses.

    Raises:
        CheckpointError: the runtime cannot load the file.
        ConfigError: the runtime is not installed, or it cannot use the device or the precision.
    """
    if not _is_installed(runtime):
        raise ConfigError(f"backend {runtime} needs the package {runtime}; pip install 'simplepose[{runtime}]'")
    load = _load_with_openvino if runtime == "openvino" else _load_with_onnxruntime
    try:
        compute_maps, properties = load(model, device, amp, threads)
        return ExportedNetwork(compute_maps, (model, runtime, source, device, amp, threads)), properties
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except Exception as error:  # each runtime raises errors of its own classes
        reason = truncate_for_message(" ".join(str(error).split()))
        raise CheckpointError(
            f"{source} is damaged, not an ONNX file, or not supported: {RUNTIMES[runtime]} cannot load it ({reason})"
        ) from error


def _load_with_openvino(model: bytes, device: str, amp: str, threads: int | None) -> LoadedGraph:
    """Load and compile a graph for one of OpenVINO's devices."""
    core = _openvino_core()
    name = "CPU" if device == "auto" else device.upper()
    if name not in core.available_devices:
        raise ConfigError(
            f"OpenVINO has no device {device!r} here (it has {', '.join(core.available_devices)}); use the device cpu"
        )
    properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if amp != "auto":  # OpenVINO itself chooses bf16 where a CPU computes in it natively
        capability = _OPENVINO_CAPABILITIES.get(amp)
        if capability and capability not in core.get_property(name, "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError(f"OpenVINO does not compute in {amp} on {name} here; use amp auto")
        properties["INFERENCE_PRECISION_HINT"] = _OPENVINO_PRECISIONS[amp]
    if threads and name == "CPU":
        properties["INFERENCE_NUM_THREADS"] = threads
    graph = core.read_model(model, b"")
    request = core.compile_model(graph, name, properties).create_infer_request()
    lock = threading.Lock()  # a request has one input and one output, and computes without Python's lock

    def compute_maps(images: np.ndarray) -> np.ndarray:
        with lock:
            return np.array(request.infer({INPUT: images}, share_outputs=True)[OUTPUT])

    # OpenVINO keeps the metadata of the ONNX file under the key "framework".
    metadata = graph.get_rt_info(["framework"]).value if graph.has_rt_info(["framework"]) else {}
    properties_of_file = {key: str(value) for key, value in metadata.items()}
    return compute_maps, properties_of_file


@functools.cache
def _openvino_core() -> Any:
    """The core of this process, which is never destroyed.

    On CPUs with AMX, a core replaces the stack on which signals are handled, and restores the former one when it is
    destroyed. If cores were not destroyed in the reverse order of their creation, that stack would no longer exist,
    and the next signal, such as Ctrl-C, would end the process with a segmentation fault (OpenVINO 2026.4).

    The core does not see the variable ONEDNN_MAX_CPU_ISA, which limits the instructions of PyTorch: OpenVINO's copy of
    oneDNN would obey it, while the rest of OpenVINO expects what the CPU has, and would fail or compute empty maps.
    """
    import openvino

    limit = os.environ.pop("ONEDNN_MAX_CPU_ISA", None)
    try:
        core = openvino.Core()
        core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # this loads oneDNN, which reads the variable once
    finally:
        if limit is not None:
            os.environ["ONEDNN_MAX_CPU_ISA"] = limit
    return core


def _load_with_onnxruntime(model: bytes, device: str, amp: str, threads: int | None) -> LoadedGraph:
    """Load a graph, for a CPU or with ONNX Runtime's CUDA or TensorRT provider."""
    import onnxruntime

    uses_tensorrt = device.startswith("tensorrt")
    if amp not in ("off", "auto") and not (uses_tensorrt and amp == "fp16"):
        raise ConfigError(f"ONNX Runtime runs a graph in the precision of its file; leave out amp {amp}")
    available = onnxruntime.get_available_providers()
    providers: list[str | tuple[str, dict[str, Any]]] = ["CPUExecutionProvider"]
    if device != "cpu" and (device != "auto" or _CUDA_PROVIDER in available):
        match = re.fullmatch(r"(?:cuda|auto|tensorrt)(?::(\d+))?", device)
        if match is None or (_TENSORRT_PROVIDER if uses_tensorrt else _CUDA_PROVIDER) not in available:
            raise ConfigError(
                f"ONNX Runtime has no device {device!r} here; use the device cpu, or install onnxruntime-gpu"
            )
        index = int(match[1] or 0)
        # By default, each convolution may time all algorithms for each new shape of the input.
        providers.insert(0, (_CUDA_PROVIDER, {"device_id": index, "cudnn_conv_algo_search": "HEURISTIC"}))
        if uses_tensorrt:
            # The names of the engines' files depend neither on the weights nor on the version that can read them.
            name = f"{hashlib.sha256(model).hexdigest()[:16]}-{onnxruntime.__version__}"
            folder = cache_folder() / "tensorrt" / name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"cannot write {folder}: {error.strerror}"
                raise ConfigError(f"{reason}; set {HOME_VARIABLE} to another folder") from error
            cache = {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder)}
            providers.insert(0, (_TENSORRT_PROVIDER, {"device_id": index, "trt_fp16_enable": amp != "off"} | cache))
    requested = providers[0][0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = _ORT_ERRORS_ONLY
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    if len(providers) > 1 and requested not in session.get_providers():
        # ONNX Runtime continues with the next provider if one cannot start.
        libraries = "TensorRT's or CUDA's" if uses_tensorrt else "its CUDA"
        reason = f"{libraries} libraries are missing or do not fit, or there is no such GPU"
        if not device.startswith("auto"):
            raise ConfigError(f"ONNX Runtime cannot use {device} here: {reason}; use the device cpu")
        _log.warning("ONNX Runtime computes on the CPU: %s; the device cpu hides this line", reason)
    return lambda images: session.run([OUTPUT], {INPUT: images})[0], session.get_modelmeta().custom_metadata_map


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

"""ONNX files as functions from images to maps, with OpenVINO or ONNX Runtime. This module does not import PyTorch."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posenet.errors import CheckpointError, ConfigError
from posenet.files import read_input
from posenet.inference.exports.exported_file import INPUT, OUTPUT, read_config
from posenet.inference.networks import RUNTIMES, BackendName, MapFunction, is_installed
from posenet.messages import truncate_for_message
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config

if TYPE_CHECKING:
    from posenet.devices.precision import Amp

_OPENVINO_PRECISIONS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}
_OPENVINO_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16"}
"""What a device lists if it can compute in a precision."""
_CUDA = "CUDAExecutionProvider"
_ORT_ERRORS_ONLY = 3
"""A logging level of ONNX Runtime."""

LoadedGraph = tuple[MapFunction, Mapping[str, str]]
"""An ONNX file that a runtime has loaded, and the properties in the file."""


def load_exported_file(
    path: Path, device: str, amp: Amp | Literal["auto"], backend: BackendName
) -> tuple[MapFunction, Config]:
    """Load an exported file; see ``posenet.inference.networks.load_network``."""
    if backend == "torch":
        raise ConfigError(f"{path} is an exported file, which PyTorch cannot run; use backend {' or '.join(RUNTIMES)}")
    runtime = _choose_runtime(path, device) if backend == "auto" else backend
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


def _choose_runtime(path: Path, device: str) -> str:
    names = ["onnxruntime"] if device.startswith("cuda") else list(RUNTIMES)
    installed = [name for name in names if is_installed(name)]
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


def load_onnx(
    model: bytes, runtime: str, source: str, *, device: str, amp: Amp | Literal["auto"], threads: int | None
) -> LoadedGraph:
    """Load an ONNX file, which messages call ``source``, with one of ``RUNTIMES``.

    Args:
        device: a name of PyTorch's devices, a name of the runtime's devices, or "auto".
        threads: threads on a CPU; None for as many as the runtime chooses.

    Raises:
        CheckpointError: the runtime cannot load the file.
        ConfigError: the runtime is not installed, or it cannot use the device or the precision.
    """
    if not is_installed(runtime):
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
    return compute_maps, {key: str(value) for key, value in metadata.items()}


@functools.cache
def _openvino_core() -> Any:
    """The core of this process, which is never destroyed.

    On CPUs with AMX, a core that is destroyed restores the stack on which signals are handled, which may no longer
    exist: the next signal would end the process (OpenVINO 2026.4).

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
    """Load a graph for a CPU, or for a GPU where ONNX Runtime has CUDA."""
    import onnxruntime

    if amp not in ("off", "auto"):
        raise ConfigError(f"ONNX Runtime runs a graph in the precision of its file; leave out amp {amp}")
    kind, _, index = device.partition(":")
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind in ("auto", "cuda") and _CUDA in onnxruntime.get_available_providers():
        providers.insert(0, (_CUDA, {"device_id": int(index or 0)}))
    elif device not in ("auto", "cpu"):
        raise ConfigError(f"ONNX Runtime has no device {device!r} here; use the device cpu, or install onnxruntime-gpu")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = _ORT_ERRORS_ONLY
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    if kind == "cuda" and _CUDA not in session.get_providers():  # it continues on the CPU
        raise ConfigError(f"ONNX Runtime cannot use {device}, for example because CUDA is missing; use the device cpu")
    return lambda images: session.run([OUTPUT], {INPUT: images})[0], session.get_modelmeta().custom_metadata_map

"""ONNX files as functions from images to maps, with OpenVINO or ONNX Runtime. This module does not import PyTorch.

A file has one property, JSON with the settings and the meaning of the arrays.
"""

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posenet.errors import CheckpointError, ConfigError
from posenet.files import read_input
from posenet.inference.networks import RUNTIMES, BackendName, MapFunction, is_installed
from posenet.messages import MAX_REASON, to_single_line
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config, config_from_dict

if TYPE_CHECKING:
    from posenet.devices.precision import Amp

INPUT = "images"
"""Name of the input of a file: (N, H, W, 3) uint8 BGR, H and W multiples of ``INPUT_MULTIPLE``."""
OUTPUT = "maps"
"""Name of the output: (N, C, H/4, W/4) float32."""
PROPERTY = "posenet"
"""Key of the property in the file."""

CONSTANTS = {"format": 2, "multiple": INPUT_MULTIPLE, "stride": MAP_STRIDE}
"""Entries that are the same in all files of this version. Files of format 1 computed candidates instead of maps."""
_OPENVINO_PRECISIONS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}


def require_packages(*packages: str) -> None:
    """``ConfigError`` if a package that exporting needs is not installed."""
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise ConfigError(f"exporting needs the package {' and '.join(missing)}; pip install 'simplepose[export]'")


def load_exported_file(
    path: Path, device: str, amp: 'Amp | Literal["auto"]', backend: BackendName
) -> tuple[MapFunction, Config]:
    """Load an exported file; see ``posenet.inference.networks.load_network``."""
    if backend == "torch":
        raise ConfigError(f"{path} is an exported file, which PyTorch cannot run; use backend {' or '.join(RUNTIMES)}")
    names = list(RUNTIMES) if backend == "auto" else [backend]
    runtime = next(filter(is_installed, names), names[0])
    try:
        model = read_input(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; check the path") from error
    network = ExportedNetwork(model, runtime, str(path), device, amp)
    config = read_config(network.properties, str(path))
    size = INPUT_MULTIPLE // MAP_STRIDE
    expected = (1, config.model.skeleton.num_channels, size, size)
    try:
        maps = network(np.zeros((1, INPUT_MULTIPLE, INPUT_MULTIPLE, 3), np.uint8))
        if maps.shape != expected or not np.isfinite(maps).all():  # even 0 times a weight that is NaN is NaN
            raise ValueError(f"{OUTPUT} of shape {maps.shape} instead of {expected}, or NaN or infinite ones")
    except Exception as error:  # each runtime raises errors of its own classes
        reason = to_single_line(str(error))[:MAX_REASON]
        raise CheckpointError(
            f"{path} does not compute the maps of the skeleton in its metadata ({reason}); export the network again"
        ) from error
    return network, config


def read_config(properties: Mapping[str, str], source: str) -> Config:
    """The configuration of a file that this version of posenet has written, or ``CheckpointError``."""
    try:
        stored = json.loads(properties[PROPERTY])
        if {name: stored[name] for name in CONSTANTS} != CONSTANTS:
            raise ValueError("another format")
        stored["model"]["skeleton"]["keypoints"]  # it is a table: a text would be the name of any file
        sections = {name: stored[name] for name in ("inference", "model")}
        sections["tracking"] = stored.get("tracking", {})  # files of version 0.5 lack it
        return config_from_dict(sections, source, from_checkpoint=True)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise CheckpointError(
            f"{source} is not a file that this version of posenet export-onnx has written: its metadata lack the "
            "settings, or have one that is not valid; export the network again"
        ) from error


class ExportedNetwork:
    """Runs an ONNX file, as a ``MapFunction``. A pickle has the arguments, with which the file is loaded again.

    Args:
        model: the content of the file.
        runtime: one of ``RUNTIMES``.
        source: what messages call the file.
        device: a name of PyTorch's devices, a name of the runtime's devices, or "auto".
    """

    def __init__(self, model: bytes, runtime: str, source: str, device: str, amp: 'Amp | Literal["auto"]') -> None:
        self._arguments = (model, runtime, source, device, amp)
        if not is_installed(runtime):
            raise ConfigError(f"backend {runtime} needs the package {runtime}; pip install 'simplepose[{runtime}]'")
        load = _load_with_openvino if runtime == "openvino" else _load_with_onnxruntime
        text = os.environ.get("OMP_NUM_THREADS", "")  # which PyTorch reads too; else the runtime chooses
        threads = int(text) if text.isdecimal() else 0
        try:
            self._compute_maps, self.properties = load(model, device, amp, threads)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
        except Exception as error:  # each runtime raises errors of its own classes
            reason = to_single_line(str(error))[:MAX_REASON]
            failure = f"{RUNTIMES[runtime]} cannot load it ({reason})"
            raise CheckpointError(f"{source} is damaged, not an ONNX file, or not supported: {failure}") from error

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """See ``MapFunction``."""
        return self._compute_maps(images)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return ExportedNetwork, self._arguments


def _load_with_openvino(model: bytes, device: str, amp: str, threads: int) -> tuple[MapFunction, Mapping[str, str]]:
    """What computes the maps, and the properties in the file."""
    core = _openvino_core()
    name = "CPU" if device == "auto" else device.upper()
    if name not in core.available_devices:
        raise ConfigError(
            f"OpenVINO has no device {device!r} here (it has {', '.join(core.available_devices)}); use the device cpu"
        )
    properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if amp != "auto":  # OpenVINO itself chooses bf16 where a CPU computes in it natively
        if amp != "off" and amp.upper() not in core.get_property(name, "OPTIMIZATION_CAPABILITIES"):
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


def _load_with_onnxruntime(model: bytes, device: str, amp: str, threads: int) -> tuple[MapFunction, Mapping[str, str]]:
    """What computes the maps, and the properties in the file."""
    import onnxruntime

    if amp not in ("off", "auto"):
        raise ConfigError(f"ONNX Runtime runs a graph in the precision of its file; leave out amp {amp}")
    if device not in ("auto", "cpu"):
        raise ConfigError(f"ONNX Runtime runs files on the CPU, not on {device!r}; use PyTorch on other devices")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run([OUTPUT], {INPUT: images})[0], session.get_modelmeta().custom_metadata_map

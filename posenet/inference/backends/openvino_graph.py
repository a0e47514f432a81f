"""OpenVINO."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino

from posenet.errors import ConfigError
from posenet.inference.backends.graph import PARALLEL_RUNS, Graph, GraphOptions
from posenet.messages import truncate_for_message

_PRECISIONS = {"off": "f32", "bf16": "bf16", "fp16": "f16"}
"""Names of precisions in OpenVINO."""
_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16"}
"""What a device lists if it can compute in a precision."""


class OpenVinoGraph(Graph):
    """A graph that OpenVINO has loaded and compiled."""

    def __init__(self, model: openvino.Model, compiled: openvino.CompiledModel, parallel_runs: int) -> None:
        self.parallel_runs = parallel_runs
        self.inputs = tuple(port.get_any_name() for port in model.inputs)
        self.outputs = tuple(port.get_any_name() for port in model.outputs)
        self.metadata = _metadata(model)
        self.compiled = compiled
        self._idle_requests: SimpleQueue[openvino.InferRequest] = SimpleQueue()  # each serves one caller at a time
        for _ in range(parallel_runs):
            self._idle_requests.put(compiled.create_infer_request())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See ``Graph``."""
        request = self._idle_requests.get()
        try:
            results = request.infer(dict(inputs))
            return {name: results[name] for name in self.outputs}
        finally:
            self._idle_requests.put(request)


def load(model: bytes, options: GraphOptions) -> OpenVinoGraph:
    """Load and compile a graph for one of OpenVINO's devices."""
    if options.amp not in ("auto", *_PRECISIONS):
        raise ConfigError(f"amp {truncate_for_message(options.amp)} is unknown; use auto, {', '.join(_PRECISIONS)}")
    core = _core()
    device = _select_device(options.device, core.available_devices)
    properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if options.amp != "auto":  # OpenVINO itself chooses bf16 where a CPU computes in it natively
        needed = _CAPABILITIES.get(options.amp)
        if needed and needed not in core.get_property(device, "OPTIMIZATION_CAPABILITIES"):
            raise ConfigError(f"OpenVINO does not compute in {options.amp} on {device} here; use --amp auto")
        properties["INFERENCE_PRECISION_HINT"] = _PRECISIONS[options.amp]
    if options.threads and device == "CPU":
        properties["INFERENCE_NUM_THREADS"] = options.threads
    if options.parallel and device == "CPU":
        properties["NUM_STREAMS"] = PARALLEL_RUNS
    graph = core.read_model(model, b"")
    compiled = core.compile_model(graph, device, properties)
    # OpenVINO sets up fewer streams if there are fewer threads.
    num_streams = compiled.get_property("NUM_STREAMS") if "NUM_STREAMS" in properties else 1
    return OpenVinoGraph(graph, compiled, num_streams)


@functools.cache
def _core() -> openvino.Core:
    """The core of this process, which is never destroyed.

    On CPUs with AMX, a core replaces the stack on which signals are handled, and restores the former one when it is
    destroyed. If cores were not destroyed in the reverse order of their creation, that stack would no longer exist,
    and the next signal, such as Ctrl-C, would end the process with a segmentation fault (OpenVINO 2026.4).
    """
    return openvino.Core()


def _select_device(name: str, available: Sequence[str]) -> str:
    """OpenVINO's name of a device; "auto" is the CPU."""
    device = "CPU" if name == "auto" else name.upper()
    if device not in available:
        raise ConfigError(f"OpenVINO has no device {name!r} here (it has {', '.join(available)}); use --device cpu")
    return device


def _metadata(model: openvino.Model) -> dict[str, str]:
    """The properties of the ONNX file, which OpenVINO keeps under the key "framework"."""
    if not model.has_rt_info(["framework"]):
        return {}
    properties: dict[str, str] = {name: str(value) for name, value in model.get_rt_info(["framework"]).value.items()}
    return properties

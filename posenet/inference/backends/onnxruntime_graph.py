"""ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime

from posenet.errors import ConfigError
from posenet.inference.backends.graph import Graph, GraphOptions

CUDA = "CUDAExecutionProvider"

ERRORS_ONLY = 3
"""A logging level of ONNX Runtime."""


class OnnxRuntimeGraph(Graph):
    """A graph that ONNX Runtime has loaded."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.inputs = tuple(value.name for value in session.get_inputs())
        self.outputs = tuple(value.name for value in session.get_outputs())
        self.metadata = session.get_modelmeta().custom_metadata_map

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See ``Graph``."""
        return dict(zip(self.outputs, self.session.run(self.outputs, dict(inputs))))


def load(model: bytes, options: GraphOptions) -> OnnxRuntimeGraph:
    """Load a graph, for a CPU or with ONNX Runtime's CUDA provider."""
    if options.amp not in ("off", "auto"):
        raise ConfigError(f"ONNX Runtime runs a graph in the precision of its file; leave out amp {options.amp}")
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads or 0
    session_options.log_severity_level = ERRORS_ONLY
    providers = _providers(options.device, onnxruntime.get_available_providers())
    session = onnxruntime.InferenceSession(model, session_options, providers=providers)
    if options.device not in ("cpu", "auto") and CUDA not in session.get_providers():
        # ONNX Runtime continues on the CPU if a provider cannot start.
        raise ConfigError(
            f"ONNX Runtime cannot use {options.device} here: its CUDA libraries are missing or do not fit"
        )
    return OnnxRuntimeGraph(session)


def _providers(device: str, available: Sequence[str]) -> list[str | tuple[str, dict[str, int]]]:
    """The execution providers for a device, the CPU last."""
    has_cuda = CUDA in available
    cpu = "CPUExecutionProvider"
    if device == "cpu" or (device == "auto" and not has_cuda):
        return [cpu]
    match = re.fullmatch(r"(?:cuda|auto)(?::(\d+))?", device)
    if match is None or not has_cuda:
        raise ConfigError(f"ONNX Runtime has no device {device!r} here; use --device cpu, or install onnxruntime-gpu")
    return [(CUDA, {"device_id": int(match[1] or 0)}), cpu]

"""The runtimes that can run an ONNX graph, behind one interface.

A runtime joins with a module like ``openvino_graph`` that has a function ``load(model, options) -> Graph``, a row in
``RUNTIMES``, and an extra in ``setup.cfg``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posenet.errors import CheckpointError, ConfigError, PosenetError
from posenet.messages import truncate_for_message

PARALLEL_RUNS = 2
"""Batches that run at the same time where ``GraphOptions.parallel`` is set and the runtime can do so."""


class Graph(ABC):
    """An ONNX graph that a runtime has loaded.

    Attributes:
        parallel_runs: the number of threads that should call ``run`` at the same time. More may wait for each other.
        inputs: names of the inputs.
        outputs: names of the outputs.
        metadata: the properties in the file.
    """

    parallel_runs: int = 1
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the graph; return the outputs by name. Any thread may call this."""


@dataclass(frozen=True)
class GraphOptions:
    """How a runtime runs a graph."""

    device: str
    """A name of PyTorch's devices, a name of the runtime's devices, or "auto"."""
    amp: str
    """Precision: off (float32), bf16, fp16, or auto: the fastest one without loss of accuracy on the device."""
    threads: int | None
    """Threads on a CPU; None for as many as the runtime chooses."""
    parallel: bool = False
    """Whether several runs should share the threads of a CPU. Together they are faster, and each one is slower."""


class Runtime(NamedTuple):
    """A package that runs ONNX graphs."""

    title: str
    package: str
    module: str
    """Has a function ``load``."""

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


RUNTIMES = {
    "openvino": Runtime("OpenVINO", "openvino", "posenet.inference.backends.openvino_graph"),
    "onnxruntime": Runtime("ONNX Runtime", "onnxruntime", "posenet.inference.backends.onnxruntime_graph"),
}
"""By name of the backend and of its extra; the fastest on a CPU first."""


def installed_runtimes() -> list[str]:
    """Names of the runtimes whose packages are installed, the fastest on a CPU first."""
    return [name for name, runtime in RUNTIMES.items() if runtime.is_installed]


def load_graph(name: str, model: bytes, source: str, options: GraphOptions) -> Graph:
    """Load a graph with the runtime of a name.

    Args:
        model: the ONNX file.
        source: the file's name, for messages.

    Raises:
        CheckpointError: the runtime cannot load the graph.
        ConfigError: the runtime is not installed, or it cannot use the device or the precision.
    """
    runtime = RUNTIMES[name]
    if not runtime.is_installed:
        raise ConfigError(f"backend {name} needs the package {runtime.package}; install posenet[{name}]")
    module = importlib.import_module(runtime.module)
    try:
        graph: Graph = module.load(model, options)
    except PosenetError:
        raise
    except Exception as error:  # each runtime raises errors of its own classes
        reason = truncate_for_message(" ".join(str(error).split()))
        raise CheckpointError(
            f"{source} is damaged, not an ONNX file, or not supported: {runtime.title} cannot load it ({reason})"
        ) from error
    return graph


def default_threads() -> int | None:
    """The number of threads in OMP_NUM_THREADS, which PyTorch reads too; None without it."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None

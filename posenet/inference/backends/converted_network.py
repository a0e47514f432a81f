"""A PyTorch network that another runtime runs."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from posenet.inference.backends.graph import GraphOptions, load_graph
from posenet.inference.onnx_export import trace_to_onnx
from posenet.model.fused import FusedNetwork
from posenet.settings import INPUT_MULTIPLE


class ConvertedNetwork(nn.Module):
    """A fused copy of a network, which is converted to ONNX in memory and run by a runtime.

    Images and maps are tensors on the CPU, as for any other network, so flips and scales work as with PyTorch.

    Args:
        network: any network with a method ``heatmaps``.
        runtime: name of a runtime in ``RUNTIMES``.

    Attributes:
        digest: a digest of the converted network.
    """

    def __init__(self, network: nn.Module, runtime: str, options: GraphOptions) -> None:
        super().__init__()
        model = convert_to_onnx(network)
        self.digest = hashlib.sha256(model).hexdigest()
        self._graph = load_graph(runtime, model, "the converted network", options)

    @property
    def parallel_runs(self) -> int:
        """The number of threads that should call ``heatmaps`` at the same time."""
        return self._graph.parallel_runs

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) float32 BGR 0-1 to (N, num_channels, H/4, W/4) float32."""
        return torch.from_numpy(self._graph.run({"images": np.ascontiguousarray(images.numpy())})["maps"])


class _Heatmaps(nn.Module):
    """The computation that is converted: ``heatmaps`` of a fused copy, as a forward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = FusedNetwork(network)

    def forward(self, images: Tensor) -> Tensor:
        return self.network.heatmaps(images)


def convert_to_onnx(network: nn.Module) -> bytes:
    """A network as an ONNX file, from "images" to "maps", for any batch size, height and width, in float32."""
    module = _Heatmaps(network).cpu().eval()
    example = torch.zeros(2, 3, 2 * INPUT_MULTIPLE, 3 * INPUT_MULTIPLE)
    axes = {
        "images": {0: "batch", 2: "height", 3: "width"},
        "maps": {0: "batch", 2: "map_height", 3: "map_width"},
    }
    return trace_to_onnx(module, (example,), ["images"], ["maps"], axes)

"""The network and the selection of candidates as one ONNX file."""

from __future__ import annotations

import importlib.util
import io
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import posenet
from posenet.errors import ConfigError
from posenet.files import write_atomically
from posenet.inference.decoder.device_candidates import Candidates
from posenet.inference.letterbox import PADDING
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import images_to_input
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE
from posenet.skeleton.skeleton_file import skeleton_to_table

OPSET = 17
INPUTS, OUTPUTS = ("images", "sizes"), ("peaks", "pairs", "evidence")


class ImagesToCandidates(nn.Module):
    """What the file computes."""

    def __init__(self, network: nn.Module, candidates: Candidates) -> None:
        super().__init__()
        self.network, self.candidates = FusedNetwork(network), candidates

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates of a batch of images.

        Args:
            images: (N, H, W, 3) uint8 BGR; H and W are multiples of 64.
            sizes: (N, 2) int64: height and width of each image in it, at the upper left; the rest is padding.

        Returns:
            peaks, pairs and evidence, as ``Candidates`` gives them.
        """
        cells = (sizes + MAP_STRIDE - 1) // MAP_STRIDE
        return self.candidates(self.network.heatmaps(images_to_input(images)), cells)


def export_onnx(network: nn.Module, candidates: Candidates, path: str | Path, height: int = 512) -> None:
    """Write an ONNX file whose batch, height and width are free; float32, on the CPU.

    Args:
        network: has ``heatmaps``; it is copied, not changed.
        candidates: how candidates are selected, and of what skeleton.
        height: what images should be resized to; told in the file's metadata, with all else that its user needs.

    Raises:
        ConfigError: the ``onnx`` package is not installed.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ConfigError("exporting needs the package onnx; install posenet[export]")
    import onnx

    module = ImagesToCandidates(network, candidates).cpu().eval()
    example = (
        torch.zeros(2, 2 * INPUT_MULTIPLE, 3 * INPUT_MULTIPLE, 3, dtype=torch.uint8),
        torch.full((2, 2), INPUT_MULTIPLE),
    )
    axes = {"images": {0: "batch", 1: "height", 2: "width"}} | {name: {0: "batch"} for name in ("sizes", *OUTPUTS)}
    graph = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        # That checks of shapes become constants of the graph is as it should be. The exporter that PyTorch now prefers
        # takes a hundred times as long, and one more package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            graph,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load_model_from_string(graph.getvalue())
    model.producer_name, model.producer_version = "posenet", posenet.__version__
    onnx.helper.set_model_props(
        model,
        {
            "height": str(height),
            "multiple": str(INPUT_MULTIPLE),
            "padding": str(PADDING),
            "stride": str(MAP_STRIDE),
            "skeleton": json.dumps(skeleton_to_table(candidates.skeleton)),
        },
    )
    onnx.checker.check_model(model)
    write_atomically(path, model.SerializeToString())

"""The network and the selection of candidates as one ONNX file."""

from __future__ import annotations

import importlib.util
import io
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import posenet
from posenet.errors import ConfigError
from posenet.files import write_atomically
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import images_to_input
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE

OPSET = 17


class ImagesToCandidates(nn.Module):
    """The exported computation: from images to keypoint candidates and limb scores."""

    def __init__(self, network: nn.Module, selector: CandidateSelector) -> None:
        super().__init__()
        self.network = FusedNetwork(network)
        self.selector = selector

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Peaks, pairs and limb scores of a batch of images, as ``CandidateSelector`` returns them.

        Args:
            images: (N, H, W, 3) uint8 BGR; H and W are multiples of 64.
            sizes: (N, 2) int64: height and width of each image, which is at the upper left; the rest is padding.
        """
        cells = (sizes + MAP_STRIDE - 1) // MAP_STRIDE
        candidates: tuple[Tensor, Tensor, Tensor]
        candidates = self.selector(self.network.heatmaps(images_to_input(images)), cells)
        return candidates


def export_onnx(network: nn.Module, selector: CandidateSelector, path: str | Path, height: int) -> None:
    """Write an ONNX file for any batch size, height and width, in float32.

    The network needs a method ``heatmaps``. It is copied, not changed. ``height``, to which images should be resized,
    is stored in the file's metadata, together with everything else that is needed to use the file.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ConfigError("exporting needs the package onnx; install posenet[export]")
    import onnx

    module = ImagesToCandidates(network, selector).cpu().eval()
    example = (
        torch.zeros(2, 2 * INPUT_MULTIPLE, 3 * INPUT_MULTIPLE, 3, dtype=torch.uint8),
        torch.full((2, 2), INPUT_MULTIPLE),
    )
    batch_only = {name: {0: "batch"} for name in ("sizes", *OUTPUTS)}
    graph = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        # The exporter warns that checks of shapes become constants, which is intended. The newer exporter (dynamo=True)
        # takes a hundred times as long and needs one more package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            graph,  # type: ignore[arg-type]  # PyTorch's type hints leave out file objects, which it accepts
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes={"images": {0: "batch", 1: "height", 2: "width"}, **batch_only},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load_model_from_string(graph.getvalue())
    model.producer_name = "posenet"
    model.producer_version = posenet.__version__
    onnx.helper.set_model_props(model, OnnxMetadata(height, selector.skeleton).to_properties())
    onnx.checker.check_model(model)
    write_atomically(path, model.SerializeToString())

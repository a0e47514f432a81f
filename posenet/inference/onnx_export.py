"""The network and the selection of candidates as one ONNX file."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import posenet
from posenet.errors import ConfigError
from posenet.files import write_atomically
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import images_to_input
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config, InferenceConfig

if TYPE_CHECKING:
    import onnx

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
        # The reshaping changes nothing, but from it programs that infer shapes learn that H and W are multiples of 64.
        # Otherwise they cannot show that the sums in the network add tensors of equal size.
        height = images.shape[1] // INPUT_MULTIPLE * INPUT_MULTIPLE
        width = images.shape[2] // INPUT_MULTIPLE * INPUT_MULTIPLE
        images = images.reshape(images.shape[0], height, width, 3)
        cells = (sizes + MAP_STRIDE - 1) // MAP_STRIDE
        candidates: tuple[Tensor, Tensor, Tensor]
        candidates = self.selector(self.network.heatmaps(images_to_input(images)), cells)
        return candidates


def export_onnx(network: nn.Module, selector: CandidateSelector, path: str | Path, height: int) -> None:
    """Write an ONNX file for any batch size, height and width, in float32.

    The network needs a method ``heatmaps``. It is copied, not changed. ``height``, to which images should be resized,
    is stored in the file's metadata, together with everything else that is needed to use the file.
    """
    write_onnx(build_onnx(network, selector, describe_export(network, selector, height)), path)


def describe_export(
    network: nn.Module, selector: CandidateSelector, height: int, config: Config | None = None
) -> OnnxMetadata:
    """The metadata of an exported network in float32. ``config`` is the configuration that it was trained with."""
    config = Config() if config is None else config
    return OnnxMetadata(
        height,
        selector.skeleton,
        max_height=config.inference.max_height,
        max_width=config.inference.max_width,
        keypoint_threshold=selector.keypoint_threshold,
        part_threshold=selector.part_threshold,
        exif_frame=config.data.exif_frame,
        network=digest_of_network(network),
        left_out=describe_left_out(config.inference),
    )


def describe_left_out(settings: InferenceConfig) -> str:
    """The settings that an exported file leaves out, as a list for people; "" if it leaves out nothing."""
    left_out = []
    if settings.flip:
        left_out.append("flip averaging (inference.flip = true)")
    if settings.scales != (1.0,):
        left_out.append(f"inference scales (inference.scales = {list(settings.scales)})")
    return " and ".join(left_out)


def digest_of_network(network: nn.Module) -> str:
    """A digest of the names and the values of all weights and buffers, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_onnx() -> None:
    """``ConfigError`` if the package onnx is not installed, which PyTorch's exporter needs."""
    if importlib.util.find_spec("onnx") is None:
        raise ConfigError("exporting needs the package onnx; install posenet[export]")


def trace_to_onnx(
    module: nn.Module,
    example: tuple[Tensor, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> bytes:
    """Convert the forward pass of a module to an ONNX file, with PyTorch's exporter.

    Args:
        example: values of the inputs.
        inputs: names of the inputs.
        outputs: names of the outputs.
        axes: names of the dimensions of free size, by the name of the input or output and the index of the dimension.

    Raises:
        ConfigError: the package onnx is not installed.
    """
    check_onnx()
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        # The exporter warns that checks of shapes become constants, which is intended. The newer exporter (dynamo=True)
        # takes a hundred times as long and needs one more package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            file,  # type: ignore[arg-type]  # PyTorch's type hints leave out file objects, which it accepts
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    return file.getvalue()


def build_onnx(network: nn.Module, selector: CandidateSelector, metadata: OnnxMetadata) -> onnx.ModelProto:
    """Build the ONNX model that ``export_onnx`` writes.

    The names of weights are those in ``ImagesToCandidates``. Dimensions of fixed size have numbers, and free ones are
    called batch, height and width.
    """
    check_onnx()
    import onnx

    module = ImagesToCandidates(network, selector).cpu().eval()
    example = (
        torch.zeros(2, 2 * INPUT_MULTIPLE, 3 * INPUT_MULTIPLE, 3, dtype=torch.uint8),
        torch.full((2, 2), INPUT_MULTIPLE),
    )
    batch_only = {name: {0: "batch"} for name in ("sizes", *OUTPUTS)}
    axes = {"images": {0: "batch", 1: "height", 2: "width"}, **batch_only}
    model = onnx.load_model_from_string(trace_to_onnx(module, example, INPUTS, OUTPUTS, axes))
    _state_integer_sizes(model)
    _name_output_sizes(model, selector)
    model.producer_name = "posenet"
    model.producer_version = posenet.__version__
    model.doc_string = "People in images at one scale, without averaging over mirrored images."
    onnx.helper.set_model_props(model, metadata.to_properties())
    onnx.checker.check_model(model)
    return model


def _state_integer_sizes(model: onnx.ModelProto) -> None:
    """Let the upsampling layers compute the sizes of their outputs in integers, instead of from their factors.

    The factors are floating-point numbers, with which ONNX Runtime's symbolic shape inference cannot show that
    upsampled tensors have whole sizes. The sizes are the shape of the input times the factors.
    """
    import onnx

    constants = {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "Resize" and node.input[2] in constants:
            scales = onnx.numpy_helper.to_array(constants[node.input[2]])
            if (scales == scales.round()).all():
                factors, shape, sizes = (f"{node.name}/{part}" for part in ("factors", "shape", "sizes"))
                integers = onnx.numpy_helper.from_array(scales.astype(np.int64))
                nodes.append(onnx.helper.make_node("Constant", [], [factors], value=integers))
                nodes.append(onnx.helper.make_node("Shape", [node.input[0]], [shape], name=shape))
                nodes.append(onnx.helper.make_node("Mul", [shape, factors], [sizes], name=sizes))
                node.input[2] = ""
                node.input.append(sizes)
        nodes.append(node)
    used = {name for node in nodes for name in node.input}
    kept = [node for node in nodes if node.op_type != "Constant" or node.output[0] in used]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]  # deleting invalidates the nodes
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _name_output_sizes(model: onnx.ModelProto, selector: CandidateSelector) -> None:
    """Set the sizes of the outputs, which the exporter leaves open except for the last one."""
    sizes_of_outputs = {
        "peaks": (selector.skeleton.num_keypoints, selector.max_peaks, 3),
        "pairs": (selector.max_limbs, 3),
        "evidence": (selector.max_limbs,),
    }
    for output in model.graph.output:
        for dimension, size in zip(output.type.tensor_type.shape.dim[1:], sizes_of_outputs[output.name], strict=True):
            dimension.dim_value = size  # replaces a name


def write_onnx(model: onnx.ModelProto, path: str | Path) -> None:
    """Write a model to a file, completely or not at all; or to standard output."""
    write_atomically(path, model.SerializeToString())

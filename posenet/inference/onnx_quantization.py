"""An exported network in 8-bit integers, except for the blocks whose rounding costs most: ``quantize_network``.

The steps:

1. The range of each convolution's input is measured on calibration images.
2. Each block of convolutions is rounded to 8 bits alone. Its error is what this changes in the final maps.
3. All blocks are rounded. While the error of the maps is above ``MAX_ERROR``, the block whose own error is largest is
   kept in float32, unless the blocks kept would exceed ``MAX_FLOAT_SHARE`` of the multiplications.
4. ONNX Runtime's quantizer writes pairs of QuantizeLinear and DequantizeLinear before the other convolutions.

Everything after the last convolution, which is the selection of candidates, stays in float32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from posenet.errors import ConfigError, DataError
from posenet.inference.backends.converted_network import convert_to_onnx
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.fake_quantization import FakeQuantizedNetwork
from posenet.inference.onnx_export import build_onnx
from posenet.inference.onnx_metadata import OnnxMetadata
from posenet.model.preprocessing import images_to_input
from posenet.progress import progress_bar

if TYPE_CHECKING:
    import onnx

MAX_ERROR = 0.05
"""Blocks are kept in float32 until the error of the maps is at most this; see ``map_error``."""
MAX_FLOAT_SHARE = 0.1
"""Largest share of the network's multiplications that are kept in float32."""
SENSITIVITY_IMAGES = 4
"""Number of calibration images on which the errors are measured."""
PACKAGES = ("onnx", "onnxruntime")
"""Packages that quantization needs."""


@dataclass(frozen=True)
class QuantizedBlock:
    """A block of convolutions, and the effect of its rounding."""

    name: str
    """Path of the module in the network."""
    error: float
    """Error of the maps if only this block is rounded; see ``map_error``."""
    share: float
    """Its share of the network's multiplications, 0-1."""
    kept: bool
    """Whether it stays in float32."""


@dataclass(frozen=True)
class QuantizedNetwork:
    """The result of ``quantize_network``."""

    model: onnx.ModelProto
    """The exported model with 8-bit convolutions."""
    float_model: onnx.ModelProto
    """The exported model in float32."""
    blocks: list[QuantizedBlock]
    """All blocks, the one with the largest error first."""
    error_of_all: float
    """Error of the maps if all blocks are rounded."""
    error: float
    """Error of the maps with the kept blocks in float32."""


def quantize_network(
    network: nn.Module, selector: CandidateSelector, metadata: OnnxMetadata, images: Sequence[np.ndarray]
) -> QuantizedNetwork:
    """Build the exported model of a network in 8-bit integers.

    Args:
        network: any network with a method ``heatmaps``. It does not change.
        metadata: describes the exported file in float32; see ``describe_export``.
        images: network inputs, (H, W, 3) BGR uint8 with H and W multiples of 64, resized and padded as in prediction.

    Raises:
        ConfigError: a package is missing.
        DataError: there are no images.
        CheckpointError: the network's values are too small, as in an untrained one.
    """
    check_packages()
    inputs = _network_inputs(images)
    fake = FakeQuantizedNetwork(network, progress_bar(inputs, "calibrate", unit="image", leave=False))
    blocks, error_of_all, error = _choose_blocks(fake, _spread(inputs, SENSITIVITY_IMAGES))

    float_model = build_onnx(network, selector, metadata)
    kept = {name for block in blocks if block.kept for name in fake.blocks[block.name]}
    model = _insert_rounding(float_model, fake, [name for name in fake.convolutions if name not in kept])
    _restore_header(model, float_model, dataclasses.replace(metadata, precision="int8"))
    return QuantizedNetwork(model, float_model, blocks, error_of_all, error)


def quantize_all_blocks(network: nn.Module, images: Sequence[np.ndarray]) -> onnx.ModelProto:
    """Build a model in 8-bit integers that computes the maps, as ``convert_to_onnx`` does in float32.

    It serves to measure speed: no errors are measured, and no block stays in float32. See ``quantize_network``.
    """
    check_packages()
    import onnx

    fake = FakeQuantizedNetwork(network, _network_inputs(images))
    return _insert_rounding(onnx.load_model_from_string(convert_to_onnx(network)), fake, list(fake.convolutions))


def check_packages() -> None:
    """``ConfigError`` if a package that quantization needs is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"8-bit networks need the package {' and '.join(missing)}; install posenet[int8]")


def map_error(maps: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The error of maps: the root of the mean squared difference, relative to that of the reference's values.

    Each argument has the (1, C, h, w) maps of several images.
    """
    difference = sum(float((one - other).square().sum()) for one, other in zip(maps, reference))
    total = sum(float(one.square().sum()) for one in reference)
    return float((difference / max(total, 1e-12)) ** 0.5)


def _network_inputs(images: Sequence[np.ndarray]) -> list[Tensor]:
    """(1, 3, H, W) inputs for calibration; ``DataError`` if there are none.

    Images of equal size could run together, but one after the other needs the least memory.
    """
    if not images:
        raise DataError("there are no images for calibration")
    return [images_to_input(torch.from_numpy(image[None]), channels_last=True) for image in images]


def _spread(items: Sequence[Tensor], count: int) -> list[Tensor]:
    """At most ``count`` items, at equal distances."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _choose_blocks(fake: FakeQuantizedNetwork, inputs: Sequence[Tensor]) -> tuple[list[QuantizedBlock], float, float]:
    """All blocks, the worst first; and the errors with all of them rounded and with the chosen ones in float32."""
    shares = _multiplication_shares(fake, inputs[0])
    reference = [fake.heatmaps(images, ()) for images in inputs]

    def error_of(int8_blocks: Sequence[str]) -> float:
        return map_error([fake.heatmaps(images, int8_blocks) for images in inputs], reference)

    errors = {
        name: error_of([name]) for name in progress_bar(list(fake.blocks), "measure blocks", unit="block", leave=False)
    }
    rounded = list(fake.blocks)
    error_of_all = error_of(rounded)
    error = error_of_all
    kept_share = 0.0
    worst_first = sorted(fake.blocks, key=lambda name: errors[name], reverse=True)
    for name in worst_first:
        if error <= MAX_ERROR:
            break
        if kept_share + shares[name] > MAX_FLOAT_SHARE:
            continue
        candidates = [other for other in rounded if other != name]
        error_without = error_of(candidates)
        if error_without < error:
            rounded = candidates
            error = error_without
            kept_share += shares[name]
    blocks = [QuantizedBlock(name, errors[name], shares[name], name not in rounded) for name in worst_first]
    return blocks, error_of_all, error


@torch.no_grad()
def _multiplication_shares(fake: FakeQuantizedNetwork, images: Tensor) -> dict[str, float]:
    """The share of each block in the multiplications of all convolutions."""
    counts: dict[str, int] = {}
    handles = [
        conv.register_forward_hook(
            lambda module, _, output, name=name: counts.update(
                {name: module.weight[0].numel() * output.numel()}  # each output value needs the weights of its channel
            )
        )
        for name, conv in fake.convolutions.items()
    ]
    fake.heatmaps(images, ())
    for handle in handles:
        handle.remove()
    total = sum(counts.values())
    return {block: sum(counts[name] for name in names) / total for block, names in fake.blocks.items()}


def _insert_rounding(
    float_model: onnx.ModelProto, fake: FakeQuantizedNetwork, int8_convolutions: Sequence[str]
) -> onnx.ModelProto:
    """A copy of an exported model that rounds inputs and weights of the named convolutions to 8 bits."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model = onnx.ModelProto()
    model.CopyFrom(float_model)
    _copy_shared_weights(model)
    node_of_weight = {node.input[1]: node for node in model.graph.node if node.op_type == "Conv"}
    ranges: dict[str, TensorData] = {}
    nodes = []
    for name in int8_convolutions:
        node = node_of_weight[f"network.{name}.weight"]  # the exported module calls the fused network "network"
        lowest, highest = fake.ranges[name]
        ranges[node.input[0]] = TensorData(lowest=np.float32(lowest), highest=np.float32(highest))
        nodes.append(node.name)
    with _quiet_logging():
        quantizer = QDQQuantizer(
            model,
            per_channel=True,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
            nodes_to_quantize=nodes,
            nodes_to_exclude=[],
            op_types_to_quantize=["Conv"],
            # Outputs are rounded after the activation, as inputs of the next convolution.
            extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"]},
        )
        quantizer.quantize_model()
    quantizer.model.topological_sort()
    quantized: onnx.ModelProto = quantizer.model.model
    _fill_empty_biases(quantized)
    onnx.checker.check_model(quantized)
    return quantized


def _copy_shared_weights(model: onnx.ModelProto) -> None:
    """Give each layer weights of its own. PyTorch's exporter stores equal ones once, which the quantizer cannot use."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    shared = [node for node in model.graph.node if node.op_type == "Identity" and node.input[0] in initializers]
    for node in shared:
        copy = model.graph.initializer.add()
        copy.CopyFrom(initializers[node.input[0]])
        copy.name = node.output[0]
        model.graph.node.remove(node)


def _fill_empty_biases(model: onnx.ModelProto) -> None:
    """Replace the first value by the smallest one in every 8-bit bias whose values are all 0.

    OpenVINO leaves out a bias of zeros. Its int8 convolutions on AMX then read a wrong address where the input is small
    (seen with version 2026.4.1). BatchNorm without training has such biases.
    """
    import onnx

    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    stored = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for node in model.graph.node:
        if node.op_type == "Conv" and len(node.input) > 2 and node.input[2] in stored:
            tensor = initializers[stored[node.input[2]]]
            bias = onnx.numpy_helper.to_array(tensor).copy()
            if not bias.any():
                bias[0] = 1
                tensor.CopyFrom(onnx.numpy_helper.from_array(bias, tensor.name))


@contextlib.contextmanager
def _quiet_logging() -> Iterator[None]:
    """Hide the advice to preprocess the file, which ONNX Runtime's quantizer logs for any file."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)


def _restore_header(model: onnx.ModelProto, float_model: onnx.ModelProto, metadata: OnnxMetadata) -> None:
    """Set what the quantizer has replaced or added: the producer, the metadata, and the shapes of all tensors."""
    import onnx

    model.producer_name = float_model.producer_name
    model.producer_version = float_model.producer_version
    del model.graph.value_info[:]
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata.to_properties())

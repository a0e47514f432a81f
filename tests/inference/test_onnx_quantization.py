"""Exported networks in 8-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.inference import onnx_quantization
from posenet.inference.backends.graph import GraphOptions, load_graph
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.fake_quantization import FakeQuantizedNetwork
from posenet.inference.onnx_export import describe_export
from posenet.inference.onnx_metadata import OnnxMetadata
from posenet.inference.onnx_quantization import QuantizedNetwork, map_error, quantize_network
from posenet.model.preprocessing import images_to_input
from tests.helpers.networks import random_network, tiny_network
from tests.helpers.runtimes import require_runtime
from tests.helpers.spot_networks import spot_people_image

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install posenet[int8]")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install posenet[int8]")

IMAGES = [spot_people_image(128, 192, 2, seed=seed) for seed in range(3)]


def quantize(network: nn.Module | None = None) -> QuantizedNetwork:
    network = random_network(stacks=1) if network is None else network
    selector = CandidateSelector(max_peaks=20)
    return quantize_network(network, selector, describe_export(network, selector, 128), IMAGES)


def run(model, image):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": image[None], "sizes": np.array([image.shape[:2]])})


def producers(model):
    return {output: node for node in model.graph.node for output in node.output}


def test_the_file_rounds_convolutions_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_quantization, "MAX_ERROR", 1.0)
    result = quantize()
    assert not any(block.kept for block in result.blocks)
    made_by = producers(result.model)
    weights = {tensor.name: tensor for tensor in result.model.graph.initializer}
    for node in result.model.graph.node:
        is_rounded = node.op_type != "DequantizeLinear" and any(
            name in made_by and made_by[name].op_type == "DequantizeLinear" for name in node.input
        )
        assert not (is_rounded and "selector" in node.name), node.name
        if node.op_type == "Conv":
            stored = weights[made_by[node.input[1]].input[0]]
            scales = weights[made_by[node.input[1]].input[1]]
            assert stored.data_type == onnx.TensorProto.INT8
            assert list(scales.dims) == [stored.dims[0]]  # one scale for each output channel
    assert result.model.producer_name == "posenet"
    metadata = {entry.key: entry.value for entry in result.model.metadata_props}
    assert OnnxMetadata.from_properties(metadata, "a.onnx").precision == "int8"
    assert [value.name for value in result.model.graph.output] == ["peaks", "pairs", "evidence"]


def test_onnx_runtime_computes_the_simulated_maps() -> None:
    result = quantize()
    network = random_network(stacks=1)
    inputs = [images_to_input(torch.from_numpy(image[None])) for image in IMAGES]
    fake = FakeQuantizedNetwork(network, inputs)
    maps = fake.heatmaps(inputs[0], [block.name for block in result.blocks if not block.kept])
    cells = torch.tensor([[side // 4 for side in IMAGES[0].shape[:2]]])
    simulated = CandidateSelector(max_peaks=20)(maps, cells)[0][..., 2].numpy()
    computed, in_float32 = (run(model, IMAGES[0])[0][..., 2] for model in (result.model, result.float_model))
    assert (simulated > 0).sum() > 50
    difference_to_simulation = np.abs(np.sort(computed) - np.sort(simulated)).mean()
    difference_to_float32 = np.abs(np.sort(computed) - np.sort(in_float32)).mean()
    assert 0 <= difference_to_simulation < 0.3 * difference_to_float32


def test_the_blocks_that_lose_most_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_quantization, "MAX_ERROR", 0.0)
    monkeypatch.setattr(onnx_quantization, "MAX_FLOAT_SHARE", 0.3)
    result = quantize()
    assert [block.error for block in result.blocks] == sorted((block.error for block in result.blocks), reverse=True)
    kept = [block for block in result.blocks if block.kept]
    assert result.blocks[0].kept and 0 < sum(block.share for block in kept) <= 0.3
    assert result.error < result.error_of_all
    assert sum(block.share for block in result.blocks) == pytest.approx(1)
    weights = {tensor.name: tensor.data_type for tensor in result.model.graph.initializer}
    float_names = {name for name, data_type in weights.items() if data_type == onnx.TensorProto.FLOAT}
    for block in result.blocks:
        # The name in the file is that in ImagesToCandidates.
        assert block.kept == any(
            name.startswith(f"network.{block.name}.") and name.endswith(".weight") for name in float_names
        )


def test_a_block_is_kept_only_where_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_quantization, "MAX_ERROR", 10.0)
    result = quantize()
    assert not any(block.kept for block in result.blocks)
    assert result.error == result.error_of_all > 0


def test_the_error_is_relative_to_the_maps() -> None:
    reference = [torch.ones(1, 2, 3, 4), torch.full((1, 2, 5, 4), 2.0)]
    assert map_error([1.1 * maps for maps in reference], reference) == pytest.approx(0.1)
    assert map_error(reference, reference) == 0


def test_calibration_needs_images_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(stacks=1)
    selector = CandidateSelector()
    metadata = describe_export(network, selector, 128)
    with pytest.raises(DataError, match="no images"):
        quantize_network(network, selector, metadata, [])
    monkeypatch.setattr(onnx_quantization.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"posenet\[int8\]"):
        quantize_network(network, selector, metadata, IMAGES)


def test_an_untrained_network_is_refused_where_its_values_are_too_small() -> None:
    with pytest.raises(CheckpointError, match=r"largest input of stem\.\S+ is \S+e-\d+; train the network"):
        quantize(tiny_network(stacks=1, conv_std=1e-5))


def test_openvino_runs_a_network_whose_biases_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    require_runtime("openvino")
    monkeypatch.setattr(onnx_quantization, "MAX_ERROR", 10.0)  # no block stays in float32
    network = random_network(stacks=1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.zeros_(module.bias)
            nn.init.zeros_(module.running_mean)
    model = quantize(network).model
    made_by = producers(model)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    biases = [made_by[node.input[2]].input[0] for node in model.graph.node if node.op_type == "Conv"]
    # OpenVINO ends the process at biases of zeros, so they are checked first.
    assert len(biases) > 50 and all(weights[name].any() for name in biases)
    graph = load_graph("openvino", model.SerializeToString(), "a.onnx", GraphOptions("cpu", "auto", 1))
    inputs = {"images": np.zeros((1, 64, 64, 3), np.uint8), "sizes": np.array([[64, 64]])}
    assert np.isfinite(graph.run(inputs)["peaks"]).all()

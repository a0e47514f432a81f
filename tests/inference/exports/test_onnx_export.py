"""Exported files: their maps in float32 and 8 bits, and what they say about themselves."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.exports.onnx_export import CALIBRATION_IMAGES, build_onnx, quantize_onnx, read_calibration_images
from posenet.inference.exports.runtimes import PROPERTY, ExportedNetwork
from posenet.inference.networks import TorchNetwork
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import Config, InferenceConfig, ModelConfig, TrackingConfig
from posenet.skeleton import COCO, Skeleton
from tests.helpers.documentation import read_blocks
from tests.helpers.networks import random_network
from tests.helpers.source_files import ROOT
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

onnx = pytest.importorskip("onnx", reason="exporting needs onnx: pip install simplepose[export]")


@pytest.fixture(scope="module")
def network() -> PoseNet:
    return random_network(1).eval()


@pytest.fixture(scope="module")
def model(network: PoseNet) -> Any:
    return build_onnx(network, Config())


def images(batch: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)


def load(model: Any, runtime: str, amp: Any = "off") -> Callable[[np.ndarray], np.ndarray]:
    return ExportedNetwork(model.SerializeToString(), runtime, "a.onnx", "cpu", amp)


def test_a_file_computes_the_maps_of_pytorch_for_any_shape(network: PoseNet, model: Any, runtime: str) -> None:
    compute_maps = load(model, runtime)
    for batch, height, width in ((1, 64, 64), (3, 128, 192)):
        maps = compute_maps(images(batch, height, width))
        expected = TorchNetwork(network, "cpu", "off")(images(batch, height, width))
        assert maps.dtype == np.float32 and maps.shape == (batch, 50, height // 4, width // 4)
        np.testing.assert_allclose(maps, expected, atol=2e-3 * np.abs(expected).max())


def test_a_file_says_what_its_arrays_mean(model: Any) -> None:
    """The example of the page uses the rest."""
    arrays = {
        value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert arrays == {"images": ["batch", "height", "width", 3], "maps": ["batch", 50, "map_height", "map_width"]}
    [about] = [json.loads(entry.value) for entry in model.metadata_props if entry.key == PROPERTY]
    facts = {"format": 2, "colours": "BGR", "padding": 128, "padded_sides": ["right", "bottom"], "multiple": 64}
    facts |= {"stride": 4, "first_cell": 1.5, "precision": "float32"}
    assert {key: about[key] for key in facts} == facts
    kinds = [kind for kind, *_ in about["channels"]]
    assert kinds == ["body part"] * 30 + ["keypoint"] * 18 + ["person mask", "keypoint foreground"]


def test_the_example_without_posenet_finds_the_keypoints_that_posenet_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of the page. Without a layout, posenet does not move uncertain keypoints from their peaks."""
    pytest.importorskip("onnxruntime")
    pages = read_blocks(ROOT / "docs" / "deployment.md")
    (code,) = [block.text for block in pages if block.language == "python" and "get_modelmeta" in block.text]
    assert set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) == {"json", "cv2", "numpy", "onnxruntime"}
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(
        Config(),
        inference=InferenceConfig(height=192),
        model=ModelConfig(skeleton=dataclasses.replace(COCO, layout={})),
    )
    Path("demo.onnx").write_bytes(build_onnx(LinearSpotNetwork(), config).SerializeToString())
    (photo,) = re.findall(r'imread\("(.*)"\)', code)
    write_image(Path(photo), spot_people_image(230, 340, 1))  # it is resized and padded
    names: dict[str, Any] = {}
    exec(code, names)
    (person,) = Predictor("demo.onnx", device="cpu", amp="off", backend="onnxruntime", min_score=0)(photo)
    expected = {name: point for name, point in person.named().items() if point[2] > 0}
    assert names["person"].keys() == expected.keys() == {"nose", "neck", "right_shoulder"}
    for name, point in expected.items():
        np.testing.assert_allclose(names["person"][name], point, atol=1e-3)


def test_another_skeleton_and_its_settings_are_in_the_file(tmp_path: Path, runtime: str) -> None:
    names = ("top", "left", "right")
    skeleton = Skeleton(
        keypoints=names,
        parts=(("top", "left"), ("top", "right")),
        left_right=(("left", "right"),),
        derived={},
        file_keypoints=names,
        file_names=names,
        sigmas=(0.05,) * 3,
    )
    config = dataclasses.replace(
        Config(),
        inference=InferenceConfig(height=64, flip=True),
        model=ModelConfig(skeleton=skeleton),
        tracking=TrackingConfig(confirm_frames=1, smooth=True),
    )
    network = LinearSpotNetwork()
    network.colours = nn.Conv2d(3, skeleton.num_channels, 1)
    (tmp_path / "a.onnx").write_bytes(build_onnx(network, config).SerializeToString())
    predictor = Predictor(tmp_path / "a.onnx", device="cpu", backend=runtime, keep_maps=True)  # type: ignore[arg-type]
    assert predictor.skeleton == skeleton and predictor.settings == InferenceConfig(height=64, flip=True)
    assert predictor.tracking == config.tracking
    maps = predictor(images(1, 64, 64)[0]).maps
    assert maps is not None and len(maps) == skeleton.num_channels


@pytest.fixture(scope="module")
def quantized() -> tuple[Any, Any]:
    """A network with every second bias 0, as without training: as it is quantized, and in 8 bits."""
    pytest.importorskip("onnxruntime")
    network = random_network(1).eval()
    for module in [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)][::2]:
        nn.init.zeros_(module.bias)
        nn.init.zeros_(module.running_mean)
    unquantized = build_onnx(network, Config(), for_quantization=True)
    return unquantized, quantize_onnx(unquantized, Config(), list(images(2, 64, 64)))


def test_all_convolutions_but_two_of_an_8_bit_file_are_in_8_bits(model: Any, quantized: tuple[Any, Any]) -> None:
    """Two products of 8-bit numbers fit into 16 bits, because processors without VNNI cut off larger sums."""
    graph = quantized[1].graph
    counts = [[node.op_type for node in nodes].count("ConvTranspose") for nodes in (model.graph.node, graph.node)]
    assert counts == [4, 0]
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    stored = {node.output[0]: node.input for node in graph.node if node.op_type == "DequantizeLinear"}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert not any(node.input[1] in stored for node in convolutions[-2:])
    inputs = [stored[node.input[1]] for node in convolutions[:-2]]
    largest = max(np.abs(weights[weight].astype(int)).max() for weight, *_ in inputs)
    assert largest > 60 and 2 * 255 * largest < 2**15
    assert all(weights[scale].ndim == 1 for _, scale, *_ in inputs), "a scale for each output channel"
    biases = [weights[stored[node.input[2]][0]] for node in convolutions[:-2]]
    assert all(bias.dtype == np.int32 and bias.any() for bias in biases), "each has its own, none of them empty"


def test_an_8_bit_file_computes_nearly_the_same_maps(quantized: tuple[Any, Any], runtime: str) -> None:
    """OpenVINO leaves out a bias of zeros, and then reads wrong addresses where the input is small."""
    unquantized, model = quantized
    compute_float_maps, compute_maps = load(unquantized, runtime), load(model, runtime, amp="auto")
    for side in (64, 128):
        maps = compute_maps(images(2, side, side))
        expected = compute_float_maps(images(2, side, side))
        assert np.isfinite(maps).all() and np.abs(maps - expected).mean() < 0.15 * np.abs(expected).mean()


def test_calibration_images_come_from_all_parts(tmp_path: Path, model: Any) -> None:
    files = []
    for value in range(CALIBRATION_IMAGES + 10):
        files.append(tmp_path / f"{value:03d}.png")
        write_image(files[-1], np.full((4, 4, 3), value, np.uint8))
    settings = InferenceConfig(height=64)
    values = [int(image[0, 0, 0]) for image in read_calibration_images(files, settings) if image.shape == (64, 64, 3)]
    assert values == sorted(set(values)) and len(values) == CALIBRATION_IMAGES
    assert values[0] == 0 and values[-1] == len(files) - 1
    assert len(read_calibration_images(files[:5], settings)) == 5
    with pytest.raises(DataError, match="no images for calibration"):
        quantize_onnx(model, Config(), [])

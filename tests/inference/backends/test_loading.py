"""Which backend runs a file, and the same people with each of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from posenet.inference.backends import loading
from posenet.inference.backends.converted_network import ConvertedNetwork
from posenet.inference.backends.graph import Graph, GraphOptions
from posenet.inference.onnx_metadata import OnnxMetadata

from posenet.checkpoints.file import FORMAT
from posenet.devices import precision
from posenet.devices.cpu import usable_cores
from posenet.errors import CheckpointError, ConfigError
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import Config, InferenceConfig, config_to_dict, load_config
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.networks import random_network
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

onnx = pytest.importorskip("onnx", reason="exporting needs onnx: pip install posenet[export]")

SHAPES = [(200, 300), (200, 300), (160, 330), (190, 130), (256, 256), (200, 300)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2", "inference.height=64"])
    path = tmp_path / "tiny.pth"
    torch.save({"format": FORMAT, "model": random_network(1).state_dict(), "config": config_to_dict(config)}, path)
    return path


def images(num_people: int = 1) -> list[np.ndarray]:
    """Images with people. Limbs of several people have equal scores, so that rounding decides who gets a keypoint."""
    return [spot_people_image(*shape, num_people, seed=i) for i, shape in enumerate(SHAPES)]


def assert_same_people(found: list[list[Person]], expected: list[list[Person]]) -> None:
    assert [len(people) for people in found] == [len(people) for people in expected]
    for ones, others in zip(found, expected):
        for one, other in zip(ones, others):
            np.testing.assert_allclose(one.keypoints, other.keypoints, atol=1e-3)
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_an_exported_file_finds_the_people_that_pytorch_finds(exported: Path, runtime: str) -> None:
    predictor = Predictor.from_checkpoint(exported, device="cpu", amp="off", backend=runtime, batch_size=2)  # type: ignore[arg-type]
    assert predictor.settings == InferenceConfig(height=192, batch_size=2)
    expected = Predictor(LinearSpotNetwork(), InferenceConfig(height=192, batch_size=2), select="device")
    found = predictor.batch(images())
    assert [len(people) for people in found] == [1] * 6
    assert_same_people(found, expected.batch(images()))
    assert list(predictor.stream(images())) == found

    parallel = Predictor.from_checkpoint(
        exported, device="cpu", amp="off", backend=runtime, batch_size=2, parallel=True
    )  # type: ignore[arg-type]
    assert_same_people(list(parallel.stream(images())), found)

    crowd = images(4)[:2]
    [one, other], [expected_one, expected_other] = (
        by.run_network(by.prepare_inputs(crowd)).fetch() for by in (predictor, expected)
    )
    for found_candidates, candidates in ((one, expected_one), (other, expected_other)):
        peaks = candidates.candidates(expected.settings, expected.skeleton)
        found_peaks = found_candidates.candidates(predictor.settings, predictor.skeleton)
        np.testing.assert_array_equal(found_peaks.keypoint, peaks.keypoint)
        np.testing.assert_allclose(found_peaks.xy, peaks.xy, atol=1e-3)
        assert len(peaks.score) >= 12


@pytest.fixture(scope="session")
def converted(runtime: str) -> ConvertedNetwork:
    return ConvertedNetwork(LinearSpotNetwork(), runtime, GraphOptions("cpu", "off", 1))


@pytest.mark.parametrize(
    "settings", [{}, {"flip": True}, {"scales": (1.0, 1.5)}, {"flip": True, "scales": (0.5, 1.0)}], ids=str
)
def test_a_converted_network_finds_the_people_that_pytorch_finds(
    converted: ConvertedNetwork, settings: dict[str, bool]
) -> None:
    """Flips and scales are averaged as with PyTorch."""
    chosen = InferenceConfig(height=192, **settings)  # type: ignore[arg-type]
    found = Predictor(converted, chosen).batch(images())
    assert [len(people) for people in found] == [1] * 6
    assert_same_people(found, Predictor(FusedNetwork(LinearSpotNetwork()), chosen).batch(images()))


def test_a_checkpoint_is_converted(checkpoint: Path, runtime: str) -> None:
    """The network has random weights, so that its maps have values everywhere."""
    torch_predictor = Predictor.from_checkpoint(checkpoint, device="cpu", amp="off")
    predictor = Predictor.from_checkpoint(checkpoint, device="cpu", amp="off", backend=runtime, flip=True)  # type: ignore[arg-type]
    assert predictor.settings == InferenceConfig(height=64, flip=True)
    batch = np.random.default_rng(0).integers(0, 256, (2, 64, 128, 3), np.uint8)
    torch_predictor.backend.settings = predictor.settings
    expected = torch_predictor.backend.compute_maps(batch)
    assert expected.std() > 0.05
    np.testing.assert_allclose(predictor.backend.compute_maps(batch), expected, atol=1e-4)
    assert predictor.backend.digest() != torch_predictor.backend.digest()


@pytest.mark.parametrize(
    ("installed", "amp", "computes_in_bf16", "expected"),
    [
        (["openvino", "onnxruntime"], "off", True, "openvino"),
        (["openvino", "onnxruntime"], "bf16", True, "openvino"),
        (["openvino", "onnxruntime"], "bf16", False, "torch"),
        (["onnxruntime"], "off", True, "onnxruntime"),
        (["onnxruntime"], "bf16", True, "torch"),
        (["openvino"], "fp16", True, "torch"),
        ([], "off", True, "torch"),
    ],
)
def test_auto_is_the_fastest_backend_in_the_precision(
    installed: list[str],
    amp: str,
    computes_in_bf16: bool,
    expected: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "_cpu_computes_in_bf16", lambda: computes_in_bf16)
    monkeypatch.setattr(loading, "installed_runtimes", lambda: installed)
    used = []

    class Recorder(ConvertedNetwork):
        def __init__(self, network: torch.nn.Module, runtime: str, options: GraphOptions) -> None:
            torch.nn.Module.__init__(self)
            used.append((runtime, options.amp))

    monkeypatch.setattr("posenet.inference.backends.converted_network.ConvertedNetwork", Recorder)
    Predictor.from_checkpoint(checkpoint, device="cpu", amp=amp, backend="auto")  # type: ignore[arg-type]
    assert used == ([] if expected == "torch" else [(expected, amp)])


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("parallel", [False, True])
def test_parallel_runs_are_those_of_the_runtime(exported: Path, checkpoint: Path, runtime: str, parallel: bool) -> None:
    options = {"device": "cpu", "amp": "off", "backend": runtime, "threads": 2}
    for path in (exported, checkpoint):
        predictor = Predictor.from_checkpoint(path, parallel=parallel, **options)  # type: ignore[arg-type]
        assert predictor.backend.parallel_runs == (2 if parallel and runtime == "openvino" else 1)


def test_auto_precision_is_float32_where_it_is_with_pytorch(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="pip install posenet[openvino]")
    for computes_in_bf16, expected in ((False, "off"), (True, "auto")):
        monkeypatch.setattr(precision, "_cpu_computes_in_bf16", lambda: computes_in_bf16)
        used: list[str] = []

        def load_graph(name: str, model: bytes, source: str, options: GraphOptions) -> None:
            used.append(options.amp)

        monkeypatch.setattr("posenet.inference.backends.converted_network.convert_to_onnx", lambda network: b"")
        monkeypatch.setattr("posenet.inference.backends.converted_network.load_graph", load_graph)
        Predictor.from_checkpoint(checkpoint, device="cpu", amp="auto", backend="openvino")
        assert used == [expected]


def test_converting_a_checkpoint_needs_onnx(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="pip install posenet[openvino]")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find_spec(name))
    with pytest.raises(ConfigError, match=r"needs the package onnx; install posenet\[export\]"):
        Predictor.from_checkpoint(checkpoint, device="cpu", backend="openvino")
    network = Predictor.from_checkpoint(checkpoint, device="cpu", amp="off", backend="auto").backend.network  # type: ignore[attr-defined]
    assert isinstance(network, FusedNetwork)


def test_a_checkpoint_runs_with_pytorch_unless_another_backend_is_named(checkpoint: Path) -> None:
    network = Predictor.from_checkpoint(checkpoint, device="cpu").backend.network  # type: ignore[attr-defined]
    assert isinstance(network, FusedNetwork)


@pytest.mark.parametrize(
    ("override", "named"),
    [({"flip": True}, "flip"), ({"scales": (1.0, 2.0)}, "scales"), ({"keypoint_threshold": 0.3}, "keypoint_threshold")],
    ids=str,
)
def test_settings_that_an_exported_file_leaves_out_are_refused(
    override: dict[str, bool], named: str, exported: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.inference.backends.exported_backend.load_graph", lambda *_: graph)
    with pytest.raises(ConfigError, match=f"spots.onnx is an exported file.* leave out {named}"):
        Predictor.from_checkpoint(exported, **override)  # type: ignore[arg-type]
    assert Predictor.from_checkpoint(exported, flip=False, scales=(1.0,), height=128).settings.height == 128
    assert Predictor.from_checkpoint(exported, scales=[1]).settings.scales == (1.0,)  # as the flag passes them


def test_what_cannot_run_an_exported_file_is_refused(
    exported: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.inference.backends.exported_backend.load_graph", lambda *_: graph)
    with pytest.raises(ConfigError, match="which PyTorch cannot run; use backend openvino or onnxruntime"):
        Predictor.from_checkpoint(exported, backend="torch")
    with pytest.raises(ConfigError, match="backend 'tensorrt' is unknown; use auto, torch, openvino, onnxruntime"):
        Predictor.from_checkpoint(exported, backend="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot have another configuration"):
        Predictor.from_checkpoint(exported, config=Config())
    with pytest.raises(ConfigError, match="outputs candidates and no maps"):
        Predictor.from_checkpoint(exported).backend.compute_maps(np.zeros((1, 64, 64, 3), np.uint8))
    monkeypatch.setattr(loading, "installed_runtimes", list)
    with pytest.raises(ConfigError, match=r"install posenet\[openvino\] or posenet\[onnxruntime\]"):
        Predictor.from_checkpoint(exported)


def test_files_that_posenet_has_not_exported_are_refused(exported: Path, tmp_path: Path, runtime: str) -> None:
    def refuse(change, message: str) -> None:  # type: ignore[no-untyped-def]
        model = onnx.load_model(exported)
        change(model)
        path = tmp_path / "other.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(CheckpointError, match=message):
            Predictor.from_checkpoint(path, backend=runtime)  # type: ignore[arg-type]

    def rename_output(model: onnx.ModelProto) -> None:
        [node] = [node for node in model.graph.node if "pairs" in node.output]
        node.output[list(node.output).index("pairs")] = "boxes"
        for other in model.graph.node:
            other.input[:] = ["boxes" if name == "pairs" else name for name in other.input]
        next(output for output in model.graph.output if output.name == "pairs").name = "boxes"

    def use_another_skeleton(model: onnx.ModelProto) -> None:
        skeleton = skeleton_from_table({"keypoints": ["a", "b"], "parts": [["a", "b"]]})
        onnx.helper.set_model_props(model, OnnxMetadata(192, skeleton).to_properties())

    refuse(rename_output, "other.onnx is not a file that posenet export-onnx has written.*boxes")
    refuse(lambda model: model.ClearField("metadata_props"), "its metadata lack")
    refuse(use_another_skeleton, "finds 18 keypoints, but the skeleton in its metadata has 2")
    with pytest.raises(CheckpointError, match="missing.onnx: No such file"):
        Predictor.from_checkpoint(tmp_path / "missing.onnx")

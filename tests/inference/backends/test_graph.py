"""Runtimes of ONNX graphs behind one interface."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from posenet.errors import CheckpointError, ConfigError
from posenet.inference.backends.graph import RUNTIMES, Graph, GraphOptions, default_threads, load_graph
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata
from posenet.skeleton import COCO
from tests.helpers.spot_data import export_spot_network

pytest.importorskip("onnx", reason="exporting needs onnx: pip install posenet[export]")

CPU = GraphOptions(device="cpu", amp="off", threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return export_spot_network(tmp_path_factory.mktemp("onnx") / "spots.onnx").read_bytes()


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip(RUNTIMES[name].package, reason=f"pip install posenet[{name}]")
    return name


def run(graph: Graph, batch: int = 1) -> dict[str, np.ndarray]:
    images = np.full((batch, 64, 128, 3), 128, np.uint8)
    images[:, 20:30, 40:50] = (0, 0, 255)
    return graph.run({"images": images, "sizes": np.full((batch, 2), 64)})


def test_a_graph_has_names_and_metadata_and_runs_at_any_size(runtime: str, model: bytes) -> None:
    graph = load_graph(runtime, model, "a.onnx", CPU)
    assert (graph.inputs, graph.outputs) == (INPUTS, OUTPUTS)
    assert OnnxMetadata.from_properties(graph.metadata, "a.onnx").skeleton == COCO
    for batch in (1, 3):
        outputs = run(graph, batch)
        assert set(outputs) == set(OUTPUTS)
        assert outputs["peaks"].shape == (batch, 18, 20, 3)
        assert outputs["peaks"][:, COCO.index("nose"), 0, 2].min() > 0.5


def test_results_are_not_overwritten_by_the_next_run(runtime: str, model: bytes) -> None:
    graph = load_graph(runtime, model, "a.onnx", CPU)
    first = run(graph)["peaks"]
    copy = first.copy()
    graph.run({"images": np.zeros((1, 64, 128, 3), np.uint8), "sizes": np.full((1, 2), 64)})
    np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize("damage", [lambda model: b"", lambda model: b"no model" * 99, lambda model: model[:900]])
def test_a_damaged_file_is_refused_in_one_line(runtime: str, model: bytes, damage) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CheckpointError, match="a.onnx is damaged, not an ONNX file, or not supported") as caught:
        load_graph(runtime, damage(model), "a.onnx", CPU)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_missing_package_is_named_with_its_extra(name: str, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"{RUNTIMES[name].package}; install posenet\[{name}\]"):
        load_graph(name, model, "a.onnx", CPU)


def test_an_unknown_device_is_refused(runtime: str, model: bytes) -> None:
    with pytest.raises(ConfigError, match=r"no device 'tpu:7' here"):
        load_graph(runtime, model, "a.onnx", GraphOptions("tpu:7", "off", 1))


def test_the_number_of_threads_reaches_the_runtime(model: bytes) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install posenet[openvino]")
    from posenet.inference.backends.openvino_graph import load

    for threads in (1, 2):
        graph = load(model, GraphOptions("cpu", "off", threads))
        assert graph.compiled.get_property("INFERENCE_NUM_THREADS") == threads
        assert graph.compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32


def test_onnx_runtime_gets_the_number_of_threads_and_refuses_other_precisions(model: bytes) -> None:
    pytest.importorskip("onnxruntime", reason="pip install posenet[onnxruntime]")
    from posenet.inference.backends.onnxruntime_graph import load

    assert load(model, GraphOptions("cpu", "off", 2)).session.get_session_options().intra_op_num_threads == 2
    with pytest.raises(ConfigError, match="leave out amp bf16"):
        load(model, GraphOptions("cpu", "bf16", 1))


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("", None), ("many", None), ("0", None)])
def test_threads_are_read_from_the_variable_that_pytorch_reads(
    text: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert default_threads() == threads

"""Runtimes of ONNX graphs behind one interface."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from posenet.inference.backends.graph import RUNTIMES, Graph, GraphOptions, default_threads, load_graph
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata

from posenet.devices.cpu import usable_cores
from posenet.errors import CheckpointError, ConfigError
from posenet.skeleton import COCO
from tests.helpers.runtimes import require_runtime

CPU = GraphOptions(device="cpu", amp="off", threads=1)


@pytest.fixture(scope="module")
def model(exported: Path) -> bytes:
    return exported.read_bytes()


def run(graph: Graph, batch: int = 1) -> dict[str, np.ndarray]:
    images = np.full((batch, 64, 128, 3), 128, np.uint8)
    images[:, 20:30, 40:50] = (0, 0, 255)
    return graph.run({"images": images, "sizes": np.full((batch, 2), 64)})


def test_a_graph_has_names_and_metadata_and_runs_at_any_size(graph: Graph) -> None:
    assert (graph.inputs, graph.outputs) == (INPUTS, OUTPUTS)
    assert OnnxMetadata.from_properties(graph.metadata, "a.onnx").skeleton == COCO
    for batch in (1, 3):
        outputs = run(graph, batch)
        assert set(outputs) == set(OUTPUTS)
        assert outputs["peaks"].shape == (batch, 18, 20, 3)
        assert outputs["peaks"][:, COCO.index("nose"), 0, 2].min() > 0.5


def test_results_are_not_overwritten_by_the_next_run(graph: Graph) -> None:
    first = run(graph)["peaks"]
    copy = first.copy()
    graph.run({"images": np.zeros((1, 64, 128, 3), np.uint8), "sizes": np.full((1, 2), 64)})
    np.testing.assert_array_equal(first, copy)


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_openvino_runs_two_batches_at_the_same_time(model: bytes) -> None:
    require_runtime("openvino")
    one, two = (
        load_graph("openvino", model, "a.onnx", GraphOptions("cpu", "off", 2, parallel)) for parallel in (False, True)
    )
    assert (one.parallel_runs, two.parallel_runs) == (1, 2)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda batch: run(two, batch), [1, 2, 3, 4] * 3))
    for batch, found, again in zip([1, 2, 3, 4] * 2, outputs, outputs[4:]):
        for name, expected in run(one, batch).items():
            np.testing.assert_allclose(found[name], expected, atol=1e-5)
            np.testing.assert_array_equal(found[name], again[name])

    busy = two._idle_requests.get(timeout=1)  # type: ignore[attr-defined]
    run(two)  # although another run has not ended
    two._idle_requests.put(busy)  # type: ignore[attr-defined]


def test_one_thread_runs_one_batch_at_a_time(runtime: str, model: bytes) -> None:
    assert load_graph(runtime, model, "a.onnx", GraphOptions("cpu", "off", 1, parallel=True)).parallel_runs == 1


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


@pytest.mark.parametrize("runtime", ["openvino"], indirect=True)
def test_an_unknown_precision_is_refused(runtime: str, model: bytes) -> None:
    with pytest.raises(ConfigError, match="amp 'int8' is unknown; use auto, off, bf16, fp16"):
        load_graph(runtime, model, "a.onnx", GraphOptions("cpu", "int8", 1))


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_onnx_runtime_refuses_a_gpu_that_it_cannot_start(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime itself only logs this, and runs the graph on the CPU."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install posenet[onnxruntime]")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime may have a GPU here")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(ConfigError, match="ONNX Runtime cannot use cuda:0 here"):
        load_graph("onnxruntime", model, "a.onnx", GraphOptions("cuda:0", "off", 1))
    load_graph("onnxruntime", model, "a.onnx", GraphOptions("auto", "off", 1))


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


SCRIPT_THAT_HANDLES_A_SIGNAL = """
import os, signal, sys
from pathlib import Path
from posenet.inference.backends.graph import GraphOptions, load_graph

runtime, path = sys.argv[1:]
graphs = [load_graph(runtime, Path(path).read_bytes(), path, GraphOptions("cpu", "off", 1)) for _ in range(3)]
while graphs:
    del graphs[0]
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(42))
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")
def test_a_signal_is_handled_after_graphs_are_gone(runtime: str, exported: Path) -> None:
    command = [sys.executable, "-c", SCRIPT_THAT_HANDLES_A_SIGNAL, runtime, str(exported)]
    assert subprocess.run(command, timeout=120).returncode == 42

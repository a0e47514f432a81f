"""OpenVINO and ONNX Runtime: people, devices, precisions and threads, and files that they cannot run."""

import dataclasses
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from posenet.errors import CheckpointError, ConfigError
from posenet.inference.exports.runtimes import PROPERTY, ExportedNetwork
from posenet.inference.predictor import Predictor
from posenet.settings import Config, InferenceConfig
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_to_table
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

onnx = pytest.importorskip("onnx", reason="exporting needs onnx: pip install simplepose[export]")


@pytest.mark.parametrize("settings", [{}, {"flip": True, "scales": (0.5, 1.0)}], ids=str)
def test_an_exported_file_finds_the_people_that_pytorch_finds(
    spot_file: Path, runtime: str, settings: dict[str, Any]
) -> None:
    photos = [spot_people_image(200, 300, 1, 1), spot_people_image(160, 330, 1, 2)]
    predictor = Predictor(spot_file, device="cpu", amp="off", backend=runtime, min_score=0, **settings)  # type: ignore[arg-type]
    assert predictor.settings == InferenceConfig(**{"height": 192, "batch_size": 3} | settings)
    expected = Predictor(LinearSpotNetwork(), predictor.settings, min_score=predictor.min_score)([*photos])
    found = predictor([*photos])
    assert [len(people) for people in found] == [len(people) for people in expected] == [1, 1]
    for one, other in zip(itertools.chain(*found), itertools.chain(*expected)):
        np.testing.assert_allclose(one.keypoints, other.keypoints, atol=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.slow
def test_openvino_computes_the_same_where_a_variable_limits_the_instructions_of_pytorch(
    spot_file: Path, tmp_path: Path
) -> None:
    """The variable stays as it is for PyTorch."""
    pytest.importorskip("openvino")
    code = (
        "import numpy, os; from posenet import Predictor; "
        f"predictor = Predictor({str(spot_file)!r}, backend='openvino', device='cpu', amp='off', keep_maps=True); "
        "assert os.environ['ONEDNN_MAX_CPU_ISA'] == 'SSE41'; "
        "image = numpy.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype='uint8'); "
        f"numpy.save({str(tmp_path / 'a')!r}, predictor(image).maps)"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"}, check=True)
    image = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    expected = Predictor(spot_file, backend="onnxruntime", keep_maps=True)(image).maps
    assert expected is not None
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, atol=2e-3 * np.abs(expected).max())


def test_what_cannot_run_an_exported_file_is_refused(spot_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="use backend openvino or onnxruntime"):
        Predictor(spot_file, backend="torch")
    with pytest.raises(ConfigError, match="backend 'tensorrt'"):
        Predictor(spot_file, backend="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="another configuration"):
        Predictor(spot_file, config=Config())
    for backend, device in (("onnxruntime", "cuda:1"), ("openvino", "cuda")):
        pytest.importorskip(backend)
        with pytest.raises(ConfigError, match=f"{spot_file.name}: .*{device}"):
            Predictor(spot_file, backend=backend, device=device)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="amp fp16"):
        Predictor(spot_file, backend="onnxruntime", amp="fp16")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "posenet.inference.exports" or None)
    with pytest.raises(ConfigError, match=r"pip install 'simplepose\[openvino\]'"):
        Predictor(spot_file)
    with pytest.raises(ConfigError, match=r"'simplepose\[openvino\]'"):
        Predictor(spot_file, backend="openvino")
    with pytest.raises(ConfigError, match="tiny.pth needs PyTorch"):
        Predictor("tiny.pth")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="nothing here runs exported files"):
        Predictor(spot_file)


def _rename_output(model: Any) -> None:
    for node in model.graph.node:
        node.output[:] = ["other" if name == "maps" else name for name in node.output]
    model.graph.output[0].name = "other"


def _set_property(key: str, value: object) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        settings = json.loads(model.metadata_props[0].value)
        onnx.helper.set_model_props(model, {PROPERTY: json.dumps(settings | {key: value})})

    return change


def _set_weight(value: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for tensor in model.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor).copy()
            if values.ndim == 4:
                values[0, 0, 0, 0] = value
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    return change


FEWER_PARTS = {"skeleton": skeleton_to_table(dataclasses.replace(COCO, parts=COCO.parts[:-1]))}


@pytest.mark.parametrize(
    "change, message",
    [
        (_rename_output, "does not compute the maps"),
        (_set_property("model", FEWER_PARTS), "maps of shape"),
        (lambda model: model.ClearField("metadata_props"), "metadata"),
        (lambda model: onnx.helper.set_model_props(model, {PROPERTY: "[" * 100_000}), "metadata"),
        (_set_property("format", 1), "this version"),
        (_set_property("inference", {"height": -1}), "not valid"),
        (_set_property("model", {"skeleton": "/etc/passwd"}), "not valid"),
        (_set_weight(np.nan), "NaN or infinite"),
        (_set_weight(np.inf), "NaN or infinite"),
    ],
)
def test_files_that_posenet_has_not_exported_are_refused(
    spot_file: Path, tmp_path: Path, runtime: str, change: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "other.onnx"
    changed = onnx.load(spot_file)
    change(changed)
    path.write_bytes(changed.SerializeToString())
    with pytest.raises(CheckpointError, match=f"other.onnx.*{message}") as error:
        Predictor(path, device="cpu", amp="off", backend=runtime)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_only_whole_files_are_read(spot_file: Path, tmp_path: Path, runtime: str) -> None:
    (tmp_path / "cut.onnx").write_bytes(spot_file.read_bytes()[:1000])
    os.mkfifo(tmp_path / "fifo.onnx")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("cut", "fifo", "zero", "folder", "missing"):
        with pytest.raises(CheckpointError, match=f"{name}.onnx"):
            Predictor(tmp_path / f"{name}.onnx", device="cpu", backend=runtime)  # type: ignore[arg-type]


def test_openvino_gets_the_device_the_precision_and_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    core = Mock(available_devices=["CPU", "GPU.0"])
    core.get_property.return_value = ["FP32", "BF16"]
    core.read_model.return_value.has_rt_info.return_value = False
    monkeypatch.setattr("posenet.inference.exports.runtimes._openvino_core", lambda: core)

    def load_bytes(device: str, amp: Any) -> Any:
        ExportedNetwork(b"a", "openvino", "a.onnx", device, amp)
        return core.compile_model.call_args.args[1:]

    latency = {"PERFORMANCE_HINT": "LATENCY"}
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    assert load_bytes("auto", "auto") == ("CPU", latency)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    on_cpu = latency | {"INFERENCE_NUM_THREADS": 3}
    assert load_bytes("auto", "auto") == ("CPU", on_cpu)
    assert load_bytes("cpu", "bf16") == ("CPU", on_cpu | {"INFERENCE_PRECISION_HINT": "bf16"})
    assert load_bytes("gpu.0", "off") == ("GPU.0", latency | {"INFERENCE_PRECISION_HINT": "f32"})
    with pytest.raises(ConfigError, match="a.onnx: .*'npu'"):
        load_bytes("npu", "off")
    with pytest.raises(ConfigError, match="fp16 on CPU"):
        load_bytes("cpu", "fp16")

"""Exported files and converted networks: the maps of PyTorch, in float32 and in 8 bits, and wrong files."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
import types
import unittest.mock
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.images import write_image
from posenet.inference.exported_file import PROPERTY, describe_config, read_config
from posenet.inference.networks import BackendName, TorchNetwork, device_of_process, load_network, load_onnx
from posenet.inference.onnx_export import CALIBRATION_IMAGES, build_onnx, quantize_onnx, read_calibration_images
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import Config, DataConfig, InferenceConfig, ModelConfig, TrackingConfig
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_to_table
from tests.helpers.documentation import read_blocks
from tests.helpers.networks import random_network, write_checkpoint
from tests.helpers.source_files import ROOT
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

onnx = pytest.importorskip("onnx", reason="exporting needs onnx: pip install simplepose[export]")


@pytest.fixture(scope="module")
def network() -> PoseNet:
    return random_network().eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of ``network``."""
    settings = ("inference.height=128", "inference.batch_size=2")
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny.pth", *settings, stacks=2)


@pytest.fixture(scope="module")
def model(network: PoseNet) -> Any:
    return build_onnx(network, Config())


def images(batch: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)


def load(model: Any, runtime: str, **options: Any) -> Callable[[np.ndarray], np.ndarray]:
    options = {"device": "cpu", "amp": "off", "threads": 1} | options
    compute_maps, _ = load_onnx(model.SerializeToString(), runtime, "a.onnx", **options)
    return compute_maps


def test_a_file_computes_the_maps_of_pytorch_for_any_shape(network: PoseNet, model: Any, runtime: str) -> None:
    compute_maps = load(model, runtime)
    for batch, height, width in ((1, 64, 64), (3, 128, 192)):
        maps = compute_maps(images(batch, height, width))
        expected = TorchNetwork(network, "cpu", "off")(images(batch, height, width))
        assert maps.dtype == np.float32 and maps.shape == (batch, 50, height // 4, width // 4)
        np.testing.assert_allclose(maps, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("settings", [{}, {"flip": True, "scales": (0.5, 1.0)}], ids=str)
def test_an_exported_file_finds_the_people_that_pytorch_finds(
    spot_file: Path, runtime: str, settings: dict[str, Any]
) -> None:
    photos = [spot_people_image(200, 300, 1, 1), spot_people_image(160, 330, 1, 2)]
    predictor = Predictor.from_checkpoint(spot_file, device="cpu", amp="off", backend=runtime, min_score=0, **settings)  # type: ignore[arg-type]
    assert predictor.settings == InferenceConfig(**{"height": 192, "batch_size": 3} | settings)
    expected = Predictor(LinearSpotNetwork(), predictor.settings, min_score=predictor.min_score)([*photos])
    found = predictor([*photos])
    assert [len(people) for people in found] == [len(people) for people in expected] == [1, 1]
    for one, other in zip(itertools.chain(*found), itertools.chain(*expected)):
        np.testing.assert_allclose(one.keypoints, other.keypoints, atol=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_file_says_what_its_arrays_mean(tmp_path: Path, model: Any, runtime: str) -> None:
    """A lit block of pixels is highest in the map that the file names, in the cell whose position the file gives."""
    arrays = {
        value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert arrays == {"images": ["batch", "height", "width", 3], "maps": ["batch", 50, "map_height", "map_width"]}
    [about] = [json.loads(entry.value) for entry in model.metadata_props if entry.key == PROPERTY]
    assert about["inference"]["height"] == 512 and about["precision"] == "float32"
    assert {
        key: about[key] for key in ("format", "colours", "padding", "padded_sides", "multiple", "stride", "first_cell")
    } == {
        "format": 2,
        "colours": "BGR",
        "padding": 128,
        "padded_sides": ["right", "bottom"],
        "multiple": 64,
        "stride": 4,
        "first_cell": 1.5,
    }
    kinds = [kind for kind, *_ in about["channels"]]
    assert kinds == ["body part"] * 30 + ["keypoint"] * 18 + ["person mask", "keypoint foreground"]
    assert about["channels"][0] == ["body part", "neck", "nose"] and about["channels"][30] == ["keypoint", "nose"]
    image = np.zeros((64, 128, 3), np.uint8)
    column, row = 21, 9
    x, y = (about["stride"] * cell + about["first_cell"] for cell in (column, row))
    image[int(y - 1.5) : int(y + 2.5), int(x - 1.5) : int(x + 2.5), about["colours"].index("R")] = 255
    maps = load(build_onnx(LinearSpotNetwork(), Config()), runtime)(image[None])[0]
    nose = maps[about["channels"].index(["keypoint", "nose"])]
    assert np.unravel_index(nose.argmax(), nose.shape) == (row, column)
    assert nose[row, column] == pytest.approx(0.8, abs=1e-3) and np.count_nonzero(nose > 1e-3) == 1


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


def test_an_fp16_file_has_half_the_size_and_nearly_the_same_maps(network: PoseNet, model: Any, runtime: str) -> None:
    half = build_onnx(network, Config(), amp="fp16")
    assert json.loads(half.metadata_props[0].value)["precision"] == "fp16"
    weights = [tensor for tensor in half.graph.initializer if len(tensor.dims) == 4]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.FLOAT16}
    types = [value.type.tensor_type.elem_type for value in (half.graph.input[0], half.graph.output[0])]
    assert types == [onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT]
    inputs = images(2, 64, 128)
    expected = load(model, runtime)(inputs)
    maps = load(half, runtime)(inputs)
    assert maps.dtype == np.float32 and np.abs(maps - expected).max() < 5e-3 * np.abs(expected).max()


def test_a_weight_that_fp16_cannot_hold_is_refused() -> None:
    network = LinearSpotNetwork()
    assert network.colours.bias is not None
    network.colours.bias.data[30] = 1e5
    build_onnx(network, Config())
    with pytest.raises(ConfigError, match="too large for fp16, whose largest number is 65504; export in float32"):
        build_onnx(network, Config(), amp="fp16")


def test_a_checkpoint_is_converted_for_another_backend(checkpoint: Path, runtime: str) -> None:
    image = images(1, 128, 128)[0]
    plain = Predictor.from_checkpoint(checkpoint, device="cpu", amp="off").compute_maps(image)
    converted = Predictor.from_checkpoint(checkpoint, device="cpu", amp="off", backend=runtime).compute_maps(image)  # type: ignore[arg-type]
    np.testing.assert_allclose(converted, plain, atol=2e-3 * np.abs(plain).max())


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("amp, expected", [("auto", "off"), ("bf16", "bf16")])
def test_a_converted_network_is_as_accurate_as_pytorch_if_not_told_otherwise(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, device: str, amp: str, expected: str
) -> None:
    """PyTorch computes in float32 where the CPU does not compute in bf16."""
    monkeypatch.setattr("posenet.devices.precision.computes_in_bf16", lambda device: False)
    monkeypatch.setattr("posenet.inference.onnx_export.build_onnx", unittest.mock.Mock())
    requested = []

    def load(*arguments: Any, amp: str, **options: Any) -> Any:
        requested.append(amp)
        return None, {}

    monkeypatch.setattr("posenet.inference.networks.load_onnx", load)
    load_network(checkpoint, None, device=device, amp=amp, backend="openvino")  # type: ignore[arg-type]
    assert requested == [expected]


@pytest.mark.parametrize("value, threads", [("", None), ("3", 3), ("0", None), ("all", None)])
def test_an_exported_file_runs_in_as_many_threads_as_the_variable_says(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch, value: str, threads: int | None
) -> None:
    load = unittest.mock.Mock(side_effect=ConfigError("seen"))
    monkeypatch.setattr("posenet.inference.networks.load_onnx", load)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match="seen"):
        load_network(spot_file, None, device="cpu", amp="off", backend="onnxruntime")
    assert load.call_args.kwargs["threads"] == threads


@pytest.mark.slow
def test_openvino_computes_the_same_where_a_variable_limits_the_instructions_of_pytorch(
    model: Any, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    file = tmp_path / "network.onnx"
    file.write_bytes(model.SerializeToString())
    for amp, tolerance in (("off", 2e-3), ("auto", 0.2)):
        compute_and_save = (
            "import numpy, sys; from posenet import Predictor; "
            f"predictor = Predictor({str(file)!r}, backend='openvino', device='cpu', amp={amp!r}); "
            f"image = numpy.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype='uint8'); "
            f"numpy.save({str(tmp_path / amp)!r}, predictor.compute_maps(image))"
        )
        environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"}
        subprocess.run([sys.executable, "-c", compute_and_save], env=environment, check=True)
        expected = Predictor(file, backend="onnxruntime").compute_maps(images(1, 128, 128)[0])
        np.testing.assert_allclose(np.load(tmp_path / f"{amp}.npy"), expected, atol=tolerance * np.abs(expected).max())


def test_the_variable_that_openvino_does_not_see_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reads it later. A new copy of the module has no core yet."""
    seen = []

    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1")

        def get_property(self, device: str, name: str) -> None:
            seen.append(os.environ.get("ONEDNN_MAX_CPU_ISA"))

    spec = importlib.util.find_spec("posenet.inference.networks")
    assert spec is not None and spec.loader is not None
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    openvino = types.ModuleType("openvino")
    openvino.__spec__ = ModuleSpec("openvino", None)
    openvino.Core = Core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert networks.device_of_process("a.onnx", "gpu", "openvino", 1) == "gpu.1"
    assert seen == [None] and os.environ["ONEDNN_MAX_CPU_ISA"] == "SSE41"


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
        data=DataConfig(exif_frame="stored"),
    )
    (tmp_path / "a.onnx").write_bytes(build_onnx(random_network(1, skeleton), config).SerializeToString())
    predictor = Predictor.from_checkpoint(tmp_path / "a.onnx", device="cpu", backend=runtime)  # type: ignore[arg-type]
    assert predictor.skeleton == skeleton and predictor.settings == InferenceConfig(height=64, flip=True)
    assert predictor.tracking == config.tracking and predictor.exif_frame == "stored"
    assert predictor.compute_maps(images(1, 64, 64)[0]).shape[0] == skeleton.num_channels


def test_an_exported_file_of_an_earlier_version_has_todays_names() -> None:
    short = Path(__file__).parents[1] / "fixtures" / "coco_short_names.toml"
    about = json.loads(describe_config(Config(), "float32")[PROPERTY])
    stored = {key: about[key] for key in ("format", "multiple", "stride", "precision", "inference", "model", "data")}
    stored["model"]["skeleton"] = tomllib.loads(short.read_text())
    assert read_config({PROPERTY: json.dumps(stored)}, "a.onnx").model.skeleton == COCO


def test_what_cannot_run_an_exported_file_is_refused(spot_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="which PyTorch cannot run; use backend openvino or onnxruntime"):
        Predictor.from_checkpoint(spot_file, backend="torch")
    with pytest.raises(ConfigError, match="backend 'tensorrt' is unknown; use auto, torch, openvino, onnxruntime"):
        Predictor.from_checkpoint(spot_file, backend="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot have another configuration"):
        Predictor.from_checkpoint(spot_file, config=Config())
    with pytest.raises(ConfigError, match="no device 'cuda:7'|precision of its file"):
        Predictor.from_checkpoint(spot_file, device="cuda:7", amp="off", backend="onnxruntime")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'simplepose\[openvino\]' or 'simplepose\[onnxruntime\]'"):
        Predictor.from_checkpoint(spot_file)
    with pytest.raises(ConfigError, match="tiny.pth needs PyTorch"):
        Predictor.from_checkpoint("tiny.pth")


def test_files_that_posenet_has_not_exported_are_refused(spot_file: Path, tmp_path: Path, runtime: str) -> None:
    path = tmp_path / "other.onnx"

    def refuse(change: Callable[[Any], None], message: str) -> None:
        changed = onnx.load(spot_file)
        change(changed)
        path.write_bytes(changed.SerializeToString())
        with pytest.raises(CheckpointError, match=message):
            Predictor.from_checkpoint(path, backend=runtime)  # type: ignore[arg-type]

    def set_property(key: str, value: object) -> Callable[[Any], None]:
        def change(changed: Any) -> None:
            settings = json.loads(changed.metadata_props[0].value)
            onnx.helper.set_model_props(changed, {PROPERTY: json.dumps(settings | {key: value})})

        return change

    def rename_output(changed: Any) -> None:
        for node in changed.graph.node:
            node.output[:] = ["other" if name == "maps" else name for name in node.output]
        changed.graph.output[0].name = "other"

    fewer_parts = dataclasses.replace(COCO, parts=COCO.parts[:-1])
    refuse(rename_output, "not a file that posenet export-onnx has written")
    refuse(
        set_property("model", {"skeleton": skeleton_to_table(fewer_parts)}), "belong to the skeleton in its metadata"
    )
    refuse(lambda changed: changed.ClearField("metadata_props"), "not a file that this version")
    refuse(
        lambda changed: onnx.helper.set_model_props(changed, {PROPERTY: "[" * 100_000}), "not a file that this version"
    )
    refuse(set_property("format", 1), "another version of posenet")
    refuse(set_property("inference", {"height": -1}), "not valid")
    refuse(set_property("model", {"skeleton": "/etc/passwd"}), "not valid")
    path.write_bytes(spot_file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="other.onnx is damaged, not an ONNX file"):
        Predictor.from_checkpoint(path, backend=runtime)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="missing.onnx: No such file"):
        Predictor.from_checkpoint(tmp_path / "missing.onnx", backend=runtime)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_file_with_a_weight_that_is_not_finite_is_refused(
    spot_file: Path, tmp_path: Path, runtime: str, value: float
) -> None:
    path = tmp_path / "other.onnx"
    changed = onnx.load(spot_file)
    for tensor in changed.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor).copy()
        if values.ndim == 4:
            values[0, 0, 0, 0] = value
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    path.write_bytes(changed.SerializeToString())
    with pytest.raises(CheckpointError, match="other.onnx: its output maps is NaN or infinite"):
        Predictor.from_checkpoint(path, device="cpu", amp="off", backend=runtime)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["one dimension", "float64"])
def test_a_file_with_maps_of_another_shape_or_type_is_refused(
    spot_file: Path, tmp_path: Path, runtime: str, kind: str
) -> None:
    changed = onnx.load(spot_file)
    node = next(node for node in changed.graph.node if "maps" in node.output)
    node.output[:] = ["inner" if name == "maps" else name for name in node.output]
    helper = onnx.helper
    output_type = onnx.TensorProto.FLOAT
    if kind == "one dimension":
        changed.graph.initializer.append(helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [-1]))
        node = helper.make_node("Reshape", ["inner", "shape"], ["maps"])
    else:
        output_type = onnx.TensorProto.DOUBLE
        node = helper.make_node("Cast", ["inner"], ["maps"], to=output_type)
    changed.graph.node.append(node)
    changed.graph.output[0].CopyFrom(helper.make_tensor_value_info("maps", output_type, None))
    path = tmp_path / "other.onnx"
    path.write_bytes(changed.SerializeToString())
    with pytest.raises(CheckpointError, match="other.onnx computes maps of shape .* export it again") as error:
        Predictor.from_checkpoint(path, device="cpu", amp="off", backend=runtime)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_only_a_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.onnx")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("fifo", "zero", "folder"):
        with pytest.raises(CheckpointError, match=f"cannot read .*{name}.onnx: .*; check the path"):
            Predictor.from_checkpoint(tmp_path / f"{name}.onnx", device="cpu")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_falling_back_to_the_cpu_is_a_warning_unless_a_gpu_was_asked_for(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    Predictor.from_checkpoint(spot_file, device="auto", backend="onnxruntime")
    assert not caplog.records
    # As with the package for GPUs where CUDA cannot start.
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    predictor = Predictor.from_checkpoint(spot_file, device="auto", backend="onnxruntime", min_score=0)
    [record] = caplog.records
    assert record.levelname == "WARNING" and "computes on the CPU: its CUDA libraries are missing" in record.message
    assert predictor(spot_people_image(192, 256, 1))
    with pytest.raises(ConfigError, match="cannot use cuda here: its CUDA libraries .* use the device cpu"):
        Predictor.from_checkpoint(spot_file, device="cuda", backend="onnxruntime")
    caplog.clear()
    Predictor.from_checkpoint(spot_file, device="cpu", backend="onnxruntime")
    assert not caplog.records


class FakeSession:
    """What ONNX Runtime makes of its arguments on a machine on which all providers start."""

    def __init__(self, model: bytes, options: Any, providers: list[Any]) -> None:
        self.threads = options.intra_op_num_threads
        self.options = dict(provider for provider in providers if isinstance(provider, tuple))
        self.names = [provider if isinstance(provider, str) else provider[0] for provider in providers]

    def get_providers(self) -> list[str]:
        return self.names

    def get_modelmeta(self) -> Any:
        return unittest.mock.Mock(custom_metadata_map={})


@pytest.fixture
def session_on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeSession]:
    """Loads bytes with ONNX Runtime for a device, as with the package for GPUs, and returns the session."""
    onnxruntime = pytest.importorskip("onnxruntime")
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    sessions: list[FakeSession] = []

    def make_session(*args: Any, **options: Any) -> FakeSession:
        sessions.append(FakeSession(*args, **options))
        return sessions[-1]

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make_session)
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))

    def load_bytes(device: str, amp: Any = "auto", model: bytes = b"a") -> FakeSession:
        load_onnx(model, "onnxruntime", "a.onnx", device=device, amp=amp, threads=3)
        return sessions[-1]

    return load_bytes


def test_cuda_does_not_time_algorithms_for_each_shape(session_on_gpu: Callable[..., FakeSession]) -> None:
    cuda = {"cudnn_conv_algo_search": "HEURISTIC"}
    for device, index in (("auto", 0), ("cuda", 0), ("cuda:3", 3)):
        session = session_on_gpu(device)
        assert session.names == ["CUDAExecutionProvider", "CPUExecutionProvider"]
        assert session.options == {"CUDAExecutionProvider": cuda | {"device_id": index}}
    on_cpu = session_on_gpu("cpu")
    assert on_cpu.names == ["CPUExecutionProvider"] and on_cpu.threads == 3


def test_tensorrt_keeps_the_engines_of_each_file_apart(
    session_on_gpu: Callable[..., FakeSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_on_gpu("tensorrt:1")
    assert session.names == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert [options["device_id"] for options in session.options.values()] == [1, 1]
    first, single, other = (
        session_on_gpu("tensorrt", **options).options["TensorrtExecutionProvider"]
        for options in ({"amp": "fp16"}, {"amp": "off"}, {"model": b"b"})
    )
    assert [options["trt_fp16_enable"] for options in (first, single, other)] == [True, False, True]
    folders = [Path(options["trt_engine_cache_path"]) for options in (first, single, other)]
    assert folders[0] == folders[1] != folders[2] and folders[0].is_dir()
    assert folders[0].parent == tmp_path / "home" / "tensorrt"
    monkeypatch.setattr(sys.modules["onnxruntime"], "__version__", "99.0")  # it cannot read the engines of another one
    newer = session_on_gpu("tensorrt").options["TensorrtExecutionProvider"]["trt_engine_cache_path"]
    assert newer not in map(str, folders)
    with pytest.raises(ConfigError, match="leave out amp fp16"):
        session_on_gpu("cuda", amp="fp16")
    monkeypatch.setattr(FakeSession, "get_providers", lambda self: self.names[1:])
    with pytest.raises(ConfigError, match="cannot use tensorrt here: TensorRT's or CUDA's libraries are missing"):
        session_on_gpu("tensorrt")


def test_a_folder_of_engines_that_cannot_be_made_is_named(
    session_on_gpu: Callable[..., FakeSession], tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write .*/home/tensorrt/.*; set POSENET_HOME to another folder"):
        session_on_gpu("tensorrt")


class FakeDriver:
    """CUDA's driver on a machine with some GPUs."""

    def __init__(self, num_gpus: int) -> None:
        self.num_gpus = num_gpus

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count.contents.value = self.num_gpus
        return 0


@pytest.mark.parametrize("backend", ["onnxruntime", "auto", None])
def test_each_process_uses_the_gpu_of_its_local_rank(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch, backend: BackendName | None
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "onnxruntime" else None)
    assert device_of_process(spot_file, "auto", backend, 1) == "auto"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(4))
    assert [device_of_process(spot_file, "auto", backend, rank) for rank in (0, 3)] == ["auto:0", "auto:3"]
    assert device_of_process(spot_file, "cuda", backend, 2) == "cuda:2"
    assert device_of_process(spot_file, "tensorrt", backend, 2) == "tensorrt:2"
    assert device_of_process(spot_file, "cpu", backend, 2) == "cpu"
    with pytest.raises(ConfigError, match="local rank 4 has no device: this machine has only 4"):
        device_of_process(spot_file, "auto", backend, 4)
    with pytest.raises(ConfigError, match="device cuda:1: every process uses another device"):
        device_of_process(spot_file, "cuda:1", backend, 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(1))  # as under a scheduler
    assert device_of_process(spot_file, "cuda", backend, 3) == "cuda"
    monkeypatch.setattr(ctypes, "CDLL", unittest.mock.Mock(side_effect=OSError))  # without a driver
    assert device_of_process(spot_file, "cuda", backend, 3) == "cuda"


@pytest.mark.parametrize("backend", [None, "torch", "auto"])
def test_each_process_uses_the_device_of_its_local_rank_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, backend: BackendName | None
) -> None:
    assert device_of_process("a.pth", "cpu", backend, 1) == "cpu"
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="local rank 5 has no device: this machine has only 2"):
        device_of_process("a.pth", "cuda", backend, 5)


def test_each_process_uses_the_openvino_device_of_its_local_rank(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    assert device_of_process(spot_file, "auto", "openvino", 1) == "auto"
    assert device_of_process(spot_file, "cpu", "openvino", 1) == "cpu"
    with pytest.raises(ConfigError, match="every process uses another device"):
        device_of_process(spot_file, "GPU.1", "openvino", 1)
    machine = unittest.mock.Mock(available_devices=["CPU", "GPU.0", "GPU.1"])
    monkeypatch.setattr("posenet.inference.networks._openvino_core", lambda: machine)
    assert [device_of_process(spot_file, "gpu", "openvino", rank) for rank in (0, 1)] == ["gpu.0", "gpu.1"]
    with pytest.raises(ConfigError, match="local rank 2 has no device: this machine has only 2"):
        device_of_process(spot_file, "GPU", "openvino", 2)
    failing = unittest.mock.Mock(side_effect=RuntimeError)
    for target, failure in (("posenet.inference.networks._openvino_core", failing), ("importlib.util.find_spec", None)):
        monkeypatch.setattr(target, failure or (lambda name: None))
        assert device_of_process(spot_file, "gpu", "openvino", 1) == "gpu", "loading the network says what is missing"
    with pytest.raises(ConfigError, match=r"needs the package openvino; pip install 'simplepose\[openvino\]'"):
        Predictor.from_checkpoint(spot_file, backend="openvino")


def test_openvino_gets_the_device_the_precision_and_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    core = unittest.mock.Mock(available_devices=["CPU", "GPU.0"])
    core.get_property.return_value = ["FP32", "BF16"]
    core.read_model.return_value.has_rt_info.return_value = False
    monkeypatch.setattr("posenet.inference.networks._openvino_core", lambda: core)

    def load_bytes(device: str, amp: Any) -> Any:
        load_onnx(b"a", "openvino", "a.onnx", device=device, amp=amp, threads=3)
        return core.compile_model.call_args.args[1:]

    latency = {"PERFORMANCE_HINT": "LATENCY"}
    on_cpu = latency | {"INFERENCE_NUM_THREADS": 3}
    assert load_bytes("auto", "auto") == ("CPU", on_cpu)
    assert load_bytes("cpu", "bf16") == ("CPU", on_cpu | {"INFERENCE_PRECISION_HINT": "bf16"})
    assert load_bytes("gpu.0", "off") == ("GPU.0", latency | {"INFERENCE_PRECISION_HINT": "f32"})
    with pytest.raises(ConfigError, match=r"^a.onnx: OpenVINO has no device 'npu' here \(it has CPU, GPU.0\); use"):
        load_bytes("npu", "off")
    with pytest.raises(ConfigError, match="OpenVINO does not compute in fp16 on CPU here; use amp auto"):
        load_bytes("cpu", "fp16")


def calibration_images() -> list[np.ndarray]:
    return list(images(4, 64, 128))


@pytest.fixture(scope="module")
def quantized() -> tuple[Any, Any]:
    """A network with every second bias 0, as without training: as it is quantized, and in 8 bits."""
    pytest.importorskip("onnxruntime")
    network = random_network().eval()
    for module in [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)][::2]:
        nn.init.zeros_(module.bias)
        nn.init.zeros_(module.running_mean)
    unquantized = build_onnx(network, Config(), for_quantization=True)
    return unquantized, quantize_onnx(unquantized, Config(), calibration_images())


def test_all_convolutions_but_two_of_an_8_bit_file_are_in_8_bits(model: Any, quantized: tuple[Any, Any]) -> None:
    """Two products of 8-bit numbers fit into 16 bits, because processors without VNNI cut off larger sums."""
    graph = quantized[1].graph
    counts = [[node.op_type for node in nodes].count("ConvTranspose") for nodes in (model.graph.node, graph.node)]
    assert counts == [8, 0]  # four in each of two stacks
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


def test_calibration_images_are_resized_as_for_prediction_and_come_from_all_parts(tmp_path: Path, model: Any) -> None:
    letterbox = Predictor(LinearSpotNetwork(), InferenceConfig(height=64)).letterbox

    def prepare(image: np.ndarray) -> np.ndarray:
        return letterbox((image.shape[0], image.shape[1])).apply(image)

    files = []
    for value in range(CALIBRATION_IMAGES + 10):
        files.append(tmp_path / f"{value:03d}.png")
        write_image(files[-1], np.full((100, 200, 3), value, np.uint8))
    chosen = read_calibration_images(files, prepare)
    values = [int(image[0, 0, 0]) for image in chosen]
    assert values == sorted(set(values)) and len(values) == CALIBRATION_IMAGES
    assert values[0] == 0 and values[-1] == len(files) - 1
    assert {image.shape for image in chosen} == {(64, 128, 3)} and len(read_calibration_images(files[:5], prepare)) == 5
    with pytest.raises(DataError, match="no images for calibration"):
        quantize_onnx(model, Config(), [])


def test_quantizing_without_a_runtime_names_the_packages(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="onnx and onnxruntime"):
        quantize_onnx(model, Config(), calibration_images())

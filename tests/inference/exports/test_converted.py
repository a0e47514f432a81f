"""Checkpoints that run in OpenVINO or ONNX Runtime: the choice of the runtime, and the cache."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from posenet import extensions
from posenet.checkpoints.weights import stored_config
from posenet.files import sha256_of
from posenet.inference.exports import onnx_export
from posenet.inference.exports.onnx_export import FEW_IMAGES
from posenet.inference.networks import TorchNetwork, load_network
from posenet.inference.predictor import Predictor
from posenet.settings import Config, config_to_dict, load_config
from tests.helpers.networks import write_checkpoint

pytest.importorskip("onnx", reason="converting needs onnx")
IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "converted"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny.pth", "inference.height=64", "data.train=a.h5")


def test_a_converted_checkpoint_computes_the_maps_of_pytorch(checkpoint: Path, runtime: str) -> None:
    """Both runtimes use the same file."""
    options: dict[str, Any] = {"device": "cpu", "amp": "off", "keep_maps": True}
    expected = Predictor(checkpoint, backend="torch", **options)(IMAGE).maps
    for _ in range(2):
        predictor = Predictor(checkpoint, backend=runtime, **options)
        np.testing.assert_allclose(predictor(IMAGE).maps, expected, atol=2e-3 * np.abs(expected).max())
        assert predictor.settings.height == 64


@pytest.fixture
def fake_conversion(home: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Conversions take no time: the model is the configuration. Its calls are those that load a model."""

    def build(network: object, config: Config) -> Mock:
        return Mock(SerializeToString=lambda: json.dumps(config_to_dict(config)).encode())

    load = Mock(side_effect=lambda *args: lambda images: images)
    monkeypatch.setattr(onnx_export, "build_onnx", build)
    monkeypatch.setattr(onnx_export, "ExportedNetwork", load)
    return load


@pytest.fixture
def is_converted(checkpoint: Path, fake_conversion: Mock, caplog: pytest.LogCaptureFixture) -> Callable[..., bool]:
    """Whether the checkpoint is converted for a predictor, with its settings or with some others."""

    def load(*settings: str) -> bool:
        base = stored_config(checkpoint)
        config = load_config(None, settings, base=base) if settings else None
        caplog.clear()
        used = load_network(checkpoint, config, device="cpu", amp="off", backend="openvino")[1]
        assert used == (config or base), "of now, and not of when it was converted"
        return "is converted" in caplog.text

    return load


def test_a_checkpoint_is_converted_once(checkpoint: Path, home: Path, is_converted: Callable[..., bool]) -> None:
    """Again if its bytes are others, or what was kept is damaged."""
    assert is_converted() and not is_converted()
    [file] = home.iterdir()
    for damaged in (file.read_bytes()[:-1], b"", b"?" + file.read_bytes()[1:]):
        file.write_bytes(damaged)
        assert is_converted() and not is_converted()
    write_checkpoint(checkpoint, "inference.height=192")
    assert is_converted() and len([*home.iterdir()]) == 2


def test_a_checkpoint_is_converted_again_for_other_settings_of_its_network_and_by_other_code(
    is_converted: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_converted() and is_converted("model.conv_std=0.1")
    for name in ("layers.py", "onnx_export.py", "runtimes.py"):
        with monkeypatch.context() as patch:
            patch.setattr(onnx_export, "sha256_of", lambda file: name if file.name == name else sha256_of(file))
            assert is_converted()
    assert not is_converted("inference.height=128", "tracking.smooth=true", "data.train=b.h5")


def test_a_network_of_the_user_is_converted_on_request_and_not_kept(
    tmp_path: Path, home: Path, is_converted: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code may change, and PyTorch runs it as it is."""
    (tmp_path / "network_of_user.py").write_text("from posenet.model.posenet import PoseNet")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(extensions, "_folders", {})
    extensions.allow("network_of_user:PoseNet", tmp_path)
    checkpoint = write_checkpoint(tmp_path / "tiny.pth", "model.network=network_of_user:PoseNet")
    try:
        assert is_converted() and is_converted() and not home.exists()
        assert isinstance(Predictor(checkpoint, device="cpu", amp="off").network, TorchNetwork)
    finally:
        sys.modules.pop("network_of_user", None)


def test_few_images_run_in_pytorch_unless_the_checkpoint_is_converted(
    checkpoint: Path, home: Path, fake_conversion: Mock, caplog: pytest.LogCaptureFixture
) -> None:
    def backend(num_images: int | None) -> str:
        network = Predictor(checkpoint, device="cpu", amp="off", num_images=num_images).network
        return "torch" if isinstance(network, TorchNetwork) else fake_conversion.call_args.args[1]

    assert backend(1) == backend(FEW_IMAGES) == "torch" and not home.exists()
    assert caplog.text.count("runs with PyTorch") == 2
    runtime = backend(FEW_IMAGES + 1)
    assert runtime != "torch" and backend(1) == backend(None) == runtime


def test_a_cache_that_cannot_be_written_is_no_error(
    home: Path, is_converted: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    home.parent.write_text("a file")
    assert is_converted() and is_converted()
    assert "not kept" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="the list of users is that of POSIX")
def test_without_a_home_nothing_is_kept(is_converted: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is not in its list."""
    for name in ("HOME", "POSENET_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert is_converted() and is_converted()


def test_the_cache_keeps_the_newest_files_and_no_leftovers(
    checkpoint: Path, home: Path, is_converted: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "MAX_FILES", 2)
    (home / "folder").mkdir(parents=True)  # of somebody; it does not stop the removal
    for age, name in ((9, ".0123.7.tmp"), (8, "old.onnx"), (7, "new.onnx")):  # the first of a process that was killed
        (home / name).touch()
        os.utime(home / name, (time.time() - age, time.time() - age))
    assert is_converted() and not is_converted()
    kept = {path.name for path in home.iterdir()}
    assert {"folder", "new.onnx"} < kept and len(kept) == 3


@pytest.mark.parametrize("amp, expected", [("auto", "off"), ("bf16", "bf16")])
def test_a_converted_network_is_as_accurate_as_pytorch_if_not_told_otherwise(
    checkpoint: Path, fake_conversion: Mock, monkeypatch: pytest.MonkeyPatch, amp: Any, expected: str
) -> None:
    """PyTorch computes in float32 where the CPU does not compute in bf16."""
    monkeypatch.setattr("posenet.devices.precision.computes_in_bf16", lambda device: False)
    for device in ("auto", "cpu"):
        load_network(checkpoint, None, device=device, amp=amp, backend="openvino")
        assert fake_conversion.call_args.args[4] == expected


@pytest.mark.parametrize(
    "missing, amp, fastest",
    [
        ("", "off", "OpenVINO"),
        ("openvino", "off", "ONNX Runtime"),
        ("openvino", "bf16", "PyTorch"),
        ("", "fp16", "PyTorch"),
        ("openvino onnxruntime", "off", "PyTorch"),
        ("onnx", "off", "PyTorch"),
        ("posenet.inference.exports", "off", "PyTorch"),
    ],
)
def test_the_fastest_runtime_that_is_installed_and_as_accurate_is_chosen(
    checkpoint: Path,
    fake_conversion: Mock,
    missing: str,
    amp: Any,
    fastest: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a CPU that computes in bf16, but not in fp16."""
    monkeypatch.setattr("posenet.devices.precision.computes_in_bf16", lambda device: True)
    for package in {"onnx", "openvino", "onnxruntime"} - {*missing.split()}:
        pytest.importorskip(package)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing.split() else find_spec(name))
    network = Predictor(checkpoint, device="cpu", amp=amp).network
    assert isinstance(network, TorchNetwork) == (fastest == "PyTorch")
    assert f"{checkpoint} runs with {fastest} on cpu" in caplog.text

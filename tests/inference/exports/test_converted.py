"""Checkpoints that run in OpenVINO or ONNX Runtime: the choice of the runtime, and the cache."""

from __future__ import annotations

import importlib.util
import json
import unittest.mock
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.inference.exports.runtimes import ExportedNetwork
from posenet.inference.networks import FEW_IMAGES, TorchNetwork, load_network
from posenet.inference.predictor import Predictor
from posenet.settings import Config, config_to_dict, load_config
from tests.helpers.networks import write_checkpoint
from tests.helpers.spot_networks import LinearSpotNetwork

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
    expected = Predictor(checkpoint, device="cpu", amp="off", backend="torch").compute_maps(IMAGE)
    for _ in range(2):
        predictor = Predictor(checkpoint, device="cpu", amp="off", backend=runtime)  # type: ignore[arg-type]
        np.testing.assert_allclose(predictor.compute_maps(IMAGE), expected, atol=2e-3 * np.abs(expected).max())
        assert predictor.settings.height == 64


@pytest.fixture
def fake_conversion(home: Path, monkeypatch: pytest.MonkeyPatch) -> unittest.mock.Mock:
    """Conversions take no time: the model is the configuration."""

    def build(network: object, config: Config) -> unittest.mock.Mock:
        return unittest.mock.Mock(SerializeToString=lambda: json.dumps(config_to_dict(config)).encode())

    def load_model(model: bytes, *args: object, **options: object) -> tuple[ExportedNetwork, dict[str, str]]:
        return ExportedNetwork(LinearSpotNetwork(), ()), {"posenet.config": model.decode()}

    load = unittest.mock.Mock(side_effect=load_model)
    monkeypatch.setattr("posenet.inference.exports.converted.build_onnx", build)
    monkeypatch.setattr("posenet.inference.exports.converted.load_onnx", load)
    return load


def test_a_checkpoint_is_converted_once(
    checkpoint: Path, home: Path, fake_conversion: unittest.mock.Mock, caplog: pytest.LogCaptureFixture
) -> None:
    """Again if its bytes or the settings are others, or if the file is damaged."""

    def is_converted(expected_height: int, config: Config | None = None) -> bool:
        caplog.clear()
        predictor = Predictor(checkpoint, config=config, device="cpu", amp="off", backend="openvino")
        assert predictor.settings.height == expected_height
        return "converted once" in caplog.text

    assert is_converted(64) and not is_converted(64)
    [file] = home.iterdir()
    base = load_network(checkpoint, None, device="cpu", amp="off", backend="torch")[1]
    higher = load_config(None, ["inference.height=128"], base=base)
    assert is_converted(128, higher) and not is_converted(128, higher) and not is_converted(64)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert is_converted(64)
    write_checkpoint(checkpoint, "inference.height=192")
    assert is_converted(192) and len([*home.iterdir()]) == 3


def test_few_images_run_in_pytorch_unless_the_checkpoint_is_converted(
    checkpoint: Path, home: Path, fake_conversion: unittest.mock.Mock
) -> None:
    def backend(num_images: int | None) -> str:
        network = Predictor(checkpoint, device="cpu", amp="off", num_images=num_images).network
        return "torch" if isinstance(network, TorchNetwork) else fake_conversion.call_args.args[1]

    assert backend(1) == backend(FEW_IMAGES) == "torch" and not home.exists()
    runtime = backend(FEW_IMAGES + 1)
    assert runtime != "torch" and backend(1) == backend(None) == runtime


def test_a_cache_that_cannot_be_written_is_no_error(
    checkpoint: Path, home: Path, fake_conversion: unittest.mock.Mock, caplog: pytest.LogCaptureFixture
) -> None:
    home.parent.write_text("a file")
    assert isinstance(Predictor(checkpoint, device="cpu", amp="off").network, ExportedNetwork)
    assert "not kept" in caplog.text


def test_the_cache_keeps_the_files_that_were_used_last(
    checkpoint: Path, home: Path, fake_conversion: unittest.mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.inference.exports.converted.MAX_FILES", 2)
    for _ in range(3):
        for height in (64, 128):
            write_checkpoint(checkpoint, f"inference.height={height}")
            Predictor(checkpoint, device="cpu", amp="off")
    kept = {*home.iterdir()}
    write_checkpoint(checkpoint, "inference.height=192")
    Predictor(checkpoint, device="cpu", amp="off")
    assert len([*home.iterdir()]) == 2 and len(kept & {*home.iterdir()}) == 1


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("amp, expected", [("auto", "off"), ("bf16", "bf16")])
def test_a_converted_network_is_as_accurate_as_pytorch_if_not_told_otherwise(
    checkpoint: Path,
    fake_conversion: unittest.mock.Mock,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    amp: Any,
    expected: str,
) -> None:
    """PyTorch computes in float32 where the CPU does not compute in bf16."""
    monkeypatch.setattr("posenet.devices.precision.computes_in_bf16", lambda device: False)
    load_network(checkpoint, None, device=device, amp=amp, backend="openvino")
    assert fake_conversion.call_args.kwargs["amp"] == expected


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
    fake_conversion: unittest.mock.Mock,
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

"""The comparison of the family's networks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from posenet.benchmark.family import count_parameters_and_gflop, set_norm_statistics
from posenet.errors import CheckpointError
from posenet.inference import onnx_quantization
from posenet.inference.calibration import draw_calibration_images
from posenet.inference.letterbox import Letterbox
from posenet.inference.onnx_quantization import quantize_all_blocks
from posenet.settings import load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark
from tests.helpers.networks import tiny_network


def require_int8() -> None:
    for package in onnx_quantization.PACKAGES:
        pytest.importorskip(package, reason="pip install posenet[int8]")


FILES = ["config/simplepose_tiny.toml", "config/simplepose_small.toml", "config/simplepose_384.toml"]


def test_every_network_has_a_row_with_its_speeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_int8()
    numbers = run_benchmark(tmp_path, "network", "--all", "--input-size", "128", *TINY_NETWORK)
    assert list(numbers["networks"]) == ["simplepose_tiny", "simplepose_small", "simplepose_384"]
    assert_positive(numbers, "float32_peak_gflop_per_s", "bf16_peak_gflop_per_s")
    for network in numbers["networks"].values():
        assert network.pop("memory_mib") >= 0  # a network as small as here fits into memory that the imports have freed
        assert_positive(network, *network)
        speeds = {f"{name}_images_per_s" for name in ("float32", "bf16", "converted", "int8")}
        assert {"parameters", "gflop"} | speeds <= network.keys()
    assert re.search(r"int8: run by (OpenVINO|ONNX Runtime), all convolutions in 8 bits", capsys.readouterr().out)


def test_without_the_packages_of_8_bits_the_table_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_quantization, "PACKAGES", ("onnx", "absent_package"))
    numbers = run_benchmark(tmp_path, "network", "--all", "--input-size", "128", *TINY_NETWORK)
    for network in numbers["networks"].values():
        assert network["int8_images_per_s"] is None and network["converted_images_per_s"] is None
    shown = capsys.readouterr().out
    assert shown.count("missing        missing\n") == 3
    assert "int8: 8-bit networks need the package absent_package; install posenet[int8]\n" in shown


def test_with_the_statistics_of_images_an_untrained_network_can_be_rounded() -> None:
    require_int8()
    images = draw_calibration_images(2, lambda size: Letterbox((64, 64), (64, 64)))
    network = tiny_network(stacks=1)
    with pytest.raises(CheckpointError, match="train the network"):
        quantize_all_blocks(network, images)
    set_norm_statistics(network, images)
    model = quantize_all_blocks(network, images)
    rounded = sum(node.op_type == "Conv" for node in model.graph.node)
    weights = [tensor for tensor in model.graph.initializer if len(tensor.dims) == 4]
    assert len(weights) == rounded and {tensor.data_type for tensor in weights} == {3}  # TensorProto.INT8


def test_the_networks_are_listed_by_size_and_the_largest_is_the_published_one() -> None:
    sizes = [count_parameters_and_gflop(load_config(path), 384) for path in FILES]
    assert sizes == sorted(sizes)
    parameters, gflop = sizes[-1]
    assert parameters == pytest.approx(129.0e6, rel=1e-3)
    assert gflop < 529 * (384 / 512) ** 2  # 529 GFLOP for all predictions at 512 x 512

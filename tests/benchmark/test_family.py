"""The comparison of the family's networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.benchmark.family import count_parameters_and_gflop
from posenet.settings import load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark

FILES = ["config/simplepose_tiny.toml", "config/simplepose_small.toml", "config/simplepose_384.toml"]


def test_every_network_has_a_row_with_its_speeds(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "network", "--all", "--input-size", "128", *TINY_NETWORK)
    assert list(numbers["networks"]) == ["simplepose_tiny", "simplepose_small", "simplepose_384"]
    assert_positive(numbers, "float32_peak_gflop_per_s", "bf16_peak_gflop_per_s")
    for network in numbers["networks"].values():
        assert network.pop("memory_mib") >= 0  # a network as small as here fits into memory that the imports have freed
        assert_positive(network, *network)
        assert {"parameters", "gflop", "float32_images_per_s", "bf16_images_per_s"} <= network.keys()


def test_the_networks_are_listed_by_size_and_the_largest_is_the_published_one() -> None:
    sizes = [count_parameters_and_gflop(load_config(path), 384) for path in FILES]
    assert sizes == sorted(sizes)
    parameters, gflop = sizes[-1]
    assert parameters == pytest.approx(129.0e6, rel=1e-3)
    assert gflop < 529 * (384 / 512) ** 2  # 529 GFLOP for all predictions at 512 x 512

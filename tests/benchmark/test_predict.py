"""The benchmark of prediction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenet.inference.backends.graph import RUNTIMES
from posenet.model.posenet import PoseNet
from posenet.settings import config_to_dict, load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark
from tests.helpers.runtimes import require_runtime
from tests.helpers.spot_data import export_spot_network


def test_numbers_for_a_folder_of_images(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    numbers = run_benchmark(tmp_path, "predict", coco[0], "--height", "64", "--amp", "off", "--compare", *TINY_NETWORK)
    assert_positive(
        numbers,
        "stage_ms",
        "whole_ms",
        "network_ms",
        "pictures_per_s",
        "whole_over_network",
        "stream_ms",
        "alone_ms",
        "trained_ms",
        "stream_over_alone",
        "waited_share",
    )
    assert list(numbers["wait_ms"]) == ["read", "prepare", "decode", "draw", "write"]
    assert sum(numbers["wait_ms"].values()) < numbers["stream_ms"]
    assert numbers["amp"] == "off"
    assert list(numbers["stage_ms"]) == ["read", "prepare", "network", "decode", "draw"]
    assert numbers["pictures"] == 3


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_other_backends_and_exported_files_are_measured(
    runtime: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, coco: tuple[Path, Path]
) -> None:
    require_runtime(runtime)
    path = export_spot_network(tmp_path_factory.mktemp("onnx") / "spots.onnx", height=64)
    flags = [coco[0], "--backend", runtime, "--amp", "off"]
    for network in (["--checkpoint", path], ["--height", "64", *TINY_NETWORK]):
        numbers = run_benchmark(tmp_path, "predict", *flags, *network)
        assert_positive(numbers, "stream_ms", "alone_ms", "network_ms")
        assert numbers["backend"] == runtime
        assert numbers["outside_share"] < 1 and numbers["outside_cpu_share"] < 1
        assert list(numbers["stage_ms"]) == ["read", "prepare", "network", "decode", "draw"]


def test_a_checkpoint_brings_its_own_settings(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = load_config(None, TINY_NETWORK[1:] + ["inference.height=64"])
    path = tmp_path_factory.mktemp("run") / "last.pth"
    torch.save({"model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)}, path)
    assert_positive(run_benchmark(tmp_path, "predict", "--checkpoint", path), "whole_ms")

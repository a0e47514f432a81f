"""The benchmark of prediction."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posenet.benchmark.predict import predict_one
from posenet.benchmark.timing import Stopwatch
from posenet.images import write_image
from posenet.inference.backends.graph import RUNTIMES
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import InferenceConfig, config_to_dict, load_config
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive, run_benchmark
from tests.helpers.runtimes import require_runtime
from tests.helpers.spot_data import export_spot_network
from tests.helpers.spot_networks import SpotNetwork, spot_image


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
    flags = [coco[0], "--backend", runtime, "--amp", "off", "--threads", "2"]
    for network in (["--checkpoint", path], ["--height", "64", *TINY_NETWORK]):
        numbers = run_benchmark(tmp_path, "predict", *flags, *network)
        assert_positive(numbers, "stream_ms", "alone_ms", "network_ms", "parallel_runs")
        assert numbers["backend"] == runtime
        assert numbers["outside_share"] < 1 and numbers["outside_cpu_share"] < 1
        for name in ("alone_in_parallel_ms", "outside_share_in_parallel", "outside_cpu_share_in_parallel"):
            assert (numbers[name] is not None) == (numbers["parallel_runs"] > 1)
        assert (numbers["wait_ms"] is None) == (numbers["parallel_runs"] > 1)
        assert list(numbers["stage_ms"]) == ["read", "prepare", "network", "decode", "draw"]


def test_a_checkpoint_brings_its_own_settings(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = load_config(None, TINY_NETWORK[1:] + ["inference.height=64"])
    path = tmp_path_factory.mktemp("run") / "last.pth"
    torch.save({"model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)}, path)
    assert_positive(run_benchmark(tmp_path, "predict", "--checkpoint", path), "whole_ms")


def test_only_people_that_predict_draws_are_drawn(tmp_path: Path) -> None:
    class Halved(SpotNetwork):
        """Finds spots with half of their scores."""

        def heatmaps(self, images: torch.Tensor) -> torch.Tensor:
            return super().heatmaps(images) / 2

    paths = [tmp_path / "a.png"]
    write_image(paths[0], spot_image(97, 131, (40.2, 20.0), (90.0, 60.4), 4))
    counts = []
    for network in (SpotNetwork(), Halved()):
        predictor = Predictor(network, InferenceConfig(height=128))
        [person] = predictor(paths[0])
        counts.append((predict_one(predictor, paths[0], unused_stopwatch()), person.score >= 0.25))
    assert counts == [(1, True), (0, False)]


def unused_stopwatch() -> Stopwatch:
    stopwatch = Stopwatch()
    stopwatch.start_round()
    return stopwatch

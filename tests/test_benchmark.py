"""The benchmarks of ``tools/benchmark.py``, each on tiny input: the numbers that it promises, and wrong input."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import benchmark
import pytest
import torch
from benchmarks.gpu import pck

from posenet.checkpoints.file import write_checkpoint
from posenet.settings import config_to_dict, load_config
from tests.helpers.networks import random_network
from tests.helpers.simulated_device import simulated_environment
from tests.helpers.source_files import ROOT

NETWORK = ["model.stacks=1", "model.width=16", "model.growth=2"]
TINY = ["--set", *NETWORK, "train.input_size=64", "train.batch_size=2", "train.amp=off", "inference.height=128"]
NUMBERS = {
    "data": ["samples_per_s", "bound_samples_per_s", "share_of_bound", "bytes_per_sample", "loader_samples_per_s"],
    "targets": ["1_people_ms_per_image", "4_people_ms_per_image", "filling_the_maps_with_zeros_ms_per_image"],
    "network": ["gflop_per_image", "off_images_per_s", "off_share_of_matmul"],
    "train": ["step_ms", "images_per_s", "share_of_matmul"],
    "decode": ["perfect_ap", "perfect_ms_per_image", "degraded_ap", "degraded_ap_without_estimates"],
}
"""Names of numbers above 0 that each benchmark writes."""


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the tool in this process; return its exit status."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the tool sets it; this restores it
    monkeypatch.setattr("sys.argv", ["benchmark.py", *map(str, words)])
    return benchmark.main()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of an untrained network."""
    path = tmp_path / "one.pth"
    config = load_config(None, NETWORK)
    write_checkpoint(path, {"model": random_network(stacks=1).state_dict(), "config": config_to_dict(config)})
    return path


@pytest.fixture
def inputs(stores: dict[str, Path], tiny_coco: Path) -> dict[str, list[object]]:
    """The flags of each benchmark that make it short."""
    return {
        "data": ["--h5", stores["train"], "--samples", 4, "--workers", 1],
        "targets": ["--people", 1, 4],
        "network": ["--amp", "off"],
        "train": [],
        "decode": ["--annotations", tiny_coco / "annotations" / "person_keypoints_train2017.json"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", NUMBERS)
def test_each_benchmark_writes_its_numbers_and_a_table(
    part: str,
    inputs: dict[str, list[object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, page = tmp_path / "out.json", tmp_path / "out.md"
    outputs = ["--json", file, "--markdown", page]
    assert run(monkeypatch, part, *inputs[part], "--repeats", 1, *outputs, *TINY) == 0
    numbers: dict[str, Any] = json.loads(file.read_text())
    for name in NUMBERS[part]:
        assert math.isfinite(numbers[name]) and (numbers[name] > 0 or name.startswith("cost")), name
    assert numbers["machine"]["torch"] == torch.__version__
    assert page.read_text() in capsys.readouterr().out
    assert page.read_text().startswith("### ") and "failed" not in page.read_text()


@pytest.mark.slow
def test_networks_are_compared(
    checkpoint: Path, tiny_coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = checkpoint.with_name("other.pth")
    other.write_bytes(checkpoint.read_bytes())
    file = tmp_path / "out.json"
    words = ["predict", tiny_coco / "val2017", "--checkpoint", checkpoint, other, "--backend", "torch", "--limit", 1]
    assert run(monkeypatch, *words, "--repeats", 1, "--json", file) == 0
    numbers = json.loads(file.read_text())
    first, second = (numbers[path.name] for path in (checkpoint, other))
    assert first["network_images_per_s"] > 0 and second["images_per_s"] > 0
    assert first["images_per_batch"] == 1 and first["other_processor_ms_per_image"] > 0
    assert first["people"] == second["people"]


GPU_PARTS = ["tests", "prediction", "steps", "trainings", "loaders"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "openreg"])
def test_the_script_for_a_gpu_runs_in_small_and_writes_every_part(device: str, tmp_path: Path) -> None:
    environment = simulated_environment() if device == "openreg" else os.environ
    words = ["gpu", "--small", "--device", device, "--repeats", 1, "--output", tmp_path, "--parts"]
    # The simulated device is too slow for more.
    parts = GPU_PARTS if device == "cpu" else ["tests", "steps"]
    command = [sys.executable, ROOT / "tools" / "benchmark.py", *words, *parts]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page, numbers = (tmp_path / "gpu.md").read_text(), json.loads((tmp_path / "gpu.json").read_text())
    assert page in done.stdout and "failed: " not in page and "not measured" not in page
    assert set(parts) <= numbers.keys()
    assert numbers["steps"]["eager, batch 2"]["images/s"] > 0 and "aten::" in page
    if device == "openreg":
        assert " passed" in numbers["tests"]["pytest -m gpu"]["result"]
    else:
        assert 0 <= numbers["trainings"]["tiny, 64 pixels"]["PCK@0.2"] <= 1


def test_keypoints_within_a_fifth_of_the_torso_are_correct() -> None:
    names = ["left_shoulder", "right_hip", "right_shoulder", "left_hip"]
    person = {"image_id": 1, "bbox": [0, 0, 50, 100], "keypoints": [0, 0, 2, 0, 100, 2, 0, 0, 0, 5, 5, 1]}
    truth = {"categories": [{"keypoints": names}], "annotations": [person, person | {"image_id": 2}]}
    far = {"image_id": 1, "keypoints": [500, 500, 1] * 4}
    near = {"image_id": 1, "keypoints": [19, 0, 1, 0, 121, 1, 0, 0, 1, 5, 5, 1]}
    assert pck(truth, [far, near]) == pytest.approx(2 / 6)

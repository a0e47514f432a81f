"""The benchmark of the decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posenet.benchmark.decode import measure_decode
from posenet.data.targets import TargetRenderer
from posenet.errors import DataError
from posenet.settings import InferenceConfig, TargetsConfig
from posenet.skeleton import COCO
from tests.helpers.benchmark_runs import assert_positive, run_benchmark


def test_people_are_found_in_perfect_maps(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    numbers = run_benchmark(tmp_path, "decode", "--annotations", coco[1], "--height", "256")
    assert_positive(numbers, "images_per_s", "ms_per_image", "speed_up")
    assert numbers["ap"] > 0.5
    assert numbers["images"] == 3
    assert numbers["height"] == 256


def test_degraded_maps_lower_the_scores_and_depend_on_the_seed_alone(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    arguments = ["decode", "--annotations", coco[1], "--height", "256"]
    perfect = run_benchmark(tmp_path, *arguments)
    degraded = run_benchmark(tmp_path, *arguments, "--degrade", "--seed", "3")
    assert degraded["ap"] < perfect["ap"] <= perfect["bound_ap"] + 1e-6
    assert degraded["errors"]["missed"] >= perfect["errors"]["missed"]
    repeated = run_benchmark(tmp_path, *arguments, "--degrade", "--seed", "3")
    assert repeated["errors"] == degraded["errors"]
    assert repeated["ap"] == degraded["ap"]


def test_synthetic_annotations_are_used_if_none_are_given(tmp_path: Path) -> None:
    assert run_benchmark(tmp_path, "decode", "--height", "128", "--limit", "1")["images"] == 1


def test_people_are_found_in_perfect_maps_of_real_annotations(tmp_path: Path, coco_sample: Path) -> None:
    path = coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json"
    assert run_benchmark(tmp_path, "decode", "--annotations", path)["ap"] > 0.97


def test_the_published_decoder_is_shown_for_its_own_150_images_alone(coco_sample: Path) -> None:
    path = coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json"

    def rows(limit: int | None, seed: int | None = None) -> list[str]:
        renderer = TargetRenderer(TargetsConfig(), COCO)
        report = measure_decode(path, renderer, InferenceConfig(height=64), limit, repeats=1, seed=seed)
        return [str(row[0]) for row in report.rows]

    assert rows(None) == ["ours", "published", "grouped perfectly"]
    assert rows(149) == rows(None, seed=0) == ["ours", "grouped perfectly"]


def test_annotations_without_images_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    category = {"id": 1, "name": "person", "keypoints": list(COCO.file_names)}
    path.write_text(json.dumps({"images": [], "annotations": [], "categories": [category]}))
    with pytest.raises(DataError, match="contains no images"):
        measure_decode(path, TargetRenderer(TargetsConfig(), COCO), InferenceConfig(), limit=None, repeats=1)

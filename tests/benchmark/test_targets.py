"""The benchmark of target maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posenet.benchmark.targets import PEOPLE, standing_people
from posenet.skeleton import COCO
from tests.helpers.benchmark_runs import assert_positive, run_benchmark


def test_numbers_by_number_of_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = run_benchmark(tmp_path, "targets")
    assert_positive(numbers, "samples_per_s", "ms_per_sample", "limit_ms_per_sample")
    assert list(numbers["samples_per_s"]) == [str(people) for people in PEOPLE]
    assert numbers["published_ms_per_sample"] == {"3": 4.3, "10": 11.3, "20": 22.8}
    printed = capsys.readouterr().out
    assert "512 x 512" in printed
    assert "11.3" in printed
    assert torch.__version__ in printed


def test_standing_people_have_the_posture_and_size_of_people() -> None:
    people = standing_people(np.random.default_rng(0), 20, (512, 512))
    assert people.shape == (20, COCO.num_keypoints, 3)
    assert people.dtype == np.float32
    assert (people[..., 2] == 2).all()
    heights = people[:, COCO.index("Rank"), 1] - people[:, COCO.index("nose"), 1]
    assert (heights > 20).all()
    assert (heights < 450).all()
    assert people[:, COCO.index("Lsho"), 0].mean() > people[:, COCO.index("Rsho"), 0].mean()

"""The AP of a network's candidates, grouped by the annotations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posenet.annotations.reading import read_annotations, read_split
from posenet.benchmark.decode import measure_decode, render_maps
from posenet.data.targets import TargetRenderer
from posenet.diagnosis.perfect_grouping import CandidatePredictor, evaluate_perfect_grouping
from posenet.inference.coco_evaluation import SplitOptions, evaluate
from posenet.inference.predictor import Predictor
from posenet.settings import Config, InferenceConfig

SETTINGS = InferenceConfig(height=256, batch_size=1)


class PreparedMapsNetwork(nn.Module):
    """Returns the maps of the images of a split in the order in which they are predicted."""

    def __init__(self, annotations: Path, seed: int) -> None:
        super().__init__()
        dataset = read_annotations(annotations)
        renderer = TargetRenderer.from_config(Config())
        letterbox = Predictor(nn.Identity(), SETTINGS).letterbox
        images = sorted(dataset.images, key=lambda image: image.width / image.height)
        self.maps = [
            render_maps(dataset.people[image.id], image, letterbox((image.height, image.width)), renderer, seed)
            for image in images
        ]

    def heatmaps(self, images: Tensor) -> Tensor:
        maps = self.maps.pop(0)
        self.maps.append(maps)
        return maps


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_bound_of_the_decoder_benchmark(seed: int, tiny_coco: Path) -> None:
    """Degraded maps of drawn people, as a network and in the benchmark."""
    annotations = tiny_coco / "annotations" / "person_keypoints_train2017.json"
    images = tiny_coco / "train2017"
    report = measure_decode(annotations, TargetRenderer.from_config(Config()), SETTINGS, None, 1, seed)
    predictor = Predictor(PreparedMapsNetwork(annotations, seed), SETTINGS)
    metrics = evaluate_perfect_grouping(predictor, images, annotations, read_split(annotations), progress=False)
    assert metrics["AP"] == pytest.approx(report.numbers["bound_metrics"]["AP"], abs=1e-3)
    decoded = evaluate(predictor.stream, images, annotations, SplitOptions(progress=False))
    assert decoded is not None and 0 < decoded.metrics["AP"] <= metrics["AP"] <= 1


def test_each_candidate_is_a_person_with_one_keypoint(tiny_coco: Path) -> None:
    annotations = tiny_coco / "annotations" / "person_keypoints_val2017.json"
    predictor = Predictor(PreparedMapsNetwork(annotations, 0), SETTINGS)
    [people] = CandidatePredictor.like(predictor).batch([torch.zeros(256, 256, 3, dtype=torch.uint8).numpy()])
    assert len(people) > 10
    assert {int(person.found.sum()) for person in people} == {1}

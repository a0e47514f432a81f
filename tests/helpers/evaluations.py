"""Evaluating a function that returns people, without a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from posenet.annotations.people import read_split
from posenet.inference.evaluation import (
    Evaluation,
    compute_coco_metrics,
    find_annotated_images,
    predict_annotated_images,
)
from posenet.inference.media.sources import Frame
from posenet.inference.result import Result
from posenet.person import Person
from posenet.settings import ExifFrame, InferenceConfig
from posenet.skeleton import COCO

Predict = Callable[[Iterable[np.ndarray]], Iterable[list[Person]]]
"""Returns the people in each of several BGR images."""


class FunctionPredictor:
    """What the pipeline needs of a predictor; each image runs alone, in order."""

    settings = InferenceConfig(batch_size=1)
    skeleton = COCO

    def __init__(self, predict: Predict) -> None:
        self.predict = predict

    def input_sizes(self, image_size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return (image_size,)

    def prepare_inputs(self, images: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return images

    def start_network(self, images: Sequence[np.ndarray]) -> Any:
        people = list(self.predict(images))
        return SimpleNamespace(wait=lambda: people)

    def decode_batch(self, pending: object, people: Sequence[list[Person]], frames: Sequence[Frame]) -> list[Result]:
        return [Result(*pair) for pair in zip(frames, people)]


def evaluate_people(
    predict: Predict,
    images: Path,
    annotations: Path,
    *,
    image_ids: Collection[int] | None = None,
    exif_frame: ExifFrame = "displayed",
) -> Evaluation:
    """Compare the people that a function finds with a split, as ``evaluate`` does with those of a network."""
    split = read_split(annotations, image_ids, COCO, images, exif_frame)
    chosen = itertools.chain(*find_annotated_images(images, split.images, 1))
    predictor: Any = FunctionPredictor(predict)
    predicted = predict_annotated_images(predictor, chosen)
    results = [result for item in predicted for result in item.to_coco(split.category)]
    return replace(compute_coco_metrics(results, split), results=results)

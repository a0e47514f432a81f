"""Evaluating a function that returns people, without a network."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from posenet.annotations.reading import read_split
from posenet.inference.evaluation import Evaluation, Predict, compute_coco_metrics, predict_split, sort_by_shape
from posenet.settings import ExifFrame


def evaluate_people(
    predict: Predict,
    images: Path,
    annotations: Path,
    *,
    image_ids: Collection[int] | None = None,
    exif_frame: ExifFrame = "displayed",
) -> Evaluation:
    """Compare the people that a function finds with a split, as ``evaluate`` does with those of a network."""
    split = read_split(annotations, image_ids)
    chosen = sort_by_shape(split.images)
    results = predict_split(predict, images, chosen, split.category, exif_frame=exif_frame, readings={}, progress=False)
    return compute_coco_metrics(results, split)

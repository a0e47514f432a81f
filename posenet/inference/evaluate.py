"""COCO evaluation: predictions for a whole split, the results file, and the ten keypoint numbers."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO as CocoApi
from pycocotools.cocoeval import COCOeval
from tqdm import tqdm

from posenet.errors import DataError
from posenet.inference.images import read_ahead, write_atomically
from posenet.inference.person import Person
from posenet.skeleton import COCO, Skeleton

METRICS = ("AP", "AP50", "AP75", "APM", "APL", "AR", "AR50", "AR75", "ARM", "ARL")
"""COCO's keypoint numbers, in the order of ``COCOeval.stats``."""

PredictBatch = Callable[[Sequence[np.ndarray]], list[list[Person]]]


@dataclass(frozen=True)
class Split:
    """The pictures to predict and, unless it is a test set, what is in them.

    Attributes:
        images: COCO image records, each picture once.
        category: id of the person category.
        dataset: the annotation file.
    """

    images: list[dict[str, Any]]
    category: int
    dataset: dict[str, Any]

    @property
    def annotated(self) -> bool:
        """Whether the people are annotated; those of test-dev are not."""
        return bool(self.dataset.get("annotations"))


@dataclass(frozen=True)
class Evaluation:
    """COCO's keypoint numbers.

    Attributes:
        metrics: value of every one of ``METRICS``, 0-1; -1 where the split holds no such person.
        images: how many pictures they were measured on.
    """

    metrics: dict[str, float]
    images: int

    @property
    def ap(self) -> float:
        """Average precision over OKS 0.50 to 0.95."""
        return self.metrics["AP"]

    def table(self) -> str:
        """Two lines, names over numbers."""
        values = ["-" if value < 0 else f"{value:.3f}" for value in self.metrics.values()]
        return "\n".join("".join(f"{word:>7}" for word in line) for line in (self.metrics, values))


def evaluate(predict_batch: PredictBatch, images_dir: str | Path, annotations: str | Path, *,
             results_path: str | Path | None = None, image_ids: Collection[int] | None = None,
             progress: bool = True, skeleton: Skeleton = COCO) -> Evaluation | None:
    """Predict every picture of a split once and compare with the annotations.

    Args:
        predict_batch: BGR pictures to people, for example ``Predictor.batch``.
        images_dir: folder of the pictures.
        annotations: COCO keypoint JSON, or an image-info JSON without annotations.
        results_path: where to write the predictions as a COCO results file.
        image_ids: restricts the split.
        progress: show a progress bar.

    Returns:
        The numbers, or None where the file holds no annotations.

    Raises:
        DataError: an annotation file or picture that cannot be used.
    """
    split = read_split(annotations, image_ids)
    results = predict_split(predict_batch, images_dir, split.images, split.category, progress=progress)
    if results_path is not None:
        write_atomically(results_path, json.dumps(results).encode())
    return score(results, split, skeleton) if split.annotated else None


def read_split(annotations: str | Path, image_ids: Collection[int] | None = None) -> Split:
    """Read an annotation file; ``image_ids`` restricts the pictures.

    Raises:
        DataError: not a COCO file, one without keypoints, or ids that it does not hold.
    """
    try:
        dataset = json.loads(Path(annotations).read_bytes())
        images = {image["id"]: image for image in dataset["images"]}
        people = dataset.get("annotations") or []
        categories = dataset.get("categories") or [{"id": 1, "name": "person"}]
        category = next((c["id"] for c in categories if c["name"] == "person"), categories[0]["id"])
    except OSError as error:
        raise DataError(f"cannot read {annotations}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{annotations} is not a COCO annotation file ({type(error).__name__}: {error})") from error
    if people and not any("keypoints" in person for person in people):
        raise DataError(f"{annotations} holds no keypoints; use person_keypoints_*.json")
    if image_ids is not None:
        if unknown := set(image_ids) - set(images):
            raise DataError(f"{annotations} has no image {min(unknown)}")
        images = {i: images[i] for i in image_ids}
    if not images:
        raise DataError(f"{annotations} lists no images")
    return Split(list(images.values()), category, dataset)


def predict_split(predict_batch: PredictBatch, images_dir: str | Path, images: Sequence[dict[str, Any]], category: int,
                  *, batch_size: int = 16, progress: bool = True) -> list[dict[str, Any]]:
    """Predictions in COCO's results format, ordered as ``images``.

    Several processes can each take a share of the images and join their lists before ``score``.

    Args:
        images: COCO image records.
        batch_size: pictures handed to ``predict_batch`` at a time.

    Raises:
        DataError: a picture that is missing or cannot be read.
    """
    paths = {image["id"]: Path(images_dir, image["file_name"]) for image in images}
    if missing := [path for path in paths.values() if not os.path.isfile(path)]:
        raise DataError(f"{len(missing)} of {len(paths)} images are missing, for example {missing[0]}; "
                        "check the image folder")
    # Pictures of one shape come together, so that the network gets full batches.
    order = sorted(images, key=lambda image: image.get("width", 1) / max(image.get("height", 1), 1))
    pictures = read_ahead((paths[image["id"]] for image in order), upright=False)
    found: dict[int, list[Person]] = {}
    with tqdm(total=len(order), desc="predict", unit="image", disable=not progress) as bar:
        for start in range(0, len(order), batch_size):
            ids = [image["id"] for image in order[start:start + batch_size]]
            batch = [_sound(next(pictures)) for _ in ids]
            found.update(zip(ids, predict_batch(batch), strict=True))
            bar.update(len(ids))
    return [to_result(person, image["id"], category) for image in images for person in found[image["id"]]]


def to_result(person: Person, image_id: int | str, category: int = 1) -> dict[str, Any]:
    """One entry of a COCO results file.

    COCO asks for a place of every keypoint; those not found get the middle of the others, and score 0.
    """
    keypoints = person.to_coco().astype(float)
    missing = keypoints[:, 2] <= 0
    if not missing.all():
        keypoints[missing, :2] = keypoints[~missing, :2].mean(axis=0)
    return {"image_id": image_id, "category_id": category, "keypoints": keypoints.round(3).ravel().tolist(),
            "score": person.score}


def score(results: Sequence[dict[str, Any]], split: Split, skeleton: Skeleton = COCO) -> Evaluation:
    """COCO's numbers for predictions in the results format, over all pictures of an annotated split."""
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
        truth = CocoApi()
        truth.dataset = split.dataset
        truth.createIndex()
        predictions = CocoApi()
        if results:
            predictions = truth.loadRes(copy.deepcopy(list(results)))
        evaluation = COCOeval(truth, predictions, "keypoints")
        evaluation.params.imgIds = [image["id"] for image in split.images]
        evaluation.params.catIds = [split.category]
        evaluation.params.kpt_oks_sigmas = np.array(skeleton.sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return Evaluation(dict(zip(METRICS, evaluation.stats.tolist())), len(split.images))


def _sound(image: np.ndarray | DataError) -> np.ndarray:
    if isinstance(image, DataError):
        raise image
    return image

"""COCO evaluation: predictions for a whole split, the results file, and the ten keypoint numbers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO as CocoApi
from pycocotools.cocoeval import COCOeval
from tqdm import tqdm

from posenet.annotations.coco_file import checked_image, checked_integer, checked_numbers
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images.image_files import map_ahead, read_image
from posenet.inference.person import Person
from posenet.messages import truncate_for_message
from posenet.skeleton import COCO, Skeleton

WIDEST_TABLE = 120
"""Characters; a wider table of keypoints would be folded by most terminals."""

METRICS = ("AP", "AP50", "AP75", "APM", "APL", "AR", "AR50", "AR75", "ARM", "ARL")
"""COCO's keypoint numbers, in the order of ``COCOeval.stats``."""

Predict = Callable[[Iterable[np.ndarray]], Iterable[list[Person]]]
"""BGR images to the people of each, in order: ``Predictor.stream``, or ``Predictor.batch`` for lists."""


@dataclass(frozen=True)
class Split:
    """The images to predict and who is in them.

    Attributes:
        images: COCO image records (id, file_name, width, height), each image once.
        category: id of the category that has the keypoints, the first where several have them.
        people: COCO annotations of all these categories, as of ``category``; none in a test set.
    """

    images: list[dict[str, Any]]
    category: int
    people: list[dict[str, Any]]

    @property
    def annotated(self) -> bool:
        """Whether there is anything to compare predictions with."""
        return bool(self.people)


@dataclass(frozen=True)
class Evaluation:
    """COCO's keypoint numbers.

    Attributes:
        metrics: value of every one of ``METRICS``, 0-1; -1 where the split holds no such person.
        images: how many images they were measured on.
        keypoints: for every keypoint of the file, its mean share in the OKS, 0-1, over all people in whom it is
            labelled; 0 for people not found at OKS 0.5, -1 where nobody has it labelled.
        precision: (10, 101) precision at OKS 0.50, 0.55 ... 0.95 and recall 0, 0.01 ... 1, over people of any
            size; -1 where the split holds nobody.
    """

    metrics: dict[str, float]
    images: int
    keypoints: dict[str, float] = field(default_factory=dict)
    precision: np.ndarray = field(default_factory=lambda: np.full((10, 101), -1.0), compare=False, repr=False)

    @property
    def ap(self) -> float:
        """Average precision over OKS 0.50 to 0.95."""
        return self.metrics["AP"]

    def table(self) -> str:
        """Two lines, names over numbers."""
        return _two_lines(self.metrics, 7)

    def keypoint_table(self) -> str:
        """The same of ``keypoints``; a line for each where their names are too long to stand side by side."""
        longest = max(map(len, self.keypoints), default=0)
        if len(self.keypoints) * (longest + 2) <= WIDEST_TABLE:
            return _two_lines(self.keypoints, longest + 2)
        return "\n".join(f"{name:>{longest + 2}}  {_number(value)}" for name, value in self.keypoints.items())


def evaluate(
    predict: Predict,
    images_dir: str | Path,
    annotations: str | Path,
    *,
    results_path: str | Path | None = None,
    image_ids: Collection[int] | None = None,
    batch_size: int | None = 16,
    progress: bool = True,
    skeleton: Skeleton = COCO,
) -> Evaluation | None:
    """Predict every image of a split once and compare with the annotations.

    Args:
        predict: BGR images to people.
        images_dir: folder of the images.
        annotations: COCO keypoint JSON, or an image-info JSON without annotations.
        results_path: where to write the predictions as a COCO results file.
        image_ids: restricts the split.
        batch_size: see ``predict_split``.
        progress: show a progress bar.

    Returns:
        The numbers, or None where the file holds no annotations.

    Raises:
        DataError: an annotation file or image that cannot be used.
    """
    split = read_split(annotations, image_ids, skeleton)
    results = predict_split(predict, images_dir, split.images, split.category, batch_size=batch_size, progress=progress)
    if results_path is not None:
        write_atomically(results_path, json.dumps(results).encode())
    return score(results, split, skeleton) if split.annotated else None


def read_split(annotations: str | Path, image_ids: Collection[int] | None = None, skeleton: Skeleton = COCO) -> Split:
    """Read an annotation file; ``image_ids`` restricts the images.

    Raises:
        DataError: not a COCO file, one without keypoints, or ids that it does not hold.
    """
    try:
        dataset = json.loads(Path(annotations).read_bytes())
        images = {image.id: asdict(image) for image in map(checked_image, dataset["images"])}
        categories = dataset.get("categories") or [{"id": 1}]
        names = list(skeleton.file_names)
        chosen = max(
            categories, key=lambda c: (c.get("keypoints") == names, bool(c.get("keypoints")), c.get("name") == "person")
        )
        if chosen.get("keypoints", names) != names:
            raise DataError(
                f"{annotations} has other keypoints, {truncate_for_message(chosen['keypoints'])}, than the network "
                f"({', '.join(names[:3])} ...); use annotations of its skeleton, or set model.skeleton"
            )
        category = checked_integer(chosen, "id", "a category")
        # Categories that share the keypoints, such as several kinds of animals, count as one.
        alike = {category} | {checked_integer(c, "id", "a category") for c in categories if c.get("keypoints") == names}
        people = [person for person in dataset.get("annotations") or [] if person["category_id"] in alike]
        if people and not any("keypoints" in person for person in people):
            raise DataError(f"{annotations} holds people without keypoints; use person_keypoints_*.json")
        people = [_truth(person, len(names)) | {"category_id": category} for person in people]
    except OSError as error:
        raise DataError(f"cannot read {annotations}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{annotations} is not a COCO keypoint file ({reason}); use person_keypoints_*.json") from error
    if image_ids is not None:
        if unknown := set(image_ids) - set(images):
            raise DataError(f"{annotations} has no image {min(unknown)}; look at --image-ids")
        images = {i: images[i] for i in image_ids}
    if not images:
        raise DataError(f"{annotations} lists no images; use person_keypoints_*.json")
    return Split(list(images.values()), category, people)


def _truth(person: dict[str, Any], count: int) -> dict[str, Any]:
    """What the COCO evaluation reads of a person; one without keypoints, such as a crowd, has them all unlabelled."""
    keypoints = person.get("keypoints") or [0] * 3 * count
    if len(keypoints) != 3 * count:
        raise ValueError(f"a person has {len(keypoints) / 3:g} keypoints, not {count}")
    # What COCO's code makes of other values is no error that anybody could read.
    person = person | {"keypoints": keypoints}
    checked_integer(person, "image_id", "a person")
    for key, length in (("keypoints", 3 * count), ("bbox", 4), ("area", 1)):
        checked_numbers({"id": None} | person, key, length)
    if person.get("iscrowd", 0) not in (0, 1):
        raise ValueError(f"a person has iscrowd {truncate_for_message(person['iscrowd'])}")
    return {key: person[key] for key in ("image_id", "area", "bbox")} | {
        "keypoints": keypoints,
        "num_keypoints": sum(v > 0 for v in keypoints[2::3]),
        "iscrowd": person.get("iscrowd", 0),
    }


def predict_split(
    predict: Predict,
    images_dir: str | Path,
    images: Sequence[dict[str, Any]],
    category: int,
    *,
    batch_size: int | None = 16,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Predictions in COCO's results format, ordered as ``images``; images are read ahead meanwhile.

    Several processes can each take a share of the images and join their lists before ``score``.

    Args:
        images: COCO image records.
        batch_size: so many images are handed to ``predict`` at a time, in a list. None hands them all over as one
            iterator, so that ``Predictor.stream`` never waits between batches.

    Raises:
        DataError: an image that is missing or cannot be read.
    """
    paths = find_image_files(images_dir, images)
    # Images of one shape come together, so that the network gets full batches.
    order = sorted(images, key=lambda image: image["width"] / max(image["height"], 1))
    read = partial(read_image, upright=False)
    pictures = map_ahead(read, (paths[image["id"]] for image in order), workers=2, ahead=batch_size or 16)
    found: dict[int, list[Person]] = {}
    with tqdm(total=len(order), desc="predict", unit="image", disable=not progress) as bar:
        size = batch_size or max(len(order), 1)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            taken = itertools.islice(pictures, len(batch))
            for image, people in zip(batch, predict(list(taken) if batch_size else taken), strict=True):
                found[image["id"]] = people
                bar.update()
    return [to_result(person, image["id"], category, guess=True) for image in images for person in found[image["id"]]]


def find_image_files(images_dir: str | Path, images: Sequence[dict[str, Any]]) -> dict[int, Path]:
    """The path of every COCO image record, by id; ``DataError`` where any file is missing."""
    paths = {image["id"]: Path(images_dir, image["file_name"]) for image in images}
    if missing := [path for path in paths.values() if not os.path.isfile(path)]:
        raise DataError(
            f"{len(missing)} of {len(paths)} images are missing, for example {missing[0]}; check the image folder"
        )
    return paths


def to_result(person: Person, image_id: int | str, category: int = 1, *, guess: bool = False) -> dict[str, Any]:
    """One entry of a COCO results file; keypoints not found have score 0.

    Args:
        guess: place those in the middle of the others, because COCO compares every keypoint's place whatever
            its score, and takes a person's size from all of them. Otherwise they lie at (0, 0).
    """
    keypoints = person.to_coco().astype(float)
    missing = keypoints[:, 2] <= 0
    if guess and not missing.all():
        keypoints[missing, :2] = keypoints[~missing, :2].mean(axis=0)
    return {
        "image_id": image_id,
        "category_id": category,
        "keypoints": keypoints.round(3).ravel().tolist(),
        "score": person.score,
    }


def score(results: Sequence[dict[str, Any]], split: Split, skeleton: Skeleton = COCO) -> Evaluation:
    """COCO's numbers for predictions in the results format, over all images of an annotated split."""
    truth, predictions = CocoApi(), CocoApi()
    # COCO's code writes into what it is given, and takes an annotation with id 0 for none at all.
    truth.dataset = {
        "images": split.images,
        "categories": [{"id": split.category}],
        "annotations": [person | {"id": i} for i, person in enumerate(split.people, 1)],
    }
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
        truth.createIndex()
        if results:
            predictions = truth.loadRes([dict(result) for result in results])
        evaluation = COCOeval(truth, predictions, "keypoints")
        evaluation.params.kpt_oks_sigmas = np.array(skeleton.sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return Evaluation(
        dict(zip(METRICS, evaluation.stats.tolist())),
        len(split.images),
        dict(zip(skeleton.file_keypoints, _likeness(evaluation).tolist())),
        evaluation.eval["precision"][:, :, 0, 0, 0],
    )


def _likeness(evaluation: COCOeval) -> np.ndarray:
    """Each keypoint's mean share in the OKS over people of any size, as matched at OKS 0.5."""
    variances = (2 * evaluation.params.kpt_oks_sigmas) ** 2
    total, count = np.zeros((2, len(variances)))
    for image in evaluation.evalImgs:
        if image is None or image["aRng"] != evaluation.params.areaRng[0]:
            continue
        for identity, ignored, match in zip(image["gtIds"], image["gtIgnore"], image["gtMatches"][0]):
            person = evaluation.cocoGt.anns[identity]
            true = np.array(person["keypoints"], float).reshape(-1, 3)
            labelled = (true[:, 2] > 0) & (not ignored)
            count += labelled
            if match:
                found = np.array(evaluation.cocoDt.anns[int(match)]["keypoints"], float).reshape(-1, 3)
                square = ((found[:, :2] - true[:, :2]) ** 2).sum(axis=1)
                total += labelled * np.exp(-square / (2 * variances * max(person["area"], 1e-9)))
    return np.where(count > 0, total / np.maximum(count, 1), -1)


def _two_lines(values: dict[str, float], width: int) -> str:
    return "\n".join("".join(f"{word:>{width}}" for word in line) for line in (values, map(_number, values.values())))


def _number(value: float) -> str:
    return "-" if value < 0 else f"{value:.3f}"

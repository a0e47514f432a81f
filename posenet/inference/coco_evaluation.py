"""COCO evaluation: predictions for a whole split, the results file, and the ten keypoint metrics."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pycocotools.coco import COCO as CocoApi
from pycocotools.cocoeval import COCOeval

from posenet.annotations.coco import CocoImage
from posenet.annotations.reading import Split, read_split
from posenet.devices.background import map_in_background
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images import AnnotatedFrame, count_frames, read_annotated_image
from posenet.inference.decoder.pose_model import estimate_missing_keypoints
from posenet.inference.person import Person
from posenet.inference.shared_work import ItemFormat, Team, UnitItem, share_units
from posenet.messages import pluralize
from posenet.progress import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton

_log = logging.getLogger(__name__)

MAX_TABLE_WIDTH = 120
"""Characters; most terminals would fold a wider table."""

METRICS = ("AP", "AP50", "AP75", "APM", "APL", "AR", "AR50", "AR75", "ARM", "ARL")
"""COCO's keypoint metrics, in the order of ``COCOeval.stats``."""

Result = dict[str, Any]
"""One person in COCO's results format: image_id, category_id, keypoints, score."""

Predict = Callable[[Iterable[np.ndarray]], Iterable[list[Person]]]
"""Returns the people in each of several BGR images, such as ``Predictor.stream``."""


@dataclass(frozen=True)
class Evaluation:
    """COCO's keypoint metrics of predictions; -1 where the split has no people to compute a value from."""

    metrics: dict[str, float]
    """Value of each of ``METRICS``, 0-1."""
    images: int
    """Number of images in the split."""
    keypoints: dict[str, float] = field(default_factory=dict)
    """For every keypoint of the annotation file, its mean similarity, 0-1, over all people in whom it is labelled.
    Similarity is the keypoint's term in the OKS, and 0 in people not found at OKS 0.5."""
    precision: np.ndarray = field(default_factory=lambda: np.full((10, 101), -1.0), compare=False, repr=False)
    """(10, 101) precision at OKS 0.50, 0.55 ... 0.95 and recall 0, 0.01 ... 1, for people of any size."""
    results: Sequence[Result] = field(default=(), compare=False, repr=False)
    """The predictions themselves, in COCO's results format, as ``evaluate`` returns them."""

    def table(self) -> str:
        """The metrics as two lines, names above values."""
        return _two_line_table(self.metrics, 7)

    def keypoint_table(self) -> str:
        """The similarities of the keypoints as two lines, or as one line each if two lines would be too wide."""
        width = max(map(len, self.keypoints), default=0) + 2
        if len(self.keypoints) * width <= MAX_TABLE_WIDTH:
            return _two_line_table(self.keypoints, width)
        return "\n".join(f"{name:>{width}}  {_format(value)}" for name, value in self.keypoints.items())


@dataclass(frozen=True)
class SplitOptions:
    """How the images of a split are read, shared among processes, and reported."""

    exif_frame: ExifFrame = DataConfig.exif_frame
    """Frame of the annotations where an image's EXIF orientation and size leave it open; see ``find_annotated_frame``.
    The people are in the frame of the annotations."""
    skeleton: Skeleton = COCO
    """Skeleton of the people."""
    team: Team | None = None
    """The processes that share the images; None if this process predicts them all. Only rank 0 receives the people."""
    unit_size: int = 16
    """Number of images that a rank of the team predicts in a row. If it is a multiple of the predictor's batch size,
    the batches do not depend on the number of ranks."""
    progress: bool = True
    """Show a progress bar."""
    log_frames: bool = True
    """Log how many images with an EXIF orientation are annotated in which frame."""

    @property
    def is_main(self) -> bool:
        """Whether this process receives the people in all images."""
        return self.team is None or self.team.rank == 0


def evaluate(
    predict: Predict,
    images_dir: str | Path,
    annotations: str | Path,
    options: SplitOptions = SplitOptions(),  # it is immutable
    *,
    results_path: str | Path | None = None,
    image_ids: Collection[int] | None = None,
) -> Evaluation | None:
    """Predict every image of a split once and compare the predictions with the annotations, if the file has any.

    Args:
        annotations: COCO keypoint JSON, or an image-info JSON without annotations.
        results_path: where to write the predictions as a COCO results file.
        image_ids: restricts the split.

    Returns:
        None if the file has no annotations, and on all ranks of a team but rank 0, which alone writes the results.

    Raises:
        DataError: an annotation file or image cannot be used.
    """
    split = read_split(annotations, image_ids, options.skeleton)
    results = predict_split(predict, images_dir, split.images, split.category, options)
    if not options.is_main:
        return None
    if results_path is not None:
        write_atomically(results_path, json.dumps(results).encode())
    if not split.annotated:
        return None
    return replace(compute_coco_metrics(results, split, options.skeleton), results=results)


def predict_split(
    predict: Predict,
    images_dir: str | Path,
    images: Sequence[CocoImage],
    category: int,
    options: SplitOptions = SplitOptions(),
) -> list[Result]:
    """Predict images, and return the people in COCO's results format, in the order of ``images``.

    Several processes can each predict a share of the images and join their lists for ``compute_coco_metrics``.

    Args:
        category: id of the category in the results.

    Raises:
        DataError: an image is missing or cannot be read.
    """
    people_by_image = predict_people(predict, images_dir, images, options)
    if not options.is_main:
        return []
    return [
        to_coco_result(person, image.id, category, fill_missing=True)
        for image in images
        for person in people_by_image[image.id]
    ]


def predict_people(
    predict: Predict,
    images_dir: str | Path,
    images: Sequence[CocoImage],
    options: SplitOptions = SplitOptions(),
) -> dict[int, list[Person]]:
    """Predict images, and return the people by image id: of all images on rank 0, of none on the other ranks of a team.

    Background threads read the next images.

    Raises:
        DataError: an image is missing or cannot be read, or a rank of the team has failed.
        KeyboardInterrupt: another rank has stopped.
        ValueError: ``predict`` does not return as many results as it received images.
    """
    paths = find_image_files(images_dir, images)
    ordered = sort_by_shape(images)
    size = options.unit_size
    units = [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def predict_units(numbers: Sequence[int]) -> Generator[UnitItem[_ImagePeople], None, None]:
        frames: dict[int, AnnotatedFrame] = {}

        def read(image: CocoImage) -> np.ndarray:
            path = paths[image.id]
            pixels, frames[image.id] = read_annotated_image(path, image.height, image.width, options.exif_frame)
            return pixels

        mine = [image for number in numbers for image in units[number]]
        ends = [(number, image is units[number][-1]) for number in numbers for image in units[number]]
        people_of_images = predict(map_in_background(read, mine, workers=2, ahead=max(16, 2 * size)))
        for image, (number, is_last), people in zip(mine, ends, people_of_images, strict=True):
            yield UnitItem(number, _ImagePeople(image.id, people, frames[image.id]))
            if is_last:
                yield UnitItem(number, None)

    people_by_image: dict[int, list[Person]] = {}
    frames: list[AnnotatedFrame] = []
    item_format = _image_people_format(options.skeleton)
    with progress_bar(title="predict", total=len(ordered), disable=not options.progress) as bar:
        for _, item in share_units(range(len(units)), predict_units, options.team, item_format):
            if item is not None:
                people_by_image[item.image_id] = item.people
                frames.append(item.frame)
                bar.update()
    if not options.is_main:
        return {}
    if len(frames) < len(ordered):
        raise KeyboardInterrupt
    if options.log_frames:
        for name, count in count_frames(frames).items():
            _log.info("%s with an EXIF orientation: %s", pluralize(count, "image"), name)
    return people_by_image


class _ImagePeople(NamedTuple):
    """The people in one image."""

    image_id: int
    people: list[Person]
    frame: AnnotatedFrame


def _image_people_format(skeleton: Skeleton) -> ItemFormat[_ImagePeople]:
    """How the people of an image are stored for another process."""

    def encode(item: _ImagePeople) -> list[Any]:
        return [item.image_id, [person.to_stored() for person in item.people], item.frame]

    def decode(stored: list[Any]) -> _ImagePeople:
        image_id, people, frame = stored
        return _ImagePeople(
            image_id, [Person.from_stored(person, skeleton) for person in people], AnnotatedFrame(*frame)
        )

    return ItemFormat(encode, decode)


def sort_by_shape(images: Iterable[CocoImage]) -> list[CocoImage]:
    """Images of the same shape follow each other, so that the network gets full batches."""
    return sorted(images, key=lambda image: image.width / image.height)


def find_image_files(images_dir: str | Path, images: Sequence[CocoImage]) -> dict[int, Path]:
    """Return the path of every image by id; ``DataError`` if any file is missing."""
    paths = {image.id: Path(images_dir, image.file_name) for image in images}
    if missing := [path for path in paths.values() if not os.path.isfile(path)]:
        raise DataError(
            f"{len(missing)} of {len(paths)} images are missing, for example {missing[0]}; check the image folder"
        )
    return paths


def to_coco_result(person: Person, image_id: int | str, category: int = 1, *, fill_missing: bool = False) -> Result:
    """Convert a person to an entry of a COCO results file. Keypoints that were not found have score 0.

    They are at (0, 0), or with ``fill_missing`` where they are most likely, given those found: COCO ignores scores when
    it compares keypoints, and it measures the size of a person over all keypoints.
    """
    keypoints = person.to_coco().astype(float)
    if fill_missing and person.found.any():
        estimate = estimate_missing_keypoints(person.keypoints, person.skeleton)
        keypoints[:, :2] = person.skeleton.to_file_order(estimate)
    return {
        "image_id": image_id,
        "category_id": category,
        "keypoints": keypoints.round(3).ravel().tolist(),
        "score": person.score,
    }


def compute_coco_metrics(results: Sequence[Mapping[str, Any]], split: Split, skeleton: Skeleton = COCO) -> Evaluation:
    """Compare predictions in COCO's results format with all people of an annotated split."""
    truth = CocoApi()
    # pycocotools treats a match with id 0 as no match, so the annotations are numbered from 1.
    truth.dataset = {
        "images": [asdict(image) for image in split.images],
        "categories": [{"id": split.category}],
        "annotations": [person | {"id": number} for number, person in enumerate(split.people, 1)],
    }
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
        truth.createIndex()
        # pycocotools changes the dictionaries that it receives, so it gets copies.
        predictions = truth.loadRes([dict(result) for result in results]) if results else CocoApi()
        evaluation = COCOeval(truth, predictions, "keypoints")
        evaluation.params.kpt_oks_sigmas = np.array(skeleton.sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return Evaluation(
        metrics=dict(zip(METRICS, evaluation.stats.tolist())),
        images=len(split.images),
        keypoints=dict(zip(skeleton.file_keypoints, _keypoint_similarities(evaluation).tolist())),
        precision=evaluation.eval["precision"][:, :, 0, 0, 0],
    )


def _keypoint_similarities(evaluation: COCOeval) -> np.ndarray:
    """(K,) mean similarity of every keypoint over people of any size, as matched at OKS 0.5; see ``Evaluation``.

    The similarity of keypoint k is exp(-d^2 / (2 (2 sigma_k)^2 A)), with d the distance from the annotated keypoint and
    A the person's area. The OKS of a person is its mean over the labelled keypoints.
    """
    variances = (2 * evaluation.params.kpt_oks_sigmas) ** 2
    total = np.zeros(len(variances))
    count = np.zeros(len(variances))
    any_size = evaluation.params.areaRng[0]
    for image in evaluation.evalImgs:
        if image is None or image["aRng"] != any_size:
            continue
        for truth_id, ignored, result_id in zip(image["gtIds"], image["gtIgnore"], image["gtMatches"][0]):
            if ignored:
                continue
            person = evaluation.cocoGt.anns[truth_id]
            annotated = np.array(person["keypoints"], float).reshape(-1, 3)
            labelled = annotated[:, 2] > 0
            count += labelled
            if result_id:
                result = evaluation.cocoDt.anns[int(result_id)]
                predicted = np.array(result["keypoints"], float).reshape(-1, 3)
                squares = ((predicted[:, :2] - annotated[:, :2]) ** 2).sum(axis=1)
                total += labelled * np.exp(-squares / (2 * variances * max(person["area"], 1e-9)))
    return np.where(count > 0, total / np.maximum(count, 1), -1)


def _two_line_table(values: Mapping[str, float], width: int) -> str:
    names = "".join(f"{name:>{width}}" for name in values)
    numbers = "".join(f"{_format(value):>{width}}" for value in values.values())
    return f"{names}\n{numbers}"


def _format(value: float) -> str:
    return "-" if value < 0 else f"{value:.3f}"

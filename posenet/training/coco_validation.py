"""COCO's scores of the network during training, and drawings of its predictions next to the annotations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.reading import read_split
from posenet.devices.cudnn import cudnn_flags
from posenet.devices.precision import select_training_mode
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import DataError
from posenet.inference.coco_evaluation import (
    SplitOptions,
    compute_coco_metrics,
    find_image_files,
    predict_split,
    sort_by_shape,
)
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.model.posenet import PoseNet
from posenet.settings import Config
from posenet.skeleton import Skeleton
from posenet.training.input_stream import exchange_faults
from posenet.training.run_log import RunLog, SilentLog
from posenet.visualization.contact_sheet import contact_sheet, label_tile
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE, draw_people

TILE_SIZE = 320, 426
"""Height and width of a drawing on the contact sheet, in pixels."""


class CocoValidation:
    """Predicts the validation images as ``tools/evaluate.py`` does, in the run's precision, and computes COCO's scores.

    Every rank predicts its share of the images; rank 0 computes the scores and sends them to the others. The log gets a
    contact sheet that shows annotated and predicted people of some images side by side.

    Raises:
        DataError: the annotations or images cannot be used. The run fails before its first epoch.
    """

    def __init__(self, config: Config, network: PoseNet, runtime: Runtime, log: RunLog | SilentLog) -> None:
        self.runtime = runtime
        amp = select_training_mode(runtime.device, config.train).amp
        self.predictor = Predictor.from_config(network, config, device=runtime.device, amp=amp)
        self.images_dir = config.data.val_images
        self.exif_frame = config.data.exif_frame
        self.log = log
        annotations = config.data.val_annotations
        self.split = read_split(annotations, skeleton=config.model.skeleton)
        if not self.split.annotated:
            raise DataError(f"{annotations} contains no annotated people; set data.val_annotations to another file")
        find_image_files(self.images_dir, self.split.images)
        self.share = share_of_rank(self.split.images, runtime.rank, runtime.world_size)
        self.truth = _labelled_people(self.split.people, config.model.skeleton)
        self.drawn_indices = self._choose_drawn(config.log.pictures)
        self.has_logged_frames = False

    @classmethod
    def from_config(
        cls, config: Config, network: PoseNet, runtime: Runtime, log: RunLog | SilentLog
    ) -> CocoValidation | None:
        """The configured validation; None if ``data.val_images`` or ``data.val_annotations`` is not set."""
        data = config.data
        is_configured = data.val_images and data.val_annotations and config.train.evaluate_every
        return cls(config, network, runtime, log) if is_configured else None

    @cudnn_flags(benchmark=False)  # the images have many shapes
    def __call__(self, epoch: int, step: int, check_stop: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Compute COCO's ten keypoint scores, "AP" first.

        ``check_stop`` is called before every image. If it raises ``StopRequested`` on one rank, all ranks raise it.
        """
        drawings: list[np.ndarray] = []
        results: list[dict[str, Any]] | None = None
        error = None
        try:
            results = self._predict(check_stop, drawings)
        except StopRequested:
            pass
        except DataError as caught:
            error = caught
        exchange_faults(self.runtime, error)
        rank_results = self.runtime.gather_objects(results)
        if None in rank_results:
            raise StopRequested
        if drawings:
            columns = 4 if len(drawings) > 4 else 2
            self.log.drawing(f"epoch_{epoch:04d}", contact_sheet(drawings, columns), step)
        scores = None
        if self.runtime.is_main:
            all_results = list(itertools.chain.from_iterable(rank_results))
            scores = compute_coco_metrics(all_results, self.split, self.predictor.skeleton).metrics
        return dict(self.runtime.broadcast_object(scores))

    def _predict(self, check_stop: Callable[[], None], drawings: list[np.ndarray]) -> list[dict[str, Any]]:
        """Predict this rank's share of the images, and append tiles of the images to draw to ``drawings``."""
        drawn_images: dict[int, np.ndarray] = {}

        def watch(images: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
            for index, image in enumerate(images):
                check_stop()
                if index in self.drawn_indices:
                    drawn_images[index] = image
                yield image

        def predict(images: Iterable[np.ndarray]) -> Iterator[list[Person]]:
            for index, people in enumerate(self.predictor.stream(watch(images))):
                if index in drawn_images:
                    drawings.extend(self._draw(index, drawn_images.pop(index), people))
                yield people

        options = SplitOptions(
            exif_frame=self.exif_frame,
            skeleton=self.predictor.skeleton,
            unit_size=self.predictor.settings.batch_size,
            progress=self.log.shows_progress,
            log_frames=not self.has_logged_frames,
        )
        results = predict_split(predict, self.images_dir, self.share, self.split.category, options)
        self.has_logged_frames = True
        return results

    def _draw(self, index: int, image: np.ndarray, predicted: Sequence[Person]) -> list[np.ndarray]:
        """Two tiles of one image: the annotated people and the predicted ones."""
        coco_image = self.share[index]
        truth = self.truth[coco_image.id]
        predicted = [person for person in predicted if person.score >= MIN_SCORE]
        truth_note = f"truth: {pluralize(len(truth), 'person', 'people')}"
        predicted_note = f"predicted: {pluralize(len(predicted), 'person', 'people')}"
        truth_drawing = draw_people(image, truth)
        predicted_drawing = draw_people(image, predicted, keypoint_min_score=KEYPOINT_MIN_SCORE)
        return [
            label_tile(truth_drawing, coco_image.file_name, TILE_SIZE, truth_note),
            label_tile(predicted_drawing, "", TILE_SIZE, predicted_note),
        ]

    def _choose_drawn(self, count: int) -> frozenset[int]:
        """Indices into this rank's share of the images to draw: the same ones every time, evenly spaced.

        The images are sorted by shape, so that even spacing shows different shapes.
        """
        with_people = [index for index, image in enumerate(self.share) if image.id in self.truth]
        spacing = max(1, len(with_people) // max(count, 1))
        return frozenset(with_people[::spacing][:count])


def share_of_rank(images: Sequence[CocoImage], rank: int, world_size: int) -> list[CocoImage]:
    """The images of one rank. Every rank gets about the same number of images of every shape."""
    return sort_by_shape(images)[rank::world_size]


def _labelled_people(annotations: Sequence[dict[str, Any]], skeleton: Skeleton) -> dict[int, list[Person]]:
    """The annotated people with at least one labelled keypoint, by image id."""
    people: dict[int, list[Person]] = {}
    for annotation in annotations:
        keypoints = skeleton.to_network_order(np.reshape(annotation["keypoints"], (1, -1, 3)))[0]
        keypoints[:, 2] = keypoints[:, 2] > 0
        if keypoints[:, 2].any():
            people.setdefault(annotation["image_id"], []).append(Person(keypoints, 1.0, skeleton))
    return people

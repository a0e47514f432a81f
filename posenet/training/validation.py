"""Validation during training: the loss on validation samples, and COCO's scores with drawings of predictions."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from posenet.annotations.people import read_split
from posenet.data.loader import BatchLoader
from posenet.devices.device import cudnn_flags
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import DataError
from posenet.inference.evaluation import (
    AnnotatedResult,
    Sizes,
    compute_coco_metrics,
    find_annotated_images,
    log_resized,
    predict_annotated_images,
    scale_people,
)
from posenet.inference.predictor import Predictor
from posenet.model.build import build_network
from posenet.model.fused import FusedNetwork
from posenet.model.posenet import PoseNet
from posenet.person import Person
from posenet.progress_bar import progress_bar
from posenet.settings import Config
from posenet.training.batches import errors_of_data, log_unreadable, too_many_unreadable
from posenet.training.step import compute_losses
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, draw_people
from posenet.visualization.sheets import contact_sheet, label_tile

NUM_DRAWN = 4
"""Validation images to draw at each evaluation: enough to see what is learned, at no cost beside predicting them."""
TILE_SIZE = 320, 426  # height and width of a drawing on the contact sheet, in pixels


@torch.no_grad()
def validation_loss(
    model: nn.Module, loader: BatchLoader, runtime: Runtime, stop_requested: Callable[[], bool]
) -> float:
    """Mean loss per image of a wrapped ``ModelWithLoss``, over the samples of all ranks; ``loader`` has this rank's.

    ``StopRequested`` if ``stop_requested``, which is called before every batch, returned true on any rank;
    ``DataError`` if a larger share of the samples than ``MAX_UNREADABLE_SAMPLES`` cannot be read.
    """

    @errors_of_data()
    def sums_of_share() -> tuple[float, int, int, bool]:
        """Sum of the losses, number of samples, of replaced ones, and whether to stop."""
        loss, count, replaced = 0.0, 0, 0
        try:
            for batch in progress_bar(loader, "validate", len(loader), unit="batch", leave=False):
                if stop_requested():
                    break
                loss += compute_losses(model, batch, runtime).cpu().double().sum().item()
                count += len(batch.images)
                replaced += log_unreadable([batch])
        except DataError:
            if not stop_requested():  # the signal may have ended the data workers too
                raise
        return loss, count, replaced, stop_requested()

    shares = runtime.gather_objects(runtime.run_on_all(sums_of_share))
    loss, count, replaced, stopped = map(sum, zip(*shares))
    runtime.raise_on_all(too_many_unreadable(replaced, loader.num_samples))
    if stopped:
        raise StopRequested
    return loss / count


class CocoValidation:
    """Predicts the validation images as ``posenet evaluate`` does, and computes COCO's scores.

    Its scores are those of ``posenet evaluate`` up to rounding, which may differ with the images of a batch where
    several ranks share them. The network is the same copy, fused and in float32, whatever the precision of training.

    Every rank predicts its share of the images; rank 0 computes the scores and sends them to the others. It also draws
    annotated and predicted people of some images side by side. ``DataError`` if annotations or images cannot be used.
    """

    def __init__(self, config: Config, network: PoseNet, runtime: Runtime) -> None:
        self.runtime = runtime
        self.config = config
        self.network = network
        self.copy = None if config.model.network else build_network(config)
        """Without the layers of SyncBatchNorm, which cannot be copied; none of a network of the user, who may make
        it in any way."""
        data, skeleton, annotations = config.data, config.model.skeleton, config.data.val_annotations
        self.split = read_split(annotations, None, skeleton, data.val_images, data.exif_frame)
        if not self.split.people:
            raise DataError(
                f"{annotations} contains no annotated {skeleton.people}; set data.val_annotations to another file"
            )
        blocks = find_annotated_images(data.val_images, self.split.images, config.inference.batch_size)
        self.share = runtime.share([*itertools.chain(*blocks)])
        # Indices into ``share`` of the images that rank 0 draws: always the same ones, of different shapes.
        labelled = {entry["image_id"] for entry in self.split.people if any(entry["keypoints"][2::3])}
        with_people = [index for index, (image, _) in enumerate(self.share) if image.id in labelled]
        drawn = with_people[:: max(1, len(with_people) // NUM_DRAWN)][:NUM_DRAWN]
        self.drawn_indices = frozenset(drawn if runtime.is_main else [])

    @cudnn_flags(benchmark=False)  # the images have many shapes
    def __call__(self, stop_requested: Callable[[], bool]) -> tuple[dict[str, float], np.ndarray | None]:
        """Compute COCO's ten keypoint scores, "AP" first, and a contact sheet of drawings: (H, W, 3) uint8 BGR.

        Only rank 0 draws; the sheet is None elsewhere.

        Raises:
            DataError, OtherRankError: an image cannot be read, here or on another rank.
            StopRequested: ``stop_requested``, which is called before every image, returned true on any rank.
        """
        drawn: list[AnnotatedResult] = []
        results = self.runtime.run_on_all(lambda: self._predict(stop_requested, drawn))
        rank_results = self.runtime.gather_objects(results)
        if None in rank_results:
            raise StopRequested
        scores = sheet = None
        if self.runtime.is_main:
            all_results = list(itertools.chain.from_iterable(rank_results))
            scores = compute_coco_metrics(all_results, self.split, self.config.model.skeleton).metrics
            drawings = [tile for item in drawn for tile in self._draw(item)]
            sheet = contact_sheet(drawings, columns=4 if len(drawings) > 4 else 2) if drawings else None
        return dict(self.runtime.broadcast_object(scores)), sheet

    @errors_of_data()
    def _predict(self, stop_requested: Callable[[], bool], drawn: list[AnnotatedResult]) -> list[dict[str, Any]] | None:
        """Predict this rank's share of the images, and append those to draw to ``drawn``.

        None if a stop is requested meanwhile.
        """
        network: nn.Module = self.network
        if self.copy is not None:
            self.copy.load_state_dict(self.network.state_dict())
            network = FusedNetwork(self.copy)
        skeleton, device = self.config.model.skeleton, self.runtime.device
        predictor = Predictor(network, self.config.inference, skeleton=skeleton, device=device, min_score=0.0)
        results: list[dict[str, Any]] = []
        sizes: list[Sizes] = []
        images = itertools.takewhile(lambda _: not stop_requested(), self.share)
        with contextlib.closing(predict_annotated_images(predictor, images)) as predicted:
            for index, item in enumerate(progress_bar(predicted, "predict", len(self.share))):
                results += item.to_coco(self.split.category)
                sizes.append(item.sizes)
                if index in self.drawn_indices:
                    drawn.append(item)
        if stop_requested():
            return None
        log_resized(sizes)
        return results

    def _draw(self, item: AnnotatedResult) -> list[np.ndarray]:
        """Two tiles of one image: the annotated people, and as many predicted ones, those with the best scores."""
        image = item.result.image
        size, annotated_size = item.sizes
        entries = [entry for entry in self.split.people if entry["image_id"] == item.image.id]
        people = [Person.from_coco(entry["keypoints"], 1.0, item.result.skeleton) for entry in entries]
        truth = scale_people([person for person in people if person.found.any()], annotated_size, size)
        predicted = item.result[: len(truth)]
        truth_drawing = draw_people(image, truth)
        predicted_drawing = draw_people(image, predicted, keypoint_min_score=KEYPOINT_MIN_SCORE)
        truth_note, predicted_note = (item.result.skeleton.count(len(people)) for people in (truth, predicted))
        return [
            label_tile(truth_drawing, item.image.file_name, TILE_SIZE, f"truth: {truth_note}"),
            label_tile(predicted_drawing, "", TILE_SIZE, f"predicted: {predicted_note}"),
        ]

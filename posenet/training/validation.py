"""Looking at the network while it trains: its loss on other samples, COCO's numbers, images of what it finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested
from posenet.errors import DataError
from posenet.inference.coco_evaluation import find_image_files, predict_split, read_split, score
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.settings import Config
from posenet.skeleton import Skeleton
from posenet.training.input_stream import UnreadableSampleBudget, raise_on_all_ranks, restart_dead_workers
from posenet.training.run_log import RunLog, SilentLog
from posenet.visualization.contact_sheet import sheet, tile
from posenet.visualization.people import KEYPOINT_MIN_SCORE, MIN_SCORE, draw_people

TILE = 320, 426
"""Height and width of an image on the validation sheet, in pixels."""


@torch.no_grad()
def validation_loss(
    module: nn.Module,
    loader: DataLoader,
    runtime: Runtime,
    max_unreadable: float = 0.0,
    stop_asked: Callable[[], bool] = lambda: False,
) -> float:
    """Mean loss per image over the loaders of all processes.

    Args:
        module: a batch to one loss per image, in eval mode.
        max_unreadable: share of the samples that may be replaced because they cannot be read.
        stop_asked: called before every batch, whether to break off.

    Raises:
        FeedError: more cannot be read.
        Stopped: a process was asked to stop.
    """
    total = torch.zeros(2, dtype=torch.float64)
    batches, faults, error = restart_dead_workers(loader), [], None
    try:
        for batch in tqdm(batches, "validate", len(loader), unit="batch", leave=False, disable=not runtime.is_main):
            if stop_asked():
                break
            losses = module(*runtime.to_device(batch)[:4]).cpu().double()
            total += torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
            faults += batch.faults
    except DataError as caught:
        error = caught
    UnreadableSampleBudget(loader, max_unreadable).add(raise_on_all_ranks(runtime, error, faults))
    if runtime.any_rank(stop_asked()):
        raise StopRequested
    loss, count = runtime.all_reduce_sum(total).tolist()
    return loss / count


class CocoValidation:
    """Called after an epoch: predicts the validation images exactly as ``tools/evaluate.py`` does.

    Every process predicts its share of the images; the main one scores them all and tells the others.

    Args:
        runtime: the processes.
        predictor: shares the network that is being trained.
        images: folder of the images.
        annotations: COCO keypoint JSON with people.
        log: takes the sheet of predictions.
        images: how many of those that hold people to show, the truth beside what was found.
    """

    def __init__(
        self,
        runtime: Runtime,
        predictor: Predictor,
        images: str,
        annotations: str,
        log: RunLog | SilentLog,
        pictures: int = 4,
    ) -> None:
        self.runtime, self.predictor, self.images = runtime, predictor, images
        self.log = log
        # An unusable file is to end the run before its first epoch, not after.
        split = read_split(annotations, skeleton=predictor.skeleton)
        if not split.annotated:
            raise DataError(f"{annotations} holds no annotated people; name another file as data.val_annotations")
        find_image_files(images, split.images)
        self.split, self.share = split, share_of(split.images, runtime.rank, runtime.world_size)
        self.truth = _truth(split.people, predictor.skeleton)
        # Images come sorted by shape; those on the sheet, the same every time, are taken evenly from all of them.
        peopled = [i for i, image in enumerate(self.share) if image["id"] in self.truth]
        self.shown = frozenset(peopled[:: max(1, len(peopled) // max(pictures, 1))][:pictures])

    @classmethod
    def from_config(
        cls, config: Config, network: nn.Module, runtime: Runtime, log: RunLog | SilentLog
    ) -> CocoValidation | None:
        """The configured validation; None where ``data.val_images`` or ``data.val_annotations`` is not set."""
        if not (config.data.val_images and config.data.val_annotations and config.train.evaluate_every):
            return None
        predictor = Predictor.from_config(network, config, device=runtime.device)
        return cls(runtime, predictor, config.data.val_images, config.data.val_annotations, log, config.log.pictures)

    def __call__(self, epoch: int, step: int, check_stop: Callable[[], None] = lambda: None) -> dict[str, float]:
        """COCO's ten numbers, "AP" first.

        Args:
            check_stop: called before every batch; where it raises ``StopRequested`` on one process, all raise it.
        """
        tiles: list[np.ndarray] = []
        count = itertools.count()

        def predict(images: Sequence[np.ndarray]) -> list[list[Person]]:
            check_stop()
            people = self.predictor.batch(images)
            for image, found, index in zip(images, people, count):
                if index in self.shown:
                    record = self.share[index]
                    tiles.extend(_pair(image, self.truth[record["id"]], found, str(record["file_name"])))
            return people

        own, error = None, None
        try:
            own = predict_split(predict, self.images, self.share, self.split.category, progress=self.runtime.is_main)
        except StopRequested:
            pass
        except DataError as caught:
            error = caught
        raise_on_all_ranks(self.runtime, error)
        shares = self.runtime.gather_objects(own)
        if None in shares:
            raise StopRequested
        results = [result for share in shares for result in share]
        if tiles:
            self.log.picture(f"epoch_{epoch:04d}", sheet(tiles, columns=4 if len(tiles) > 4 else 2), step)
        numbers = score(results, self.split, self.predictor.skeleton).metrics if self.runtime.is_main else None
        return self.runtime.broadcast_object(numbers)


def share_of(images: Sequence[dict[str, Any]], rank: int, world_size: int) -> list[dict[str, Any]]:
    """One process's images: all together take each once, and all take as many of every shape."""
    return sorted(images, key=lambda image: image["width"] / max(image["height"], 1))[rank::world_size]


def _truth(people: Sequence[dict[str, Any]], skeleton: Skeleton) -> dict[int, list[Person]]:
    """By image id, those people of an annotation file of whom any keypoint is labelled."""
    truth: dict[int, list[Person]] = {}
    for person in people:
        keypoints = skeleton.from_file(np.reshape(person["keypoints"], (1, -1, 3)))[0]
        keypoints[:, 2] = keypoints[:, 2] > 0
        if keypoints[:, 2].any():
            truth.setdefault(person["image_id"], []).append(Person(keypoints, 1.0, skeleton))
    return truth


def _pair(image: np.ndarray, truth: Sequence[Person], found: Sequence[Person], name: str) -> list[np.ndarray]:
    """The truth and what was found in one image, as two tiles."""
    found = [person for person in found if person.score >= MIN_SCORE]
    drawn = draw_people(image, found, keypoint_min_score=KEYPOINT_MIN_SCORE)
    return [
        tile(draw_people(image, truth), name, TILE, f"truth: {pluralize(len(truth), 'person', 'people')}"),
        tile(drawn, "", TILE, f"found: {pluralize(len(found), 'person', 'people')}"),
    ]

"""How fast and how exactly the decoder reads perfect maps, those rendered from annotations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from posenet.benchmark.report import Report
from posenet.benchmark.timing import medians
from posenet.data.coco import CocoImage, PersonAnnotation, read_annotations
from posenet.data.targets import TargetRenderer
from posenet.inference.decode import decode
from posenet.inference.evaluate import read_split, score, to_result
from posenet.inference.predictor import Fit, Predictor

PUBLISHED_IMAGES_PER_S = 8.9
PUBLISHED_AP = 0.893
"""The published decoder on one core, fed perfect maps of 150 pictures of COCO's validation split."""


class PerfectNetwork(nn.Module):
    """Answers every picture with the maps that were put in."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.empty(0)

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        return self.maps


def measure_decode(annotations: str | Path, renderer: TargetRenderer, predictor: Predictor, network: PerfectNetwork,
                   limit: int | None, repeats: int) -> Report:
    """Decode perfect maps of a COCO keypoint file's pictures, whose pixels are not needed, and score the people.

    Args:
        predictor: of ``network``, at one scale and without flip.
        limit: only the first so many pictures.
        repeats: timed runs for every picture.

    Raises:
        DataError: an annotation file that cannot be used.
    """
    dataset = read_annotations(annotations)
    split = read_split(annotations, [image.id for image in dataset.images[:limit]])
    seconds, results = [], []
    for image in tqdm(dataset.images[:limit], desc="decode", unit="image", leave=False, disable=None):
        fit = predictor.fit((image.height, image.width))
        network.maps = perfect_maps(dataset.people[image.id], image, fit, renderer)
        seconds.append(decode_seconds(network.maps[0].numpy(), fit, renderer.stride, predictor, repeats))
        blank = np.zeros((image.height, image.width, 3), np.uint8)
        results += [to_result(person, image.id, split.category) for person in predictor(blank)]
    metrics = score(results, split).metrics
    speed = len(seconds) / sum(seconds)
    slowest = 1000 * max(seconds)
    return Report(
        title=f"decode: perfect maps of {len(seconds)} pictures, {predictor.height} pixels high",
        header=("decoder", "images/s", "ms/image", "slowest ms", "AP"),
        rows=[("ours", speed, 1000 / speed, slowest, metrics["AP"]),
              ("published", PUBLISHED_IMAGES_PER_S, 1000 / PUBLISHED_IMAGES_PER_S, None, PUBLISHED_AP)],
        numbers={"images_per_s": speed, "ms_per_image": 1000 / speed, "slowest_ms": slowest, "ap": metrics["AP"],
                 "metrics": metrics, "speed_up": speed / PUBLISHED_IMAGES_PER_S, "images": len(seconds),
                 "people": len(results), "height": predictor.height},
        notes=[f"{len(results)} people found; {speed / PUBLISHED_IMAGES_PER_S:.1f} times the published speed, measured "
               "on 150 pictures of COCO's validation split"],
    )


def perfect_maps(people: Sequence[PersonAnnotation], image: CocoImage, fit: Fit,
                 renderer: TargetRenderer) -> Tensor:
    """(1, C, h, w) target maps of a picture resized and padded as the predictor does; crowds are left out.

    The person mask, which no decoder reads, stays empty.
    """
    zoom = np.array(fit.size[::-1]) / (image.width, image.height)
    joints = np.zeros((1, len(people), renderer.skeleton.num_keypoints, 3), np.float32)
    for row, person in zip(joints[0], people):
        if person.labelled:
            row[:] = person.keypoints
    joints[..., :2] = (joints[..., :2] + 0.5) * zoom - 0.5
    height, width = (side // renderer.stride for side in fit.canvas)
    return renderer(torch.from_numpy(joints), torch.zeros(1, height, width))


def decode_seconds(maps: np.ndarray, fit: Fit, stride: int, predictor: Predictor, repeats: int) -> float:
    """Median seconds of decoding the part of (C, h, w) maps that shows the picture."""
    rows, columns = (-(-side // stride) for side in fit.size)
    task = partial(decode, maps[:, :rows, :columns], stride=stride, keypoint_threshold=predictor.keypoint_threshold,
                   part_threshold=predictor.part_threshold, skeleton=predictor.skeleton)
    return medians({"decode": task}, repeats, progress=False)["decode"]

"""Speed and accuracy of the decoder on maps rendered from annotations, and the errors it makes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from posenet.annotations.coco import CocoImage
from posenet.annotations.people import People
from posenet.annotations.reading import read_annotations, read_split
from posenet.benchmark.decoding_errors import count_errors
from posenet.benchmark.degraded_maps import degraded_maps
from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import median_seconds
from posenet.data.targets import TargetRenderer
from posenet.errors import DataError
from posenet.inference.backends.backend import HostMaps
from posenet.inference.coco_evaluation import compute_coco_metrics, to_coco_result
from posenet.inference.decoder.candidates import MAX_PEAKS
from posenet.inference.decoder.host_candidates import find_keypoints
from posenet.inference.letterbox import Letterbox
from posenet.inference.perfect_grouping import group_by_truth
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.progress import progress_bar
from posenet.settings import MAP_STRIDE, InferenceConfig

PUBLISHED_IMAGES_SHA256 = "c11696592458d69d298da8e9f5a81f1a3da4b1b805a10b3dbca02bc052da945c"
"""SHA-256 of the sorted ids, joined by spaces, of the 150 images of COCO's validation split that the published decoder
was measured on."""
PUBLISHED_IMAGES_PER_S = 8.9
"""Speed of the published decoder on one core, for perfect maps of 150 images of COCO's validation split."""
PUBLISHED_AP = 0.893
"""AP of the published decoder on these maps."""


class FixedMapsNetwork(nn.Module):
    """Returns the maps that were assigned to it and ignores the images."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.empty(0)

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        return self.maps


def measure_decode(
    annotations: str | Path,
    renderer: TargetRenderer,
    settings: InferenceConfig,
    limit: int | None,
    repeats: int,
    seed: int | None = None,
) -> Report:
    """Render maps from a COCO keypoint file, decode them, and compare the people with the annotations.

    The images themselves are not needed.

    Args:
        settings: one inference scale, without flip.
        limit: only the first ``limit`` images.
        repeats: timed runs for every image.
        seed: degrade the maps with random numbers from this seed; None leaves them perfect.
    """
    skeleton = renderer.skeleton
    dataset = read_annotations(annotations, skeleton)
    images = dataset.images[:limit]
    if not images:
        raise DataError(f"{annotations} contains no images; name another file")
    split = read_split(annotations, [image.id for image in images], skeleton)
    network = FixedMapsNetwork()
    predictor = Predictor(network, settings, skeleton=skeleton)
    kind = "perfect" if seed is None else f"degraded (seed {seed})"
    seconds: list[float] = []
    results = []
    bound_results = []
    errors: Counter[str] = Counter()
    distances: list[float] = []
    for image in progress_bar(images, "decode", leave=False):
        truth = dataset.people[image.id]
        letterbox = predictor.letterbox((image.height, image.width))
        network.maps = render_maps(truth, image, letterbox, renderer, seed)
        height, width = letterbox.image_cells
        image_maps = network.maps[0, :, :height, :width].numpy()
        task = partial(HostMaps(image_maps).decode, settings, skeleton)
        seconds.append(median_seconds({"decode": task}, repeats, progress=False)["decode"])
        people = predictor(np.zeros((image.height, image.width, 3), np.uint8))
        grouped = _group_candidates_by_truth(image_maps, truth, image, letterbox, predictor)
        results += [to_coco_result(person, image.id, split.category, fill_missing=True) for person in people]
        bound_results += [to_coco_result(person, image.id, split.category, fill_missing=True) for person in grouped]
        counts, distance = count_errors(truth, people, skeleton)
        errors.update(counts)
        distances += distance.tolist()

    metrics = compute_coco_metrics(results, split, skeleton).metrics
    bound_metrics = compute_coco_metrics(bound_results, split, skeleton).metrics
    images_per_s = len(seconds) / sum(seconds)
    slowest_ms = 1000 * max(seconds)
    median_error = float(np.median(distances)) if len(distances) else 0.0
    rows: list[tuple[str | float | None, ...]] = [
        ("ours", metrics["AP"], metrics["AR"], images_per_s, 1000 / images_per_s, slowest_ms)
    ]
    is_published_set = seed is None and _images_sha256([image.id for image in images]) == PUBLISHED_IMAGES_SHA256
    if is_published_set:
        rows.append(("published", PUBLISHED_AP, None, PUBLISHED_IMAGES_PER_S, 1000 / PUBLISHED_IMAGES_PER_S, None))
    rows.append(("grouped perfectly", bound_metrics["AP"], bound_metrics["AR"], None, None, None))
    notes = [
        f"keypoints: {errors['labelled']} labelled, {errors['missed']} missed "
        f"({percent(errors['missed'], max(errors['labelled'], 1))}), {errors['misgiven']} assigned to the wrong "
        f"person, {errors['spurious']} spurious; half of those found are within {median_error:.2f} pixels",
        f"people: {errors['people']} labelled, {errors['whole']} found complete and pure, {errors['split']} split; "
        f"{errors['merged']} of the people found are several merged",
    ]
    if is_published_set:
        notes.append(f"{images_per_s / PUBLISHED_IMAGES_PER_S:.1f} times the published speed")
    return Report(
        title=f"decode: {kind} maps of {len(seconds)} images, {settings.height} pixels high",
        header=("decoder", "AP", "AR", "images/s", "ms/image", "slowest ms"),
        rows=rows,
        numbers={
            "images_per_s": images_per_s,
            "ms_per_image": 1000 / images_per_s,
            "slowest_ms": slowest_ms,
            "ap": metrics["AP"],
            "metrics": metrics,
            "bound_ap": bound_metrics["AP"],
            "bound_metrics": bound_metrics,
            "errors": dict(errors),
            "median_error_px": median_error,
            "speed_up": images_per_s / PUBLISHED_IMAGES_PER_S,
            "images": len(seconds),
            "height": settings.height,
            "maps": kind,
        },
        notes=notes,
    )


def _images_sha256(ids: Sequence[int]) -> str:
    """Identifies a set of images by their ids."""
    return hashlib.sha256(" ".join(map(str, sorted(ids))).encode()).hexdigest()


def render_maps(
    people: People,
    image: CocoImage,
    letterbox: Letterbox,
    renderer: TargetRenderer,
    seed: int | None = None,
) -> Tensor:
    """(1, C, h, w) target maps of a resized and padded image, without crowds; degraded if ``seed`` is given.

    The decoder does not need the person mask; it stays empty.
    """
    zoom = np.array(letterbox.resized[::-1]) / (image.width, image.height)
    joints = people.keypoints[people.is_labelled]
    joints[..., :2] = (joints[..., :2] + 0.5) * zoom - 0.5
    size = (letterbox.padded[0] // MAP_STRIDE, letterbox.padded[1] // MAP_STRIDE)
    if seed is None:
        maps: Tensor = renderer(torch.from_numpy(joints)[None], torch.zeros(1, *size))
        return maps
    rng = np.random.default_rng((seed, abs(image.id)))
    return torch.from_numpy(degraded_maps(joints, size, renderer, rng))[None]


def _group_candidates_by_truth(
    maps: np.ndarray, truth: People, image: CocoImage, letterbox: Letterbox, predictor: Predictor
) -> list[Person]:
    """The people that the decoder's candidates form if they are grouped by the annotations."""
    skeleton = predictor.skeleton
    candidates = find_keypoints(maps[skeleton.keypoint_channels], predictor.settings.keypoint_threshold, MAX_PEAKS)
    zoom = np.array((image.width, image.height)) / letterbox.resized[::-1]
    xy = (candidates.xy * MAP_STRIDE + (MAP_STRIDE - 1) / 2 + 0.5) * zoom - 0.5
    return group_by_truth(truth, candidates.keypoint, xy, candidates.score, skeleton)

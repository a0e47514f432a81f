"""How fast and how exactly the decoder reads maps rendered from annotations, and what it gets wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from posenet.annotations.coco_file import CocoImage, PersonAnnotation, read_annotations
from posenet.benchmark.decoding_errors import compare, grouped_perfectly
from posenet.benchmark.degraded_maps import degraded_maps
from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import median_seconds
from posenet.data.targets import TargetRenderer
from posenet.inference.coco_evaluation import read_split, score, to_result
from posenet.inference.decoder.assembly import MAX_PEAKS
from posenet.inference.decoder.host_candidates import decode, find_peaks
from posenet.inference.letterbox import Letterbox
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor

PUBLISHED_IMAGES_PER_S = 8.9
PUBLISHED_AP = 0.893
"""The published decoder on one core, fed perfect maps of 150 images of COCO's validation split."""


class PerfectNetwork(nn.Module):
    """Answers every image with the maps that were put in."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.empty(0)

    def heatmaps(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        return self.maps


def measure_decode(
    annotations: str | Path,
    renderer: TargetRenderer,
    predictor: Predictor,
    network: PerfectNetwork,
    limit: int | None,
    repeats: int,
    seed: int | None = None,
) -> Report:
    """Decode maps of a COCO keypoint file's images, whose pixels are not needed, and score the people.

    Args:
        predictor: of ``network``, at one scale and without flip.
        limit: only the first so many images.
        repeats: timed runs for every image.
        seed: degrade the maps by this seed; None leaves them perfect.

    Raises:
        DataError: an annotation file that cannot be used.
    """
    skeleton = predictor.skeleton
    dataset = read_annotations(annotations, skeleton)
    split = read_split(annotations, [image.id for image in dataset.images[:limit]], skeleton)
    seconds, results, bound, counts, errors = [], [], [], Counter(), []
    for image in tqdm(dataset.images[:limit], desc="decode", unit="image", leave=False, disable=None):
        truth, fit = dataset.people[image.id], predictor.fit((image.height, image.width))
        network.maps = oracle_maps(truth, image, fit, renderer, seed)
        shown = _shown(network.maps[0].numpy(), fit, renderer.stride)
        seconds.append(decode_seconds(shown, renderer.stride, predictor, repeats))
        people = predictor(np.zeros((image.height, image.width, 3), np.uint8))
        best = _perfect_grouping(shown, truth, image, fit, renderer.stride, predictor)
        results += [to_result(person, image.id, split.category, guess=True) for person in people]
        bound += [to_result(person, image.id, split.category, guess=True) for person in best]
        count, distance = compare(truth, people, skeleton)
        counts, errors = counts + count, [*errors, distance]
    names = ("labelled", "missed", "spurious", "misgiven", "people", "whole", "split", "merged")
    return _report(
        "perfect" if seed is None else f"degraded (seed {seed})",
        seconds,
        score(results, split, skeleton).metrics,
        score(bound, split, skeleton).metrics,
        {name: counts[name] for name in names},
        np.concatenate(errors),
        predictor.height,
    )


def _report(
    kind: str,
    seconds: Sequence[float],
    metrics: dict[str, float],
    bound: dict[str, float],
    counts: dict[str, int],
    errors: np.ndarray,
    height: int,
) -> Report:
    speed, slowest = len(seconds) / sum(seconds), 1000 * max(seconds)
    error = float(np.median(errors)) if len(errors) else 0.0
    published = (
        []
        if kind != "perfect"
        else [("published", PUBLISHED_AP, None, PUBLISHED_IMAGES_PER_S, 1000 / PUBLISHED_IMAGES_PER_S, None)]
    )
    return Report(
        title=f"decode: {kind} maps of {len(seconds)} images, {height} pixels high",
        header=("decoder", "AP", "AR", "images/s", "ms/image", "slowest ms"),
        rows=[
            ("ours", metrics["AP"], metrics["AR"], speed, 1000 / speed, slowest),
            *published,
            ("grouped perfectly", bound["AP"], bound["AR"], None, None, None),
        ],
        numbers={
            "images_per_s": speed,
            "ms_per_image": 1000 / speed,
            "slowest_ms": slowest,
            "ap": metrics["AP"],
            "metrics": metrics,
            "bound_ap": bound["AP"],
            "bound_metrics": bound,
            "errors": counts,
            "median_error_px": error,
            "speed_up": speed / PUBLISHED_IMAGES_PER_S,
            "images": len(seconds),
            "height": height,
            "maps": kind,
        },
        notes=[
            f"keypoints: {counts['labelled']} labelled, {counts['missed']} missed "
            f"({percent(counts['missed'], max(counts['labelled'], 1))}), {counts['misgiven']} given to the wrong "
            f"person, {counts['spurious']} spurious; half of those found lie within {error:.2f} pixels",
            f"people: {counts['people']} to be found, {counts['whole']} whole and pure, {counts['split']} split; "
            f"{counts['merged']} found that are several",
            f"{speed / PUBLISHED_IMAGES_PER_S:.1f} times the published speed on perfect maps of 150 images of "
            "COCO's validation split",
        ],
    )


def oracle_maps(
    people: Sequence[PersonAnnotation],
    image: CocoImage,
    fit: Letterbox,
    renderer: TargetRenderer,
    seed: int | None = None,
) -> Tensor:
    """(1, C, h, w) target maps of an image resized and padded as the predictor does; crowds are left out.

    The person mask, which the decoder does not read, stays empty.

    Args:
        seed: degrade the maps by this seed and the image's id.
    """
    zoom = np.array(fit.size[::-1]) / (image.width, image.height)
    joints = np.array([person.keypoints for person in people if person.labelled], np.float32)
    joints = joints.reshape(-1, renderer.skeleton.num_keypoints, 3)
    joints[..., :2] = (joints[..., :2] + 0.5) * zoom - 0.5
    size = tuple(side // renderer.stride for side in fit.canvas)
    if seed is None:
        return renderer(torch.from_numpy(joints)[None], torch.zeros(1, *size))
    return torch.from_numpy(degraded_maps(joints, size, renderer, np.random.default_rng((seed, abs(image.id)))))[None]


def decode_seconds(maps: np.ndarray, stride: int, predictor: Predictor, repeats: int) -> float:
    """Median seconds of decoding (C, h, w) maps."""
    task = partial(
        decode,
        maps,
        stride=stride,
        keypoint_threshold=predictor.keypoint_threshold,
        part_threshold=predictor.part_threshold,
        skeleton=predictor.skeleton,
    )
    return median_seconds({"decode": task}, repeats, progress=False)["decode"]


def _shown(maps: np.ndarray, fit: Letterbox, stride: int) -> np.ndarray:
    """The part of (C, h, w) maps that shows the image."""
    rows, columns = (-(-side // stride) for side in fit.size)
    return maps[:, :rows, :columns]


def _perfect_grouping(
    maps: np.ndarray,
    truth: Sequence[PersonAnnotation],
    image: CocoImage,
    fit: Letterbox,
    stride: int,
    predictor: Predictor,
) -> list[Person]:
    """What the decoder's own keypoints would give if they were grouped by the truth."""
    peaks = find_peaks(maps[predictor.skeleton.keypoint_channels], predictor.keypoint_threshold, MAX_PEAKS)
    zoom = np.array((image.width, image.height)) / fit.size[::-1]
    xy = (peaks.xy * stride + (stride - 1) / 2 + 0.5) * zoom - 0.5
    return grouped_perfectly(truth, peaks.keypoint, xy, peaks.score, predictor.skeleton)

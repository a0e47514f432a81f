"""How fast target maps are rendered, by number of people."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from posenet.benchmark.report import Report
from posenet.benchmark.timing import median_seconds, minimum_seconds
from posenet.data.targets import TargetRenderer
from posenet.devices.runtime import Runtime
from posenet.settings import MAP_STRIDE
from posenet.skeleton import COCO, Skeleton

PEOPLE = (1, 3, 5, 10, 20)
"""Numbers of people per sample."""
PUBLISHED_MS = {3: 4.3, 10: 11.3, 20: 22.8}
"""Milliseconds per 512 x 512 sample of the published recipe on one core, by number of people."""

STANDING_POSE = {
    "nose": (0, 0.09),
    "neck": (0, 0.18),
    "Reye": (0.02, 0.07),
    "Rear": (0.045, 0.08),
    "Rsho": (0.11, 0.18),
    "Relb": (0.15, 0.35),
    "Rwri": (0.16, 0.50),
    "Rhip": (0.06, 0.52),
    "Rkne": (0.07, 0.75),
    "Rank": (0.07, 0.95),
}
"""x, y of the middle and right keypoints of a standing person, as shares of the height. x is the distance from the
middle of the body, y the distance down from the top of the head."""


def standing_people(
    rng: np.random.Generator, count: int, size: tuple[int, int], skeleton: Skeleton = COCO
) -> np.ndarray:
    """People of random size, position and posture, as in a sample that is framed on the first of them.

    The keypoints of other skeletons than COCO's are on an ellipse.

    Args:
        size: (height, width) of the network input.

    Returns:
        (count, K, 3) float32: x, y in network-input pixels, and visibility 2. Every keypoint is labelled, which takes
        the most time.
    """
    if skeleton.keypoints == COCO.keypoints:
        right = np.array([STANDING_POSE[name.replace("L", "R", 1)] for name in skeleton.keypoints])
        pose = right * [[1.0 if name[0] == "L" else -1.0, 1.0] for name in skeleton.keypoints]
    else:
        angle = np.linspace(0, 2 * np.pi, skeleton.num_keypoints, endpoint=False)
        pose = np.stack([0.15 * np.sin(angle), 0.5 - 0.45 * np.cos(angle)], axis=1)
    is_first = np.arange(count) == 0
    heights = 0.6 * rng.uniform(0.7, 1.3, count) * np.where(is_first, 1.0, rng.uniform(0.3, 1.0, count))
    posture = pose + rng.normal(0, 0.03, (count, *pose.shape))  # (count, K, 2)
    middle = np.where(is_first[:, None], 0.5, rng.uniform(0.1, 0.9, (count, 2))) * size[::-1]  # (count, 2)
    xy = middle[:, None] + (posture - [0, 0.5]) * heights[:, None, None] * size[0]  # (count, K, 2)
    return np.concatenate([xy, np.full((*xy.shape[:2], 1), 2.0)], axis=2).astype(np.float32)


def measure_targets(
    renderer: TargetRenderer, runtime: Runtime, size: tuple[int, int], batch_size: int, repeats: int
) -> Report:
    """Time the rendering of batches of samples with 1 to 20 people, for a network input of (height, width) ``size``.

    The limit is the time to write the maps once, without computing anything.
    """
    rng = np.random.default_rng(0)
    mask = torch.ones(batch_size, size[0] // MAP_STRIDE, size[1] // MAP_STRIDE, device=runtime.device)
    tasks = {}
    for people in PEOPLE:
        joints = np.stack([standing_people(rng, people, size, renderer.skeleton) for _ in range(batch_size)])
        tasks[people] = partial(renderer, torch.from_numpy(joints).to(runtime.device), mask)
    maps = tasks[1]()
    limit_ms = 1000 * minimum_seconds(partial(maps.fill_, 0.5), repeats, runtime.synchronize) / batch_size
    seconds = median_seconds({str(people): task for people, task in tasks.items()}, repeats, runtime.synchronize)
    ms_per_sample = {people: 1000 * seconds[str(people)] / batch_size for people in PEOPLE}
    rows: list[tuple[str | float | None, ...]] = []
    for people, milliseconds in ms_per_sample.items():
        published_ms = PUBLISHED_MS.get(people) if size == (512, 512) else None
        speed_up = f"{published_ms / milliseconds:.2f}x" if published_ms else None
        limit_ratio = milliseconds / limit_ms
        rows.append((str(people), milliseconds, 1000 / milliseconds, published_ms, speed_up, limit_ratio))
    return Report(
        title=f"targets: {size[0]} x {size[1]} input, batches of {batch_size}, all keypoints labelled",
        header=("people", "ms/sample", "samples/s", "published ms", "speed-up", "times limit"),
        rows=rows,
        numbers={
            "ms_per_sample": {str(people): milliseconds for people, milliseconds in ms_per_sample.items()},
            "samples_per_s": {str(people): 1000 / milliseconds for people, milliseconds in ms_per_sample.items()},
            "limit_ms_per_sample": limit_ms,
            "published_ms_per_sample": {str(people): milliseconds for people, milliseconds in PUBLISHED_MS.items()},
            "batch_size": batch_size,
            "input_size": list(size),
        },
        notes=[f"limit: writing the maps once takes {limit_ms:.3f} ms/sample"],
    )

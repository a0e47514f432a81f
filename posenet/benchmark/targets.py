"""How fast target maps are rendered, by number of people."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from posenet.benchmark.report import Report
from posenet.benchmark.timing import median_seconds, minimum_seconds
from posenet.data.targets import TargetRenderer
from posenet.devices.runtime import Runtime
from posenet.skeleton import COCO, Skeleton

PEOPLE = (1, 3, 5, 10, 20)
PUBLISHED_MS = {3: 4.3, 10: 11.3, 20: 22.8}
"""Milliseconds that the published recipe takes for one 512 x 512 sample with so many people, on one core."""

# Shares of the standing height, x to the left of the image for the right side of the body, y down from the crown.
_STANDING = {
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


def standing_people(
    rng: np.random.Generator, count: int, size: tuple[int, int], skeleton: Skeleton = COCO
) -> np.ndarray:
    """People of random size, place and posture as in a sample framed on the first of them.

    Whatever other skeletons name has its keypoints on an ellipse.

    Args:
        size: (height, width) of the network input.

    Returns:
        (count, K, 3) float32 x, y in network-input pixels and visibility 2: every keypoint is labelled, which
        costs most.
    """
    if skeleton.keypoints == COCO.keypoints:
        right = np.array([_STANDING[name.replace("L", "R", 1)] for name in skeleton.keypoints])
        pose = right * [[1.0 if name[0] == "L" else -1.0, 1.0] for name in skeleton.keypoints]
    else:
        turn = np.linspace(0, 2 * np.pi, skeleton.num_keypoints, endpoint=False)
        pose = np.stack([0.15 * np.sin(turn), 0.5 - 0.45 * np.cos(turn)], axis=1)
    heights = 0.6 * rng.uniform(0.7, 1.3, count) * np.where(np.arange(count) == 0, 1.0, rng.uniform(0.3, 1.0, count))
    posture = pose + rng.normal(0, 0.03, (count, *pose.shape))
    middle = np.where(np.arange(count)[:, None] == 0, 0.5, rng.uniform(0.1, 0.9, (count, 2))) * size[::-1]
    xy = middle[:, None] + (posture - [0, 0.5]) * heights[:, None, None] * size[0]
    return np.concatenate([xy, np.full((*xy.shape[:2], 1), 2.0)], axis=2).astype(np.float32)


def measure_targets(
    renderer: TargetRenderer, runtime: Runtime, size: tuple[int, int], batch_size: int, repeats: int
) -> Report:
    """Render batches of samples with 1 to 20 people.

    The limit is the time to write the maps once, without computing anything.

    Args:
        size: (height, width) of the network input.
    """
    rng = np.random.default_rng(0)
    mask = torch.ones(batch_size, size[0] // renderer.stride, size[1] // renderer.stride, device=runtime.device)
    tasks = {}
    for people in PEOPLE:
        joints = np.stack([standing_people(rng, people, size, renderer.skeleton) for _ in range(batch_size)])
        tasks[str(people)] = partial(renderer, torch.from_numpy(joints).to(runtime.device), mask)
    maps = tasks["1"]()
    limit = 1000 * minimum_seconds(partial(maps.fill_, 0.5), repeats, runtime.synchronize) / batch_size
    ms = {
        people: 1000 * seconds / batch_size
        for people, seconds in median_seconds(tasks, repeats, runtime.synchronize).items()
    }
    published = PUBLISHED_MS if size == (512, 512) else {}
    rows = [
        (
            people,
            time,
            1000 / time,
            published.get(int(people)),
            f"{published[int(people)] / time:.2f}x" if int(people) in published else None,
            time / limit,
        )
        for people, time in ms.items()
    ]
    return Report(
        title=f"targets: {size[0]} x {size[1]} input, batches of {batch_size}, all keypoints labelled",
        header=("people", "ms/sample", "samples/s", "published ms", "speed-up", "times limit"),
        rows=rows,
        numbers={
            "ms_per_sample": ms,
            "samples_per_s": {people: 1000 / time for people, time in ms.items()},
            "limit_ms_per_sample": limit,
            "published_ms_per_sample": {str(k): v for k, v in PUBLISHED_MS.items()},
            "batch_size": batch_size,
            "input_size": list(size),
        },
        notes=[f"limit: writing the maps once takes {limit:.3f} ms/sample"],
    )

"""Write a data set of drawn people in COCO's layout.

An image depends only on its seed, split and index, so that any number of processes writes the same bytes.
"""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.progress_bar import progress_bar
from posenet.synthetic.scene import render_scene
from posenet.threads import usable_cores

SPLITS = {"train": 1, "val": 10_000_001}
"""The id of the first image of each split."""
DEFAULT_SIZE = 320

_LIMITS = {"workers": (1, 1024), "size": (64, 4096)}


def write_dataset(
    output: Path,
    train: int,
    val: int,
    seed: int = 0,
    workers: int | None = None,
    size: int = DEFAULT_SIZE,
) -> None:
    """Write ``train2017/``, ``val2017/`` and ``annotations/person_keypoints_*2017.json`` into a new or empty folder.

    The annotations are written last. ``size`` is the longest side of the largest images in pixels. The ``workers`` are
    processes; None starts one per core. ``DataError`` if a number is out of range, or the folder contains files.
    """
    workers = usable_cores() if workers is None else workers
    numbers = {"train": train, "val": val, "seed": seed, "size": size, "workers": workers}
    for name, number in numbers.items():
        lowest, highest = _LIMITS.get(name, (0, 10_000_000))
        if not lowest <= number <= highest:
            raise DataError(f"{name} is {number}; give {lowest} to {highest}")
    if output.is_dir() and any(output.iterdir()):
        raise DataError(f"{output} is not empty; choose another folder, or delete it")
    for folder in ("annotations", "train2017", "val2017"):
        (output / folder).mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("val", val)):
        write = partial(_write_image, output, seed, size, split)
        results = map(write, range(count)) if workers == 1 or count < 2 else _run_jobs(write, count, workers)
        content: dict[str, Any] = {"categories": [COCO_CATEGORY], "images": [], "annotations": []}
        for image, people in progress_bar(results, f"{split} images", count, disable=not count):
            content["images"].append(image)
            content["annotations"] += people
        file = f"annotations/person_keypoints_{split}2017.json"
        write_atomically(output / file, json.dumps(content, separators=(",", ":")).encode())


def _run_jobs(write: Callable[[int], Any], count: int, workers: int) -> Iterator[Any]:
    """The results of ``write`` for 0 to ``count`` - 1, in order, from processes; the parent handles Ctrl-C."""
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(min(workers, count), initializer=signal.signal, initargs=ignore) as pool:
        yield from pool.map(write, range(count), chunksize=8)


def _write_image(output: Path, seed: int, size: int, split: str, index: int) -> tuple[dict[str, Any], list[Any]]:
    """Render one image and write its file; return its entry under ``images``, and its annotations."""
    number = SPLITS[split] + index
    pixels, people = render_scene(np.random.default_rng((seed, number)), size)
    path = output / f"{split}2017" / f"{number:012d}.jpg"
    path.write_bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
    height, width = pixels.shape[:2]
    annotations = [person | {"image_id": number, "id": 100 * number + row} for row, person in enumerate(people)]
    return {"file_name": path.name, "height": height, "width": width, "id": number}, annotations

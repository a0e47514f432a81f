"""Write a data set of synthetic people in COCO's layout: images, masks, crowds and keypoint annotations.

An image depends only on its seed, split and index, so that any number of processes writes the same bytes.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import begins_like, write_atomically
from posenet.progress_bar import progress_bar
from posenet.synthetic.labels import annotate
from posenet.synthetic.scene import random_size, render_scene

SPLITS = {"train": 1, "val": 10_000_001}
"""The id of the first image of each split."""
MARKER = "synthetic.json"
"""The file with the name of this tool and the settings of a data set."""
DEFAULT_SEED = 0
DEFAULT_SIZE = 512

_TOOL = "posenet make-synthetic"
_MIN_SIDE, _MAX_SIDE = 64, 4096
_OWN_MARKER = re.compile(rb'{"tool":"posenet make-synthetic"')
_OWN_NAMES = re.compile(
    r"(train|val)2017/\d{12}\.jpg|(annotations/\.?person_keypoints_(train|val)2017|\.?synthetic)\.json(\.[\d-]+\.tmp)?"
)
"""The names of all files; a run that is killed may leave temporary ones."""
_IDS_PER_IMAGE = 100
_JPEG_QUALITY = 90

Size = int | tuple[int, int]
"""(width, height) of every image, or the longest side of images with different sizes."""


def render_image(seed: int, split: str, index: int, size: Size = DEFAULT_SIZE) -> tuple[np.ndarray, list[Any]]:
    """Render one image of a split: the (H, W, 3) uint8 BGR image and its COCO annotations (see ``labels.annotate``)."""
    rng = np.random.default_rng((seed, list(SPLITS).index(split), index))
    width, height = size if isinstance(size, tuple) else random_size(rng, size)
    scene = render_scene(rng, width, height)
    image_id = SPLITS[split] + index
    annotations = [
        annotation | {"image_id": image_id, "id": image_id * _IDS_PER_IMAGE + number}
        for number, annotation in enumerate(annotate(rng, scene))
    ]
    return scene.image, annotations


def write_dataset(
    output: Path,
    train: int,
    val: int,
    seed: int = DEFAULT_SEED,
    workers: int | None = None,
    size: Size = DEFAULT_SIZE,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``train2017/``, ``val2017/``, ``annotations/person_keypoints_*2017.json`` and ``synthetic.json``.

    The annotations are written last. With ``overwrite`` an earlier data set of this tool is replaced. The ``workers``
    are processes; None starts one per core.

    Raises:
        DataError: a number is out of range, or the folder contains files that this tool did not write, or a data set
            without ``overwrite``; they are kept.
    """
    counts = {"train": train, "val": val}
    for name, number in (counts | {"seed": seed, "workers": usable_cores() if workers is None else workers}).items():
        lowest = 1 if name == "workers" else 0
        if number < lowest:
            raise DataError(f"{name} is {number}; give {lowest} or more")
    if not all(_MIN_SIDE <= side <= _MAX_SIDE for side in np.atleast_1d(size)):
        raise DataError(f"images cannot have the size {size}: give sides from {_MIN_SIDE} to {_MAX_SIDE} pixels")
    _remove_earlier(output, overwrite)
    for folder in ("annotations", "train2017", "val2017"):
        (output / folder).mkdir(parents=True, exist_ok=True)
    _write_json(output / MARKER, {"tool": _TOOL, "seed": seed, **counts, "size": size})
    for split, count in counts.items():
        results = _run_jobs(partial(_write_image, output, seed, size, split), range(count), workers)
        content: dict[str, Any] = {
            "info": {"description": f"Drawn by {_TOOL}"},
            "licenses": [],
            "categories": [COCO_CATEGORY],
            "images": [],
            "annotations": [],
        }
        for image, people in progress_bar(results, f"{split} images", count, disable=not count):
            content["images"].append(image)
            content["annotations"] += people
        _write_json(output / "annotations" / f"person_keypoints_{split}2017.json", content)


def _remove_earlier(output: Path, overwrite: bool) -> None:
    """Remove the images and annotations of an earlier data set; see ``write_dataset``."""
    files = {path.relative_to(output).as_posix(): path for path in sorted(output.rglob("*")) if not _is_folder(path)}
    has_marker = begins_like(output / MARKER, _OWN_MARKER)
    for name, path in files.items():
        if not has_marker or path.is_symlink() or not _OWN_NAMES.fullmatch(name):
            raise DataError(f"{output} contains {name}, which {_TOOL} did not write: choose another folder")
    if files and not overwrite:
        raise DataError(f"{output} contains a data set; choose another folder, or replace it with overwrite=True")
    for name, path in files.items():
        if name != MARKER:
            path.unlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()  # writing to a link would write to its target


def _run_jobs(write: Callable[[int], Any], jobs: range, workers: int | None) -> Iterator[Any]:
    """The results of ``write`` in the order of the jobs, from ``workers`` processes."""
    workers = min(workers or usable_cores(), max(len(jobs), 1))
    if workers == 1:
        yield from map(write, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_start_worker) as pool:
        yield from pool.map(write, jobs, chunksize=min(8, -(-len(jobs) // workers)))


def _start_worker() -> None:
    """Use one thread per process, and ignore Ctrl-C, which the parent handles."""
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_image(output: Path, seed: int, size: Size, split: str, index: int) -> tuple[dict[str, Any], list[Any]]:
    """Render one image and write its file; return its entry under ``images``, and its annotations."""
    image, annotations = render_image(seed, split, index, size)
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    path = output / f"{split}2017" / f"{SPLITS[split] + index:012d}.jpg"
    path.write_bytes(encoded.tobytes())
    height, width = image.shape[:2]
    return {"file_name": path.name, "height": height, "width": width, "id": SPLITS[split] + index}, annotations


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, separators=(",", ":")).encode())

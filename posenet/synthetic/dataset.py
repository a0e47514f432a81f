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
from posenet.files import write_atomically
from posenet.progress_bar import progress_bar
from posenet.synthetic.labels import annotate
from posenet.synthetic.scene import random_size, render_scene

SPLITS = {"train": 1, "val": 10_000_001}
"""The id of the first image of each split."""
MAX_IMAGES = 10_000_000  # in a split
MARKER = "synthetic.json"
"""The file with the name of this tool and the settings of a data set."""
DEFAULT_SEED = 0
DEFAULT_SIZE = 512

_TOOL = "posenet make-synthetic"
_MIN_SIDE, _MAX_SIDE = 64, 4096
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
    for split, count in counts.items():
        if not 0 <= count <= MAX_IMAGES:
            raise DataError(f"cannot write {count} {split} images: give a number from 0 to {MAX_IMAGES}")
    if seed < 0:
        raise DataError(f"seed {seed} is negative: give 0 or more")
    if workers is not None and workers < 1:
        raise DataError(f"cannot run {workers} workers: give at least 1")
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
        _write_json(output / _annotation_file(split), content)


def _image_name(split: str, index: int) -> str:
    return f"{split}2017/{SPLITS[split] + index:012d}.jpg"


def _annotation_file(split: str) -> str:
    return f"annotations/person_keypoints_{split}2017.json"


def _remove_earlier(output: Path, overwrite: bool) -> None:
    """Remove the files of an earlier data set, except for the marker; see ``write_dataset``."""
    paths = {path.relative_to(output).as_posix(): path for path in output.rglob("*")}
    links = {name for name, path in paths.items() if path.is_symlink()}  # writing to a link would write to its target
    files = {name for name, path in paths.items() if not path.is_dir()} - links
    earlier = _read_marker(output / MARKER)
    ours = set() if earlier is None else _file_names(earlier)
    # A run that is killed while it writes a JSON file leaves a temporary one.
    left_over = {name for name in files if re.sub(r"\.([^/]+)\.[\d-]+\.tmp$", r"\1", name) in ours}
    if foreign := sorted(links | (files - ours - left_over)):
        raise DataError(f"{output} contains {foreign[0]}, which {_TOOL} did not write: choose another folder")
    if earlier is not None and not overwrite:
        raise DataError(f"{output} contains a data set; choose another folder, or replace it with overwrite=True")
    for name in sorted(files - {MARKER}):
        paths[name].unlink()


def _read_marker(path: Path) -> dict[str, int] | None:
    """The number of images in each split of an earlier data set; None if this tool did not write it."""
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        if marker["tool"] != _TOOL:
            return None
        counts = {name: int(marker.get(name, 0)) for name in SPLITS}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return counts if min(counts.values()) >= 0 and max(counts.values()) <= MAX_IMAGES else None


def _file_names(counts: dict[str, int]) -> set[str]:
    """The names of all files of a data set."""
    images = {_image_name(split, index) for split in SPLITS for index in range(counts[split])}
    return {MARKER, *map(_annotation_file, SPLITS)} | images


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
    path = output / _image_name(split, index)
    path.write_bytes(encoded.tobytes())
    height, width = image.shape[:2]
    return {"file_name": path.name, "height": height, "width": width, "id": SPLITS[split] + index}, annotations


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, separators=(",", ":")).encode())

"""A data set of people drawn by program, in COCO's layout: images, masks, crowds and keypoint annotations.

An image depends on its seed, split and index alone, so that any number of processes writes the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.synthetic.labels import CATEGORY, annotate
from posenet.synthetic.scene import draw_scene, draw_size

SPLITS = {"train": 1, "val": 10_000_001}
"""Name of a split to the id of its first image; the ids of the two never meet."""
MAX_PICTURES = 10_000_000
"""Largest number of images in a split."""
MARKER = "synthetic.json"
"""The file that names this tool and the settings of a set."""
DEFAULT_SIZE = 512

_TOOL = "posenet make-synthetic"
_SIDES = (64, 4096)
_IDS_PER_PICTURE = 100
_JPEG_QUALITY = 90

Size = int | tuple[int, int]
"""(width, height) of every image, or the longest side, below which sizes and aspects vary."""


def draw_image(
    seed: int,
    split: str,
    index: int,
    size: Size = DEFAULT_SIZE,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Draw one image.

    Args:
        seed, index: not negative.
        split: ``"train"`` or ``"val"``.
        size: (width, height), or the longest side.

    Returns:
        (H, W, 3) uint8 BGR image and its COCO annotations (see ``posenet.synthetic.labels.annotate``).
    """
    rng = np.random.default_rng((seed, list(SPLITS).index(split), index))
    width, height = size if isinstance(size, tuple) else draw_size(rng, size)
    scene = draw_scene(rng, width, height)
    image_id = SPLITS[split] + index
    return scene.image, [
        annotation | {"image_id": image_id, "id": image_id * _IDS_PER_PICTURE + number}
        for number, annotation in enumerate(annotate(rng, scene))
    ]


def write_dataset(
    output: Path, train: int, val: int, seed: int = 0, workers: int | None = None, size: Size = DEFAULT_SIZE
) -> None:
    """Write ``train2017/``, ``val2017/``, ``annotations/person_keypoints_*2017.json`` and ``synthetic.json``.

    The annotations are written last. An earlier set of this tool is replaced; a folder that holds any other
    file is refused and left as it is.

    Args:
        output: folder, made where missing.
        train, val: number of images.
        seed: not negative.
        workers: processes; None takes one per core.
        size: as for ``draw_image``.

    Raises:
        DataError: a number out of range, or a folder with files that this tool did not write.
    """
    output, counts = Path(output), {"train": train, "val": val}
    _check(counts, seed, workers, size)
    _clear(output, counts)
    for folder in ("annotations", *map(_folder, SPLITS)):
        (output / folder).mkdir(parents=True, exist_ok=True)
    _write_json(output / MARKER, {"tool": _TOOL, "seed": seed, **counts, "size": size})
    jobs = [(split, index) for split in SPLITS for index in range(counts[split])]
    files = {
        split: {
            "info": {"description": f"Drawn by {_TOOL}"},
            "licenses": [],
            "categories": [CATEGORY],
            "images": [],
            "annotations": [],
        }
        for split in SPLITS
    }
    write = partial(_write_image, output, seed, size)
    done = tqdm(_map(write, jobs, workers), desc="drawing", total=len(jobs), unit="image")
    for (split, _), (image, people) in zip(jobs, done):
        files[split]["images"].append(image)
        files[split]["annotations"] += people
    for split, content in files.items():
        _write_json(output / _annotation_file(split), content)


def _folder(split: str) -> str:
    return f"{split}2017"


def _image_name(split: str, index: int) -> str:
    return f"{SPLITS[split] + index:012d}.jpg"


def _annotation_file(split: str) -> str:
    return f"annotations/person_keypoints_{split}2017.json"


def _check(counts: dict[str, int], seed: int, workers: int | None, size: Size) -> None:
    for split, count in counts.items():
        if not 0 <= count <= MAX_PICTURES:
            raise DataError(f"cannot draw {count} {split} images: give a number from 0 to {MAX_PICTURES}")
    if seed < 0:
        raise DataError(f"seed {seed} is negative: give 0 or more")
    if workers is not None and workers < 1:
        raise DataError(f"cannot draw with {workers} workers: give at least 1")
    low, high = _SIDES
    if not all(low <= side <= high for side in np.atleast_1d(size)):
        raise DataError(f"images of size {size} cannot be drawn: give sides from {low} to {high} pixels")


def _clear(output: Path, counts: dict[str, int]) -> None:
    """Remove an earlier set's annotations and the images that the new one does not replace, and nothing else."""
    if not output.exists():
        return
    present = {
        path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    earlier = _marked(output / MARKER)
    links = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_symlink()}
    # Writing to a link would write to what it points to.
    if foreign := sorted(links | present - (_names(earlier) if earlier else set())):
        raise DataError(f"{output} holds {foreign[0]}, which {_TOOL} did not write: choose another folder")
    for name in sorted(present - _pictures(counts) - {MARKER}):
        (output / name).unlink()


def _marked(path: Path) -> dict[str, int] | None:
    """The counts of the set whose marker this is; None where it is no marker of ours."""
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        counts = {split: int(marker[split]) for split in SPLITS} if marker["tool"] == _TOOL else {}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return counts if counts and max(counts.values()) <= MAX_PICTURES else None


def _names(counts: dict[str, int]) -> set[str]:
    """Every file of a set, those of an interrupted run included."""
    documents = {MARKER, *map(_annotation_file, SPLITS)}
    return documents | {_temporary(Path(name)).as_posix() for name in documents} | _pictures(counts)


def _pictures(counts: dict[str, int]) -> set[str]:
    return {f"{_folder(split)}/{_image_name(split, k)}" for split in SPLITS for k in range(counts[split])}


def _map(write: partial, jobs: list[tuple[str, int]], workers: int | None) -> Iterator[tuple[dict, list[dict]]]:
    """The results of ``write`` in the order of the jobs."""
    workers = min(workers or usable_cores(), max(len(jobs), 1))
    if workers == 1:
        yield from map(write, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_start_worker) as pool:
        yield from pool.map(write, jobs, chunksize=8)


def _start_worker() -> None:
    """One thread per process; Ctrl-C is the parent's to handle."""
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_image(
    output: Path,
    seed: int,
    size: Size,
    job: tuple[str, int],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw and save one image; its entry under ``images`` and its annotations."""
    split, index = job
    image, annotations = draw_image(seed, split, index, size)
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    name, (height, width) = _image_name(split, index), image.shape[:2]
    (output / _folder(split) / name).write_bytes(encoded.tobytes())
    return {"file_name": name, "height": height, "width": width, "id": SPLITS[split] + index}, annotations


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Complete or not at all."""
    _temporary(path).write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
    os.replace(_temporary(path), path)

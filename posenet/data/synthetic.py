"""A data set of people drawn by program, in COCO's layout: pictures, masks, crowds and keypoint annotations.

Keypoint coordinates are pixels, the centre of the first pixel at (0, 0). Boxes and polygons are in COCO's frame, whose
origin is the outer corner of the first pixel. A picture depends on its seed, split and index alone.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as rle_tools
from tqdm import tqdm

from posenet.data.drawing.figure import Figure
from posenet.data.drawing.scene import Actor, Scene, draw_scene, draw_size
from posenet.errors import DataError
from posenet.skeleton import COCO

SPLITS = {"train": 1, "val": 10_000_001}
"""Name to the id of its first picture; the two ranges never meet."""
MAX_PICTURES = 10_000_000
MARKER = "synthetic.json"
"""File that names the tool and its settings; only folders with one are written again."""
DEFAULT_SIZE = 512

_TOOL = "posenet make-synthetic"
_SMALLEST, _LARGEST = 64, 8192
_JPEG_QUALITY = 90
_IDS_PER_PICTURE = 100
_CATEGORY = {
    "supercategory": "person", "id": 1, "name": "person", "keypoints": list(COCO.file_names),
    "skeleton": [[16, 14], [14, 12], [17, 15], [15, 13], [12, 13], [6, 12], [7, 13], [6, 7], [6, 8], [7, 9], [8, 10],
                 [9, 11], [2, 3], [1, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7]]}


def draw_picture(seed: int, split: str, index: int, size: int | tuple[int, int] = DEFAULT_SIZE,
                 ) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Draw one picture.

    Args:
        seed, split, index: what the picture depends on; ``split`` is ``"train"`` or ``"val"``.
        size: (width, height) of every picture, or the longest side, below which sizes and aspects vary.

    Returns:
        (H, W, 3) uint8 BGR image and its COCO annotations. A keypoint is visible (2) when most of the pixels
        around it show a part of that person on which it lies, else hidden (1). Not labelled (0) are points
        outside the picture, points on the averted side of a face, most hidden points of heavily hidden people,
        and all points of distant people and crowds. ``area`` and ``bbox`` are those of ``segmentation``.
    """
    rng = np.random.default_rng((seed, list(SPLITS).index(split), index))
    width, height = size if isinstance(size, tuple) else draw_size(rng, size)
    scene = draw_scene(rng, width, height)
    image_id = SPLITS[split] + index
    annotations = []
    for actor in scene.actors:
        mask = scene.mask(actor)
        if mask.any():
            number = image_id * _IDS_PER_PICTURE + len(annotations)
            annotations.append(_annotation(rng, scene, actor, mask) | {"image_id": image_id, "id": number})
    return scene.image, annotations


def write_dataset(output: Path, train: int, val: int, seed: int = 0, workers: int | None = None,
                  size: int | tuple[int, int] = DEFAULT_SIZE) -> None:
    """Write ``train2017/``, ``val2017/``, ``annotations/person_keypoints_*2017.json`` and ``synthetic.json``.

    The same arguments give the same bytes, whatever the number of workers. The annotations are written last. An
    earlier set of this tool is replaced; a folder that holds any other file is left alone.

    Args:
        output: folder, made where missing.
        train, val: pictures in either split.
        seed: not negative.
        workers: processes; None takes one per core.
        size: as for ``draw_picture``.

    Raises:
        DataError: a number out of range, or a folder with files that this tool did not write.
    """
    counts = {"train": train, "val": val}
    _check(counts, seed, workers, size)
    settings = {"tool": _TOOL, "seed": seed, **counts, "size": size}
    _clear(output, _file_names(counts))
    for split in SPLITS:
        (output / _folder(split)).mkdir(parents=True, exist_ok=True)
    (output / "annotations").mkdir(exist_ok=True)
    _write_json(output / MARKER, settings)
    jobs = [(split, index) for split in SPLITS for index in range(counts[split])]
    entries = {split: {"images": [], "annotations": []} for split in SPLITS}
    work = partial(_write_picture, output, seed, size)
    for (split, _), (image, annotations) in zip(jobs, tqdm(_map(work, jobs, workers), total=len(jobs), unit="picture")):
        entries[split]["images"].append(image)
        entries[split]["annotations"] += annotations
    for split, lists in entries.items():
        _write_json(output / _annotation_file(split), {
            "info": {"description": f"People drawn by {_TOOL}", "version": "1.0"},
            "licenses": [], "categories": [_CATEGORY], **lists})


def _annotation(rng: np.random.Generator, scene: Scene, actor: Actor, mask: np.ndarray) -> dict[str, Any]:
    crowd = actor.kind == "crowd"
    segmentation, rle = _segmentation(mask, "counts" if crowd else rng.choice(
        ("polygons", "counts", "compressed"), p=(.7, .15, .15)))
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    seen = np.count_nonzero(mask) / actor.painted
    if actor.kind == "person" and seen > .1:
        keypoints = _keypoints(actor.figures[0], scene.owner)
        if seen < .4:
            forgotten = (keypoints[:, 2] == 1) & (rng.random(len(keypoints)) < .7)
            keypoints[forgotten] = 0
    return {"segmentation": segmentation, "num_keypoints": int(np.count_nonzero(keypoints[:, 2])),
            "area": int(rle_tools.area(rle)), "iscrowd": int(crowd), "keypoints": _flat(keypoints),
            "bbox": rle_tools.toBbox(rle).tolist(), "category_id": 1}


def _keypoints(figure: Figure, owner: np.ndarray) -> np.ndarray:
    """(17, 3) x, y and visibility, in COCO's order."""
    height, width = owner.shape
    averted = figure.unlabelled()
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    for point, name in zip(keypoints, COCO.file_keypoints):
        x, y = figure.at[name]
        column, row = round(x), round(y)
        if name in averted or not (0 <= column < width and 0 <= row < height):
            continue
        around = owner[max(row - 1, 0):row + 2, max(column - 1, 0):column + 2]
        shown = sum(np.count_nonzero(around == code) for code in figure.codes_showing(name))
        point[:] = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1), 2 if 2 * shown > around.size else 1
    return keypoints


def _segmentation(mask: np.ndarray, form: str) -> tuple[list | dict, dict]:
    """The mask in one of COCO's forms, and what that form decodes to, as compressed run lengths."""
    height, width = mask.shape
    if form == "polygons" and (polygons := _polygons(mask)):
        return polygons, rle_tools.merge(rle_tools.frPyObjects(polygons, height, width))
    rle = rle_tools.encode(np.asfortranarray(mask))
    if form == "compressed":
        return {"size": [height, width], "counts": rle["counts"].decode("ascii")}, rle
    flat = np.concatenate([[0], mask.ravel(order="F"), [1 - mask[-1, -1]]])
    changes = np.flatnonzero(np.diff(flat))
    return {"size": [height, width], "counts": np.diff(changes, prepend=0).tolist()}, rle


def _polygons(mask: np.ndarray) -> list[list[float]]:
    """Outlines of the parts of a mask, without holes, in COCO's frame.

    A contour runs through the centres of a shape's outermost pixels; taken on the mask at twice its size it
    stays within a quarter of a pixel of the true edge.
    """
    left, top, width, height = cv2.boundingRect(mask)
    cut = mask[top:top + height, left:left + width].repeat(2, axis=0).repeat(2, axis=1)
    contours, _ = cv2.findContours(cut, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [cv2.approxPolyDP(contour, 0.9, True)[:, 0] for contour in contours]
    return [((outline + 0.5) / 2 + (left, top)).ravel().tolist() for outline in outlines if len(outline) >= 3]


def _flat(keypoints: np.ndarray) -> list[float]:
    return [round(float(value), 1) if k % 3 < 2 and value else int(value) for k, value in enumerate(keypoints.ravel())]


def _write_picture(output: Path, seed: int, size: int | tuple[int, int], job: tuple[str, int],
                   ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw and save one picture; its entry under ``images`` and its annotations."""
    split, index = job
    image, annotations = draw_picture(seed, split, index, size)
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    image_id, name = SPLITS[split] + index, _picture_name(split, index)
    (output / _folder(split) / name).write_bytes(encoded.tobytes())
    return {"file_name": name, "height": image.shape[0], "width": image.shape[1], "id": image_id}, annotations

"""What an annotator would write about a drawn scene: COCO's keypoints, visibility, masks and boxes.

Keypoints are in pixels, the centre of the first pixel at (0, 0). Boxes and polygons are in COCO's frame, whose origin
is the outer corner of the first pixel.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from pycocotools import mask as rle_tools

from posenet.skeleton import COCO
from posenet.synthetic.figure import Figure
from posenet.synthetic.scene import Actor, Scene

CATEGORY = {
    "supercategory": "person",
    "id": 1,
    "name": "person",
    "keypoints": list(COCO.file_names),
    "skeleton": [
        [16, 14],
        [14, 12],
        [17, 15],
        [15, 13],
        [12, 13],
        [6, 12],
        [7, 13],
        [6, 7],
        [6, 8],
        [7, 9],
        [8, 10],
        [9, 11],
        [2, 3],
        [1, 2],
        [1, 3],
        [2, 4],
        [3, 5],
        [4, 6],
        [5, 7],
    ],
}
"""The entry of ``categories``: COCO's own."""

_FORMS, _FORM_SHARES = ("polygons", "counts", "compressed"), (0.70, 0.15, 0.15)
_BARELY_SEEN, _HEAVILY_HIDDEN, _FORGOTTEN = 0.1, 0.4, 0.7


def annotate(rng: np.random.Generator, scene: Scene) -> list[dict[str, Any]]:
    """COCO annotations, but for ``id`` and ``image_id``, of everybody who is seen at all.

    A keypoint is visible (2) when most of the 3x3 pixels around it show a part of that person on which it lies,
    else hidden (1). Not labelled (0) are points outside the image, points on the averted side of a face, most
    hidden points of heavily hidden people, and all points of the barely seen, of distant people and of crowds.
    ``area`` and ``bbox`` are those of the decoded ``segmentation``.
    """
    masks = [(actor, scene.mask(actor)) for actor in scene.actors]
    return [_annotation(rng, scene, actor, mask) for actor, mask in masks if mask.any()]


def _annotation(rng: np.random.Generator, scene: Scene, actor: Actor, mask: np.ndarray) -> dict[str, Any]:
    crowd = actor.kind == "crowd"
    segmentation, rle = encode(mask, "counts" if crowd else rng.choice(_FORMS, p=_FORM_SHARES))
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    seen = np.count_nonzero(mask) / actor.painted
    if actor.kind == "person" and seen > _BARELY_SEEN:
        keypoints = _keypoints(actor.figures[0], scene.owner)
        if seen < _HEAVILY_HIDDEN:
            keypoints[(keypoints[:, 2] == 1) & (rng.random(len(keypoints)) < _FORGOTTEN)] = 0
    return {
        "segmentation": segmentation,
        "num_keypoints": int(np.count_nonzero(keypoints[:, 2])),
        "area": int(rle_tools.area(rle)),
        "iscrowd": int(crowd),
        "keypoints": [value for x, y, v in keypoints for value in (round(float(x), 1), round(float(y), 1), int(v))],
        "bbox": rle_tools.toBbox(rle).tolist(),
        "category_id": 1,
    }


def _keypoints(figure: Figure, owner: np.ndarray) -> np.ndarray:
    """(17, 3) x, y and visibility, in COCO's order."""
    height, width = owner.shape
    averted = figure.averted()
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    for point, name in zip(keypoints, COCO.file_keypoints):
        x, y = figure.at[name]
        column, row = round(x), round(y)
        if name in averted or not (0 <= column < width and 0 <= row < height):
            continue
        around = owner[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        shown = sum(np.count_nonzero(around == code) for code in figure.codes_showing(name))
        point[:] = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1), 2 if 2 * shown > around.size else 1
    return keypoints


def encode(mask: np.ndarray, form: str) -> tuple[list | dict, dict]:
    """Write a mask in one of COCO's forms.

    Args:
        mask: (H, W) uint8, 0 or 1, not all 0.
        form: ``polygons``, ``counts`` (plain run lengths) or ``compressed``. A mask too thin for polygons becomes
            ``counts``.

    Returns:
        The ``segmentation``, and the compressed run lengths that it decodes to.
    """
    height, width = mask.shape
    if form == "polygons" and (polygons := _polygons(mask)):
        return polygons, rle_tools.merge(rle_tools.frPyObjects(polygons, height, width))
    rle = rle_tools.encode(np.asfortranarray(mask))
    if form == "compressed":
        return {"size": [height, width], "counts": rle["counts"].decode("ascii")}, rle
    flat = mask.ravel(order="F")
    ends = np.append(np.flatnonzero(np.diff(flat)) + 1, flat.size)
    counts = np.diff(ends, prepend=0).tolist()
    return {"size": [height, width], "counts": [0] * int(flat[0]) + counts}, rle


def _polygons(mask: np.ndarray) -> list[list[float]]:
    """Outlines of the pieces of a mask, without holes, in COCO's frame.

    A contour runs through the centres of a shape's outermost pixels; taken on the mask at twice its size, it
    stays within a quarter of a pixel of the true edge.
    """
    left, top, width, height = cv2.boundingRect(mask)
    cut = mask[top : top + height, left : left + width].repeat(2, axis=0).repeat(2, axis=1)
    contours, _ = cv2.findContours(cut, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [cv2.approxPolyDP(contour, 0.9, True)[:, 0] for contour in contours]
    return [((outline + 0.5) / 2 + (left, top)).ravel().tolist() for outline in outlines if len(outline) >= 3]

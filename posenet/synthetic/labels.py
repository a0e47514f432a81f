"""COCO annotations of a synthetic scene: keypoints, visibility, masks and boxes, as an annotator would label them.

The centre of the first pixel is (0, 0) for keypoints. Boxes and polygons are in COCO's frame: its origin is the outer
corner of the first pixel.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from posenet.annotations.outlines import parse_coco_text
from posenet.skeleton import COCO
from posenet.synthetic.dressed_person import Figure
from posenet.synthetic.scene import Actor, Scene

_FORMS = ("polygons", "counts", "compressed")
_FORM_SHARES = (0.70, 0.15, 0.15)
_BARELY_SEEN = 0.1  # nothing is labelled in a person of whom at most this share is visible
_HEAVILY_HIDDEN = 0.4  # most hidden keypoints are not labelled in a person of whom less than this share is visible
_UNLABELLED_SHARE = 0.7  # of those hidden keypoints


def annotate(rng: np.random.Generator, scene: Scene) -> list[dict[str, Any]]:
    """COCO annotations, without ``id`` and ``image_id``, of every actor with a visible pixel.

    A keypoint is visible (2) if most of the 3 x 3 pixels around it show a part of the person that it belongs to,
    else hidden (1). These keypoints are not labelled (0): those outside the image, those on the averted side of a face,
    most hidden ones of heavily hidden people, and all of barely visible people, distant people and crowds. ``area`` and
    ``bbox`` are those of the decoded ``segmentation``.
    """
    masks = [(actor, scene.mask(actor)) for actor in scene.actors]
    return [_annotation(rng, scene, actor, mask) for actor, mask in masks if mask.any()]


def _annotation(rng: np.random.Generator, scene: Scene, actor: Actor, mask: np.ndarray) -> dict[str, Any]:
    crowd = actor.kind == "crowd"
    form = "counts" if crowd else str(rng.choice(_FORMS, p=_FORM_SHARES))
    segmentation, rle = write_segmentation(mask, form)
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    seen = np.count_nonzero(mask) / actor.painted
    if actor.kind == "person" and seen > _BARELY_SEEN:
        keypoints = figure_keypoints(actor.figures[0], scene.owner)
        if seen < _HEAVILY_HIDDEN:
            hidden = keypoints[:, 2] == 1
            keypoints[hidden & (rng.random(len(keypoints)) < _UNLABELLED_SHARE)] = 0
    return {
        "segmentation": segmentation,
        "num_keypoints": int(np.count_nonzero(keypoints[:, 2])),
        "area": int(coco_mask.area(rle)),
        "iscrowd": int(crowd),
        "keypoints": flatten_keypoints(keypoints),
        "bbox": coco_mask.toBbox(rle).tolist(),
        "category_id": 1,
    }


def figure_keypoints(figure: Figure, owner: np.ndarray) -> np.ndarray:
    """(17, 3) x, y and visibility in COCO's order: 2 visible, 1 hidden, 0 outside or on the averted side of a face."""
    height, width = owner.shape
    keypoints = np.zeros((len(COCO.file_keypoints), 3))
    for keypoint, name in zip(keypoints, COCO.file_keypoints):
        x, y = figure.at[name]
        column, row = round(x), round(y)
        if name in figure.averted or not (0 <= column < width and 0 <= row < height):
            continue
        around = owner[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        showing = sum(np.count_nonzero(around == code) for code in figure.codes_showing(name))
        visibility = 2 if 2 * showing > around.size else 1
        keypoint[:] = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1), visibility
    return keypoints


def flatten_keypoints(keypoints: np.ndarray) -> list[float]:
    """(17, 3) keypoints as in an annotation file: x, y with one decimal, and visibility."""
    values: list[float] = []
    for x, y, visibility in keypoints.tolist():
        values += [round(x, 1), round(y, 1), int(visibility)]
    return values


def write_segmentation(mask: np.ndarray, form: str) -> tuple[list[list[float]] | dict[str, Any], dict[str, Any]]:
    """Convert an (H, W) uint8 mask to a ``segmentation``, and return it with its mask as compressed run lengths.

    The form is ``polygons``, ``counts`` (plain run lengths) or ``compressed``. A mask too thin for polygons becomes
    ``counts``.
    """
    height, width = mask.shape
    if form == "polygons" and (polygons := _polygons(mask)):
        return polygons, coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    rle = coco_mask.encode(np.asfortranarray(mask))
    if form == "compressed":
        return {"size": [height, width], "counts": rle["counts"].decode("ascii")}, rle
    return {"size": [height, width], "counts": parse_coco_text(rle["counts"]).tolist()}, rle


def _polygons(mask: np.ndarray) -> list[list[float]]:
    """Outlines of the connected regions of a mask, without holes, in COCO's frame.

    OpenCV's contours connect the centres of a region's outermost pixels. On the mask at twice its size, they are within
    a quarter of a pixel of the true edge.
    """
    left, top, width, height = cv2.boundingRect(mask)
    enlarged = mask[top : top + height, left : left + width].repeat(2, axis=0).repeat(2, axis=1)
    contours, _ = cv2.findContours(enlarged, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [cv2.approxPolyDP(contour, 0.9, True)[:, 0] for contour in contours]
    return [((outline + 0.5) / 2 + (left, top)).ravel().tolist() for outline in outlines if len(outline) >= 3]

"""Drawn chairs as a COCO-format data set: objects with left and right that are not people."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tests.helpers.drawn_data import person

SIDE = 160
NAMES = [
    f"{part}_{side}"
    for part in ("back_top", "seat_back", "seat_front", "leg_back", "leg_front")
    for side in ("left", "right")
]
EDGES = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5), (2, 6), (3, 7), (4, 8), (5, 9)]
SHAPE = np.array(
    [
        (0.5, -1.1), (-0.5, -1.1), (0.5, 0), (-0.5, 0), (0.7, 0.25), (-0.7, 0.25), (0.5, 0.8), (-0.5, 0.8),
        (0.7, 1.2), (-0.7, 1.2),
    ]
)  # fmt: skip
"""x, y of the keypoints in chair widths, seen from the front: the chair's left is on the right of the image."""


def write_chairs(root: Path, split: str, count: int, seed: int) -> tuple[Path, Path]:
    """Draw ``count`` images of two chairs each; returns the image folder and the annotation file."""
    rng = np.random.default_rng(seed)
    folder = root / split
    annotations = root / f"{split}.json"
    folder.mkdir(parents=True)
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 62, "name": "chair", "keypoints": NAMES, "skeleton": [[a + 1, b + 1] for a, b in EDGES]}],
    }
    for number in range(1, count + 1):
        drawing = np.full((SIDE, SIDE, 3), rng.integers(150, 255, 3), np.uint8)
        content["images"].append({"id": number, "file_name": f"{number}.jpg", "width": SIDE, "height": SIDE})
        for x in (48, 112):
            points = _chair(rng, np.array([x, 84]) + rng.uniform(-6, 6, 2))
            _draw(drawing, points, rng)
            content["annotations"].append(_annotation(len(content["annotations"]) + 1, number, points, rng))
        cv2.imwrite(str(folder / f"{number}.jpg"), drawing)
    annotations.write_text(json.dumps(content))
    return folder, annotations


def _chair(rng: np.random.Generator, centre: np.ndarray) -> np.ndarray:
    shape = SHAPE * [rng.choice([-1, 1]), 1] * rng.uniform(0.8, 1.2, 2)  # seen from the front or from behind
    turn = np.radians(rng.uniform(-15, 15))
    size = rng.uniform(30, 40)
    return centre + size * shape @ [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]


def _draw(drawing: np.ndarray, points: np.ndarray, rng: np.random.Generator) -> None:
    colour = rng.integers(0, 120, 3).tolist()
    for a, b in EDGES:
        start, end = points[[a, b]].astype(int).tolist()
        cv2.line(drawing, start, end, colour, 3, cv2.LINE_AA)


def _annotation(number: int, image: int, points: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    visible = np.where(rng.random(len(points)) < 0.1, 0, 2)
    values = np.where(visible[:, None] > 0, np.c_[points.round(2), visible], 0)
    low, high = points.min(0), points.max(0)
    box = [*low.tolist(), *(high - low).tolist()]
    labels = {"num_keypoints": int((visible > 0).sum()), "keypoints": values.ravel().tolist()}
    area = 0.84 * float(np.prod(high - low))
    return person(number, image, tuple(box), category_id=62, segmentation=[], area=area, **labels)

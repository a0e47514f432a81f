"""Small COCO data sets of stick figures, for tests that train, predict or evaluate a little."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from posenet.annotations.coco import COCO_CATEGORY
from tests.helpers.drawn_data import crowd, person

FIRST_IDS = {"train": 1, "val": 10_000_001}

STANDING = np.array([
    (0.50, 0.07), (0.53, 0.05), (0.47, 0.05), (0.57, 0.07), (0.43, 0.07), (0.64, 0.20), (0.36, 0.20), (0.72, 0.36),
    (0.28, 0.36), (0.74, 0.52), (0.26, 0.52), (0.59, 0.52), (0.41, 0.52), (0.60, 0.75), (0.40, 0.75), (0.61, 0.96),
    (0.39, 0.96),
])  # fmt: skip
"""(17, 2): the keypoints of a person who stands in a square with sides of 1."""


def write_dataset(folder: Path, train: int, val: int, seed: int = 0, size: int = 512) -> None:
    """``train2017/``, ``val2017/`` and ``annotations/`` of images of ``size`` x 3/4 ``size`` pixels.

    Each has two or three people, some of their keypoints are hidden, and every third image has a crowd.
    """
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("val", val)):
        (folder / f"{split}2017").mkdir(exist_ok=True)
        images, annotations = [], []
        for number in range(FIRST_IDS[split], FIRST_IDS[split] + count):
            pixels, people = draw_image(np.random.default_rng((seed, number)), number, size)
            name = f"{number:012d}.jpg"
            cv2.imwrite(str(folder / f"{split}2017" / name), pixels)
            images.append({"id": number, "file_name": name, "height": len(pixels), "width": len(pixels[0])})
            annotations += people
        content = {"images": images, "annotations": annotations, "categories": [COCO_CATEGORY]}
        (folder / "annotations" / f"person_keypoints_{split}2017.json").write_text(json.dumps(content))


def draw_image(rng: np.random.Generator, image_id: int, width: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """An (H, W, 3) uint8 BGR image and its annotations."""
    height = width * 3 // 4
    pixels = cv2.resize(rng.integers(60, 200, (6, 8, 3), np.uint8), (width, height))
    annotations = []
    count = 3 if image_id % 3 == 2 else 2
    for number in range(count):
        side = width / count * rng.uniform(0.7, 0.95)
        corner = ((number + 0.5) * width / count - side / 2, rng.uniform(0, height - side))
        points = np.clip(corner + side * (STANDING + rng.normal(0, 0.02, (17, 2))), 0, (width - 1, height - 1)).round(1)
        colour = rng.integers(0, 256, 3).tolist()
        for first, second in COCO_CATEGORY["skeleton"]:
            ends = (tuple(points[end].astype(int).tolist()) for end in (first - 1, second - 1))
            cv2.line(pixels, *ends, colour, max(1, round(side / 25)))
        visibility = np.where(rng.random(17) < 0.1, 1, 2)
        outline = cv2.convexHull(points.astype(np.float32))[:, 0]
        left, top, box_width, box_height = cv2.boundingRect(outline)
        annotations.append(
            person(
                100 * image_id + number,
                image_id,
                (left, top, box_width, box_height),
                keypoints=np.column_stack([points, visibility]).ravel().tolist(),
                area=float(cv2.contourArea(outline)),
                segmentation=[outline.ravel().tolist()],
            )
        )
    if image_id % 3 == 0:
        box = (2, 2, width // 8, height // 8)
        annotations.append(crowd(100 * image_id + 99, image_id, box, (height, width)))
    return pixels, annotations

"""Images of spots that the spot networks take for people, as a COCO split and as an exported network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from posenet.images import read_image, write_image
from posenet.inference.predictor import Predictor
from posenet.settings import Config, InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image


def write_spot_split(folder: Path) -> Path:
    """Eight images with people that ``LinearSpotNetwork`` finds; returns their annotations, slightly moved."""
    images: list[dict[str, Any]] = []
    people: list[dict[str, Any]] = []
    shapes = [(200, 300), (200, 300), (160, 330), (200, 300), (256, 256), (130, 190), (200, 290), (256, 256)]
    for number, (height, width) in enumerate(shapes):
        path = folder / f"{number}.png"
        write_image(path, spot_people_image(height, width, 2, number))
        images.append({"id": number + 1, "file_name": path.name, "height": height, "width": width})
        for person in Predictor(LinearSpotNetwork(), InferenceConfig(height=height), min_score=0)(read_image(path)):
            joints = person.to_coco().round(1)
            joints[:, :2] += (number % 3) * 1.5  # so that AP is neither 0 nor 1
            joints[:, 2] = 2 * (joints[:, 2] > 0)
            labelled = joints[joints[:, 2] > 0, :2]
            low, high = labelled.min(axis=0), labelled.max(axis=0)
            people.append(
                {
                    "id": len(people) + 1,
                    "image_id": number + 1,
                    "category_id": 1,
                    "area": 3000.0,
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "iscrowd": 0,
                    "keypoints": joints.astype(float).ravel().tolist(),
                }
            )
    category = {"id": 1, "name": "person", "keypoints": list(COCO.file_names)}
    path = folder / "truth.json"
    path.write_text(json.dumps({"images": images, "annotations": people, "categories": [category]}))
    return path


def export_spot_network(path: Path) -> Path:
    """Export ``LinearSpotNetwork`` for images of 192 rows; returns the path."""
    from posenet.inference.exports.onnx_export import build_onnx

    config = dataclasses.replace(Config(), inference=InferenceConfig(height=192, batch_size=3))
    path.write_bytes(build_onnx(LinearSpotNetwork(), config).SerializeToString())
    return path

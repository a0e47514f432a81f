"""Networks that need no training because keypoints are coloured spots; images with such spots, and a COCO split."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.images import read_image, write_image
from posenet.inference.predictor import Predictor
from posenet.settings import Config, InferenceConfig
from posenet.skeleton import COCO

NOSE = COCO.index("nose")
NECK = COCO.index("neck")


class SpotNetwork(nn.Module):
    """Finds a nose where the image is red and a neck where it is green, but not in grey padding. It has no weights.

    Attributes:
        shapes: shapes of all inputs so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def heatmaps(self, images: Tensor) -> Tensor:
        self.shapes.append(tuple(images.shape))
        maps = torch.zeros(len(images), COCO.num_channels, images.shape[2] // 4, images.shape[3] // 4)
        maps[:, COCO.part_channels] = 1
        for keypoint, channel in ((NOSE, 2), (NECK, 1)):
            others = [other for other in range(3) if other != channel]
            contrast = images[:, channel] - images[:, others].amax(1)
            maps[:, COCO.num_parts + keypoint] = F.avg_pool2d(contrast[:, None], 4)[:, 0]
        return maps


def spot_image(
    height: int, width: int, nose: tuple[float, float], neck: tuple[float, float], radius: float
) -> np.ndarray:
    """A black image with a soft red spot at ``nose`` and a green one at ``neck``, both (x, y)."""
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width, 3))
    for channel, (u, v) in ((2, nose), (1, neck)):
        image[..., channel] = 255 * np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * radius**2))
    return image.round().astype(np.uint8)


class LinearSpotNetwork(nn.Module):
    """Finds a nose at red, a neck at green and a right shoulder at blue, by a convolution that can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = nn.Conv2d(3, COCO.num_channels, 1)
        nn.init.zeros_(self.colours.weight)
        nn.init.zeros_(self.colours.bias)
        with torch.no_grad():
            self.colours.bias[COCO.part_channels] = 0.8
            for channel, name in enumerate(("right_shoulder", "neck", "nose")):
                self.colours.weight[COCO.num_parts + COCO.index(name), channel] = 1

    def heatmaps(self, images: Tensor) -> Tensor:
        return self.colours(F.avg_pool2d(images * 1.6 - images.sum(1, keepdim=True) * 0.8, 4))


def spot_people_image(height: int, width: int, num_people: int, seed: int = 0) -> np.ndarray:
    """A black image in which each person is a nose, a neck below it and a right shoulder beside the neck."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3))
    y, x = np.mgrid[:height, :width]
    for left in np.linspace(40, width - 40, num_people):
        top = rng.uniform(30, height - 60)
        for channel, (u, v) in enumerate(((left - 18, top + 31), (left, top + 30), (left, top))):
            spot = rng.uniform(200, 250) * np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * 6**2))
            image[..., channel] = np.maximum(image[..., channel], spot)
    return image.round().astype(np.uint8)


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
            own = {"id": len(people) + 1, "image_id": number + 1, "category_id": 1, "area": 3000.0, "iscrowd": 0}
            box = [*low.tolist(), *(high - low).tolist()]
            people.append(own | {"bbox": box, "keypoints": joints.astype(float).ravel().tolist()})
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

"""A network's maps of one image, and the sheet that shows them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch

from posenet.images.image_files import to_bgr, write_image
from posenet.inference.media.outputs import Output
from posenet.inference.media.sources import Frame, Source
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.skeleton import Skeleton
from posenet.visualization.contact_sheet import BACKGROUND, STRIP, sheet, tile, write

TILE = 216
"""Longer side of a map on the sheet, in pixels."""
ASPECT = 1.5
"""Width over height that the sheet is to have, about."""
DIMMED = 0.6
"""Brightness of the image behind the maps."""


@torch.inference_mode()
def image_maps(predictor: Predictor, image: np.ndarray) -> np.ndarray:
    """The maps of an image at the predictor's height, averaged with those of its mirror image if it does so.

    Args:
        image: (H, W, 3) BGR uint8.

    Returns:
        (C, h, w) float32: the cells that show the image, not its padding.
    """
    fit = predictor.fit(image.shape[:2])
    rows, columns = fit.cells
    return predictor.maps_of(fit.place(image)[None])[0, :, :rows, :columns].cpu().numpy()


def heatmap_sheet(
    image: np.ndarray, maps: np.ndarray, skeleton: Skeleton, drawn: np.ndarray | None = None
) -> np.ndarray:
    """All maps over the dimmed image, each with its channel, its name and its highest value.

    The colours are the same for all: dark violet is 0 to yellow, 1.

    Args:
        image: (H, W, 3) BGR.
        maps: (C, h, w), which show the whole image.
        drawn: the image with its people, which is shown first; None is the image itself.

    Returns:
        (H', W', 3) BGR uint8, some 2000 pixels wide.
    """
    image = to_bgr(image)
    factor = TILE / max(image.shape[:2])
    height, width = (max(24, round(side * factor)) for side in image.shape[:2])
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    dimmed = cv2.cvtColor(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR) * DIMMED
    columns = max(1, round(math.sqrt((len(maps) + 2) * ASPECT * (height + STRIP) / width)))
    tiles = [tile(image if drawn is None else drawn, "image", (height, width))]
    tiles += [
        tile(_over(dimmed, one), f"{channel} {name}", (height, width), f"{one.max():.2f}")
        for channel, (name, one) in enumerate(zip(channel_names(skeleton), maps))
    ]
    return sheet([*tiles, _legend(height, width)], columns)


def heatmap_sheets(predictor: Predictor, paths: dict[Source, Path]) -> Output:
    """A sheet of all maps for every image; those of a video or a camera go into a folder, by frame number."""

    def write(frame: Frame, people: Sequence[Person], drawn: np.ndarray) -> None:
        path = paths[frame.source] if frame.number is None else paths[frame.source] / f"{frame.number:06d}.jpg"
        maps = image_maps(predictor, frame.image)
        write_image(path, heatmap_sheet(frame.image, maps, predictor.skeleton, drawn))

    return write


def channel_names(skeleton: Skeleton) -> list[str]:
    """What every one of the C maps shows."""
    return ["-".join(part) for part in skeleton.parts] + [*skeleton.keypoints, "person", "any keypoint"]


def _over(dimmed: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One (h, w) map laid over an image; it hides the more the higher it is."""
    height, width = dimmed.shape[:2]
    values = np.clip(cv2.resize(values.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR), 0, 1)
    cover = np.minimum(2 * values, 1)[..., None]
    return (dimmed * (1 - cover) + _coloured(values) * cover).round().astype(np.uint8)


def _coloured(values: np.ndarray) -> np.ndarray:
    return cv2.applyColorMap((values * 255).round().astype(np.uint8), cv2.COLORMAP_PLASMA)


def _legend(height: int, width: int) -> np.ndarray:
    picture = np.full((height, width, 3), BACKGROUND, np.uint8)
    bar = np.tile(np.linspace(0, 1, max(width - 16, 2), dtype=np.float32), (12, 1))
    picture[4:16, 8 : 8 + bar.shape[1]] = _coloured(bar)[:, : width - 8]
    result = tile(picture, "", (height, width))
    write(result, "0", (8, STRIP - 4))
    write(result, "1", (width - 16, STRIP - 4))
    return result

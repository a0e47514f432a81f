"""Drawings of the network's maps: one map over an image, and all maps of an image on a contact sheet."""

from __future__ import annotations

import math

import cv2
import numpy as np

from posenet.images.image_files import to_bgr
from posenet.skeleton import Skeleton
from posenet.visualization.contact_sheet import BACKGROUND, LABEL_HEIGHT, contact_sheet, draw_text, label_tile

TILE_SIZE = 216
"""Longer side of a map on the sheet, in pixels."""
MIN_TILE_SIDE = 24
"""Smallest side of a map on the sheet, in pixels: the colour scale does not fit into narrower tiles."""
SHEET_ASPECT = 1.5
"""Approximate width / height of the sheet."""
BACKGROUND_BRIGHTNESS = 0.6
"""Brightness of the image behind the maps, relative to the image itself."""


def draw_heatmap_sheet(
    image: np.ndarray, maps: np.ndarray, skeleton: Skeleton, drawing: np.ndarray | None = None
) -> np.ndarray:
    """Draw every map over the dimmed image, with its channel, its name and its maximum; about 2000 pixels wide.

    All maps have the same colours, from dark violet (0) to yellow (1).

    Args:
        image: (H, W, 3) BGR.
        maps: (C, h, w) maps of the whole image.
        drawing: the image with its people, for the first tile; None shows the image alone.
    """
    image = to_bgr(image)
    factor = TILE_SIZE / max(image.shape[:2])
    height = max(MIN_TILE_SIDE, round(image.shape[0] * factor))
    width = max(MIN_TILE_SIDE, round(image.shape[1] * factor))
    dimmed = dim_image(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))
    tiles = [label_tile(image if drawing is None else drawing, "image", (height, width))]
    for channel, (name, heatmap) in enumerate(zip(channel_names(skeleton), maps)):
        overlay = overlay_heatmap(dimmed, heatmap)
        tiles.append(label_tile(overlay, f"{channel} {name}", (height, width), f"{heatmap.max():.2f}"))
    tiles.append(_colour_scale_tile(height, width))
    # n tiles of height h and width w in c columns make a sheet of c w by (n / c) h pixels.
    columns = max(1, round(math.sqrt(len(tiles) * SHEET_ASPECT * (height + LABEL_HEIGHT) / width)))
    return contact_sheet(tiles, columns)


def channel_names(skeleton: Skeleton) -> list[str]:
    """Names of the C maps, in channel order."""
    body_parts = ["-".join(part) for part in skeleton.parts]
    return [*body_parts, *skeleton.keypoints, "person", "any keypoint"]


def dim_image(image: np.ndarray) -> np.ndarray:
    """Convert a (H, W, 3) BGR uint8 image to a dark grey float background for maps."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    return grey * BACKGROUND_BRIGHTNESS


def overlay_heatmap(background: np.ndarray, heatmap: np.ndarray) -> np.ndarray:
    """Draw a (h, w) map in colours over an (H, W, 3) background, which is visible where the map is low.

    The map is enlarged to the background and clipped to 0-1. The result is (H, W, 3) BGR uint8.
    """
    height, width = background.shape[:2]
    enlarged = cv2.resize(heatmap.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    values = np.clip(enlarged, 0, 1)
    opacity = np.minimum(2 * values, 1)[..., None]
    blended: np.ndarray = background * (1 - opacity) + _apply_colours(values) * opacity
    return blended.round().astype(np.uint8)


def _apply_colours(values: np.ndarray) -> np.ndarray:
    """Colours (H, W, 3) of values (H, W) from 0 to 1."""
    return cv2.applyColorMap((values * 255).round().astype(np.uint8), cv2.COLORMAP_PLASMA)


def _colour_scale_tile(height: int, width: int) -> np.ndarray:
    """A tile that shows the colours of values from 0 to 1."""
    margin = 8
    bar_width = width - 2 * margin
    image = np.full((height, width, 3), BACKGROUND, np.uint8)
    values = np.tile(np.linspace(0, 1, bar_width, dtype=np.float32), (12, 1))
    image[4:16, margin : margin + bar_width] = _apply_colours(values)
    tile = label_tile(image, "", (height, width))
    draw_text(tile, "0", (margin, LABEL_HEIGHT - 4))
    draw_text(tile, "1", (width - 2 * margin, LABEL_HEIGHT - 4))
    return tile

"""Sheets of labelled tiles: all maps of an image, and training samples with their masks and target maps."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import cv2
import numpy as np

from posenet.person import Person
from posenet.skeleton import Skeleton
from posenet.visualization.drawing import MIDDLE, OUTLINE, draw_people

if TYPE_CHECKING:  # sheets of maps need no PyTorch
    from posenet.data.dataset import Batch, PoseDataset
    from posenet.data.targets import TargetRenderer

BACKGROUND = (32, 32, 32)  # BGR
TEXT_COLOUR = (235, 235, 235)  # BGR
LABEL_HEIGHT = 24
"""Height in pixels of the strip above a tile that shows its label."""
GAP = 6
"""Pixels between tiles, and around them."""
MAP_SIZE = 216
"""Longer side of a map on the sheet, in pixels. Tiles are wider where labels need it, but at most twice as wide."""
MIN_MAP_SIDE = 24
"""Smallest side of a map on the sheet, in pixels."""
MIN_SAMPLE_WIDTH = 400
"""Narrower training samples have margins, so that the labels fit above them."""
PERSON_MASK_COLOUR = (200, 160, 40)
"""BGR of people in the person mask."""
UNSUPERVISED_COLOUR = (60, 60, 230)
"""BGR of the area that the loss ignores."""

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FONT_SCALE = 0.45
_MARGIN = 4


def label_tile(image: np.ndarray, label: str, size: tuple[int, int], note: str = "") -> np.ndarray:
    """Centre an image (H, W, 3) BGR uint8 in a tile below a strip with a label on the left and a note on the right.

    ``size`` is the (height, width) of the tile without the strip of ``LABEL_HEIGHT`` pixels.
    """
    height, width = size
    tile = np.full((height + LABEL_HEIGHT, width, 3), BACKGROUND, np.uint8)
    factor = min(height / image.shape[0], width / image.shape[1])
    image_height, image_width = (max(1, round(side * factor)) for side in image.shape[:2])
    top = LABEL_HEIGHT + (height - image_height) // 2
    left = (width - image_width) // 2
    tile[top : top + image_height, left : left + image_width] = cv2.resize(
        image, (image_width, image_height), interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    )
    _draw_text(tile, label, _MARGIN, width - _MARGIN - (_text_width(note) + 2 * _MARGIN if note else 0))
    _draw_text(tile, note, max(_MARGIN, width - _MARGIN - _text_width(note)), width)
    return tile


def contact_sheet(tiles: Sequence[np.ndarray], columns: int, title: str = "") -> np.ndarray:
    """Arrange tiles of one size in rows of at most ``columns``, below a title if there is one; (H, W, 3) BGR uint8."""
    columns = min(columns, len(tiles))
    blanks = [np.full_like(tiles[0], BACKGROUND)] * (-len(tiles) % columns)
    border = (GAP, 0, GAP, 0)  # above, below, left and right
    spaced = [cv2.copyMakeBorder(tile, *border, cv2.BORDER_CONSTANT, value=BACKGROUND) for tile in [*tiles, *blanks]]
    rows = [np.hstack(spaced[start : start + columns]) for start in range(0, len(spaced), columns)]
    border = (LABEL_HEIGHT if title else 0, GAP, 0, GAP)
    sheet = cv2.copyMakeBorder(np.vstack(rows), *border, cv2.BORDER_CONSTANT, value=BACKGROUND)
    _draw_text(sheet, title, GAP + _MARGIN, sheet.shape[1] - 2 * (GAP + _MARGIN))
    return sheet


def draw_heatmap_sheet(image: np.ndarray, maps: np.ndarray, skeleton: Skeleton, drawing: np.ndarray) -> np.ndarray:
    """Draw every map (C, h, w) over the dimmed image (H, W, 3) BGR, with its channel, its name and its maximum.

    All maps have the same colours, from dark violet (0) to yellow (1). The first tile shows the ``drawing`` of the
    image's people. The sheet is about 2000 pixels wide.
    """
    factor = MAP_SIZE / max(image.shape[:2])
    height, width = (max(MIN_MAP_SIDE, round(side * factor)) for side in image.shape[:2])
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    names = [*map("-".join, skeleton.parts), *skeleton.keypoints, skeleton.category, "any keypoint"]
    labels = [f"{channel} {name}" for channel, name in enumerate(names)]
    label_width = max(map(_text_width, labels)) + _text_width("0.00") + 3 * _MARGIN
    tile_size = (height, max(width, min(label_width, 2 * MAP_SIZE)))
    tiles = [label_tile(drawing, "image", tile_size)]
    for label, heatmap in zip(labels, maps):
        tiles.append(label_tile(overlay_heatmap(small, heatmap), label, tile_size, f"{heatmap.max():.2f}"))
    # n tiles of height h and width w in c columns make a sheet of c w by (n / c) h pixels, here about as 3 to 2.
    columns = max(1, round(math.sqrt(len(tiles) * 1.5 * (height + LABEL_HEIGHT) / tile_size[1])))
    return contact_sheet(tiles, columns)


def overlay_heatmap(image: np.ndarray, heatmap: np.ndarray) -> np.ndarray:
    """Draw a (h, w) map, enlarged and clipped to 0-1, over a dimmed grey image (H, W, 3), visible where it is low."""
    height, width = image.shape[:2]
    enlarged = cv2.resize(heatmap.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    values = np.clip(enlarged, 0, 1)
    dimmed = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR) * 0.6
    colours = cv2.applyColorMap((values * 255).round().astype(np.uint8), cv2.COLORMAP_PLASMA)
    return _blend(dimmed, colours, np.minimum(2 * values, 1)).round().astype(np.uint8)


def sheet_of_samples(dataset: "PoseDataset", renderer: "TargetRenderer") -> np.ndarray:
    """Draw the first four training samples of a run with batches of one; (H, W, 3) BGR uint8.

    ``DataError`` if one cannot be read.
    """
    from posenet.data.loader import TrainSampler

    drawings = []
    for [(epoch, index)] in itertools.islice(TrainSampler(len(dataset), 1, dataset.seed), 4):
        record, _ = dataset.read_record(index)
        title = f"{record.file_name}, sample {index}, epoch {epoch}"
        drawings.append(draw_training_sample(dataset[epoch, index], renderer, title))
    return contact_sheet(drawings, columns=2)


def draw_training_sample(batch: "Batch", renderer: "TargetRenderer", title: str) -> np.ndarray:
    """Draw the first sample of a batch, its masks and the maxima of its maps as four tiles; (H, W, 3) BGR uint8."""
    skeleton = renderer.skeleton
    image = batch.images[0].numpy()
    targets = renderer(batch.joints[:1], batch.person_mask[:1].float() / 255)[0].numpy()
    joints = _draw_joints(image, batch.joints[0].numpy(), skeleton)
    masks = _draw_masks(image, batch.person_mask[0].numpy(), batch.mask_miss[0].numpy())
    size = (image.shape[0], max(image.shape[1], MIN_SAMPLE_WIDTH))
    tiles = [
        label_tile(joints, "input and labelled keypoints", size, "dark dots: hidden keypoints"),
        label_tile(masks, "masks", size, "blue: person mask; red: not supervised"),
    ]
    for kind, channels in (("keypoint", skeleton.keypoint_channels), ("body-part", skeleton.part_channels)):
        maps = targets[channels]
        overlay = overlay_heatmap(image, maps.max(axis=0))
        tiles.append(label_tile(overlay, f"maximum of {len(maps)} {kind} maps", size))
    return contact_sheet(tiles, columns=2, title=title)


def _draw_joints(image: np.ndarray, joints: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Draw the labelled keypoints of (P, K, 3) joints, the hidden ones with a dark dot."""
    scored = np.concatenate([joints[..., :2], joints[..., 2:] > 0], axis=2).astype(np.float32)
    people = [Person(keypoints, 1.0, skeleton) for keypoints in scored if keypoints[:, 2].any()]
    drawing = draw_people(image, people)
    for x, y in np.rint(joints[joints[..., 2] == 1][:, :2]).astype(int).tolist():
        cv2.circle(drawing, (x, y), 4, OUTLINE, -1, cv2.LINE_AA)
        cv2.circle(drawing, (x, y), 4, MIDDLE, 1, cv2.LINE_AA)
    return drawing


def _draw_masks(image: np.ndarray, person_mask: np.ndarray, mask_miss: np.ndarray) -> np.ndarray:
    """Tint people and the area that is not supervised; masks are (h, w), 0-255."""
    drawing = image.astype(np.float32)
    for mask, colour in ((person_mask, PERSON_MASK_COLOUR), (255 - mask_miss, UNSUPERVISED_COLOUR)):
        coverage = cv2.resize(mask.astype(np.float32) / 255, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        drawing = _blend(drawing, np.array(colour), coverage / 2)
    return drawing.astype(np.uint8)


def _blend(background: np.ndarray, foreground: np.ndarray, opacity: np.ndarray) -> np.ndarray:
    """Mix colours; the opacity (H, W) of the foreground is 0 to 1."""
    return np.asarray(background * (1 - opacity[..., None]) + foreground * opacity[..., None])


def _draw_text(image: np.ndarray, text: str, left: int, max_width: int) -> None:
    """Write into the strip above a tile. A text that is too long loses its beginning, the least of a path."""
    # OpenCV's fonts have only ASCII characters.
    shown = text = text.encode("ascii", "replace").decode()
    while text and _text_width(shown) > max_width:
        text = text[1:]
        shown = "..." + text
    cv2.putText(image, shown, (left, LABEL_HEIGHT - 8), _FONT, _FONT_SCALE, TEXT_COLOUR, 1, cv2.LINE_AA)


def _text_width(text: str) -> int:
    (width, _), _ = cv2.getTextSize(text, _FONT, _FONT_SCALE, 1)
    return width

"""Drawings of training samples: the augmented input, its masks and its target maps."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from posenet.data.dataset import PoseDataset
from posenet.data.loader import Batch
from posenet.data.sampler import TrainSampler
from posenet.data.targets import TargetRenderer
from posenet.images import write_image
from posenet.inference.person import Person
from posenet.skeleton import Skeleton
from posenet.visualization.contact_sheet import contact_sheet, label_tile
from posenet.visualization.heatmaps import dim_image, overlay_heatmap
from posenet.visualization.people import MIDDLE, OUTLINE, draw_people

MIN_TILE_WIDTH = 400
"""Narrower inputs have margins, so that the labels fit above them."""
PERSON_MASK_COLOUR = (200, 160, 40)
"""BGR of people in the person mask."""
UNSUPERVISED_COLOUR = (60, 60, 230)
"""BGR of the area that the loss ignores."""
MASK_OPACITY = 0.5


def write_previews(dataset: PoseDataset, renderer: TargetRenderer, folder: Path, count: int) -> list[Path]:
    """Draw the first ``count`` training samples, at most one epoch; ``DataError`` if one cannot be read."""
    paths = []
    sampler = TrainSampler(len(dataset), 1, dataset.seed)
    for number, [(epoch, index)] in enumerate(islice(sampler, count), start=1):
        record, _ = dataset.read_record(index)
        title = f"{record.file_name}, sample {index}, epoch {epoch}"
        path = folder / f"sample_{number:03d}.jpg"
        write_image(path, draw_training_sample(dataset.__getitems__([(epoch, index)]), renderer, title))
        paths.append(path)
    return paths


def draw_training_sample(batch: Batch, renderer: TargetRenderer, title: str) -> np.ndarray:
    """Draw the first sample of a batch as a contact sheet of four tiles; (H, W, 3) BGR uint8.

    The tiles show the input with its keypoints, the masks, the maximum of the keypoint maps and that of the body-part
    maps.
    """
    skeleton = renderer.skeleton
    image = batch.images[0].numpy()
    targets = renderer(batch.joints[:1], batch.person_mask[:1].float() / 255)[0].numpy()
    part_maps = targets[skeleton.part_channels]
    keypoint_maps = targets[skeleton.keypoint_channels]
    input_drawing = _draw_joints(image, batch.joints[0].numpy(), skeleton)
    mask_drawing = _draw_masks(image, batch.person_mask[0].numpy(), batch.mask_miss[0].numpy())
    dimmed = dim_image(image)
    panels = [
        (input_drawing, "input and labelled keypoints", "dark dots: hidden keypoints"),
        (mask_drawing, "masks", "blue: people; red: not supervised"),
        (overlay_heatmap(dimmed, keypoint_maps.max(axis=0)), f"maximum of {len(keypoint_maps)} keypoint maps", ""),
        (overlay_heatmap(dimmed, part_maps.max(axis=0)), f"maximum of {len(part_maps)} body-part maps", ""),
    ]
    size = (image.shape[0], max(image.shape[1], MIN_TILE_WIDTH))
    tiles = [label_tile(drawing, label, size, note) for drawing, label, note in panels]
    return contact_sheet(tiles, columns=2, title=title)


def _draw_joints(image: np.ndarray, joints: np.ndarray, skeleton: Skeleton) -> np.ndarray:
    """Draw the labelled keypoints of (P, K, 3) joints, the hidden ones with a dark dot."""
    people = []
    for person in joints:
        labelled = person[:, 2] > 0
        if labelled.any():
            keypoints = np.column_stack([person[:, :2], labelled]).astype(np.float32)
            people.append(Person(keypoints, 1.0, skeleton))
    drawing = draw_people(image, people)
    hidden = joints[joints[..., 2] == 1]
    for x, y in np.rint(hidden[:, :2]).astype(int).tolist():
        cv2.circle(drawing, (x, y), 4, OUTLINE, -1, cv2.LINE_AA)
        cv2.circle(drawing, (x, y), 4, MIDDLE, 1, cv2.LINE_AA)
    return drawing


def _draw_masks(image: np.ndarray, person_mask: np.ndarray, mask_miss: np.ndarray) -> np.ndarray:
    """Tint people and the area that is not supervised; masks are (h, w), 0-255."""
    drawing = image.astype(np.float32)
    for mask, colour in ((person_mask, PERSON_MASK_COLOUR), (255 - mask_miss, UNSUPERVISED_COLOUR)):
        coverage = cv2.resize(mask.astype(np.float32) / 255, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        opacity = MASK_OPACITY * coverage[..., None]
        drawing = drawing * (1 - opacity) + np.array(colour) * opacity
    return drawing.astype(np.uint8)

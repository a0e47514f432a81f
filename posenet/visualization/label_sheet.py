"""A sheet of annotated people, for looking at labels before a network is trained on them."""

from __future__ import annotations

from itertools import islice

import cv2
import numpy as np

from posenet.data.store import NO_PERSON, Store
from posenet.errors import DataError
from posenet.person import Person
from posenet.visualization.drawing import draw_people
from posenet.visualization.sheets import contact_sheet, label_tile

TILES = 8
"""Number of people that the sheet shows, each of another image."""
COLUMNS = 4
TILE_SIZE = 480
"""Sides of a tile in pixels."""
MARGIN = 0.15
"""What is shown around a person, relative to the longer side of the box."""
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def draw_label_sheet(store: Store, title: str) -> np.ndarray:
    """Draw people of a store as they are annotated, with the names of their keypoints; (H, W, 3) BGR uint8.

    A person's left is blue and the right orange. ``DataError`` if the store has no labelled person.
    """
    rows = {image: person for image, person in reversed(store.samples.tolist()) if person != NO_PERSON}
    if not rows:
        raise DataError(f"{store.path} has no person whose labels could be drawn; annotate some")
    images = sorted(rows)
    step = max(1, len(images) // TILES)
    tiles = []
    for image in islice(images, 0, step * TILES, step):
        record = store.read_record(image)
        joints = record.joints[rows[image]]
        box = record.people["box"][rows[image]]
        tiles.append(_draw_person(record.decode_image(), joints, box, store, str(record.file_name)))
    return contact_sheet(tiles, COLUMNS, title)


def _draw_person(image: np.ndarray, joints: np.ndarray, box: np.ndarray, store: Store, name: str) -> np.ndarray:
    labelled = joints[:, 2] > 0
    shown = np.concatenate([box[None, :2], box[None, :2] + box[None, 2:], joints[labelled, :2]])
    margin = MARGIN * np.ptp(shown, axis=0).max()
    left, top = np.maximum(shown.min(axis=0) - margin, 0).astype(int).tolist()
    right, bottom = np.ceil(shown.max(axis=0) + margin).astype(int).tolist()  # an end behind the image is its end
    cut = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    factor = TILE_SIZE / max(cut.shape[:2])
    cut = cv2.resize(cut, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)
    points = (joints[:, :2] - (left, top) + 0.5) * factor - 0.5
    keypoints = np.column_stack([points, labelled]).astype(np.float32)
    drawing = np.asarray(draw_people(cut, [Person(keypoints, 1.0, store.skeleton)])).copy()
    for keypoint, is_shown, (x, y) in zip(store.skeleton.keypoints, labelled, points.astype(int).tolist()):
        if is_shown:
            for colour, width in (((0, 0, 0), 3), ((255, 255, 255), 1)):
                cv2.putText(drawing, keypoint, (x + 4, y - 4), _FONT, 0.35, colour, width, cv2.LINE_AA)
    return label_tile(drawing, name, (TILE_SIZE, TILE_SIZE))

"""Drawings of training samples show everything where the sample has it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from posenet.data.dataset import PoseDataset
from posenet.data.loader import Batch
from posenet.data.store import Store
from posenet.data.targets import TargetRenderer
from posenet.settings import Config
from posenet.visualization.contact_sheet import GAP, LABEL_HEIGHT
from posenet.visualization.training_samples import MIN_TILE_WIDTH, draw_training_sample, write_previews

SIZE = 128
SHEET_SIZE = (LABEL_HEIGHT + 2 * (LABEL_HEIGHT + SIZE + GAP) + GAP, 2 * (MIN_TILE_WIDTH + GAP) + GAP)


@pytest.fixture
def panels() -> dict[str, np.ndarray]:
    """The panels of a grey image with a nose at (40, 90), people on the left and nothing supervised below."""
    joints = torch.zeros(1, 1, 18, 3)
    joints[0, 0, 0] = torch.tensor([40.0, 90.0, 2.0])
    person_mask = torch.zeros(1, SIZE // 4, SIZE // 4, dtype=torch.uint8)
    person_mask[..., :8] = 255
    mask_miss = torch.full_like(person_mask, 255)
    mask_miss[:, 24:] = 0
    images = torch.full((1, SIZE, SIZE, 3), 128, dtype=torch.uint8)
    batch = Batch(images, joints, person_mask, mask_miss, torch.tensor([1]))
    sheet = draw_training_sample(batch, TargetRenderer.from_config(Config()), "title")
    assert sheet.shape == (*SHEET_SIZE, 3)
    found = {}
    for index, name in enumerate(("input", "masks", "keypoints", "parts")):
        row, column = divmod(index, 2)
        top = LABEL_HEIGHT + GAP + LABEL_HEIGHT + row * (LABEL_HEIGHT + SIZE + GAP)
        left = GAP + (MIN_TILE_WIDTH - SIZE) // 2 + column * (MIN_TILE_WIDTH + GAP)
        found[name] = sheet[top : top + SIZE, left : left + SIZE].astype(int)
    return found


def test_keypoints_are_drawn_where_they_are(panels: dict[str, np.ndarray]) -> None:
    changed = np.argwhere((panels["input"] != 128).any(-1))
    assert len(changed) and np.abs(changed.mean(0) - (90, 40)).max() < 1


def test_maps_are_drawn_where_the_targets_are(panels: dict[str, np.ndarray]) -> None:
    def coloured(panel: np.ndarray) -> np.ndarray:
        return panel.max(-1) - panel.min(-1) > 60

    assert np.abs(np.argwhere(coloured(panels["keypoints"])).mean(0) - (90, 40)).max() < 2
    assert not coloured(panels["parts"]).any()  # one keypoint makes no body part


def test_masks_are_coloured(panels: dict[str, np.ndarray]) -> None:
    blue, green, red = np.moveaxis(panels["masks"], -1, 0)
    assert (blue[:90, :28] > red[:90, :28] + 20).all() and (red[100:, 40:] > blue[100:, 40:] + 20).all()
    assert (panels["masks"][:90, 40:] == 128).all()


def test_every_sample_of_one_epoch_has_one_drawing(stores: dict[str, Path], tmp_path: Path) -> None:
    with Store(stores["val"]) as store:
        dataset = PoseDataset(store, (SIZE, SIZE))
        renderer = TargetRenderer.from_config(Config())
        paths = write_previews(dataset, renderer, tmp_path / "new" / "folder", len(dataset) + 5)
        assert len(paths) == len(dataset) and len(set(paths)) == len(paths)
    assert all(cv2.imread(str(path)).shape == (*SHEET_SIZE, 3) for path in paths)

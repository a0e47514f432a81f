"""Images of training samples: what is drawn lies where the sample has it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from posenet.data.batch import Batch
from posenet.data.dataset import PoseDataset
from posenet.data.store.reader import Store
from posenet.data.targets import TargetRenderer
from posenet.settings import Config
from posenet.visualization.training_samples import BAR, GAP, sheet, write_previews

SIZE = 128


@pytest.fixture
def panels() -> dict[str, np.ndarray]:
    """The panels of a grey image with a nose at (40, 90), people on the left and nothing supervised below."""
    joints = torch.zeros(1, 1, 18, 3)
    joints[0, 0, 0] = torch.tensor([40.0, 90.0, 2.0])
    people = torch.zeros(1, SIZE // 4, SIZE // 4, dtype=torch.uint8)
    people[..., :8] = 255
    supervised = torch.full_like(people, 255)
    supervised[:, 24:] = 0
    images = torch.full((1, SIZE, SIZE, 3), 128, dtype=torch.uint8)
    picture = sheet(
        Batch(images, joints, people, supervised, torch.tensor([1])), TargetRenderer.from_config(Config()), "title"
    )
    rows, columns = (2 * BAR, 3 * BAR + SIZE + GAP), (0, SIZE + GAP)
    names = iter(("input", "masks", "keypoints", "parts"))
    return {next(names): picture[y : y + SIZE, x : x + SIZE].astype(int) for y in rows for x in columns}


def test_keypoints_are_drawn_where_they_are(panels: dict[str, np.ndarray]) -> None:
    changed = np.argwhere((panels["input"] != 128).any(-1))
    assert len(changed) and np.abs(changed.mean(0) - (90, 40)).max() < 1


def test_maps_shine_where_the_targets_do(panels: dict[str, np.ndarray]) -> None:
    def colourful(panel: np.ndarray) -> np.ndarray:
        return panel.max(-1) - panel.min(-1) > 60

    assert np.abs(np.argwhere(colourful(panels["keypoints"])).mean(0) - (90, 40)).max() < 2
    assert not colourful(panels["parts"]).any()  # one keypoint makes no body part


def test_masks_are_coloured(panels: dict[str, np.ndarray]) -> None:
    blue, green, red = np.moveaxis(panels["masks"], -1, 0)
    assert (blue[:90, :28] > red[:90, :28] + 20).all() and (red[100:, 40:] > blue[100:, 40:] + 20).all()
    assert (panels["masks"][:90, 40:] == 128).all()


def test_one_sheet_a_sample_at_most_an_epoch(stores: dict[str, Path], tmp_path: Path) -> None:
    with Store(stores["val"]) as store:
        dataset = PoseDataset(store, (SIZE, SIZE))
        paths = write_previews(
            dataset, TargetRenderer.from_config(Config()), tmp_path / "new" / "folder", len(dataset) + 5
        )
        assert len(paths) == len(dataset) and len(set(paths)) == len(paths)
    assert all(cv2.imread(str(path)).shape == (3 * BAR + 2 * SIZE + GAP, 2 * SIZE + GAP, 3) for path in paths)

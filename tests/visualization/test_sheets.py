"""Sheets of labelled tiles: the network's maps, and training samples with everything where the sample has it."""

import cv2
import numpy as np
import pytest
import torch

from posenet.data.dataset import Batch
from posenet.data.targets import TargetRenderer
from posenet.settings import Config
from posenet.skeleton import COCO
from posenet.visualization.drawing import MIDDLE, OUTLINE
from posenet.visualization.sheets import (
    BACKGROUND,
    GAP,
    LABEL_HEIGHT,
    MIN_SAMPLE_WIDTH,
    draw_heatmap_sheet,
    draw_training_sample,
    overlay_heatmap,
)

SIZE = 128
SAMPLE_SHEET = (LABEL_HEIGHT + 2 * (LABEL_HEIGHT + SIZE + GAP) + GAP, 2 * (MIN_SAMPLE_WIDTH + GAP) + GAP)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What OpenCV writes, which has only ASCII characters."""
    written: list[str] = []
    put_text = cv2.putText
    monkeypatch.setattr(cv2, "putText", lambda image, text, *rest: (written.append(text), put_text(image, text, *rest)))
    return written


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (1, 1), (2, 3000), (3000, 2)])
def test_a_sheet_names_the_maps_of_any_image(size: tuple[int, int], texts: list[str]) -> None:
    image = np.full((*size, 3), 90, np.uint8)
    maps = np.zeros((50, 8, 8), np.float32)
    maps[30] = 0.75
    sheet = draw_heatmap_sheet(image, maps, COCO, image)
    assert sheet.dtype == np.uint8
    names = [*map("-".join, COCO.parts), *COCO.keypoints, "person", "any keypoint"]
    notes = ["0.00"] * 30 + ["0.75"] + ["0.00"] * 19
    expected = [("image", ""), *((f"{k} {name}", note) for k, (note, name) in enumerate(zip(notes, names)))]
    assert list(zip(texts[:-1:2], texts[1::2])) == expected, "a label and a note for each tile; then no title"


def test_a_sheet_has_the_people_and_the_maps_in_order() -> None:
    """51 tiles of 216 by 144 pixels make 7 rows of 8."""
    image = np.full((60, 90, 3), 90, np.uint8)
    maps = np.zeros((50, 15, 23), np.float32)
    maps[10] = 1
    sheet = draw_heatmap_sheet(image, maps, COCO, np.full_like(image, 255))
    rows = sheet[GAP:].reshape(7, LABEL_HEIGHT + 144 + GAP, -1, 3)[:, LABEL_HEIGHT:-GAP]
    tiles = rows[:, :, GAP:].reshape(7, 144, 8, 216 + GAP, 3).swapaxes(1, 2)[..., :-GAP, :].reshape(56, 144, 216, 3)
    people, *drawn = tiles[:51].astype(int)
    assert (people == 255).all() and (tiles[51:] == BACKGROUND).all()
    for number, tile in enumerate(drawn):
        assert (tile == tile[0, 0]).all() and (number == 10 or tile[0, 0].tolist() == [54, 54, 54])
    yellow = drawn[10][0, 0]
    assert yellow.argmin() == 0 and yellow[1:].min() > 200


def test_values_above_1_are_drawn_as_1() -> None:
    image = np.full((8, 8, 3), 100, np.uint8)
    drawn, limit = (overlay_heatmap(image, np.full((2, 2), value)) for value in (1.5, 1.0))
    assert np.array_equal(drawn, limit)


def test_a_training_sample_is_drawn_where_it_is() -> None:
    """A grey image: a nose at (40, 90), a hidden wrist at (90, 30), people on the left, nothing supervised below."""
    joints = torch.zeros(1, 1, 18, 3)
    joints[0, 0, 0] = torch.tensor([40.0, 90.0, 2.0])
    joints[0, 0, 4] = torch.tensor([90.0, 30.0, 1.0])
    joints[0, 0, 7] = torch.tensor([90.0, 90.0, 0.0])
    person_mask = torch.zeros(1, SIZE // 4, SIZE // 4, dtype=torch.uint8)
    person_mask[..., :8] = 255
    mask_miss = torch.full_like(person_mask, 255)
    mask_miss[:, 24:] = 0
    images = torch.full((1, SIZE, SIZE, 3), 128, dtype=torch.uint8)
    batch = Batch(images, joints, person_mask, mask_miss, torch.tensor([1]))
    sheet = draw_training_sample(batch, TargetRenderer.from_config(Config()), "title")
    assert sheet.shape == (*SAMPLE_SHEET, 3)
    panels = []
    for index in range(4):
        row, column = divmod(index, 2)
        top = LABEL_HEIGHT + GAP + LABEL_HEIGHT + row * (LABEL_HEIGHT + SIZE + GAP)
        left = GAP + (MIN_SAMPLE_WIDTH - SIZE) // 2 + column * (MIN_SAMPLE_WIDTH + GAP)
        panels.append(sheet[top : top + SIZE, left : left + SIZE].astype(int))
    drawn, masks, keypoint_maps, part_maps = panels
    changed = (drawn != 128).any(-1)
    coloured = keypoint_maps.max(-1) - keypoint_maps.min(-1) > 60
    for is_drawn in (changed, coloured):
        assert np.abs(np.argwhere(is_drawn[60:]).mean(0) - (30, 40)).max() < 2
        assert np.abs(np.argwhere(is_drawn[:60]).mean(0) - (30, 90)).max() < 2
    assert (drawn[90, 40] == MIDDLE).all() and (drawn[30, 90] == OUTLINE).all(), "hidden keypoints are dark"
    assert (part_maps.max(-1) - part_maps.min(-1)).max() <= 60, "one keypoint makes no body part"
    blue, _, red = np.moveaxis(masks, -1, 0)
    assert (blue[:90, :28] > red[:90, :28] + 20).all() and (red[100:, 40:] > blue[100:, 40:] + 20).all()
    assert (masks[:90, 40:] == 128).all()

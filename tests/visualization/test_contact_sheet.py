"""Labelled tiles and the sheets that they make."""

import numpy as np
import pytest

from posenet.visualization.contact_sheet import BACKGROUND, GAP, LABEL_HEIGHT, contact_sheet, label_tile

IMAGE = np.full((300, 100, 3), 200, np.uint8)


def test_a_tile_shows_the_whole_image_below_its_label():
    label = "a name that is very much longer than the tile is wide, so that it is cut"
    tile = label_tile(IMAGE, label, (150, 200), "0.93")
    assert tile.shape == (LABEL_HEIGHT + 150, 200, 3)
    assert (tile[LABEL_HEIGHT:, 75:125] == 200).all()
    assert (tile[LABEL_HEIGHT:, :70] == BACKGROUND).all() and (tile[LABEL_HEIGHT:, 130:] == BACKGROUND).all()
    assert (tile[:LABEL_HEIGHT] > 150).any(axis=(0, 2)).sum() > 80


def test_a_label_and_a_note_do_not_overlap():
    label_only = label_tile(IMAGE, "a label that is wider than the tile", (150, 200))
    with_note = label_tile(IMAGE, "a label that is wider than the tile", (150, 200), "note")
    note_only = label_tile(IMAGE, "", (150, 200), "note")
    note_columns = (note_only[:LABEL_HEIGHT] > 60).any(axis=(0, 2))
    assert np.array_equal(with_note[:LABEL_HEIGHT, note_columns], note_only[:LABEL_HEIGHT, note_columns])
    assert not np.array_equal(label_only[:LABEL_HEIGHT, note_columns], note_only[:LABEL_HEIGHT, note_columns])


@pytest.mark.parametrize("title", ["", "a title"])
def test_a_sheet_holds_all_tiles_in_rows(title):
    tiles = [np.full((20, 200, 3), 50 * number, np.uint8) for number in range(1, 6)]
    sheet = contact_sheet(tiles, 3, title)
    title_height = LABEL_HEIGHT if title else 0
    assert sheet.shape == (title_height + 2 * (20 + GAP) + GAP, 3 * (200 + GAP) + GAP, 3)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, 3)
        top = title_height + GAP + row * (20 + GAP)
        left = GAP + column * (200 + GAP)
        assert np.array_equal(sheet[top : top + 20, left : left + 200], tile)
    assert (sheet[:title_height] > 150).any() == bool(title)


def test_a_sheet_is_no_wider_than_its_tiles():
    assert contact_sheet([np.zeros((20, 200, 3), np.uint8)] * 2, 7).shape[1] == 2 * (200 + GAP) + GAP

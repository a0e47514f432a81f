"""Statistics of a store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from posenet.annotations import run_lengths as rle
from posenet.data.inspection import compute_statistics
from posenet.data.store import Record, Store
from posenet.errors import DataError
from tests.helpers.drawn_data import flip_bit, make_record, write_store


def record(image_id: int, people: int, visibilities: tuple[float, ...], covered: int) -> Record:
    """An image whose keypoints have these visibilities in turn, and whose upper ``covered`` rows are people."""
    plain = make_record(image_id, people, height=40, width=60)
    joints = plain.joints.copy()
    joints[..., 2] = np.resize(visibilities, joints.shape[:2])
    mask = np.zeros((40, 60), np.uint8)
    mask[:covered] = 1
    everywhere = rle.encode_mask(np.ones((40, 60), np.uint8))
    return dataclasses.replace(plain, joints=joints, mask_all_rle=rle.encode_mask(mask), mask_miss_rle=everywhere)


def test_people_keypoints_sizes_and_masks_are_counted(tmp_path: Path) -> None:
    path = write_store(tmp_path / "a.h5", [record(1, 1, (2.0,), 10), record(2, 5, (0.0,), 0), record(3, 1, (1.0,), 40)])
    with Store(path) as store:
        contents, people, keypoints, sizes, masks = compute_statistics(store)
    assert dict(contents.rows)["people"] == 7
    assert {row[0]: row[1] for row in people.rows if row[1]} == {"1": 2, "4-5": 1}
    assert all(row[1:] == ("28.6%", "50.0%") for row in keypoints.rows) and len(keypoints.rows) == 18
    assert next(row[1:] for row in sizes.rows if row[0].startswith("width")) == (60.0,) * 5
    assert [row[1:] for row in masks.rows] == [("41.7%", "66.7%"), ("0.0%", "0.0%")]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = write_store(tmp_path / "a.h5", [make_record(1), make_record(2)])
    flip_bit(path, "mask_all", 1)
    with Store(path) as store, pytest.raises(DataError, match="image 2 "):
        compute_statistics(store)

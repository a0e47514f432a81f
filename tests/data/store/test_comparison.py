"""Images that two stores share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from posenet.data.inspection import find_shared_images, overlapping_image_ids
from posenet.data.store import Store
from tests.helpers.drawn_data import make_record, write_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "a.h5", [make_record(i) for i in (7, 3, 5)])


def test_overlap_is_same_id_and_same_bytes(tmp_path: Path, path: Path) -> None:
    other_bytes = dataclasses.replace(make_record(9), image_id=3)
    other = write_store(tmp_path / "b.h5", [make_record(5), other_bytes, make_record(7), make_record(8)])
    unrelated = write_store(tmp_path / "c.h5", [make_record(100)])
    assert overlapping_image_ids(Store(path), Store(other)).tolist() == [5, 7]
    assert overlapping_image_ids(Store(path), Store(unrelated)).tolist() == []


def test_shared_images_are_found_by_id_and_by_content(tmp_path: Path, path: Path) -> None:
    same_bytes = dataclasses.replace(make_record(7), image_id=9)
    same_id = dataclasses.replace(make_record(1), image_id=3)
    other = write_store(tmp_path / "b.h5", [same_bytes, make_record(5), same_id])
    shared = find_shared_images(Store(path), Store(other))
    assert shared.ids.tolist() == [3, 5] and shared.contents.tolist() == [[7, 9], [5, 5]]

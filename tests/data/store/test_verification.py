"""Verifying a store: every damage is found."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from posenet.data.build import build_store
from posenet.data.inspection import verify_store
from posenet.data.store import Store, reader
from posenet.errors import DataError
from tests.helpers.drawn_data import write_coco


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_store(*write_coco(tmp_path), tmp_path / "a.h5", workers=2)
    return tmp_path / "a.h5"


def flip_bit_at(path: Path, name: str, position: int) -> None:
    """Flip one bit of the byte at a position in an array."""
    with h5py.File(path) as file:
        offset = file[name].id.get_offset() + position
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_an_intact_store_is_summarised(store: Path) -> None:
    summary = verify_store(store)
    assert (summary.num_images, summary.num_people, summary.num_samples) == (3, 3, 3)


@pytest.mark.parametrize(
    "name, position",
    [
        ("jpeg", 5),
        ("jpeg", -1),
        ("mask_all", 2),
        ("mask_miss", -1),
        ("joints", 100),
        ("box", 3),
        ("annotation_id", 0),
        ("digest", 20),
        ("file_name", 1),
        ("area", 1),
    ],
)
def test_one_flipped_bit_is_found(store: Path, name: str, position: int) -> None:
    with h5py.File(store) as file:
        size = file[name].nbytes
    flip_bit_at(store, name, position % size)
    with pytest.raises(DataError, match="a.h5"):
        verify_store(store)


def test_the_digest_finds_damage_that_the_checksum_misses(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_bit_at(store, "jpeg", 700)
    with Store(store) as opened:
        monkeypatch.setattr(
            reader,
            "checksum",
            lambda record: opened._table["checksum"][opened.image_ids.tolist().index(record.image_id)],
        )
        opened.read_record(0).decode_image()
        with pytest.raises(DataError, match="1 of 3 .* image 1 .* do not match the digest"):
            verify_store(store)


def test_damaged_images_are_counted_and_the_first_is_named(store: Path) -> None:
    with Store(store) as opened:
        length = len(opened.read_record(0).image_bytes)
    flip_bit_at(store, "jpeg", 0)
    flip_bit_at(store, "jpeg", length + 1000)
    with pytest.raises(DataError, match=r"2 of 3 images are damaged; first: .*image 1 \(000000000001.jpg\)"):
        verify_store(store)

"""Inspecting stores: statistics, verification, and the images that two stores share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.data.build import build_store
from posenet.data.store import Store, compute_statistics, verify_store
from posenet.data.store_list import find_shared_images, find_stored_files, open_data_sets
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import flip_bit, make_record, write_coco, write_store


def test_people_keypoints_and_sizes_are_counted(tmp_path: Path) -> None:
    records = [make_record(number, people, 40, 60) for number, people in ((1, 1), (2, 5), (3, 1))]
    for record, visibility in zip(records, (2, 0, 1)):
        record.joints[..., 2] = visibility
        record.people["box"][:, 3] = 24
    with Store(write_store(tmp_path / "a.h5", records)) as store:
        header, *sizes = (line.split() for line in compute_statistics(store))
    assert header == ["minimum", "lower", "median", "upper", "maximum"]
    files = np.quantile([len(record.image_bytes) / 1000 for record in records], [0, 0.25, 0.5, 0.75, 1])
    assert sizes[:5] == [
        ["width,", "pixels", *["60"] * 5],
        ["height,", "pixels", *["40"] * 5],
        ["file,", "kB", *(f"{size:.3g}" for size in files)],
        ["people", "in", "an", "image", "1", "1", "1", "3", "5"],
        ["main", "person's", "height,", "pixels", *["24"] * 5],
    ]
    assert all(line[1:] == "28.6% labelled, 50.0% of these visible".split() for line in sizes[5:])
    assert [line[0] for line in sizes[5:]] == list(COCO.keypoints)


def test_a_store_without_annotations_has_no_statistics_of_people(tmp_path: Path) -> None:
    build_store(write_coco(tmp_path)[0], None, tmp_path / "a.h5", workers=1, progress=False)
    with Store(tmp_path / "a.h5") as store:
        lines = list(compute_statistics(store))
    assert len(lines) == 5 and lines[-1].split() == ["people", "in", "an", "image", *"00000"]


def test_damaged_images_are_counted_and_the_first_is_named(path: Path) -> None:
    flip_bit(path, "images", 0)
    flip_bit(path, "labels", 2)
    with Store(path) as store, pytest.raises(DataError, match=r"2 of 3 images .*: image 7 \(sub/0007.jpg\)"):
        verify_store(store)


@pytest.mark.parametrize(
    "image_bytes, fault",
    [(make_record(2).image_bytes[:900], "cut off"), (make_record(2, height=48).image_bytes, "image 2 .*another size")],
)
def test_an_image_that_was_damaged_before_it_was_stored_is_found(
    tmp_path: Path, image_bytes: np.ndarray, fault: str
) -> None:
    broken = make_record(2)._replace(image_bytes=image_bytes)
    with Store(write_store(tmp_path / "a.h5", [make_record(1), broken])) as store:
        with pytest.raises(DataError, match=f"1 of 2 images .*{fault}"):
            verify_store(store)


def test_shared_images_have_the_same_bytes_whatever_their_ids(tmp_path: Path, path: Path) -> None:
    renumbered = make_record(7)._replace(image_id=9, file_name="other.jpg")
    same_id = make_record(1)._replace(image_id=3)
    other = write_store(tmp_path / "b.h5", [renumbered, make_record(5), same_id])
    unrelated = write_store(tmp_path / "c.h5", [make_record(100)])
    shared = find_shared_images(Store(path), Store(other))
    assert sorted(shared.tolist()) == [[5, 5], [7, 9]]
    assert len(find_shared_images(Store(path), Store(unrelated))) == 0
    with open_data_sets((str(unrelated), str(other)), None) as both:
        assert sorted(find_shared_images(Store(path), both).tolist()) == [[5, 5], [7, 9]]


def test_files_that_a_store_contains_are_found_by_their_bytes(tmp_path: Path, path: Path) -> None:
    contents = {"shared.jpg": make_record(3), "other.jpg": make_record(4), "grown.jpg": make_record(5)}
    for name, record in contents.items():
        (tmp_path / name).write_bytes(record.image_bytes.tobytes())
    with open(tmp_path / "grown.jpg", "ab") as file:
        file.write(b"x")
    flipped = make_record(7).image_bytes.copy()
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped.jpg").write_bytes(flipped.tobytes())
    names = [*contents, "flipped.jpg", "missing.jpg"]
    with open_data_sets(str(path), None) as stores:
        found = find_stored_files(stores, [tmp_path / name for name in names])
    assert found == [tmp_path / "shared.jpg"]

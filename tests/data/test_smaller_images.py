"""Photographs that are stored smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

from posenet.data.build import BuildReport, build_store
from posenet.data.store import RECORD_TYPE, Store, verify_store
from posenet.data.store_list import find_shared_images, find_stored_files, open_data_sets
from posenet.errors import DataError
from posenet.images import read_image
from tests.helpers.drawn_data import (
    HEIGHT,
    WIDTH,
    crowd,
    decode_masks,
    document,
    person,
    write_annotations,
    write_coco,
    write_images,
)  # fmt: skip
from tests.helpers.image_bytes import with_orientation


def build(coco: tuple[Path, Path | None], output: Path, **options: Any) -> BuildReport:
    return build_store(*coco, output, **{"workers": 2, "progress": False, "overwrite": True} | options)


def smooth(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """An image whose content is the same at half its size, within a few values."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def write_photographs(folder: Path, count: int = 3) -> tuple[Path, Path]:
    """Smooth images with a person and a crowd each."""
    ids = range(1, count + 1)
    annotations = [person(10 + number, number, (21, 13, 60, 90)) for number in ids]
    annotations += [crowd(1000 + number, number, (100, 20, 30, 40)) for number in ids]
    content = document(ids, annotations)
    images = write_images(folder / "images", content)
    for image in content["images"]:
        cv2.imwrite(str(images / image["file_name"]), smooth(image["id"]), [cv2.IMWRITE_JPEG_QUALITY, 100])
    return images, write_annotations(folder / "a.json", content)


@pytest.fixture
def built(tmp_path: Path) -> dict[str, Path]:
    """The stores ``small`` and ``whole`` of the same photographs."""
    coco = write_photographs(tmp_path)
    report = build(coco, tmp_path / "small.h5", max_side=80)
    assert (report.num_shrunk, report.num_resized) == (3, 0)
    assert build(coco, tmp_path / "whole.h5", max_side=WIDTH).num_shrunk == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "images", "small.h5", "whole.h5"]
    return {name: tmp_path / f"{name}.h5" for name in ("small", "whole")}


def test_images_people_and_masks_become_smaller_together(built: dict[str, Path]) -> None:
    with Store(built["small"]) as small, Store(built["whole"]) as whole:
        assert (small.max_side, whole.max_side) == (80, WIDTH)
        assert small.num_file_bytes < small.num_image_bytes + 25_000, "no room for the larger images"
        verify_store(small)
        for row in range(3):
            record, original = small.read_record(row), whole.read_record(row)
            assert (record.height, record.width, record.orientation) == (60, 80, 1)
            difference = record.decode_image().astype(int) - cv2.resize(smooth(row + 1), (80, 60)).astype(int)
            assert np.abs(difference).mean() < 2
            is_labelled = original.joints[..., 2] > 0
            expected = (original.joints[..., :2] + 0.5) * 0.5 - 0.5
            np.testing.assert_allclose(record.joints[is_labelled][:, :2], expected[is_labelled], atol=1e-5)
            np.testing.assert_allclose(record.people["box"], original.people["box"] / 2)
            np.testing.assert_allclose(record.people["area"], original.people["area"] / 4)
            for mask, of_original in zip(decode_masks(record), decode_masks(original)):
                halved = cv2.resize(of_original, (80, 60), interpolation=cv2.INTER_AREA)
                assert (mask != halved).mean() < 0.05
            assert not decode_masks(record)[1][20, 60], "the crowd"


def test_an_orientation_is_followed_once(tmp_path: Path) -> None:
    """The pixels of the smaller image lie in the frame of the annotations, and it has no orientation itself."""
    coco = write_photographs(tmp_path, 1)
    path = coco[0] / "000000000001.jpg"
    path.write_bytes(with_orientation(cv2.imencode(".jpg", read_image(path))[1].tobytes(), 6))
    content = document([1], [person(1, 1, (10, 10, 100, 140))])
    content["images"][0].update(height=WIDTH, width=HEIGHT)
    write_annotations(coco[1], content)
    for name, max_side in (("small", 80), ("whole", 0)):
        assert not build(coco, tmp_path / f"{name}.h5", max_side=max_side).skipped
    small, whole = (Store(tmp_path / f"{name}.h5").read_record(0) for name in ("small", "whole"))
    assert (small.orientation, whole.orientation) == (1, 6)
    assert (small.height, small.width) == (whole.height // 2, whole.width // 2)
    expected = cv2.resize(whole.decode_image(), (small.width, small.height), interpolation=cv2.INTER_AREA)
    assert np.abs(small.decode_image().astype(int) - expected).mean() < 3


def test_the_files_are_still_recognised(built: dict[str, Path], tmp_path: Path) -> None:
    """Validation images must not be trained on, whatever their size in the store."""
    files = sorted((tmp_path / "images").iterdir())
    with open_data_sets(str(built["small"]), None) as small, Store(built["whole"]) as whole:
        assert sorted(find_shared_images(small, whole).tolist()) == [[1, 1], [2, 2], [3, 3]]
        assert find_stored_files(small, files) == files


def test_damage_to_the_table_of_the_files_is_noticed(built: dict[str, Path]) -> None:
    with h5py.File(built["small"], "r+") as file:
        file["original"][0] = (1, 2, 1)
    with pytest.raises(DataError, match="do not match its fingerprint"):
        Store(built["small"])


def test_a_negative_side_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="max_side is -1; give the longest side"):
        build(write_coco(tmp_path), tmp_path / "a.h5", max_side=-1)


def test_the_columns_of_a_row_and_of_the_file_are_the_same(tmp_path: Path) -> None:
    """Stores of version 0.5 have these columns in this order."""
    build(write_coco(tmp_path), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["record"].dtype == RECORD_TYPE
        assert file["record"].dtype.names == (
            "image_id", "height", "width", "orientation", "num_people", "first_person", "image_start", "image_bytes",
            "image_crc", "label_crc", "label_start", "mask_all_bytes", "mask_miss_bytes",
        )  # fmt: skip
        assert file.attrs["schema"] == 6 and "original" not in file

"""Building a store: its contents and unreadable images."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch
from posenet.data.store.shards import open_store

from posenet.annotations.people import person_masks, select_main_persons
from posenet.annotations.reading import read_annotations
from posenet.data.build import BuildReport, build_store
from posenet.data.dataset import PoseDataset
from posenet.data.inspection import count_unlabelled, verify_store
from posenet.data.store import NO_PERSON, SCHEMA_UNLABELLED, SCHEMA_VERSION, Store
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import (
    HEIGHT,
    WIDTH,
    crowd,
    document,
    person,
    write_annotations,
    write_coco,
    write_images,
)
from tests.helpers.oriented_images import oriented_image


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    """Image folder and annotations of three images."""
    return write_coco(tmp_path)


def build(coco: tuple[Path, Path], output: Path, **options: Any) -> BuildReport:
    return build_store(*coco, output, workers=options.pop("workers", 2), **options)


def exif_rotated(jpeg: bytes) -> bytes:
    """The same JPEG with an EXIF orientation of 90 degrees."""
    tiff = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0112, 3, 1, 6, 0)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff + jpeg[2:]


def cmyk_jpeg() -> bytes:
    """An 8 x 8 baseline JPEG of four components, byte by byte, because OpenCV cannot write it."""
    components = bytes((1, 2, 3, 4))
    table = bytes([1] + [0] * 15 + [0])  # one code of one bit, for the value 0
    segments = {
        0xEE: b"Adobe" + bytes([0, 100, 0, 0, 0, 0, 0]),
        0xDB: bytes([0] + [1] * 64),
        0xC0: bytes([8, 0, 8, 0, 8, 4]) + b"".join(bytes([c, 0x11, 0]) for c in components),
        0xC4: bytes([0x00]) + table + bytes([0x10]) + table,
        0xDA: bytes([4]) + b"".join(bytes([c, 0]) for c in components) + bytes([0, 63, 0]),
    }
    body = b"".join(bytes([0xFF, kind]) + struct.pack(">H", len(data) + 2) + data for kind, data in segments.items())
    return b"\xff\xd8" + body + b"\x00" + b"\xff\xd9"


class TestContent:
    def test_images_people_and_samples(self, tmp_path: Path) -> None:
        secondary, far = person(2, 5, (22, 20, 50, 60)), person(3, 5, (100, 40, 50, 60))
        content = document(
            [9, 5, 4, 2],
            [
                person(1, 5, labelled=0),
                secondary,
                crowd(10, 5, (0, 90, 40, 20)),
                far,
                person(4, 5, labelled=1),
                crowd(11, 5, (60, 0, 20, 20)),
                person(5, 4, labelled=4),
                person(6, 2),
            ],
        )
        coco = write_images(tmp_path / "images", content), write_annotations(tmp_path / "a.json", content)
        report = build(coco, tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            assert store.image_ids.tolist() == [5, 2]
            record = store.read_record(0)
            assert record.annotation_ids.tolist() == [2, 3, 4]
            assert record.boxes.tolist() == [[22, 20, 50, 60], [100, 40, 50, 60], [20, 20, 50, 60]]
            assert record.areas.tolist() == [3000, 3000, 3000]
            assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0]]
            people = read_annotations(coco[1]).people[5]
            np.testing.assert_array_equal(record.joints, [people[row].keypoints for row in (1, 3, 4)])
            for found, expected in zip(record.decode_masks(), person_masks(people, HEIGHT, WIDTH)):
                np.testing.assert_array_equal(found, expected)
            assert not record.decode_masks()[1][95, 10] and not record.decode_masks()[1][5, 65]
        assert (report.num_crowds, report.num_without_main_person, report.skipped, report.num_without_outline) == (
            2,
            2,
            (),
            0,
        )

    def test_images_of_all_formats_keep_their_bytes(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        colour = cv2.imencode(".jpg", pixels)[1].tobytes()
        grey, png = cv2.imencode(".jpg", pixels[..., 0])[1].tobytes(), cv2.imencode(".png", pixels)[1].tobytes()
        files = [colour, grey, png, exif_rotated(colour), colour + b"trailing bytes", cmyk_jpeg()]
        content = document(range(6), [person(10 + k, k) for k in range(6)])
        content["images"][5].update(height=8, width=8)
        folder = write_images(tmp_path / "images", content)
        for image, data in zip(content["images"], files):
            (folder / image["file_name"]).write_bytes(data)
        report = build((folder, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
        assert report.skipped == ()
        with Store(tmp_path / "a.h5") as store:
            records = [store.read_record(row) for row in range(6)]
        assert [record.image_bytes.tobytes() for record in records] == files
        assert [record.decode_image().shape for record in records] == [(HEIGHT, WIDTH, 3)] * 5 + [(8, 8, 3)]
        np.testing.assert_array_equal(records[3].decode_image(), records[0].decode_image())
        np.testing.assert_array_equal(records[2].decode_image(), pixels)

    def test_the_store_does_not_depend_on_the_number_of_workers(self, tmp_path: Path) -> None:
        coco = write_coco(tmp_path, range(30))
        for workers in (1, 3):
            build(coco, tmp_path / f"{workers}.h5", workers=workers)
        assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()

    def test_images_can_be_selected_by_id_and_limit(self, tmp_path: Path) -> None:
        coco = write_coco(tmp_path, (4, 3, 2, 1))
        build(coco, tmp_path / "ids.h5", image_ids=[1, 3])
        build(coco, tmp_path / "both.h5", image_ids=[1, 3, 2], limit=2)
        assert Store(tmp_path / "ids.h5").image_ids.tolist() == [3, 1]
        assert Store(tmp_path / "both.h5").image_ids.tolist() == [3, 2]
        with pytest.raises(DataError, match="annotations.json has no image 77 .*--image-ids"):
            build(coco, tmp_path / "none.h5", image_ids=[1, 77])

    def test_people_without_an_outline_are_counted(self, tmp_path: Path) -> None:
        content = document([1], [person(1, 1, segmentation=[]), person(2, 1, labelled=0, segmentation=None)])
        coco = write_images(tmp_path / "images", content), write_annotations(tmp_path / "a.json", content)
        assert build(coco, tmp_path / "a.h5").num_without_outline == 2

    @pytest.mark.parametrize("split", ["train2017", "val2017"])
    def test_real_photographs(self, coco_sample: Path, tmp_path: Path, split: str) -> None:
        annotations = coco_sample / "annotations" / f"person_keypoints_{split}.json"
        report = build((coco_sample / split, annotations), tmp_path / "a.h5")
        dataset = read_annotations(annotations)
        people = [people for people in dataset.people.values() if select_main_persons(people)]
        assert report.summary.num_images == len(people) > 10 and not report.skipped and not report.num_without_outline
        assert report.summary.num_samples == sum(len(select_main_persons(p)) for p in people)
        assert report.summary.num_people == sum(one.labelled for p in people for one in p)
        assert report.summary.num_file_bytes <= 1.15 * report.summary.num_image_bytes
        assert verify_store(tmp_path / "a.h5") == report.summary
        with Store(tmp_path / "a.h5") as store:
            for row in range(store.num_images):
                record = store.read_record(row)
                assert record.image_bytes.tobytes() == (coco_sample / split / record.file_name).read_bytes()


DAMAGES = {
    "missing": (lambda path: path.unlink(), "No such file or directory"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("no image"), "cannot be decoded"),
    "cut in half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "is cut off"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    "other size": (
        lambda path: cv2.imwrite(str(path), np.zeros((WIDTH, HEIGHT), np.uint8)),
        f"is {HEIGHT} x {WIDTH} pixels, annotated as {WIDTH} x {HEIGHT}",
    ),
}


class TestUnreadable:
    @pytest.mark.parametrize("name", DAMAGES)
    def test_is_skipped_and_named(self, coco: tuple[Path, Path], tmp_path: Path, name: str) -> None:
        change, reason = DAMAGES[name]
        change(coco[0] / "000000000002.jpg")
        report = build(coco, tmp_path / "a.h5", max_unreadable=0.05)
        assert Store(tmp_path / "a.h5").image_ids.tolist() == [1, 3]
        (line,) = report.skipped
        assert "000000000002.jpg (image 2)" in line and reason in line and "\n" not in line

    @pytest.mark.parametrize("share, broken", [(0.0, 1), (0.05, 2), (0.4, 3), (1.0, 3)])
    def test_too_many_unreadable_images_write_nothing(
        self, coco: tuple[Path, Path], tmp_path: Path, share: float, broken: int
    ) -> None:
        for number in range(1, broken + 1):
            (coco[0] / f"{number:012d}.jpg").unlink()
        with pytest.raises(DataError, match="images cannot be read.*image 1|no readable image"):
            build(coco, tmp_path / "a.h5", max_unreadable=share)
        assert not list(tmp_path.glob("a.h5*"))

    def test_the_share_is_rounded_up_to_whole_images(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        for number in (1, 2):
            (coco[0] / f"{number:012d}.jpg").unlink()
        assert len(build(coco, tmp_path / "a.h5", max_unreadable=0.4).skipped) == 2

    def test_impossible_sizes_allocate_no_memory(self, tmp_path: Path) -> None:
        content = document([1, 2], [person(1, 1), person(2, 2)])
        folder = write_images(tmp_path / "images", content)
        content["images"][0].update(height=16384, width=16384)
        report = build((folder, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
        assert "annotated as 16384 x 16384" in report.skipped[0]


class TestUnlabelled:
    """Stores of images without annotations."""

    def test_every_image_becomes_one_sample_without_people_in_which_labels_count_nowhere(
        self, coco: tuple[Path, Path], tmp_path: Path
    ) -> None:
        build_store(coco[0], None, tmp_path / "a.h5", workers=2)
        with Store(tmp_path / "a.h5") as store:
            assert len(store) == store.num_images == 3
            assert store.num_people == 0
            assert count_unlabelled(store) == 3
            assert store.image_ids.tolist() == [1, 2, 3], "COCO's file names are image ids"
            for row in range(3):
                record, person_row = store.read_sample(row)
                assert person_row == NO_PERSON
                assert record.joints.shape == (0, 18, 3)
                path = coco[0] / record.file_name
                assert record.image_bytes.tobytes() == path.read_bytes()
                assert not any(mask.any() for mask in record.decode_masks())
        assert verify_store(tmp_path / "a.h5").num_images == 3

    @pytest.mark.parametrize("framing", ["person", "image"])
    def test_a_sample_shows_the_whole_image_and_no_cell_counts(
        self, coco: tuple[Path, Path], tmp_path: Path, framing: str
    ) -> None:
        build_store(coco[0], None, tmp_path / "a.h5", workers=1)
        build_store(*coco, tmp_path / "labelled.h5", workers=1)
        with Store(tmp_path / "a.h5") as store, Store(tmp_path / "labelled.h5") as labelled:
            dataset = PoseDataset(store, (64, 128), framing)
            batch = dataset.__getitems__([(0, 0), (0, 1)])
            whole = PoseDataset(labelled, (64, 128), "image").__getitems__([(0, 0), (0, 1)])
        assert torch.equal(batch.images, whole.images)
        assert not batch.mask_miss.any(), "cells outside the image do not count either"
        assert not batch.joints.any() and not batch.person_mask.any()

    def test_files_with_other_names_than_numbers_are_numbered_in_order(
        self, coco: tuple[Path, Path], tmp_path: Path
    ) -> None:
        (coco[0] / "000000000001.jpg").rename(coco[0] / "z.jpg")
        build_store(coco[0], None, tmp_path / "a.h5", workers=1, shards=2)
        with open_store(str(tmp_path / "a-*.h5"), COCO) as store:
            records = [store.read_record(row) for row in range(3)]
        names = [(record.image_id, record.file_name) for record in records]
        assert names == [(1, "000000000002.jpg"), (2, "000000000003.jpg"), (3, "z.jpg")]

    def test_images_are_stored_as_viewers_display_them(self, tmp_path: Path) -> None:
        image = oriented_image(6)
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "a.jpg").write_bytes(image.data)
        report = build_store(tmp_path / "images", None, tmp_path / "a.h5", workers=1)
        with Store(tmp_path / "a.h5") as store:
            record = store.read_record(0)
        assert (record.height, record.width) == image.sizes["displayed"]
        assert record.decode_image().shape[:2] == image.sizes["displayed"]
        assert sum(report.frames.values()) == 1

    def test_stores_with_annotations_keep_their_schema(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        build(coco, tmp_path / "labelled.h5")
        build_store(coco[0], None, tmp_path / "unlabelled.h5", workers=1)
        schemas = []
        for name in ("labelled", "unlabelled"):
            with h5py.File(tmp_path / f"{name}.h5") as file:
                schemas.append(file.attrs["schema"])
        assert schemas == [SCHEMA_VERSION, SCHEMA_UNLABELLED]

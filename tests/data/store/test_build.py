"""Building and verifying stores: what goes in, unreadable images, damage."""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from posenet.annotations.coco_file import main_persons, read_annotations
from posenet.annotations.masks import masks
from posenet.data.store import reader as store_module
from posenet.data.store.build import build_store, read_image_bytes, verify
from posenet.data.store.reader import Store
from posenet.errors import DataError
from posenet.images.decoding import decode_image_bytes
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


@pytest.fixture
def coco(tmp_path):
    """Image folder and annotations of three images."""
    return write_coco(tmp_path)


def build(coco, output, **options):
    return build_store(*coco, output, workers=options.pop("workers", 2), **options)


def exif_rotated(jpeg: bytes) -> bytes:
    """The same JPEG with an EXIF note that asks viewers to turn it by 90 degrees."""
    tiff = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0112, 3, 1, 6, 0)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff + jpeg[2:]


def cmyk_jpeg() -> bytes:
    """An 8 x 8 baseline JPEG of four components, written by hand since OpenCV only reads them."""
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
    def test_images_people_and_samples(self, tmp_path):
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
            record = store.image(0)
            assert record.annotation_ids.tolist() == [2, 3, 4]
            assert record.boxes.tolist() == [[22, 20, 50, 60], [100, 40, 50, 60], [20, 20, 50, 60]]
            assert record.areas.tolist() == [3000, 3000, 3000]
            assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0]]
            people = read_annotations(coco[1]).people[5]
            np.testing.assert_array_equal(record.joints, [people[row].keypoints for row in (1, 3, 4)])
            for found, expected in zip(record.masks(), masks(people, HEIGHT, WIDTH)):
                np.testing.assert_array_equal(found, expected)
            assert not record.masks()[1][95, 10] and not record.masks()[1][5, 65]
        assert (report.crowds, report.left_out, report.skipped, report.boxes) == (2, 2, (), 0)

    def test_pictures_keep_their_bytes_whatever_their_kind(self, tmp_path):
        pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        colour = cv2.imencode(".jpg", pixels)[1].tobytes()
        grey, png = cv2.imencode(".jpg", pixels[..., 0])[1].tobytes(), cv2.imencode(".png", pixels)[1].tobytes()
        pictures = [colour, grey, png, exif_rotated(colour), colour + b"trailing bytes", cmyk_jpeg()]
        content = document(range(6), [person(10 + k, k) for k in range(6)])
        content["images"][5].update(height=8, width=8)
        folder = write_images(tmp_path / "images", content)
        for image, data in zip(content["images"], pictures):
            (folder / image["file_name"]).write_bytes(data)
        report = build((folder, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
        assert report.skipped == ()
        with Store(tmp_path / "a.h5") as store:
            records = [store.image(row) for row in range(6)]
        assert [record.jpeg.tobytes() for record in records] == pictures
        assert [record.decode_image().shape for record in records] == [(HEIGHT, WIDTH, 3)] * 5 + [(8, 8, 3)]
        np.testing.assert_array_equal(records[3].decode_image(), records[0].decode_image())
        np.testing.assert_array_equal(records[2].decode_image(), pixels)

    def test_the_store_does_not_depend_on_the_number_of_workers(self, tmp_path):
        coco = write_coco(tmp_path, range(30))
        for workers in (1, 3):
            build(coco, tmp_path / f"{workers}.h5", workers=workers)
        assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()

    def test_a_part(self, tmp_path):
        coco = write_coco(tmp_path, (4, 3, 2, 1))
        build(coco, tmp_path / "ids.h5", image_ids=[1, 3])
        build(coco, tmp_path / "both.h5", image_ids=[1, 3, 2], limit=2)
        assert Store(tmp_path / "ids.h5").image_ids.tolist() == [3, 1]
        assert Store(tmp_path / "both.h5").image_ids.tolist() == [3, 2]
        with pytest.raises(DataError, match="annotations.json has no image 77 .*--image-ids"):
            build(coco, tmp_path / "none.h5", image_ids=[1, 77])

    def test_people_without_an_outline_are_counted(self, tmp_path):
        content = document([1], [person(1, 1, segmentation=[]), person(2, 1, labelled=0, segmentation=None)])
        coco = write_images(tmp_path / "images", content), write_annotations(tmp_path / "a.json", content)
        assert build(coco, tmp_path / "a.h5").boxes == 2

    @pytest.mark.parametrize("split", ["train2017", "val2017"])
    def test_real_photographs(self, coco_sample, tmp_path, split):
        annotations = coco_sample / "annotations" / f"person_keypoints_{split}.json"
        report = build((coco_sample / split, annotations), tmp_path / "a.h5")
        dataset = read_annotations(annotations)
        people = [people for people in dataset.people.values() if main_persons(people)]
        assert report.summary.images == len(people) > 10 and not report.skipped and not report.boxes
        assert report.summary.samples == sum(len(main_persons(p)) for p in people)
        assert report.summary.people == sum(one.labelled for p in people for one in p)
        assert report.summary.file_bytes <= 1.15 * report.summary.image_bytes
        assert verify(tmp_path / "a.h5") == report.summary
        with Store(tmp_path / "a.h5") as store:
            for row in range(store.num_images):
                record = store.image(row)
                assert record.jpeg.tobytes() == (coco_sample / split / record.file_name).read_bytes()


SPOILED = {
    "missing": (lambda path: path.unlink(), "No such file or directory"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be decoded"),
    "text": (lambda path: path.write_text("no image"), "cannot be decoded"),
    "cut in half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "end early"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    "other size": (
        lambda path: cv2.imwrite(str(path), np.zeros((WIDTH, HEIGHT), np.uint8)),
        f"is {HEIGHT} x {WIDTH} pixels, annotated as {WIDTH} x {HEIGHT}",
    ),
}


class TestUnreadable:
    @pytest.mark.parametrize("name", SPOILED)
    def test_is_skipped_and_named(self, coco, tmp_path, name):
        change, reason = SPOILED[name]
        change(coco[0] / "000000000002.jpg")
        report = build(coco, tmp_path / "a.h5", max_unreadable=0.05)
        assert Store(tmp_path / "a.h5").image_ids.tolist() == [1, 3]
        (line,) = report.skipped
        assert "000000000002.jpg (image 2)" in line and reason in line and "\n" not in line

    @pytest.mark.parametrize("share, broken", [(0.0, 1), (0.05, 2), (0.4, 3), (1.0, 3)])
    def test_past_the_share_nothing_is_written(self, coco, tmp_path, share, broken):
        for number in range(1, broken + 1):
            (coco[0] / f"{number:012d}.jpg").unlink()
        with pytest.raises(DataError, match="images cannot be read.*image 1|no readable image"):
            build(coco, tmp_path / "a.h5", max_unreadable=share)
        assert not list(tmp_path.glob("a.h5*"))

    def test_the_share_is_rounded_up_to_whole_images(self, coco, tmp_path):
        for number in (1, 2):
            (coco[0] / f"{number:012d}.jpg").unlink()
        assert len(build(coco, tmp_path / "a.h5", max_unreadable=0.4).skipped) == 2

    def test_absurd_sizes_cost_nothing(self, tmp_path):
        content = document([1, 2], [person(1, 1), person(2, 2)])
        folder = write_images(tmp_path / "images", content)
        content["images"][0].update(height=16384, width=16384)
        report = build((folder, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
        assert "annotated as 16384 x 16384" in report.skipped[0]


def damaged(jpeg: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cut off, flipped, cut out, overwritten, or another byte in the header."""
    start, size = (int(value) for value in rng.integers(1, (len(jpeg), 900)))
    piece, data = slice(start, start + size), jpeg.copy()
    match rng.integers(5):
        case 0:
            return data[:start]
        case 1:
            data[start] ^= 1 << rng.integers(8)
        case 2:
            return np.delete(data, piece)
        case 3:
            data[piece] = rng.integers(256, size=len(data[piece]))
        case _:
            data[start % 600] = rng.integers(256)
    return data


@pytest.mark.parametrize(
    "options",
    [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 3)],
    ids=["plain", "progressive", "restarts"],
)
def test_a_reduced_look_refuses_what_a_whole_one_does(options, tmp_path):
    """Damaged images that decode at full size, and no others, are taken."""
    rng, path = np.random.default_rng(len(options)), tmp_path / "a.jpg"
    pixels = cv2.GaussianBlur(rng.integers(0, 256, (66, 101, 3), np.uint8), (0, 0), 1)
    jpeg = cv2.imencode(".jpg", pixels, options)[1]
    taken = []
    for _ in range(150):
        data = damaged(jpeg, rng)
        path.write_bytes(data.tobytes())
        verdicts = []
        for look in (read_image_bytes, lambda path, *size: decode_image_bytes(np.fromfile(path, np.uint8), *size)):
            try:
                look(path, 66, 101)
                verdicts.append(True)
            except ValueError:
                verdicts.append(False)
        cut = data.tobytes().rfind(b"\xff\xd9") < data.tobytes().rfind(b"\xff\xda")
        assert verdicts[0] == (verdicts[1] and not cut)
        taken.append(verdicts[0])
    assert 20 < sum(taken) < 130


def test_a_picture_a_pixel_smaller_than_annotated_is_refused(tmp_path):
    path = tmp_path / "a.jpg"
    cv2.imwrite(str(path), np.zeros((HEIGHT, WIDTH - 1, 3), np.uint8))
    with pytest.raises(ValueError, match=f"is {WIDTH - 1} x {HEIGHT} pixels, annotated as {WIDTH} x {HEIGHT}"):
        read_image_bytes(path, HEIGHT, WIDTH)


class TestVerify:
    @pytest.fixture
    def store(self, coco, tmp_path):
        build(coco, tmp_path / "a.h5")
        return tmp_path / "a.h5"

    def flip(self, path: Path, name: str, where: int) -> None:
        with h5py.File(path) as file:
            offset = file[name].id.get_offset() + where
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    def test_a_sound_store(self, store):
        summary = verify(store)
        assert (summary.images, summary.people, summary.samples) == (3, 3, 3)

    @pytest.mark.parametrize(
        "name, where",
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
    def test_one_flipped_bit_is_found(self, store, name, where):
        with h5py.File(store) as file:
            size = file[name].nbytes
        self.flip(store, name, where % size)
        with pytest.raises(DataError, match="a.h5"):
            verify(store)

    def test_the_digest_finds_what_fits_the_checksum(self, store, monkeypatch):
        self.flip(store, "jpeg", 700)
        with Store(store) as opened:
            monkeypatch.setattr(
                store_module,
                "checksum",
                lambda record: opened._columns["checksum"][opened.image_ids.tolist().index(record.image_id)],
            )
            opened.image(0).decode_image()
            with pytest.raises(DataError, match="1 of 3 .* image 1 .* has another image than was written"):
                verify(store)

    def test_damaged_pictures_are_counted_and_the_first_is_named(self, store):
        with Store(store) as opened:
            length = len(opened.image(0).jpeg)
        self.flip(store, "jpeg", 0)
        self.flip(store, "jpeg", length + 1000)
        with pytest.raises(DataError, match=r"2 of 3 images are damaged; first: .*image 1 \(000000000001.jpg\)"):
            verify(store)

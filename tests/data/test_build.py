"""Building a store: its contents, unreadable images, and builds that are stopped at any moment."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from posenet.annotations.people import person_masks, read_annotations, select_main_persons
from posenet.annotations.rules import fix_annotations
from posenet.data.build import BuildReport, build_store, open_store_writer
from posenet.data.dataset import PoseDataset
from posenet.data.inspection import verify_store
from posenet.data.store import NO_PERSON, Record, Store
from posenet.errors import DataError
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_to_toml
from tests.helpers.drawn_data import (
    HEIGHT,
    WIDTH,
    crowd,
    document,
    make_record,
    person,
    write_annotations,
    write_coco,
    write_images,
    write_store,
)  # fmt: skip
from tests.helpers.image_bytes import with_orientation
from tests.helpers.oriented_images import oriented_image
from tests.helpers.process_runs import fork_process, wait_for_exit


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    """Image folder and annotations of three images."""
    return write_coco(tmp_path)


def build(coco: tuple[Path, Path | None], output: Path, **options: Any) -> BuildReport:
    return build_store(*coco, output, **{"workers": 2, "progress": False} | options)


def write_set(folder: Path, content: dict[str, Any]) -> tuple[Path, Path]:
    return write_images(folder / "images", content), write_annotations(folder / "a.json", content)


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
        annotations = [
            person(1, 5, labelled=0),
            person(2, 5, (22, 20, 50, 60)),
            crowd(10, 5, (0, 90, 40, 20)),
            person(3, 5, (100, 40, 50, 60)),
            person(4, 5, labelled=1),
            crowd(11, 5, (60, 0, 20, 20)),
            person(5, 4, labelled=4),
            person(6, 2, segmentation=[]),
        ]
        coco = write_set(tmp_path, document([9, 5, 4, 2], annotations))
        report = build(coco, tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            assert store.image_ids.tolist() == [5, 2]
            assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0]]
            record = store.read_record(0)
        assert record.people["annotation_id"].tolist() == [2, 3, 4]
        assert record.people["box"].tolist() == [[22, 20, 50, 60], [100, 40, 50, 60], [20, 20, 50, 60]]
        assert record.people["area"].tolist() == [3000, 3000, 3000]
        people = read_annotations(coco[1]).people[5]
        np.testing.assert_array_equal(record.joints, people.keypoints[[1, 3, 4]])
        for found, expected in zip(record.decode_masks(), person_masks(people, HEIGHT, WIDTH)):
            np.testing.assert_array_equal(found, expected)
        assert not record.decode_masks()[1][95, 10] and not record.decode_masks()[1][5, 65], "both crowds are ignored"
        assert (report.num_crowds, report.num_without_main_person, report.skipped) == (2, 2, ())
        assert report.num_without_outline == 1

    def test_images_of_all_formats_keep_their_bytes(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        colour = cv2.imencode(".jpg", pixels)[1].tobytes()
        grey = cv2.imencode(".jpg", pixels[..., 0])[1].tobytes()
        png = cv2.imencode(".png", pixels)[1].tobytes()
        files = [colour, grey, png, with_orientation(colour, 6), colour + b"trailing bytes", cmyk_jpeg()]
        content = document(range(6), [person(10 + k, k) for k in range(5)] + [person(15, 5, (0, 0, 8, 8), area=2000)])
        content["images"][5].update(height=8, width=8)
        coco = write_set(tmp_path, content)
        for image, data in zip(content["images"], files):
            (coco[0] / image["file_name"]).write_bytes(data)
        assert build(coco, tmp_path / "a.h5").skipped == ()
        with Store(tmp_path / "a.h5") as store:
            records = [store.read_record(row) for row in range(6)]
        assert [record.image_bytes.tobytes() for record in records] == files
        assert [record.decode_image().shape for record in records] == [(HEIGHT, WIDTH, 3)] * 5 + [(8, 8, 3)]
        np.testing.assert_array_equal(records[3].decode_image(), records[0].decode_image())
        np.testing.assert_array_equal(records[2].decode_image(), pixels)

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems have only names in Unicode")
    def test_a_file_name_that_is_not_utf_8(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        name = os.fsdecode(b"caf\xe9.jpg")
        (coco[0] / "000000000001.jpg").rename(coco[0] / name)
        build((coco[0], None), tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            names = {store.read_record(row).file_name for row in range(3)}
        assert name in names

    def test_the_bytes_of_a_store_do_not_depend_on_the_number_of_workers(self, tmp_path: Path) -> None:
        coco = write_coco(tmp_path, range(30))
        for workers in (1, 3):
            build(coco, tmp_path / f"{workers}.h5", workers=workers)
        assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()

    def test_a_skeleton_may_be_the_path_of_its_file(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text(skeleton_to_toml(COCO))
        for name, skeleton in (("a.h5", COCO), ("b.h5", file), ("c.h5", "coco")):
            build(coco, tmp_path / name, skeleton=skeleton)
            assert (tmp_path / name).read_bytes() == (tmp_path / "a.h5").read_bytes()

    def test_images_can_be_selected_by_id_and_limit(self, tmp_path: Path) -> None:
        coco = write_coco(tmp_path, (4, 3, 2, 1))
        build(coco, tmp_path / "ids.h5", image_ids=[1, 3])
        build(coco, tmp_path / "both.h5", image_ids=[1, 3, 2], limit=2)
        assert Store(tmp_path / "ids.h5").image_ids.tolist() == [3, 1]
        assert Store(tmp_path / "both.h5").image_ids.tolist() == [3, 2]
        with pytest.raises(DataError, match="annotations.json has no image 77 .*correct the ids"):
            build(coco, tmp_path / "none.h5", image_ids=[1, 77])

    def test_real_photographs(self, coco_sample: Path, tmp_path: Path) -> None:
        annotations = coco_sample / "annotations" / "person_keypoints_val2017.json"
        report = build((coco_sample / "val2017", annotations), tmp_path / "a.h5")
        everybody = read_annotations(annotations).people.values()
        people = [people for people in everybody if select_main_persons(people)]
        assert report.summary.num_images == len(people) > 10
        assert not report.skipped and not report.num_without_outline
        assert report.summary.num_samples == sum(len(select_main_persons(p)) for p in people)
        assert report.summary.num_people == sum(p.is_labelled.sum() for p in people)
        assert report.summary.num_file_bytes <= 1.15 * report.summary.num_image_bytes
        with Store(tmp_path / "a.h5") as store:
            assert verify_store(store) == report.summary
            for row in range(store.num_images):
                record = store.read_record(row)
                assert record.image_bytes.tobytes() == (coco_sample / "val2017" / record.file_name).read_bytes()


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "No such file or directory"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("no image"), "cannot be decoded"),
    "cut in half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "is cut off"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    "other size": (
        lambda path: cv2.imwrite(str(path), np.zeros((HEIGHT, WIDTH - 10), np.uint8)),
        f"is {WIDTH - 10} x {HEIGHT} pixels, annotated as {WIDTH} x {HEIGHT}",
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
        assert "000000000002.jpg" in line and "(image 2)" in line and reason in line and "\n" not in line

    @pytest.mark.parametrize("share, allowed", [(0.0, 0), (0.05, 1), (0.4, 2), (1.0, 2)])
    def test_too_many_write_nothing(self, coco: tuple[Path, Path], tmp_path: Path, share: float, allowed: int) -> None:
        for number in range(1, allowed + 1):
            (coco[0] / f"{number:012d}.jpg").unlink()
        assert len(build(coco, tmp_path / "allowed.h5", max_unreadable=share).skipped) == allowed
        (coco[0] / f"{allowed + 1:012d}.jpg").unlink()
        with pytest.raises(DataError, match="check the folder.*annotations lint lists all.*image 1|no readable image"):
            build(coco, tmp_path / "a.h5", max_unreadable=share)
        assert not list(tmp_path.glob("a.h5*"))


class TestUnlabelled:
    """Stores of images without annotations."""

    def test_every_image_is_one_sample_without_labels(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        build((coco[0], None), tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            assert len(store) == store.num_images == verify_store(store).num_images == 3 and store.num_people == 0
            assert store.image_ids.tolist() == [1, 2, 3], "COCO's file names are image ids"
            for row in range(3):
                record = store.read_record(row)
                assert (
                    store.samples[row].tolist() == [row, NO_PERSON]
                    and record.joints.shape == (0, 18, 3)
                    and len(record.people) == 0
                )
                assert record.image_bytes.tobytes() == (coco[0] / record.file_name).read_bytes()
                assert not any(mask.any() for mask in record.decode_masks())

    @pytest.mark.parametrize("framing", ["person", "image"])
    def test_a_sample_shows_the_whole_image(self, coco: tuple[Path, Path], tmp_path: Path, framing: str) -> None:
        build((coco[0], None), tmp_path / "a.h5")
        build(coco, tmp_path / "labelled.h5")
        with Store(tmp_path / "a.h5") as store, Store(tmp_path / "labelled.h5") as labelled:
            batch = PoseDataset(store, (64, 128), framing).__getitems__([(0, 0), (0, 1)])
            whole = PoseDataset(labelled, (64, 128), "image").__getitems__([(0, 0), (0, 1)])
        assert torch.equal(batch.images, whole.images)
        assert not batch.mask_miss.any(), "cells outside the image do not count either"
        assert not batch.joints.any() and not batch.person_mask.any()

    def test_files_without_numbers_are_numbered_in_order(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        (coco[0] / "000000000001.jpg").rename(coco[0] / "z.jpg")
        build((coco[0], None), tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            records = [store.read_record(row) for row in range(3)]
        names = [(record.image_id, record.file_name) for record in records]
        assert names == [(1, "000000000002.jpg"), (2, "000000000003.jpg"), (3, "z.jpg")]

    def test_images_are_stored_as_viewers_display_them(self, tmp_path: Path) -> None:
        image = oriented_image(6)
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "a.jpg").write_bytes(image.data)
        report = build((tmp_path / "images", None), tmp_path / "a.h5")
        record = Store(tmp_path / "a.h5").read_record(0)
        assert (record.height, record.width) == record.decode_image().shape[:2] == image.sizes["displayed"]
        assert sum(report.frames.values()) == 1


def test_an_image_of_the_stored_size_whose_keypoints_only_fit_the_displayed_one_is_left_out(tmp_path: Path) -> None:
    content = document([1, 2, 3], [person(1, 1, (40, 100, 80, 120)), person(2, 2), person(3, 3)])
    height, width = oriented_image(6).sizes["stored"]
    content["images"][0].update(height=height, width=width)
    images, annotations = write_set(tmp_path, content)
    (images / content["images"][0]["file_name"]).write_bytes(oriented_image(6).data)
    report = build((images, annotations), tmp_path / "a.h5")
    assert report.summary.num_images == 2
    assert "image 1): has keypoints that only fit it as displayed; run posenet annotations fix" in report.skipped[0]
    fix_annotations(annotations, tmp_path / "b.json", images)
    assert build((images, tmp_path / "b.json"), tmp_path / "b.h5").summary.num_images == 3


def test_annotations_are_scaled_to_images_that_were_resized_after_they_were_annotated(tmp_path: Path) -> None:
    annotations = [
        person(1, 1, (20, 20, 80, 80)),
        person(2, 1, (100, 40, 20, 40), segmentation=[]),
        person(3, 1, (90, 10, 30, 30), labelled=5, segmentation=[[90, 10, 121, 12, 97, 43]]),
        crowd(4, 1, (0, 90, 40, 20)),
        person(5, 2, (40, 40, 20, 54)),
    ]
    content = document([1, 2], annotations)
    scaled = copy.deepcopy(content)
    for image in scaled["images"]:
        image.update(height=HEIGHT // 2, width=WIDTH // 2)
    for annotation in scaled["annotations"]:
        points = np.reshape(annotation["keypoints"], (-1, 3))
        points[:, :2] = np.where(points[:, 2:] > 0, (points[:, :2] + 0.5) / 2 - 0.5, 0)
        annotation["keypoints"] = points.ravel().tolist()
        annotation["bbox"] = [value / 2 for value in annotation["bbox"]]
        annotation["area"] /= 4
        if isinstance(annotation["segmentation"], list):
            annotation["segmentation"] = [[value / 2 for value in polygon] for polygon in annotation["segmentation"]]
    scaled["annotations"][3] = crowd(4, 1, (0, 45, 20, 10), (HEIGHT // 2, WIDTH // 2))
    images = write_images(tmp_path / "images", scaled)
    report = build((images, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
    build((images, write_annotations(tmp_path / "b.json", scaled)), tmp_path / "b.h5")
    with Store(tmp_path / "a.h5") as store, Store(tmp_path / "b.h5") as other:
        assert store.samples.tolist() == other.samples.tolist() == [[0, 0]]
        record, expected = store.read_record(0), other.read_record(0)
    assert (record.height, record.width) == (HEIGHT // 2, WIDTH // 2)
    np.testing.assert_array_equal(record.joints, expected.joints)
    np.testing.assert_array_equal(record.people, expected.people)
    for mask, expected_mask in zip(record.decode_masks(), expected.decode_masks()):
        np.testing.assert_array_equal(mask, expected_mask)
    assert (report.num_resized, report.num_without_main_person, report.skipped) == (1, 1, ())


class TestOutput:
    """The file is complete, or it does not exist."""

    @pytest.fixture
    def records(self) -> list[Record]:
        return [make_record(7, 3), make_record(3, 1)]

    @pytest.fixture
    def path(self, tmp_path: Path, records: list[Record]) -> Path:
        return write_store(tmp_path / "tiny.h5", records)

    @pytest.mark.parametrize(
        "error, raised, message",
        [
            (RuntimeError(), RuntimeError, None),
            (KeyboardInterrupt(), KeyboardInterrupt, None),
            (OSError(errno.EFBIG, "unable to write"), DataError, "a.h5: File too large"),
        ],
    )
    def test_an_interrupted_build_leaves_nothing(
        self,
        tmp_path: Path,
        records: list[Record],
        error: BaseException,
        raised: type[BaseException],
        message: str | None,
    ) -> None:
        with pytest.raises(raised, match=message), open_store_writer(tmp_path / "new" / "a.h5", 10**6) as writer:
            writer.add(records[0], [0])
            raise error
        assert list((tmp_path / "new").iterdir()) == []

    def test_an_interrupted_rebuild_keeps_the_old_store(self, path: Path, records: list[Record]) -> None:
        before = path.read_bytes()
        with pytest.raises(KeyboardInterrupt), open_store_writer(path, 10**6, overwrite=True) as writer:
            writer.add(records[1], [0])
            assert path.read_bytes() == before
            raise KeyboardInterrupt
        assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]

    def test_an_existing_store_is_replaced_only_on_request(self, path: Path, records: list[Record]) -> None:
        before = path.read_bytes()
        with pytest.raises(DataError, match="tiny.h5 exists; .*overwrite=True"):
            write_store(path, records[:1])
        assert path.read_bytes() == before
        link = path.with_name("link.h5")
        link.symlink_to(path.name)
        write_store(link, records[:1], overwrite=True)
        assert link.is_symlink() and Store(path).num_images == 1

    def test_a_file_that_appears_during_the_build_is_kept(self, tmp_path: Path, records: list[Record]) -> None:
        with pytest.raises(DataError, match="a.h5 exists"), open_store_writer(tmp_path / "a.h5", 10**6) as writer:
            writer.add(records[0], [0])
            (tmp_path / "a.h5").write_text("another program's")
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.h5", "another program's")]

    def test_outputs_that_are_no_store_are_errors(self, tmp_path: Path, records: list[Record]) -> None:
        (tmp_path / "notes.txt").write_text("years of work")
        with pytest.raises(DataError, match="notes.txt is not an HDF5 file and is not overwritten"):
            write_store(tmp_path / "notes.txt", records, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "years of work"
        with pytest.raises(DataError, match="standard output"):
            write_store(Path("-"), records)
        with pytest.raises(DataError, match="is a folder"):
            write_store(tmp_path, records)
        with pytest.raises(DataError, match="notes.txt cannot be a folder"):
            write_store(tmp_path / "notes.txt" / "a.h5", records)

    def test_what_stops_a_build_is_named_and_leaves_nothing(
        self, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.h5"
        with pytest.raises(DataError, match="no readable image with a main person"):
            write_store(path, [])
        with pytest.raises(DataError, match="has grown while the store was built"):
            with open_store_writer(path, len(records[0].image_bytes)) as writer:
                writer.add(records[0], [0])
                writer.add(records[1], [0])
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
        with pytest.raises(DataError, match="a.h5: the disk has 1 MB left; free some space"):
            write_store(path, records)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_with_the_name_of_the_unfinished_one_is_kept(self, tmp_path: Path, records: list[Record]) -> None:
        other = tmp_path / f"a.h5.{os.getpid()}.partial"
        other.write_text("another program's")
        with pytest.raises(DataError, match=r"a\.h5\.\d+\.partial exists, .*; move it away"):
            write_store(tmp_path / "a.h5", records)
        assert other.read_text() == "another program's"

    @pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
    def test_a_file_system_without_locks_gets_a_store_that_opens(
        self, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import fcntl

        def flock(file: Any, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "a.h5.123.partial").write_bytes(b"")
        path = write_store(tmp_path / "a.h5", records)
        assert (tmp_path / "a.h5.123.partial").exists(), "nothing shows whether it is in use"
        assert Store(path).num_images == 2

    @pytest.mark.skipif(sys.platform == "win32", reason="locks forbid removal there")
    def test_files_of_killed_builds_are_removed_and_others_kept(self, tmp_path: Path, records: list[Record]) -> None:
        """A running build is recognised where HDF5's own locks are off, as on many clusters."""
        (tmp_path / "a.h5.123.partial").write_bytes(b"")
        write_store(tmp_path / "a.h5.124.partial", records)
        kept = {"other.h5.125.partial": b"another store's", "a.h5.127.partial": b"another program's"}
        for name, content in kept.items():
            (tmp_path / name).write_bytes(content)
        code = (
            "import sys; from posenet.data.build import open_store_writer\n"
            "with open_store_writer(sys.argv[1], 1): print(flush=True); sys.stdin.read(); raise KeyboardInterrupt"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
        no_locks = os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, env=no_locks, **pipes) as running:
            assert running.stdout is not None
            running.stdout.readline()
            unfinished = f"a.h5.{running.pid}.partial"
            write_store(tmp_path / "a.h5", records)
            assert {p.name for p in tmp_path.iterdir()} == {"a.h5", unfinished, *kept}
            running.communicate()
        assert {p.name for p in tmp_path.iterdir()} == {"a.h5", *kept}
        assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
        assert Store(tmp_path / "a.h5").num_images == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("kills", [5, pytest.param(60, marks=pytest.mark.torture)])
def test_builds_killed_at_any_moment_leave_nothing_or_the_old_one(tmp_path: Path, kills: int, overwrite: bool) -> None:
    coco = write_coco(tmp_path, range(1, 41))
    output = tmp_path / "out" / "a.h5"
    started = time.perf_counter()
    build(coco, tmp_path / "whole.h5", workers=1)
    seconds = time.perf_counter() - started
    whole = (tmp_path / "whole.h5").read_bytes()
    rng = np.random.default_rng(kills)
    killed = 0
    while killed < kills:
        if overwrite:
            build(coco, output, limit=3, overwrite=True)
        old = output.read_bytes() if overwrite else b""
        pid = fork_process(lambda: build(coco, output, workers=1, overwrite=overwrite))
        time.sleep(rng.uniform(0, 1.2 * seconds))
        os.kill(pid, signal.SIGKILL)
        killed += wait_for_exit(pid) == -signal.SIGKILL
        left = output.read_bytes() if output.exists() else b""
        assert left in (old, whole)
        build(coco, output, overwrite=True)
        assert [path.name for path in output.parent.iterdir()] == ["a.h5"]
        assert output.read_bytes() == whole
        if not overwrite:
            output.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1000, 20_000, 100_000])
def test_a_write_that_fails_ends_the_program_with_an_error_and_no_crash(tmp_path: Path, limit: int) -> None:
    """HDF5 crashes at the end of a program that has closed a file with writes that cannot succeed."""
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from posenet.data.build import open_store_writer\n"
        "from posenet.errors import DataError\n"
        "from tests.helpers.drawn_data import make_record\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try:\n"
        "    with open_store_writer(sys.argv[1], 10**7) as writer:\n"
        "        for number in range(100):\n"
        "            writer.add(make_record(number)._replace(image_bytes=np.ones(50_000, np.uint8)), [0])\n"
        "except DataError as error:\n"
        "    sys.exit(str(error))\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a.h5"), str(limit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"cannot write {tmp_path / 'a.h5'}: File too large; free disk space, or choose another folder\n",
    )
    assert os.listdir(tmp_path) == []

"""Building a store: its contents, unreadable and smaller images, and builds that are stopped at any moment."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch

from posenet.annotations.people import person_masks, read_dataset, select_main_persons
from posenet.data.build import BuildReport, build_store
from posenet.data.dataset import PoseDataset
from posenet.data.store import NO_PERSON, Store, verify_store
from posenet.data.store_list import find_shared_images, find_stored_files, open_data_sets
from posenet.errors import DataError
from posenet.images import read_image
from posenet.skeleton import COCO
from tests.helpers.chairs import write_chairs
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
from tests.helpers.process_runs import fork_process, wait_for_exit

WITHOUT_ANY = "without any annotation (--background stores them)"


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    """Image folder and annotations of three images."""
    return write_coco(tmp_path)


def build(coco: tuple[Path, Path | None], output: Path, **options: Any) -> BuildReport:
    return build_store(*coco, output, **{"workers": 2, "progress": False} | options)


def write_set(folder: Path, content: dict[str, Any]) -> tuple[Path, Path]:
    return write_images(folder / "images", content), write_annotations(folder / "a.json", content)


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
        with h5py.File(tmp_path / "a.h5") as file:
            counts = [file.attrs[name] for name in ("images", "people", "samples")]
            assert counts == [2, report.store.num_people, 3]
        with Store(tmp_path / "a.h5") as store:
            assert store.image_ids.tolist() == [5, 2]
            assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0]]
            record = store.read_record(0)
        assert record.people["annotation_id"].tolist() == [2, 3, 4]
        assert record.people["box"].tolist() == [[22, 20, 50, 60], [100, 40, 50, 60], [20, 20, 50, 60]]
        assert record.people["area"].tolist() == [2250, 2250, 2250]
        people = read_dataset(coco[1]).people[5]
        np.testing.assert_array_equal(record.joints, people.keypoints[[1, 3, 4]])
        for found, expected in zip(decode_masks(record), person_masks(people, HEIGHT, WIDTH)):
            np.testing.assert_array_equal(found, expected)
        assert not decode_masks(record)[1][95, 10] and not decode_masks(record)[1][5, 65], "both crowds are ignored"
        assert (report.store.num_images, report.store.num_people, len(report.store)) == (2, 4, 3)
        assert report.without_sample == {WITHOUT_ANY: 1, "without a main person": 1} and not report.changed
        assert report.others == {"without labelled keypoints": 1, "with fewer than 5 labelled keypoints": 2}
        assert report.skipped == ()

    def test_images_of_all_formats_keep_their_bytes(self, tmp_path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        colour = cv2.imencode(".jpg", pixels)[1].tobytes()
        grey = cv2.imencode(".jpg", pixels[..., 0])[1].tobytes()
        png = cv2.imencode(".png", pixels)[1].tobytes()
        files = [colour, grey, png, with_orientation(colour, 6), colour + b"trailing bytes"]
        content = document(range(5), [person(10 + k, k) for k in range(5)])
        coco = write_set(tmp_path, content)
        for image, data in zip(content["images"], files):
            (coco[0] / image["file_name"]).write_bytes(data)
        assert build(coco, tmp_path / "a.h5").skipped == ()
        with Store(tmp_path / "a.h5") as store:
            records = [store.read_record(row) for row in range(5)]
        assert [record.image_bytes.tobytes() for record in records] == files
        shapes = [record.decode_image().shape[:2] for record in records]
        assert shapes == [(HEIGHT, WIDTH)] * 3 + [(WIDTH, HEIGHT), (HEIGHT, WIDTH)]
        np.testing.assert_array_equal(records[3].decode_image(), np.rot90(records[0].decode_image(), -1))
        np.testing.assert_array_equal(records[2].decode_image(), pixels)

    def test_the_bytes_of_a_store_do_not_depend_on_the_number_of_workers(self, tmp_path: Path) -> None:
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
        for options, message in (({"image_ids": [1, 77]}, "no image 77 "), ({"max_side": -1}, "max_side is -1;")):
            with pytest.raises(DataError, match=message):
                build(coco, tmp_path / "none.h5", **options)

    def test_real_photographs(self, coco_sample: Path, tmp_path: Path) -> None:
        annotations = coco_sample / "annotations" / "person_keypoints_val2017.json"
        report = build((coco_sample / "val2017", annotations), tmp_path / "a.h5")
        mains = [select_main_persons(people) for people in read_dataset(annotations).people.values()]
        assert report.store.num_images == sum(map(bool, mains)) > 10 and not report.skipped
        assert len(report.store) == sum(map(len, mains))
        assert report.store.num_file_bytes <= 1.15 * report.store.num_image_bytes
        with Store(tmp_path / "a.h5") as store:
            verify_store(store)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "No such file or directory"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be decoded"),
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
        assert not list(tmp_path.glob("*a.h5*"))


class TestUnlabelled:
    """Stores of images without annotations."""

    def test_every_image_is_one_whole_sample_without_labels(self, coco: tuple[Path, Path], tmp_path: Path) -> None:
        build((coco[0], None), tmp_path / "a.h5")
        build(coco, tmp_path / "labelled.h5")
        with Store(tmp_path / "a.h5") as store, Store(tmp_path / "labelled.h5") as labelled:
            assert store.image_ids.tolist() == [1, 2, 3], "COCO's file names are image ids"
            assert store.samples.tolist() == [[row, NO_PERSON] for row in range(3)] and store.num_people == 0
            assert not any(mask.any() for mask in decode_masks(store.read_record(0)))
            whole = PoseDataset(labelled, (64, 128), "image").__getitems__([(0, 0), (0, 1)])
            for framing in ("person", "image"):
                batch = PoseDataset(store, (64, 128), framing).__getitems__([(0, 0), (0, 1)])
                assert torch.equal(batch.images, whole.images)
                assert not batch.mask_miss.any(), "cells outside the image do not count either"
                assert not batch.joints.any() and not batch.person_mask.any()

    @pytest.mark.parametrize("stem", ["z", "٤", "9" * 19], ids=ascii)
    def test_files_without_numbers_are_numbered_in_order(
        self, coco: tuple[Path, Path], tmp_path: Path, stem: str
    ) -> None:
        (coco[0] / "000000000001.jpg").rename(coco[0] / f"{stem}.jpg")
        build((coco[0], None), tmp_path / "a.h5")
        with Store(tmp_path / "a.h5") as store:
            records = [store.read_record(row) for row in range(3)]
        names = [(record.image_id, record.file_name) for record in records]
        assert names == [(1, "000000000002.jpg"), (2, "000000000003.jpg"), (3, f"{stem}.jpg")]


def test_annotations_are_scaled_to_images_that_were_resized_after_they_were_annotated(tmp_path: Path) -> None:
    too_small = person(5, 2, (40, 40, 20, 54), area=250)
    content = document([1, 2], [person(1, 1, (20, 20, 80, 80)), crowd(4, 1, (0, 90, 40, 20)), too_small])
    smaller = [image | {"height": HEIGHT // 2, "width": WIDTH // 2} for image in content["images"]]
    images = write_images(tmp_path / "images", {"images": smaller})
    report = build((images, write_annotations(tmp_path / "a.json", content)), tmp_path / "a.h5")
    assert report.without_sample == {"without a main person": 1} and report.skipped == ()
    assert report.changed == {"of another size than annotated, to which the annotations were scaled": 1}
    with Store(tmp_path / "a.h5") as store:
        assert store.samples.tolist() == [[0, 0]]
        record = store.read_record(0)
    assert (record.height, record.width) == (HEIGHT // 2, WIDTH // 2)
    annotated = np.reshape(content["annotations"][0]["keypoints"], (1, 17, 3))
    expected = COCO.to_network_order((annotated + (0.5, 0.5, 0)) * (0.5, 0.5, 1) - (0.5, 0.5, 0))
    np.testing.assert_allclose(record.joints, expected, atol=1e-5)
    assert record.people["box"].tolist() == [[10, 10, 40, 40]] and record.people["area"] == 0.75 * 40 * 40
    person_mask, mask_miss = np.zeros((2, HEIGHT // 2, WIDTH // 2), np.uint8)
    person_mask[10:50, 10:50] = person_mask[45:55, :20] = 1
    mask_miss[:] = 1
    mask_miss[45:55, :20] = 0
    mask_miss[10:50, 10:50] = 1
    for found, mask in zip(decode_masks(record), (person_mask, mask_miss)):
        np.testing.assert_array_equal(found, mask)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.torture)])
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


def test_people_that_were_read_already_bring_their_skeleton(tmp_path: Path) -> None:
    images, annotations = write_chairs(tmp_path, "train", 3, 1)
    skeleton = pytest.importorskip("posenet.annotations.skeleton_draft").draft_skeleton(annotations)
    people = read_dataset(annotations, skeleton, images)
    report = build_store(images, people, tmp_path / "a.h5", progress=False)
    assert report.store.skeleton == skeleton
    build_store(images, annotations, tmp_path / "b.h5", skeleton=skeleton, progress=False)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def smooth(seed: int) -> np.ndarray:
    """An image whose content is the same at half its size, within a few values."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def write_photographs(folder: Path, count: int = 3) -> tuple[Path, Path]:
    """Smooth images with a person and a crowd each."""
    ids = range(1, count + 1)
    annotations = [person(10 + number, number, (21, 13, 60, 90)) for number in ids]
    annotations += [crowd(1000 + number, number, (100, 20, 30, 40)) for number in ids]
    coco = write_set(folder, document(ids, annotations))
    for number in ids:
        cv2.imwrite(str(coco[0] / f"{number:012d}.jpg"), smooth(number), [cv2.IMWRITE_JPEG_QUALITY, 100])
    return coco


@pytest.fixture
def built(tmp_path: Path) -> dict[str, Path]:
    """The stores ``small`` and ``whole`` of the same photographs."""
    coco = write_photographs(tmp_path)
    report = build(coco, tmp_path / "small.h5", max_side=80)
    assert report.changed == {"made smaller": 3}
    assert not build(coco, tmp_path / "whole.h5", max_side=WIDTH).changed
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


def test_images_are_not_made_so_small_that_people_are_lost(tmp_path: Path) -> None:
    """Both were dropped because they had less than 32 x 32 pixels in the smaller image."""
    content = document([1, 2, 3], [person(1, 1, (900, 900, 50, 60)), person(2, 2, (20, 20, 900, 900))])
    content["annotations"].append(person(3, 3, (900, 900, 34, 32), area=1024))
    for image in content["images"]:
        image.update(height=1000, width=1000)
    coco = write_set(tmp_path, content)
    report = build(coco, tmp_path / "a.h5", max_side=200)
    with Store(tmp_path / "a.h5") as store:
        assert store.image_ids.tolist() == [1, 2, 3] and len(store) == 3
        sizes = [store.read_record(row).height for row in range(3)]
        assert store.read_record(0).people["area"][0] == pytest.approx(1024, rel=0.01)
    assert sizes[1:] == [200, 1000] and 200 < sizes[0] < 1000
    assert report.changed == {"made smaller": 2} and not report.others

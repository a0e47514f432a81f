"""The store: round trip, checks on opening, processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import threading
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from posenet.annotations import run_lengths as rle
from posenet.data.store import writer
from posenet.data.store.reader import Store, overlap
from posenet.data.store.record import Record
from posenet.data.store.schema import BLOBS, fingerprint
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import flip_bit, make_record, write_store


@pytest.fixture
def records():
    return [make_record(7, 3), make_record(3, 1), make_record(5, 2)]


@pytest.fixture
def path(tmp_path, records):
    return write_store(tmp_path / "tiny.h5", records)


def assert_same(found: Record, expected: Record) -> None:
    for field in dataclasses.fields(Record):
        if field.name != "source":
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def read_everything(store: Store) -> list[int]:
    """Sum of every sample's bytes, as a worker of a loader would read them."""
    return [int(store.sample(index)[0].jpeg.sum()) for index in range(len(store))]


def send_everything(store: Store, connection) -> None:
    before = store._handle
    connection.send((read_everything(store), store._handle is not before))


class TestRoundTrip:
    @pytest.mark.parametrize("buffer", [1, 30_000, 2**24])
    def test_records_come_back(self, tmp_path, records, monkeypatch, buffer):
        monkeypatch.setattr(writer, "BUFFER_BYTES", buffer)
        with Store(write_store(tmp_path / "a.h5", records, source="/private/folder/train.json")) as store:
            assert (store.num_images, store.num_people, len(store)) == (3, 6, 5)
            assert store.image_ids.tolist() == [7, 3, 5]
            for row, record in enumerate(records):
                found = store.image(row)
                assert_same(found, record)
                assert found.joints.dtype == found.boxes.dtype == np.float32 and found.jpeg.dtype == np.uint8
            assert [(store.sample(i)[0].image_id, store.sample(i)[1]) for i in range(5)] == [
                (7, 0),
                (7, 1),
                (3, 0),
                (5, 0),
                (5, 1),
            ]
        with h5py.File(tmp_path / "a.h5") as file:
            assert file.attrs["source"] == b"train.json"
            assert all(file.attrs.get_id(key).dtype.kind != "O" for key in file.attrs)

    def test_masks_and_picture_are_decoded(self, path, records):
        with Store(path) as store:
            image, (mask_all, mask_miss) = store.image(0).decode_image(), store.image(0).masks()
        np.testing.assert_array_equal(image, cv2.imdecode(records[0].jpeg, cv2.IMREAD_COLOR))
        for mask, counts in ((mask_all, records[0].mask_all_rle), (mask_miss, records[0].mask_miss_rle)):
            assert mask.shape == (96, 128) and mask.dtype == np.uint8 and mask.flags.c_contiguous
            np.testing.assert_array_equal(mask, rle.decode(counts, 96, 128))

    def test_only_rows_that_exist(self, path):
        with Store(path) as store:
            for bad in (-1, 5):
                with pytest.raises(IndexError):
                    store.sample(bad)
            for bad in (-1, 3):
                with pytest.raises(IndexError):
                    store.image(bad)

    def test_a_tiny_store_has_no_padding(self, path, records):
        pictures = sum(record.jpeg.nbytes for record in records)
        masks = sum(len(record.mask_all_rle + record.mask_miss_rle) for record in records)
        with Store(path) as store:
            assert store.image_bytes == pictures
        assert path.stat().st_size < pictures + masks + 20_000

    def test_damage_names_store_image_and_file(self, tmp_path, records):
        broken = dataclasses.replace(records[1], jpeg=records[1].jpeg[:50], mask_miss_rle=b"0")
        resized = dataclasses.replace(records[2], height=95)
        with Store(write_store(tmp_path / "broken.h5", [broken, resized])) as store:
            with pytest.raises(DataError, match=r"broken\.h5: image 3 \(sub/0003\.jpg\) cannot be decoded"):
                store.image(0).decode_image()
            with pytest.raises(DataError, match=r"broken\.h5: image 3 \(sub/0003\.jpg\) has masks with"):
                store.image(0).masks()
            with pytest.raises(DataError, match="image 5 .* is 128 x 96 pixels, annotated as 128 x 95"):
                store.image(1).decode_image()

    def test_overlap_is_same_id_and_same_bytes(self, tmp_path, path):
        other_bytes = dataclasses.replace(make_record(9), image_id=3)
        b = write_store(tmp_path / "b.h5", [make_record(5), other_bytes, make_record(7, 3), make_record(8)])
        c = write_store(tmp_path / "c.h5", [make_record(100)])
        assert overlap(Store(path), Store(b)).tolist() == [5, 7]
        assert overlap(Store(path), Store(c)).tolist() == []


class TestProcesses:
    def test_pickle_carries_no_handle_and_no_arrays(self, path):
        with Store(path) as store:
            expected = read_everything(store)
            blob = pickle.dumps(store)
        assert len(blob) < 5000
        assert read_everything(pickle.loads(blob)) == expected

    def test_reading_goes_on_after_close(self, path):
        store = Store(path)
        expected = read_everything(store)
        store.close()
        store.close()
        assert read_everything(store) == expected

    def test_a_spawned_worker_reads(self, path):
        store = Store(path)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(read_everything, store).result() == read_everything(store)

    @pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
    def test_forked_workers_read_beside_the_parent_on_their_own_handles(self, path):
        store = Store(path)
        expected = read_everything(store)
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(2)]
        workers = [context.Process(target=send_everything, args=(store, sender)) for _, sender in pipes]
        for worker in workers:
            worker.start()
        assert all(read_everything(store) == expected for _ in range(20))
        assert [receiver.recv() for receiver, _ in pipes] == [(expected, True), (expected, True)]
        for worker in workers:
            worker.join()
        assert read_everything(store) == expected

    def test_threads_share_a_store(self, path):
        store, found = Store(path), []
        threads = [threading.Thread(target=lambda: found.append(read_everything(store))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [read_everything(store)] * 4

    def test_a_store_rebuilt_meanwhile_is_not_mixed_up(self, path):
        store = Store(path)
        write_store(path, [make_record(1), make_record(2), make_record(4)], overwrite=True)
        with pytest.raises(DataError, match="rebuilt while in use"):
            store.image(0)

    def test_a_process_started_later_takes_no_rebuilt_store(self, path):
        blob = pickle.dumps(Store(path))
        write_store(path, [make_record(7, 3), make_record(3, 1), make_record(6, 2)], overwrite=True)
        with pytest.raises(DataError, match="rebuilt while in use"):
            pickle.loads(blob).image(2)


def spoil(change):
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def replace(name: str, values) -> object:
    def change(file: h5py.File) -> None:
        values_now = values(file[name][:]) if callable(values) else values
        del file[name]
        file[name] = values_now

    return spoil(change)


def link(name: str, target) -> object:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return spoil(change)


def huge(file: h5py.File) -> None:
    del file["sample"]
    file.create_dataset("sample", (2**40, 2), np.int64, chunks=(4, 2))
    file.attrs["samples"] = 2**40


def bomb(file: h5py.File) -> None:
    """A few kilobytes that unpack to megabytes, of which one row would be read."""
    area = file["area"][:]
    del file["area"]
    file.create_dataset("area", data=area, maxshape=(None,), chunks=(2**20,), compression="gzip")


def large_pieces(file: h5py.File) -> None:
    del file["area"]
    file.create_dataset("area", (6,), np.float32, maxshape=(None,), chunks=(2**28,))


def old_layout(path: Path) -> None:
    with h5py.File(path) as new, h5py.File(path.with_name("old.h5"), "w", libver="earliest") as old:
        for name in new:
            new.copy(name, old)
        old.attrs.update(new.attrs)
    path.with_name("old.h5").replace(path)


def external(file: h5py.File) -> None:
    size = len(file["jpeg"])
    del file["jpeg"]
    file.create_dataset("jpeg", (size,), np.uint8, external=[("/etc/passwd", 0, size)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(file["jpeg"].shape, np.uint8)
    layout[:] = h5py.VirtualSource("elsewhere.h5", "jpeg", file["jpeg"].shape)
    del file["jpeg"]
    file.create_virtual_dataset("jpeg", layout)


def cut(share: float):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def attribute(**values):
    return spoil(
        lambda file: file.attrs.update(
            {name: np.bytes_(value) if isinstance(value, str) else value for name, value in values.items()}
        )
    )


def sealed(name: str, values) -> object:
    """``replace``, with a fingerprint that fits again: what a program other than ours might write."""

    def change(path: Path) -> None:
        replace(name, values)(path)
        with h5py.File(path, "r+") as file:
            file.attrs["fingerprint"] = np.bytes_(fingerprint({key: file[key][()] for key in file}))

    return change


def swapped(values: np.ndarray) -> np.ndarray:
    return values[[0, 2, 1, *range(3, len(values))]]


FAULTS = {
    "truncated": (cut(0.7), "cannot be used as a store"),
    "truncated at the start": (cut(0.001), "cannot be used as a store"),
    "empty": (cut(0), "cannot be used as a store"),
    "text": (lambda path: path.write_text("not a store\n" * 99), "cannot be used as a store"),
    "never finished": (spoil(lambda file: file.attrs.pop("format")), "never finished"),
    "another format": (attribute(format="pictures"), "not written by tools/build_hdf5.py"),
    "newer schema": (attribute(schema=99), "schema 99.*update posenet"),
    "older schema": (attribute(schema=0), "schema 0 is no longer read"),
    "schema is text": (attribute(schema="new"), "cannot be used as a store"),
    "skeleton is not JSON": (attribute(skeleton="{"), "cannot be used as a store"),
    "text in a heap": (
        spoil(lambda file: file.attrs.update(skeleton="{}")),
        "skeleton is not as this version writes it",
    ),
    "no fingerprint": (spoil(lambda file: file.attrs.pop("fingerprint")), "cannot be used as a store"),
    "count too high": (attribute(images=4), "image_id has the shape"),
    "dataset missing": (spoil(lambda file: file.pop("box")), "box is missing"),
    "group for a dataset": (spoil(lambda file: (file.pop("box"), file.create_group("box"))), "box is missing"),
    "images as numbers": (replace("jpeg", lambda jpeg: jpeg.astype(np.float32)), "jpeg has the type float32"),
    "offsets go backwards": (replace("jpeg_offset", swapped), "jpeg_offset"),
    "offsets beyond the end": (replace("mask_all_offset", lambda o: o + (o == o[-1])), "mask_all_offset"),
    "offsets start late": (replace("mask_miss_offset", lambda o: o + (o == 0)), "mask_miss_offset"),
    "people beyond the end": (replace("person_offset", lambda o: o + (o == o[-1])), "person_offset"),
    "sample of no image": (replace("sample", lambda s: s + [9, 0]), "samples of images"),
    "sample of no person": (replace("sample", lambda s: s + [0, 9]), "samples of people"),
    "negative sample": (replace("sample", lambda s: s - [0, 1]), "samples of images"),
    "main person without a box": (sealed("box", lambda box: box * 0), "whose boxes are empty"),
    "no size": (replace("height", lambda height: height * 0), "without a size"),
    "larger than the file": (spoil(huge), "arrays claim"),
    "filter bomb": (spoil(bomb), "area is compressed"),
    "large pieces": (spoil(large_pieces), "area is compressed, or in pieces larger than the file"),
    "layout without checksums": (old_layout, "layout with checksums"),
    "another person's box": (replace("box", lambda rows: rows[::-1].copy()), "not those that were written"),
    "another image's name": (replace("file_name", lambda rows: rows[::-1].copy()), "not those that were written"),
    "external link": (link("box", h5py.ExternalLink("elsewhere.h5", "box")), "box is missing or lies outside"),
    "soft link": (link("box", h5py.SoftLink("/area")), "box is missing or lies outside"),
    "external storage": (spoil(external), "jpeg is missing or lies outside"),
    "virtual dataset": (spoil(virtual), "jpeg is missing or lies outside"),
}


@pytest.mark.parametrize("blob", BLOBS)
def test_one_flipped_bit_is_no_silent_sample(path, blob):
    flip_bit(path, blob, 1)
    with Store(path) as store:
        store.image(0), store.image(2)
        with pytest.raises(DataError, match=r"image 3 \(sub/0003\.jpg\) has another image, masks or joints"):
            store.image(1)


def test_other_joints_are_no_silent_sample(path):
    replace("joints", lambda joints: joints + np.float32([0, 0, 0.5]) * (np.arange(6) == 0)[:, None, None])(path)
    with Store(path) as store:
        store.image(1)
        with pytest.raises(DataError, match="image 7 .* has another image, masks or joints"):
            store.image(0)


def test_joints_that_are_not_finite_are_refused(tmp_path):
    sound = make_record(1)
    path = write_store(tmp_path / "nan.h5", [dataclasses.replace(sound, joints=sound.joints * np.nan), make_record(2)])
    with Store(path) as store, pytest.raises(DataError, match="has another image, masks or joints"):
        store.image(0)
    with Store(path) as store:
        store.image(1)


class TestOpening:
    def test_opening_reads_the_table_and_nothing_else(self, tmp_path):
        """Whatever the images weigh: a table of 300 bytes an image, beside some 2 MB once."""
        small, images = make_record(1, 1, 16, 16), 60000
        with writer.StoreWriter(tmp_path / "many.h5") as out:
            for number in range(images):
                out.add(dataclasses.replace(small, image_id=number), [0])
        tracemalloc.start()
        try:
            with Store(tmp_path / "many.h5") as store:
                held, most = tracemalloc.get_traced_memory()
                assert store.num_images == images and store.image(images - 1).image_id == images - 1
        finally:
            tracemalloc.stop()
        assert held < 300 * images and most < 300 * images + 2e6
        assert store.path.stat().st_size > 3 * held

    @pytest.mark.parametrize("name", FAULTS)
    def test_what_cannot_be_used_is_refused_at_once(self, path, name):
        change, expected = FAULTS[name]
        change(path)
        with pytest.raises(DataError, match=expected) as caught:
            Store(path)
        message = str(caught.value)
        assert str(path) in message and "\n" not in message
        assert "build it anew with tools/build_hdf5.py" in message or "update posenet" in message

    def test_missing_and_folder(self, tmp_path):
        with pytest.raises(DataError, match="none.h5 does not exist; build it with tools/build_hdf5.py"):
            Store(tmp_path / "none.h5")
        with pytest.raises(DataError, match="cannot read store"):
            Store(tmp_path)

    def test_another_skeleton(self, path):
        swap = COCO.keypoints[::-1]
        with pytest.raises(DataError, match="another skeleton"):
            Store(path, dataclasses.replace(COCO, keypoints=swap))
        other_neck = dataclasses.replace(COCO, derived={"neck": ("Rhip", "Lhip")})
        with pytest.raises(DataError, match="another skeleton"):
            Store(path, other_neck)

    def test_other_body_parts_need_no_new_store(self, path):
        assert len(Store(path, dataclasses.replace(COCO, parts=COCO.parts[:3]))) == 5

    def test_damage_found_while_reading_is_a_data_error(self, path):
        store = Store(path)
        with h5py.File(path, "r+") as file:
            del file["mask_miss"]
        with pytest.raises(DataError, match="tiny.h5 cannot be used as a store"):
            store.image(0)

"""Reading a store: round trip, damaged records, processes and threads."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from posenet.annotations import run_lengths as rle
from posenet.data.store import BYTE_ARRAYS, Record, Store, reader, writer
from posenet.errors import DataError
from tests.helpers.drawn_data import flip_bit, make_record, write_store


@pytest.fixture
def records() -> list[Record]:
    return [make_record(7, 3), make_record(3, 1), make_record(5, 2)]


@pytest.fixture
def path(tmp_path: Path, records: list[Record]) -> Path:
    return write_store(tmp_path / "tiny.h5", records)


def assert_same(found: Record, expected: Record) -> None:
    for field in dataclasses.fields(Record):
        if field.name != "source":
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def read_everything(store: Store) -> list[int]:
    """The sum of the image bytes of every sample."""
    return [int(store.read_sample(index)[0].image_bytes.sum()) for index in range(len(store))]


def send_everything(store: Store, connection) -> None:
    """Send what ``read_everything`` returns, and whether this process has opened the file for itself."""
    inherited = store._open_file
    connection.send((read_everything(store), store._open_file is not inherited))


class TestRoundTrip:
    @pytest.mark.parametrize("buffer", [1, 30_000, 2**24])
    def test_records_are_read_as_written(
        self, tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch, buffer: int
    ) -> None:
        monkeypatch.setattr(writer, "BUFFER_BYTES", buffer)
        with Store(write_store(tmp_path / "a.h5", records, source="/private/folder/train.json")) as store:
            assert (store.num_images, store.num_people, len(store)) == (3, 6, 5)
            assert store.image_ids.tolist() == [7, 3, 5]
            for row, record in enumerate(records):
                found = store.read_record(row)
                assert_same(found, record)
                assert found.joints.dtype == found.boxes.dtype == np.float32 and found.image_bytes.dtype == np.uint8
            assert [(store.read_sample(i)[0].image_id, store.read_sample(i)[1]) for i in range(5)] == [
                (7, 0),
                (7, 1),
                (3, 0),
                (5, 0),
                (5, 1),
            ]
        with h5py.File(tmp_path / "a.h5") as file:
            assert file.attrs["source"] == b"train.json"
            assert all(file.attrs.get_id(key).dtype.kind != "O" for key in file.attrs)

    def test_masks_and_image_are_decoded(self, path: Path, records: list[Record]) -> None:
        with Store(path) as store:
            image, (mask_all, mask_miss) = store.read_record(0).decode_image(), store.read_record(0).decode_masks()
        np.testing.assert_array_equal(image, cv2.imdecode(records[0].image_bytes, cv2.IMREAD_COLOR))
        for mask, counts in ((mask_all, records[0].mask_all_rle), (mask_miss, records[0].mask_miss_rle)):
            assert mask.shape == (96, 128) and mask.dtype == np.uint8 and mask.flags.c_contiguous
            np.testing.assert_array_equal(mask, rle.decode_mask(rle.unpack_run_lengths(counts), 96, 128))

    def test_rows_that_do_not_exist_are_index_errors(self, path: Path) -> None:
        with Store(path) as store:
            for bad in (-1, 5):
                with pytest.raises(IndexError):
                    store.read_sample(bad)
            for bad in (-1, 3):
                with pytest.raises(IndexError):
                    store.read_record(bad)

    def test_a_tiny_store_has_no_padding(self, path: Path, records: list[Record]) -> None:
        image_bytes = sum(record.image_bytes.nbytes for record in records)
        masks = sum(len(record.mask_all_rle + record.mask_miss_rle) for record in records)
        with Store(path) as store:
            assert store.num_image_bytes == image_bytes
        assert path.stat().st_size < image_bytes + masks + 20_000

    def test_errors_of_damaged_records_name_store_image_and_file(self, tmp_path: Path, records: list[Record]) -> None:
        broken = dataclasses.replace(records[1], image_bytes=records[1].image_bytes[:50], mask_miss_rle=b"0")
        resized = dataclasses.replace(records[2], height=95)
        with Store(write_store(tmp_path / "broken.h5", [broken, resized])) as store:
            with pytest.raises(DataError, match=r"broken\.h5: image 3 \(sub/0003\.jpg\) cannot be decoded"):
                store.read_record(0).decode_image()
            with pytest.raises(DataError, match=r"broken\.h5: image 3 \(sub/0003\.jpg\) has masks with"):
                store.read_record(0).decode_masks()
            with pytest.raises(DataError, match="image 5 .* is 128 x 96 pixels, annotated as 128 x 95"):
                store.read_record(1).decode_image()


@pytest.mark.parametrize("array", BYTE_ARRAYS)
def test_a_flipped_bit_is_detected(path: Path, array: str) -> None:
    flip_bit(path, array, 1)
    with Store(path) as store:
        store.read_record(0), store.read_record(2)
        with pytest.raises(DataError, match=r"image 3 \(sub/0003\.jpg\) is damaged: its image, masks or joints"):
            store.read_record(1)


def test_changed_joints_are_detected(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["joints"][0, :, 2] += 0.5
    with Store(path) as store:
        store.read_record(1)
        with pytest.raises(DataError, match="image 7 .* is damaged: its image, masks or joints"):
            store.read_record(0)


def test_joints_that_are_not_finite_are_rejected(tmp_path: Path) -> None:
    record = make_record(1)
    path = write_store(
        tmp_path / "nan.h5", [dataclasses.replace(record, joints=record.joints * np.nan), make_record(2)]
    )
    with Store(path) as store, pytest.raises(DataError, match="is damaged: its image, masks or joints"):
        store.read_record(0)
    with Store(path) as store:
        store.read_record(1)


def test_damage_found_while_reading_is_a_data_error(path: Path) -> None:
    store = Store(path)
    with h5py.File(path, "r+") as file:
        del file["mask_miss"]
    with pytest.raises(DataError, match="tiny.h5 cannot be used as a store"):
        store.read_record(0)


class TestProcesses:
    def test_a_pickle_holds_no_open_file_and_no_arrays(self, path: Path) -> None:
        with Store(path) as store:
            expected = read_everything(store)
            pickled = pickle.dumps(store)
            assert len(pickled) < 5000
        assert read_everything(pickle.loads(pickled)) == expected

    def test_a_closed_store_can_be_read_again(self, path: Path) -> None:
        store = Store(path)
        expected = read_everything(store)
        store.close()
        store.close()
        assert read_everything(store) == expected

    def test_a_spawned_worker_reads(self, path: Path) -> None:
        store = Store(path)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(read_everything, store).result() == read_everything(store)

    @pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
    def test_forked_workers_open_the_file_for_themselves(self, path: Path) -> None:
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

    def test_threads_share_a_store(self, path: Path) -> None:
        store, found = Store(path), []
        threads = [threading.Thread(target=lambda: found.append(read_everything(store))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [read_everything(store)] * 4

    def test_a_store_rebuilt_while_open_is_detected(self, path: Path) -> None:
        store = Store(path)
        write_store(path, [make_record(1), make_record(2), make_record(4)], overwrite=True)
        with pytest.raises(DataError, match="rebuilt while in use"):
            store.read_record(0)

    def test_a_store_rebuilt_before_unpickling_is_detected(self, path: Path) -> None:
        pickled = pickle.dumps(Store(path))
        write_store(path, [make_record(7, 3), make_record(3, 1), make_record(6, 2)], overwrite=True)
        with pytest.raises(DataError, match="rebuilt while in use"):
            pickle.loads(pickled).read_record(2)


def test_a_folder_is_named_as_one(tmp_path):
    with pytest.raises(DataError, match=rf"cannot read store {tmp_path}: Is a directory"):
        Store(tmp_path)


def test_the_summary_counts_what_was_written(path, records):
    with Store(path) as store:
        summary = store.summary()
    assert (summary.num_images, summary.num_people, summary.num_samples) == (3, 6, 5)
    assert summary.num_image_bytes == sum(len(record.image_bytes) for record in records)
    assert summary.num_file_bytes == path.stat().st_size


def test_reading_is_tried_again_after_a_failure_of_the_file_system(path, records, monkeypatch):
    waits = []
    monkeypatch.setattr(reader.time, "sleep", waits.append)
    read = reader.Store._read_record_once

    def fail_three_times(store, index):
        if len(waits) < 3:
            raise OSError(5, "Input/output error")
        return read(store, index)

    monkeypatch.setattr(reader.Store, "_read_record_once", fail_three_times)
    with Store(path) as store:
        assert_same(store.read_record(1), records[1])
        assert waits == sorted(waits) and 2 < sum(waits) < 5


def test_a_file_system_that_keeps_failing_is_a_data_error(path, monkeypatch):
    attempts = []
    monkeypatch.setattr(reader.time, "sleep", lambda seconds: None)

    def fail(store, index):
        attempts.append(index)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reader.Store, "_read_record_once", fail)
    with Store(path) as store, pytest.raises(DataError, match="Input/output error"):
        store.read_record(1)
    assert attempts == [1] * 4

"""Stores: records are read as written, damage is noticed, other files are refused, and a file is complete or not there.

Builds that are killed: ``test_build``.
"""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from posenet.annotations.outlines import encode_mask
from posenet.data import store as store_module
from posenet.data.store import TABLES, NewImage, Record, Store, compute_fingerprint, compute_statistics, verify_store
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import decode_masks, flip_bit, flip_bit_at, make_record, write_store


def assert_same(found: Record, expected: Record) -> None:
    for name, value, other in zip(Record._fields, found, expected):
        if name != "source":
            np.testing.assert_array_equal(value, other, err_msg=name)


def read_all(store: Store) -> list[bytes]:
    """The image and the joints of every sample."""
    records = [store.read_record(row) for row in store.samples[:, 0].tolist()]
    return [record.image_bytes.tobytes() + record.joints.tobytes() for record in records]


def test_records_are_read_as_written(path: Path, records: list[Record]) -> None:
    with Store(path) as store:
        assert (store.num_images, store.num_people, len(store)) == (3, 6, 5)
        assert store.image_ids.tolist() == [7, 3, 5]
        for row, record in enumerate(records):
            found = store.read_record(row)
            assert_same(found, record)
            assert found.joints.dtype == np.float32
        assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]
        for bad in (-1, 3):
            with pytest.raises(IndexError):
                store.read_record(bad)
    arrays = [array.nbytes for r in records for array in (r.image_bytes, r.person_mask, r.mask_miss, r.joints)]
    assert path.stat().st_size < sum(arrays) + 20_000, "a tiny store has no padding"
    with pytest.raises(DataError, match="tiny.h5 .*closed"):  # the descriptor may be another file's
        store.read_record(0)


def test_a_long_run_of_a_mask_and_a_name_that_is_not_utf_8_are_kept(tmp_path: Path) -> None:
    mask = np.zeros((300, 400), np.uint8)
    mask[:, 1:399] = 1
    name = os.fsdecode(b"caf\xe9.jpg")
    record = make_record(1, 1, 300, 400)._replace(person_mask=encode_mask(mask), file_name=name)
    with Store(write_store(tmp_path / "a.h5", [record])) as store:
        found = store.read_record(0)
    assert found.file_name == name
    np.testing.assert_array_equal(decode_masks(found)[0], mask)


def test_systems_without_pread_read_too(path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread", raising=False)
    with Store(path) as store:
        assert_same(store.read_record(2), records[2])


class TestDamage:
    @pytest.mark.parametrize("array", ["images", "labels"])
    def test_a_flipped_bit_of_a_record_is_noticed_where_the_record_is_read(
        self, path: Path, records: list[Record], array: str
    ) -> None:
        flip_bit(path, array, 1)
        with Store(path) as store:
            for row in (0, 2):
                assert_same(store.read_record(row), records[row])
            with pytest.raises(DataError, match=r"tiny.h5: image 3 \(sub/0003\.jpg\) is damaged: .*; restore"):
                store.read_record(1)
            with pytest.raises(DataError, match=r"1 of 3 images .*: image 3 \(sub/0003.jpg\)"):
                verify_store(store)

    @pytest.mark.parametrize("count", [100, pytest.param(800, marks=pytest.mark.torture)])
    def test_no_flipped_bit_or_cut_goes_unnoticed_or_crashes(self, tmp_path: Path, count: int) -> None:
        """A flip that changes nothing that is read, such as the name of the source, may be accepted."""
        small = [make_record(number, 2, 24, 32) for number in (7, 3, 5)]
        path = write_store(tmp_path / "a.h5", small)
        intact = path.read_bytes()
        with Store(path) as store:
            expected = [store.read_record(row) for row in range(3)]
        rng = np.random.default_rng(0)
        noticed = 0
        for place in rng.integers(0, len(intact), count).tolist():
            flip_bit_at(path, place)
            noticed += self._is_noticed(path, expected)
            flip_bit_at(path, place)
        for size in rng.integers(0, len(intact), count // 4).tolist():
            path.write_bytes(intact[:size])
            with pytest.raises(DataError):
                read_all(Store(path))
        assert noticed > 0.75 * count, "most of the file is data"

    def _is_noticed(self, path: Path, expected: list[Record]) -> bool:
        try:
            with Store(path) as store:
                found = [store.read_record(row) for row in range(store.num_images)]
                assert store.samples.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            return True
        for record, other in zip(found, expected, strict=True):
            assert_same(record, other)
        return False

    def test_an_image_that_was_damaged_before_it_was_stored_is_found(self, tmp_path: Path) -> None:
        cut, small = make_record(2), make_record(3)
        broken = [cut._replace(image_bytes=cut.image_bytes[:900]), small._replace(height=95)]
        with Store(write_store(tmp_path / "a.h5", [make_record(1), *broken])) as store:
            with pytest.raises(DataError, match=r"a\.h5: image 2 \(sub/0002\.jpg\) is cut off"):
                store.read_record(1).decode_image()
            with pytest.raises(DataError, match="image 3 .* has 128 x 96 pixels instead of 128 x 95"):
                store.read_record(2).decode_image()
            with pytest.raises(DataError, match="2 of 3 images .*cut off"):
                verify_store(store)
        with Store(write_store(tmp_path / "b.h5", broken[1:])) as store:
            with pytest.raises(DataError, match="image 3 .*another size"):
                verify_store(store)

    def test_a_file_that_is_cut_while_open_gives_no_wrong_record(self, path: Path) -> None:
        with Store(path) as store:
            os.truncate(path, path.stat().st_size // 2)
            for row in range(3):
                with pytest.raises(DataError, match="tiny.h5"):
                    store.read_record(row)


def edit(change: Callable[[h5py.File], Any]) -> Callable[[Path], Any]:
    """A change to the open file, as a change to the file at a path."""

    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def huge_table(file: h5py.File) -> None:
    del file["sample"]
    file.create_dataset("sample", (2**50, 2), np.int64, chunks=(4, 2))


def old_layout(path: Path) -> None:
    with h5py.File(path) as new, h5py.File(path.with_name("old.h5"), "w", libver="earliest") as old:
        for name in new:
            new.copy(name, old)
        old.attrs.update(new.attrs)
    path.with_name("old.h5").replace(path)


OTHER_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "does not exist"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be used as a store .*Is a directory"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be used as a store"),
    "text": (lambda path: path.write_text("not a store\n" * 99), "not an HDF5 file"),
    "layout without checksums": (old_layout, "layout with checksums"),
    "never finished": (edit(lambda file: file.attrs.pop("format")), "never finished"),
    "newer schema": (edit(lambda file: file.attrs.update(schema=99)), "schema 99 .* or update posenet"),
    "older schema": (edit(lambda file: file.attrs.update(schema=5)), "schema 5 .*tiny.h5 --overwrite"),
    "group for an array": (edit(lambda file: (file.pop("record"), file.create_group("record"))), "cannot be used"),
    "larger than memory": (edit(huge_table), "cannot be used as a store"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files_are_refused_in_one_line_with_a_remedy(path: Path, name: str) -> None:
    change, expected = OTHER_FILES[name]
    change(path)
    with pytest.raises(DataError, match=expected) as caught:
        Store(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert "posenet build-hdf5" in message


def test_a_store_of_an_earlier_version_has_todays_names(path: Path) -> None:
    short = Path(__file__).parents[1] / "fixtures" / "coco_short_names.toml"
    text = json.dumps(tomllib.loads(short.read_text()))
    with h5py.File(path, "r+") as file:
        tables = {name: file[name][()] for name in TABLES}
        file.attrs["skeleton"] = np.bytes_(text)
        file.attrs["fingerprint"] = np.bytes_(compute_fingerprint(text, tables))
    assert Store(path).skeleton == COCO


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_worker_processes_read_beside_the_main_process(path: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    store = Store(path)
    expected = read_all(store)
    assert len(pickle.dumps(store)) < 5000, "it contains no arrays"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        found = [pool.submit(read_all, store) for _ in range(4)]
        assert all(read_all(store) == expected for _ in range(20))
        assert all(future.result() == expected for future in found)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced")
def test_a_store_that_is_rebuilt_is_read_as_it_was_or_not_at_all(path: Path) -> None:
    store = Store(path)
    expected = read_all(store)
    pickled = pickle.dumps(store)
    write_store(path, [make_record(7, 3), make_record(3, 1), make_record(6, 2)], overwrite=True)
    assert read_all(store) == expected
    with pytest.raises(DataError, match="rebuilt while in use"):
        pickle.loads(pickled)


class TestWriting:
    def test_an_interrupted_build_leaves_nothing(self, tmp_path: Path, records: list[Record]) -> None:
        def images() -> Iterator[NewImage]:
            yield NewImage(records[0], [0])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store_module.write_store(tmp_path / "new" / "a.h5", images(), 10**6)
        assert list((tmp_path / "new").iterdir()) == []

    def test_an_existing_store_is_replaced_only_on_request(self, path: Path, records: list[Record]) -> None:
        before = path.read_bytes()
        with pytest.raises(DataError, match="tiny.h5 exists; .*--overwrite"):
            write_store(path, records[:1])
        assert path.read_bytes() == before
        link = path.with_name("link.h5")
        link.symlink_to(path.name)
        write_store(link, records[:1], overwrite=True)
        assert link.is_symlink() and Store(path).num_images == 1
        notes = path.with_name("notes.txt")
        notes.write_text("mine")
        for output, fault in ((notes, "notes.txt is not an HDF5 file"), (Path("-"), "standard output")):
            with pytest.raises(DataError, match=fault):
                write_store(output, records[:1], overwrite=True)
        assert notes.read_text() == "mine"

    def test_what_stops_a_build_is_named_and_leaves_nothing(self, tmp_path: Path, records: list[Record]) -> None:
        path = tmp_path / "a.h5"
        with pytest.raises(DataError, match="no readable image with a main person"):
            write_store(path, [])
        with pytest.raises(DataError, match="has grown while the store was built"):
            images = [NewImage(record, [0]) for record in records]
            store_module.write_store(path, images, len(records[0].image_bytes))
        assert list(tmp_path.iterdir()) == []

    def test_two_processes_do_not_build_one_store(self, tmp_path: Path, records: list[Record]) -> None:
        """Also where HDF5's own locks are off, as on many clusters."""
        code = (
            "import sys; from posenet.data.store import write_store\n"
            "def images(): yield from (print(flush=True), sys.stdin.read(), sys.exit())\n"
            "write_store(sys.argv[1], images(), 1)"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
        no_locks = os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, env=no_locks, **pipes) as running:
            assert running.stdout is not None
            running.stdout.readline()
            before = sorted(tmp_path.iterdir())
            with pytest.raises(DataError, match="a.h5 is being written by another process"):
                write_store(tmp_path / "a.h5", records)
            assert sorted(tmp_path.iterdir()) == before
            running.communicate()
        path = write_store(tmp_path / "a.h5", records)
        assert Store(path).num_images == 3 and list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("limit", [pytest.param(1000, marks=pytest.mark.slow), 20_000])
    def test_a_write_that_fails_ends_the_program_with_an_error_and_no_crash(self, tmp_path: Path, limit: int) -> None:
        """HDF5 crashes at the end of a program that has closed a file with writes that cannot succeed."""
        code = (
            "import resource, sys\n"
            "import numpy as np\n"
            "from posenet.data.store import NewImage, write_store\n"
            "from posenet.errors import DataError\n"
            "from tests.helpers.drawn_data import make_record\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
            "large = np.ones(50_000, np.uint8)\n"
            "images = (NewImage(make_record(number)._replace(image_bytes=large), [0]) for number in range(100))\n"
            "try:\n"
            "    write_store(sys.argv[1], images, 10**7)\n"
            "except DataError as error:\n"
            "    sys.exit(str(error))\n"
        )
        words = [sys.executable, "-c", code, str(tmp_path / "a.h5"), str(limit)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(f"cannot write {tmp_path / 'a.h5'}: File too large;")
        assert done.stderr.count("\n") == 1 and os.listdir(tmp_path) == []


class TestStatistics:
    def test_people_keypoints_and_sizes_are_counted(self, tmp_path: Path) -> None:
        records = [make_record(number, people, 40, 60) for number, people in ((1, 1), (2, 5), (3, 1))]
        heights = ([10], [20, 30, 99, 99, 99], [40])  # the first two people are main persons
        for record, visibility, values in zip(records, (2, 0, 1), heights):
            record.joints[..., 2] = visibility
            record.people["box"][:, 3] = values
        with Store(write_store(tmp_path / "a.h5", records)) as store:
            header, *sizes = (line.split() for line in compute_statistics(store))
        assert header == ["minimum", "lower", "median", "upper", "maximum"]
        files = np.quantile([len(record.image_bytes) / 1000 for record in records], [0, 0.25, 0.5, 0.75, 1])
        assert sizes[:5] == [
            ["width,", "pixels", *["60.0"] * 5],
            ["height,", "pixels", *["40.0"] * 5],
            ["file,", "kB", *(f"{size:.1f}" for size in files)],
            ["people", "in", "an", "image", "1.0", "1.0", "1.0", "3.0", "5.0"],
            ["main", "person's", "height,", "pixels", "10.0", "17.5", "25.0", "32.5", "40.0"],
        ]
        assert all(line[1:] == "28.6% labelled, 50.0% of these visible".split() for line in sizes[5:])
        assert [line[0] for line in sizes[5:]] == list(COCO.keypoints)

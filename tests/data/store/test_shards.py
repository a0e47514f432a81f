"""Stores in several files: their names, building them, opening them as one, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from posenet.data.store.shards import find_stores, open_store, shard_paths
from posenet.data.store_store import RecordStore

from posenet.data.build import build_store
from posenet.data.inspection import compute_statistics, overlapping_image_ids, verify_store
from posenet.data.store import Record, Store, reader, writer
from posenet.errors import DataError
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.drawn_data import flip_bit, make_record, write_coco, write_store


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    """Image folder and annotations of seven images."""
    return write_coco(tmp_path / "coco", range(1, 8))


def build(coco: tuple[Path, Path], output: Path, shards: int = 0, **options: object) -> Path:
    build_store(*coco, output, shards=shards, workers=1, **options)
    return output


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(store: RecordStore) -> list[tuple[int, bytes, bytes, int]]:
    """Image id, image, joints and main person of every sample."""
    samples = [store.read_sample(index) for index in range(len(store))]
    return [(record.image_id, record.image_bytes.tobytes(), record.joints.tobytes(), row) for record, row in samples]


class TestBuilding:
    def test_shards_contain_the_records_of_a_single_store_in_its_order(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "one" / "a.h5")
        build(coco, tmp_path / "many" / "a.h5", shards=3)
        expected = ["a-00000-of-00003.h5", "a-00001-of-00003.h5", "a-00002-of-00003.h5"]
        assert names(tmp_path / "many") == expected
        with Store(tmp_path / "one" / "a.h5") as one, open_store(tmp_path / "many" / "a-*.h5", None) as many:
            assert contents(many) == contents(one)
            assert (many.image_ids == one.image_ids).all() and (many.digests == one.digests).all()
            assert (many.samples == one.samples).all()
            assert [many.read_record(row).image_id for row in range(7)] == one.image_ids.tolist()
            assert compute_statistics(many) == compute_statistics(one)
            totals = dataclasses.asdict(many.summary()) | {"num_file_bytes": 0}
            assert totals == dataclasses.asdict(one.summary()) | {"num_file_bytes": 0}
            for bad in (-1, 7):
                with pytest.raises(IndexError):
                    many.read_record(bad)
                with pytest.raises(IndexError):
                    many.read_sample(bad)

    def test_the_bytes_of_shards_depend_on_neither_build_nor_workers(self, coco, tmp_path: Path) -> None:
        for name, workers in (("a", 1), ("b", 3)):
            build_store(*coco, tmp_path / name / "a.h5", shards=2, workers=workers)
        for path in (tmp_path / "a").iterdir():
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()

    def test_sizes_differ_by_at_most_one_image(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=4)
        sizes = [Store(path).num_images for path in shard_paths(tmp_path / "a.h5", 4)]
        assert sum(sizes) == 7 and max(sizes) - min(sizes) == 1

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("moment", ["complete", "mark_build"])
    def test_an_interrupted_build_leaves_nothing(self, coco, tmp_path: Path, monkeypatch, error, moment: str) -> None:
        calls = []

        def interrupt(*_: object) -> None:
            calls.append(1)
            if len(calls) == 2:
                raise error
            return original(*_)

        original = getattr(writer.StoreWriter, moment)
        monkeypatch.setattr(writer.StoreWriter, moment, interrupt)
        with pytest.raises(error):
            build(coco, tmp_path / "new" / "a.h5", shards=3)
        assert names(tmp_path / "new") == []

    def test_ctrl_c_while_files_are_renamed_lets_all_of_them_appear(self, coco, tmp_path: Path, monkeypatch) -> None:
        build(coco, tmp_path / "new" / "a.h5", shards=3, limit=3)
        original = os.replace
        calls = []

        def interrupt(source: object, target: object) -> None:
            calls.append(target)
            if len(calls) == 2:
                raise KeyboardInterrupt
            original(source, target)

        monkeypatch.setattr(writer.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(coco, tmp_path / "new" / "a.h5", shards=3, overwrite=True)
        assert len(names(tmp_path / "new")) == 3
        assert open_store(tmp_path / "new" / "a-*.h5", None).num_images == 7

    def test_a_mixture_of_two_builds_is_refused(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=2)
        old = shard_paths(tmp_path / "a.h5", 2)[1].read_bytes()
        build(coco, tmp_path / "a.h5", shards=2, limit=5, overwrite=True)
        shard_paths(tmp_path / "a.h5", 2)[1].write_bytes(old)
        with pytest.raises(DataError, match=r"a-00000-of-00002.h5 and .* come from different builds"):
            open_store(tmp_path / "a-*.h5", None)

    def test_existing_shards_are_kept_unless_they_may_be_overwritten(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=2)
        before = {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}
        with pytest.raises(DataError, match="a-00000-of-00002.h5 exists"):
            build(coco, tmp_path / "a.h5", shards=2, limit=3)
        assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}

    def test_shards_of_an_earlier_build_in_another_number_are_replaced(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=3)
        build(coco, tmp_path / "other.h5", shards=3)
        with pytest.raises(DataError, match="a-00000-of-00003.h5 exists"):
            build(coco, tmp_path / "a.h5", shards=2)
        assert not shard_paths(tmp_path / "a.h5", 2)[0].exists()
        report = build_store(*coco, tmp_path / "a.h5", shards=2, workers=1, overwrite=True)
        assert list(report.removed) == shard_paths(tmp_path / "a.h5", 3)
        assert find_stores(tmp_path / "a-*.h5") == shard_paths(tmp_path / "a.h5", 2)
        assert len(find_stores(tmp_path / "other-*.h5")) == 3

    def test_a_failed_build_keeps_shards_of_another_number(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=3)
        with pytest.raises(DataError, match="cannot fill 8 shards"):
            build(coco, tmp_path / "a.h5", shards=8, overwrite=True)
        assert open_store(tmp_path / "a-*.h5", None).num_images == 7

    def test_too_many_shards_are_an_error(self, coco, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="7 images cannot fill 8 shards; use fewer --shards"):
            build(coco, tmp_path / "new" / "a.h5", shards=8)
        for image in (4, 5):
            (coco[0] / f"{image:012d}.jpg").unlink()
        with pytest.raises(DataError, match=r"no readable image .*a-0000\d-of-00007.h5; use fewer --shards"):
            build(coco, tmp_path / "new" / "a.h5", shards=7, max_unreadable=0.5)
        assert names(tmp_path / "new") == []

    def test_a_pattern_is_no_output(self, coco, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is a pattern; give the name of one file"):
            build(coco, tmp_path / "a-*.h5")

    def test_verification_reads_all_shards(self, coco, tmp_path: Path) -> None:
        build(coco, tmp_path / "a.h5", shards=3)
        assert verify_store(tmp_path / "a-*.h5").num_images == 7
        flip_bit(shard_paths(tmp_path / "a.h5", 3)[2], "jpeg", 0)
        with pytest.raises(DataError, match=r"1 of 7 images are damaged; first: .*a-00002-of-00003.h5: image 6"):
            verify_store(tmp_path / "a-*.h5")


class TestFinding:
    def touch(self, folder: Path, *file_names: str) -> None:
        for name in file_names:
            (folder / name).touch()

    def test_a_pattern_names_its_files_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        self.touch(tmp_path, "b2.h5", "b1.h5", "a.h5", "b3.txt")
        assert find_stores(tmp_path / "b*.h5") == [tmp_path / "b1.h5", tmp_path / "b2.h5"]
        listed = find_stores([f"{tmp_path}/b*.h5", f"{tmp_path}/a.h5"])
        assert [path.name for path in listed] == ["b1.h5", "b2.h5", "a.h5"]

    def test_brackets_are_part_of_a_name(self, tmp_path: Path) -> None:
        (tmp_path / "run[1]").mkdir()
        self.touch(tmp_path / "run[1]", "a1.h5")
        assert [path.name for path in find_stores(tmp_path / "run[1]" / "a*.h5")] == ["a1.h5"]

    def test_a_pattern_without_matches_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no file matches .*train-\*\.h5"):
            find_stores(tmp_path / "train-*.h5")

    def test_a_file_that_is_named_twice_is_an_error(self, tmp_path: Path) -> None:
        self.touch(tmp_path, "a.h5")
        with pytest.raises(DataError, match=r"a\.h5 is named 2 times"):
            find_stores([f"{tmp_path}/a.h5", f"{tmp_path}/*.h5"])

    def test_missing_shards_are_an_error(self, tmp_path: Path) -> None:
        for path in shard_paths(tmp_path / "a.h5", 4)[1:3]:
            path.touch()
        with pytest.raises(DataError, match=r"a-00000-of-00004\.h5 and 1 more of the 4 shards .* name all of them"):
            find_stores(tmp_path / "a-*.h5")

    def test_one_set_in_two_numbers_of_shards_is_an_error(self, tmp_path: Path) -> None:
        for path in (*shard_paths(tmp_path / "a.h5", 2), *shard_paths(tmp_path / "a.h5", 3)):
            path.touch()
        with pytest.raises(DataError, match=r"there are 2 shards of .*a.h5, and also 3; .* as with .*a-\*-of-00003.h5"):
            find_stores(tmp_path / "a-*.h5")
        assert len(find_stores(tmp_path / "a-*-of-00003.h5")) == 3

    def test_a_single_shard_can_be_inspected(self, tmp_path: Path) -> None:
        assert find_stores(tmp_path / "a-00001-of-00004.h5") == [tmp_path / "a-00001-of-00004.h5"]


class TestOpening:
    def test_files_of_different_keypoints_are_refused(self, tmp_path: Path) -> None:
        write_store(tmp_path / "a.h5", [make_record(1)])
        swing = skeleton_from_table({"keypoints": ["seat", "rope"], "parts": [["seat", "rope"]]})
        record = dataclasses.replace(make_record(2), joints=np.ones((2, 2, 3), np.float32))
        write_store(tmp_path / "b.h5", [record], skeleton=swing)
        with pytest.raises(DataError, match=r"b\.h5 was built for another skeleton .* data\.train = \[\{path"):
            open_store([f"{tmp_path}/a.h5", f"{tmp_path}/b.h5"], None)

    @pytest.mark.parametrize("version, message", [(2, "schema 2 is no longer supported"), (9, "has schema 9")])
    def test_files_of_another_schema_version_are_refused(self, tmp_path: Path, version: int, message: str) -> None:
        write_store(tmp_path / "a1.h5", [make_record(1)])
        with h5py.File(write_store(tmp_path / "a2.h5", [make_record(2)]), "r+") as file:
            file.attrs["schema"] = version
        with pytest.raises(DataError, match=rf"a2\.h5 .*{message}"):
            open_store(tmp_path / "a*.h5", None)

    def test_an_image_in_two_files_is_an_error(self, tmp_path: Path) -> None:
        write_store(tmp_path / "a1.h5", [make_record(1), make_record(2)])
        write_store(tmp_path / "a2.h5", [make_record(3), make_record(2)])
        with pytest.raises(DataError, match=r"a1\.h5 and .*a2\.h5 both contain image 2;"):
            open_store(tmp_path / "a*.h5", None)

    def test_images_with_the_same_id_and_other_bytes_are_accepted(self, tmp_path: Path) -> None:
        write_store(tmp_path / "a1.h5", [make_record(1)])
        write_store(tmp_path / "a2.h5", [dataclasses.replace(make_record(2), image_id=1)])
        assert open_store(tmp_path / "a*.h5", None).num_images == 2

    def test_images_shared_with_another_store_are_found_in_every_shard(self, coco, tmp_path: Path) -> None:
        train = open_store(build(coco, tmp_path / "a.h5", shards=3).with_name("a-*.h5"), None)
        val = open_store(build(coco, tmp_path / "b.h5", shards=2, image_ids=[2, 7]).with_name("b-*.h5"), None)
        assert overlapping_image_ids(train, val).tolist() == [2, 7]

    def test_a_pickled_store_reads_the_same_records(self, coco, tmp_path: Path) -> None:
        store = open_store(build(coco, tmp_path / "a.h5", shards=3).with_name("a-*.h5"), None)
        assert contents(pickle.loads(pickle.dumps(store))) == contents(store)
        assert pickle.loads(pickle.dumps(store)).fingerprint == store.fingerprint


class TestOpenFiles:
    @pytest.fixture
    def many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordStore:
        """A store of ten files, of which four may be open."""
        monkeypatch.setattr(reader, "MAX_OPEN_FILES", 4)
        records: list[Record] = [make_record(number) for number in range(10)]
        for number, record in enumerate(records):
            write_store(tmp_path / f"a{number}.h5", [record])
        return open_store(tmp_path / "a*.h5", None)

    def count_open(self, store) -> int:
        return sum(part._open_file is not None for part in store.parts)

    def test_files_are_opened_when_they_are_read_and_few_stay_open(self, many) -> None:
        assert self.count_open(many) == 0
        many.read_record(7)
        assert self.count_open(many) == 1
        for index in np.random.default_rng(0).permutation(100) % 10:
            assert many.read_record(int(index)).image_id == index
            assert self.count_open(many) <= 4
        many.close()
        assert self.count_open(many) == 0

    def test_the_file_that_has_been_open_the_longest_is_closed(self, many) -> None:
        for index in (3, 1, 2, 3, 0, 5):
            many.read_record(index)
        assert [part._open_file is not None for part in many.parts[:6]] == [True, True, True, False, False, True]

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
    def test_closed_files_are_closed_in_the_system(self, many, tmp_path: Path) -> None:
        for index in range(10):
            many.read_record(index)
        open_files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        assert len([path for path in open_files if path.startswith(f"{tmp_path}/")]) == 4

    def test_a_file_is_opened_again_without_hdf5(self, many, monkeypatch: pytest.MonkeyPatch) -> None:
        for index in range(10):
            many.read_record(index)
        monkeypatch.setattr(reader, "open_file", lambda path: pytest.fail(f"HDF5 opens {path}"))
        assert [many.read_record(index).image_id for index in range(10)] == list(range(10))

    def test_a_file_that_has_been_rebuilt_since_is_detected(self, many) -> None:
        for index in range(10):
            many.read_record(index)
        write_store(many.parts[0].path, [make_record(0, people=3)], overwrite=True)
        with pytest.raises(DataError, match="rebuilt while in use"):
            many.read_record(0)

    def test_a_file_that_has_been_copied_since_is_read(self, many) -> None:
        for index in range(10):
            many.read_record(index)
        path = many.parts[0].path
        write_store(path, [make_record(0)], overwrite=True)  # another file with the same content
        assert many.read_record(0).image_id == 0

    def test_threads_read_files_that_others_close(self, many) -> None:
        def read(seed: int) -> bool:
            rows = np.random.default_rng(seed).integers(0, 10, 300).tolist()
            return all(many.read_record(row).image_id == row for row in rows)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, range(4)))

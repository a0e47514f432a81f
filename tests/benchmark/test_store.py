"""The benchmark of the store: what it measures, and the plain work that it measures beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.annotations.coco_dataset import read_annotations
from posenet.benchmark.store import do_unavoidable_work, reading_orders, write_first_images
from posenet.data.store.build import build_store
from posenet.data.store.reader import Store
from posenet.devices.cpu import usable_cores
from posenet.skeleton import COCO
from tests.helpers.benchmark_runs import assert_positive, run_benchmark


def test_store(tmp_path: Path, coco: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("store") / "a.h5"
    build_store(*coco, store)
    numbers = run_benchmark(tmp_path, "store", "--h5", store, "--images", coco[0], "--annotations", coco[1])
    assert_positive(
        numbers,
        "open_ms",
        "open_bytes",
        "read_us",
        "pread_us",
        "read_over_pread",
        "checksum_us",
        "build_pictures_per_s",
        "floor_pictures_per_s",
        "build_share_of_floor",
        "bytes_per_record",
    )
    assert list(numbers["read_us"]) == list(numbers["pread_us"]) == ["random", "sequential", "one of 4 ranks"]
    assert list(numbers["build_pictures_per_s"]) == [str(cores) for cores in sorted({1, usable_cores()})]
    with Store(store) as opened:
        assert numbers["bytes_per_record"] * opened.num_images > opened.num_image_bytes
    assert numbers["images"] == numbers["built_pictures"] == 3
    assert 0 < numbers["checksum_share"] < 1


def test_the_orders_in_which_a_store_is_read() -> None:
    orders = reading_orders(40, 20)
    assert orders["sequential"] == list(range(20))
    assert len(set(orders["random"])) == 20 and len(set(orders["one of 4 ranks"])) == 10
    assert reading_orders(1, 20) == {name: [0] for name in orders}


def test_the_floor_of_a_build_does_a_share_of_its_work(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    for turn in range(2):
        do_unavoidable_work(*coco, tmp_path, COCO, 2, turn)
    build_store(*coco, tmp_path / "a.h5")
    with Store(tmp_path / "a.h5") as store:
        for turn in range(2):
            records = [store.read_record(row) for row in range(turn, 3, 2)]
            assert (tmp_path / f"floor {turn} of 2").read_bytes() == b"".join(
                record.image_bytes.tobytes() + record.mask_all_rle + record.mask_miss_rle for record in records
            )


def test_the_first_images_of_an_annotation_file(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    short = read_annotations(write_first_images(coco[1], 2, tmp_path / "first.json"))
    whole = read_annotations(coco[1])
    assert short.images == whole.images[:2]
    assert [len(short.people[image.id]) for image in short.images] == [
        len(whole.people[image.id]) for image in whole.images[:2]
    ]


def test_without_any_files_pictures_are_drawn_and_their_store_is_read(tmp_path: Path) -> None:
    numbers = run_benchmark(tmp_path, "store")
    assert numbers["images"] == numbers["built_pictures"] == numbers["records"] == 4

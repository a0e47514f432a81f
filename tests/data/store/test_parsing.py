"""Opening a store: what is read, and which files are rejected."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from posenet.data.store import Store, fingerprint, writer
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import make_record, write_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "tiny.h5", [make_record(7, 3), make_record(3, 1), make_record(5, 2)])


def with_file(change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    """A change to the open file, as a change to the file at a path."""

    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def replace(name: str, values) -> object:
    """Replace an array by other values, or by a function of its values."""

    def change(file: h5py.File) -> None:
        values_now = values(file[name][:]) if callable(values) else values
        del file[name]
        file[name] = values_now

    return with_file(change)


def link(name: str, target) -> object:
    """Replace an array by a link."""

    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return with_file(change)


def huge_array(file: h5py.File) -> None:
    del file["sample"]
    file.create_dataset("sample", (2**40, 2), np.int64, chunks=(4, 2))
    file.attrs["samples"] = 2**40


def compressed_bomb(file: h5py.File) -> None:
    """A few kilobytes that decompress to megabytes, of which one row would be read."""
    area = file["area"][:]
    del file["area"]
    file.create_dataset("area", data=area, maxshape=(None,), chunks=(2**20,), compression="gzip")


def large_chunks(file: h5py.File) -> None:
    del file["area"]
    file.create_dataset("area", (6,), np.float32, maxshape=(None,), chunks=(2**28,))


def old_layout(path: Path) -> None:
    with h5py.File(path) as new, h5py.File(path.with_name("old.h5"), "w", libver="earliest") as old:
        for name in new:
            new.copy(name, old)
        old.attrs.update(new.attrs)
    path.with_name("old.h5").replace(path)


def external_array(file: h5py.File) -> None:
    size = len(file["jpeg"])
    del file["jpeg"]
    file.create_dataset("jpeg", (size,), np.uint8, external=[("/etc/passwd", 0, size)])


def virtual_array(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(file["jpeg"].shape, np.uint8)
    layout[:] = h5py.VirtualSource("elsewhere.h5", "jpeg", file["jpeg"].shape)
    del file["jpeg"]
    file.create_virtual_dataset("jpeg", layout)


def truncate(share: float):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def set_attributes(**values: Any) -> Callable[[Path], None]:
    return with_file(
        lambda file: file.attrs.update(
            {name: np.bytes_(value) if isinstance(value, str) else value for name, value in values.items()}
        )
    )


def replace_with_fingerprint(name: str, values) -> object:
    """``replace``, and update the fingerprint, as another program might do."""

    def change(path: Path) -> None:
        replace(name, values)(path)
        with h5py.File(path, "r+") as file:
            file.attrs["fingerprint"] = np.bytes_(fingerprint({key: file[key][()] for key in file}))

    return change


def swap_second_and_third(values: np.ndarray) -> np.ndarray:
    return values[[0, 2, 1, *range(3, len(values))]]


FAULTS = {
    "truncated": (truncate(0.7), "cannot be used as a store"),
    "truncated at the start": (truncate(0.001), "cannot be used as a store"),
    "empty": (truncate(0), "cannot be used as a store"),
    "text": (lambda path: path.write_text("not a store\n" * 99), "cannot be used as a store"),
    "never finished": (with_file(lambda file: file.attrs.pop("format")), "never finished"),
    "another format": (set_attributes(format="pictures"), "not written by tools/build_hdf5.py"),
    "newer schema": (set_attributes(schema=99), "schema 99.*update posenet"),
    "older schema": (set_attributes(schema=0), "schema 0 is no longer supported"),
    "schema is text": (set_attributes(schema="new"), "cannot be used as a store"),
    "skeleton is not JSON": (set_attributes(skeleton="{"), "cannot be used as a store"),
    "text of variable length": (
        with_file(lambda file: file.attrs.update(skeleton="{}")),
        "skeleton has another type than this version writes",
    ),
    "no fingerprint": (with_file(lambda file: file.attrs.pop("fingerprint")), "cannot be used as a store"),
    "count too high": (set_attributes(images=4), "image_id has the shape"),
    "dataset missing": (with_file(lambda file: file.pop("box")), "box is missing"),
    "group for a dataset": (with_file(lambda file: (file.pop("box"), file.create_group("box"))), "box is missing"),
    "images as numbers": (replace("jpeg", lambda jpeg: jpeg.astype(np.float32)), "jpeg has the type float32"),
    "offsets go backwards": (replace("jpeg_offset", swap_second_and_third), "jpeg_offset"),
    "offsets beyond the end": (replace("mask_all_offset", lambda o: o + (o == o[-1])), "mask_all_offset"),
    "offsets start late": (replace("mask_miss_offset", lambda o: o + (o == 0)), "mask_miss_offset"),
    "people beyond the end": (replace("person_offset", lambda o: o + (o == o[-1])), "person_offset"),
    "sample of no image": (replace("sample", lambda s: s + [9, 0]), "samples of images"),
    "sample of no person": (replace("sample", lambda s: s + [0, 9]), "samples of people"),
    "negative sample": (replace("sample", lambda s: s - [0, 1]), "samples of people"),
    "main person without a box": (replace_with_fingerprint("box", lambda box: box * 0), "with empty boxes"),
    "no size": (replace("height", lambda height: height * 0), "without a size"),
    "larger than the file": (with_file(huge_array), "arrays claim"),
    "compressed array": (with_file(compressed_bomb), "area is compressed"),
    "large chunks": (with_file(large_chunks), "area is compressed, or in chunks larger than the file"),
    "layout without checksums": (old_layout, "layout with checksums"),
    "another person's box": (replace("box", lambda rows: rows[::-1].copy()), "do not match its fingerprint"),
    "another image's name": (replace("file_name", lambda rows: rows[::-1].copy()), "do not match its fingerprint"),
    "external link": (link("box", h5py.ExternalLink("elsewhere.h5", "box")), "box is missing or outside the file"),
    "soft link": (link("box", h5py.SoftLink("/area")), "box is missing or outside the file"),
    "external storage": (with_file(external_array), "jpeg is missing or outside the file"),
    "virtual dataset": (with_file(virtual_array), "jpeg is missing or outside the file"),
}


def test_opening_allocates_memory_for_the_table_only(tmp_path: Path) -> None:
    """At most 300 bytes per image, however large the images are, and about 2 MB in addition while opening."""
    small = make_record(1, 1, 16, 16)
    images = 60000
    with writer.StoreWriter(tmp_path / "many.h5") as store_writer:
        for number in range(images):
            store_writer.add(dataclasses.replace(small, image_id=number), [0])
    tracemalloc.start()
    try:
        with Store(tmp_path / "many.h5") as store:
            allocated, peak = tracemalloc.get_traced_memory()
            assert store.num_images == images and store.read_record(images - 1).image_id == images - 1
    finally:
        tracemalloc.stop()
    assert allocated < 300 * images and peak < 300 * images + 2e6
    assert store.path.stat().st_size > 3 * allocated


@pytest.mark.parametrize("name", FAULTS)
def test_unusable_files_are_rejected_on_opening(path: Path, name: str) -> None:
    change, expected = FAULTS[name]
    change(path)
    with pytest.raises(DataError, match=expected) as caught:
        Store(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert "rebuild it with tools/build_hdf5.py" in message or "update posenet" in message


def test_missing_files_and_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.h5 does not exist; build it with tools/build_hdf5.py"):
        Store(tmp_path / "none.h5")
    with pytest.raises(DataError, match="cannot read store"):
        Store(tmp_path)


def test_another_skeleton_is_rejected(path: Path) -> None:
    with pytest.raises(DataError, match="another skeleton"):
        Store(path, dataclasses.replace(COCO, keypoints=COCO.keypoints[::-1]))
    other_neck = dataclasses.replace(COCO, derived={"neck": ("Rhip", "Lhip")})
    with pytest.raises(DataError, match="another skeleton"):
        Store(path, other_neck)


def test_a_skeleton_with_other_body_parts_is_accepted(path: Path) -> None:
    assert len(Store(path, dataclasses.replace(COCO, parts=COCO.parts[:3]))) == 5

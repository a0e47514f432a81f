"""Reads the header and the tables of a store's HDF5 file, and refuses files that are damaged or not stores.

The file is not trusted: everything is checked before memory is allocated for it. Errors are a ``ValueError`` with the
reason, or an error that h5py raises on a damaged file; ``reader.Store`` turns both into a ``DataError``.
"""

from __future__ import annotations

import functools
import json
import math
import os
from typing import Any

import h5py
import numpy as np

from posenet.data.store import schema
from posenet.errors import DataError
from posenet.images.decoding import MAX_PIXELS
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table


def open_file(path: str | os.PathLike[str]) -> h5py.File:
    """Open an HDF5 file that has checksums of its structures."""
    with open(path, "rb") as raw:
        if raw.read(len(schema.HDF5_SIGNATURES[0])) not in schema.HDF5_SIGNATURES:
            raise ValueError("not an HDF5 file of the layout with checksums")
    # No slice of an image is read twice, so a chunk cache would only copy.
    return h5py.File(path, "r", rdcc_nbytes=0)


def read_attribute(file: h5py.File, name: str) -> Any:
    """Read an attribute that HDF5's checksums protect: an integer, or text of fixed length.

    HDF5 stores text of variable length in a heap without checksums. Reading from a damaged heap may never end.
    """
    # The low-level functions of h5py take a fifth of the time of its dictionaries. A store in many files needs it.
    attribute = h5py.h5a.open(file.id, name.encode())
    kind = attribute.get_type()
    is_integer = isinstance(kind, h5py.h5t.TypeIntegerID)
    is_fixed_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    if not is_integer and not is_fixed_text:
        raise ValueError(f"{name} has another type than this version writes: an older store, or a damaged one")
    value: Any = np.empty(attribute.shape, attribute.dtype)
    attribute.read(value)
    return value[()].decode() if is_fixed_text else value[()]


def read_skeleton(file: h5py.File, expected: Skeleton | None) -> Skeleton:
    """Check the header and return the skeleton that the joints follow: ``expected``, or any if that is None."""
    if not h5py.h5a.exists(file.id, b"format") or read_attribute(file, "format") != schema.FORMAT:
        raise ValueError("not written by tools/build_hdf5.py, or never finished")
    version = int(read_attribute(file, "schema"))
    newest = schema.SCHEMA_UNLABELLED
    if version > newest:
        raise DataError(f"{file.filename} has schema {version}, this program reads up to {newest}; update posenet")
    if version < schema.SCHEMA_VERSION:
        raise ValueError(f"schema {version} is no longer supported")
    stored = _parse_skeleton(read_attribute(file, "skeleton"))
    skeleton = expected
    if skeleton is None:
        # The first stores were all built for the built-in skeleton and lack the table.
        skeleton = skeleton_from_table(stored["table"]) if "table" in stored else COCO
    derived = {name: list(pair) for name, pair in skeleton.derived.items()}
    if stored["keypoints"] != list(skeleton.keypoints) or stored["derived"] != derived:
        raise DataError(
            f"{file.filename} was built for another skeleton than model.skeleton, with the keypoints "
            f"{', '.join(stored['keypoints'])}; set model.skeleton to that one, or list the stores as data sets: "
            'data.train = [{path = "a.h5"}, {path = "b.h5"}]'
        )
    return skeleton


@functools.lru_cache(maxsize=8)
def _parse_skeleton(text: str) -> dict[str, Any]:
    """The value of the attribute ``skeleton``; parsed once for all shards of a store."""
    stored = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError("its skeleton is not a table")
    return stored


def read_table(file: h5py.File, skeleton: Skeleton) -> dict[str, np.ndarray]:
    """Read the arrays that are kept in memory, and check that all arrays fit together."""
    counts = {name: int(read_attribute(file, name)) for name in ("images", "people", "samples")}
    counts["offsets"] = counts["images"] + 1
    file_bytes = os.path.getsize(file.filename)
    datasets: dict[str, h5py.h5d.DatasetID] = {}
    version = int(read_attribute(file, "schema"))
    for name, spec in schema.array_specs(skeleton.num_keypoints, version).items():
        datasets[name] = _get_dataset(file, name, spec.dtype, file_bytes)
        if datasets[name].shape != (counts[spec.rows], *spec.row_shape):
            raise ValueError(f"{name} has the shape {datasets[name].shape}")
    for name in schema.BYTE_ARRAYS:
        datasets[name] = _get_dataset(file, name, "u1", file_bytes)
    claimed = sum(math.prod(dataset.shape) * dataset.dtype.itemsize for dataset in datasets.values())
    if claimed > file_bytes:
        raise ValueError(f"its arrays claim {claimed} bytes, more than the file has")

    table = {}
    for name, dataset in datasets.items():
        if name not in schema.ARRAYS_READ_ON_DEMAND:
            table[name] = np.empty(dataset.shape, dataset.dtype)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, table[name])
    for name in schema.BYTE_ARRAYS:
        _check_offsets(table, name, datasets[name].shape[0])
    _check_offsets(table, "person", counts["people"], may_be_empty=version >= schema.SCHEMA_UNLABELLED)
    _check_samples(table, counts["images"])
    _check_images_and_people(table)
    if schema.fingerprint(table) != read_attribute(file, "fingerprint"):
        raise ValueError("its tables do not match its fingerprint")
    return table


def _get_dataset(file: h5py.File, name: str, dtype: str, file_bytes: int) -> h5py.h5d.DatasetID:
    """A dataset that is in the file itself, is not compressed and has the expected type."""
    key = name.encode()
    links = file.id.links
    is_in_file = links.exists(key) and links.get_info(key).type == h5py.h5l.TYPE_HARD
    dataset = h5py.h5o.open(file.id, key) if is_in_file else None
    if not isinstance(dataset, h5py.h5d.DatasetID):
        raise ValueError(f"{name} is missing or outside the file")
    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    if properties.get_external_count() or layout == h5py.h5d.VIRTUAL:
        raise ValueError(f"{name} is missing or outside the file")
    if not np.issubdtype(dataset.dtype, np.dtype(dtype).type):
        raise ValueError(f"{name} has the type {dataset.dtype}")
    chunk = properties.get_chunk() if layout == h5py.h5d.CHUNKED else (0,)
    if properties.get_nfilters() or math.prod(chunk) * dataset.dtype.itemsize > file_bytes:
        raise ValueError(f"{name} is compressed, or in chunks larger than the file")
    return dataset


def _check_offsets(table: dict[str, np.ndarray], name: str, length: int, may_be_empty: bool = False) -> None:
    """Check that the offsets divide an array of ``length`` rows into slices, which are not empty by default."""
    offsets = table[f"{name}_offset"]
    smallest = 0 if may_be_empty else 1
    if offsets[0] != 0 or offsets[-1] != length or (np.diff(offsets) < smallest).any():
        raise ValueError(f"{name}_offset does not divide {name} into slices")


def _check_samples(table: dict[str, np.ndarray], num_images: int) -> None:
    """Check that there are samples, and that each is a person of the store with a box that is not empty.

    An image without people has a sample without a person.
    """
    images, people = table["sample"].T
    if not len(images) or images.min() < 0 or images.max() >= num_images:
        raise ValueError("samples of images that it does not contain")
    num_people = np.diff(table["person_offset"])[images]
    is_unlabelled = (num_people == 0) & (people == schema.NO_PERSON)
    images = images[~is_unlabelled]
    people = people[~is_unlabelled]
    if ((people < 0) | (people >= num_people[~is_unlabelled])).any():
        raise ValueError("samples of people that it does not contain")
    box_sizes = table["box"][table["person_offset"][images] + people, 2:]
    if (box_sizes <= 0).any():
        raise ValueError("samples of people with empty boxes")


def _check_images_and_people(table: dict[str, np.ndarray]) -> None:
    """Check that image sizes are possible, and boxes and areas finite."""
    heights = table["height"].astype(np.int64)
    widths = table["width"].astype(np.int64)
    if min(heights.min(), widths.min()) <= 0 or (heights * widths).max() > MAX_PIXELS:
        raise ValueError("images without a size, or with an impossible one")
    orientations = table.get("orientation", np.ones(1))
    if orientations.min() < 1 or orientations.max() > 8:
        raise ValueError("orientations other than 1 to 8")
    if not np.isfinite(table["box"]).all() or not np.isfinite(table["area"]).all():
        raise ValueError("coordinates that are not finite")

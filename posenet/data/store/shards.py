"""Stores in several files, their shards: the names of the files, and opening all of them as one store."""

from __future__ import annotations

import glob
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posenet.data.store.comparison import find_repeated_image
from posenet.data.store.reader import Store
from posenet.data.store.record_store import ConcatenatedStore, RecordStore
from posenet.errors import DataError
from posenet.skeleton import Skeleton

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>\.[^.]*)?")


class _ShardName(NamedTuple):
    """The parts of the name of a shard."""

    name_of_set: Path
    """The path of the whole set, such as data/train.h5."""
    number: int
    num_shards: int


def shard_paths(path: Path, count: int) -> list[Path]:
    """The files of the store ``path`` in ``count`` shards: train.h5 in 10 is train-00000-of-00010.h5 and so on."""
    return [path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}{path.suffix}") for number in range(count)]


def find_stores(paths: str | Path | Sequence[str]) -> list[Path]:
    """The files that a path, a pattern with ``*``, or a list of both names, those of a pattern in the order of names.

    Raises:
        DataError: a pattern matches no file, a file is named twice, shards of a set are missing, or there are shards of
            two builds in different numbers.
    """
    if isinstance(paths, (str, Path)):
        if "*" not in str(paths):
            return [Path(paths)]  # also a single shard, for inspecting it
        paths = [str(paths)]
    found = [file for path in paths for file in _match_files(path)]
    file, count = Counter(file.resolve() for file in found).most_common(1)[0]
    if count > 1:
        raise DataError(f"{file} is named {count} times; name every store once")
    _check_complete(found)
    return found


def find_other_shards(path: Path, count: int) -> list[Path]:
    """The shards of the store ``path`` that earlier builds in another number of shards than ``count`` have left."""
    others = []
    for file in path.parent.glob("*-of-*"):
        shard = _parse_shard_name(file)
        if shard is not None and shard.name_of_set == path and shard.num_shards != count:
            others.append(file)
    return sorted(others)


def open_store(paths: str | Path | Sequence[str], skeleton: Skeleton | None) -> RecordStore:
    """Open the store, or several stores as one, that ``find_stores`` finds for ``paths``; see ``Store``.

    The tables of all files are read now, so that every fault of a file is reported before training starts. The files
    are opened again one by one when their records are read; see ``reader.MAX_OPEN_FILES``.

    Raises:
        DataError: a file is missing or is not a store, shards are missing or belong to different builds, two files were
            built for different keypoints, or an image is in two of them.
    """
    files = find_stores(paths)
    stores: list[Store] = []
    for file in files:
        store = Store(file, skeleton)
        # All further files must have the keypoints of the first.
        skeleton = skeleton or store.skeleton
        stores.append(store)
    if len(stores) == 1:
        return stores[0]
    _check_builds(stores)
    if repeated := find_repeated_image(stores):
        image_id, first, second = repeated
        raise DataError(
            f"{first.path} and {second.path} both contain image {image_id}; name stores with different images"
        )
    return ConcatenatedStore(stores)


def _match_files(path: str) -> list[Path]:
    """The file of a path, or those that match a pattern, sorted by name; ``DataError`` if none matches."""
    if "*" not in path:
        return [Path(path)]
    # "*" is the only special character; others, such as brackets, may be part of names.
    matches = glob.glob(glob.escape(path).replace("[*]", "*"))
    if not matches:
        raise DataError(f"no file matches {path}; build a store with tools/build_hdf5.py or correct the pattern")
    return [Path(match) for match in sorted(matches)]


def _parse_shard_name(path: Path) -> _ShardName | None:
    """The parts of the name of a shard; None if a file is not named like one."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return None
    name_of_set = path.with_name(match["stem"] + (match["suffix"] or ""))
    return _ShardName(name_of_set, int(match["number"]), int(match["count"]))


def _pattern(path: Path, count: int) -> Path:
    """A pattern for all shards of the store ``path``."""
    return path.with_name(f"{path.stem}-*-of-{count:05d}{path.suffix}")


def _check_complete(paths: Sequence[Path]) -> None:
    """Raise ``DataError`` unless all shards of every set are there, and from one build."""
    numbers: dict[tuple[Path, int], set[int]] = defaultdict(set)
    for path in paths:
        if shard := _parse_shard_name(path):
            numbers[shard.name_of_set, shard.num_shards].add(shard.number)
    count_of_set: dict[Path, int] = {}
    for (name_of_set, count), present in numbers.items():
        if (other := count_of_set.setdefault(name_of_set, count)) != count:
            raise DataError(
                f"there are {other} shards of {name_of_set}, and also {count}; remove those of the older build, or "
                f"name only those of one, as with {_pattern(name_of_set, count)}"
            )
        missing = [path for number, path in enumerate(shard_paths(name_of_set, count)) if number not in present]
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise DataError(
                f"{missing[0]}{others} of the {count} shards of {name_of_set} are missing; name all of them, "
                f"as with {_pattern(name_of_set, count)}"
            )


def _check_builds(stores: Sequence[Store]) -> None:
    """Raise ``DataError`` unless all shards of a set come from one build."""
    builds: dict[tuple[Path, int], Store] = {}
    for store in stores:
        if shard := _parse_shard_name(store.path):
            first = builds.setdefault((shard.name_of_set, shard.num_shards), store)
            if first.build != store.build:
                raise DataError(
                    f"{first.path} and {store.path} come from different builds; build {shard.name_of_set} again with "
                    "--overwrite"
                )

"""Image files with the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import sha256_of
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads

Key = TypeVar("Key", bound=Hashable)


def groups_of_copies(paths: Mapping[Key, Path]) -> list[list[Key]]:
    """The keys of files, those of files with the same bytes together. Only files of the same size are read.

    ``DataError`` if a file cannot be read.
    """
    try:
        sizes = {key: path.stat().st_size for key, path in paths.items()}
        counts = Counter(sizes.values())
        unclear = [key for key, size in sizes.items() if counts[size] > 1]
        workers = usable_cores()
        digests = map_in_threads(sha256_of, [paths[key] for key in unclear], workers=workers, ahead=4 * workers)
        digest_of = dict(zip(unclear, progress_bar(digests, "images", len(unclear))))
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}; posenet annotations fix leaves out such images"
        ) from error
    groups: dict[object, list[Key]] = {}
    for key in paths:
        groups.setdefault(digest_of.get(key, key), []).append(key)
    return list(groups.values())

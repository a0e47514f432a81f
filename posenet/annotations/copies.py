"""Image files with the same bytes, and what is annotated in each of them."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.annotation_reader import find_copies
from posenet.annotations.coco import AnnotationColumns
from posenet.annotations.image_reader import Images
from posenet.errors import DataError
from posenet.files import sha256_of
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads, usable_cores

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


def merge_copies(
    images: Images, columns: AnnotationColumns, compares_files: bool, said: Adjustments
) -> AnnotationColumns:
    """Give the first of several copies of an image the people of all; copies with the same people stay as they are.

    Each of them would teach that the people of the others are not there. Copies have the same name, or files of the
    same bytes.
    """
    by_name: dict[PurePosixPath, list[int]] = defaultdict(list)
    files: dict[int, Path] = {}
    for row in np.flatnonzero(images.is_kept).tolist():
        path = Path(images.folder or "", images.names[row])
        # ``os.path.isfile`` raises no error for a name that is too long.
        if compares_files and images.folder is not None and os.path.isfile(path):
            files[row] = path
        else:
            by_name[PurePosixPath(images.names[row])].append(row)
    merged = np.zeros(len(images.names), bool)
    for rows in (*groups_of_copies(files), *by_name.values()):
        first, *others = rows
        if not others or (images.sizes[others] != images.sizes[first]).any():
            continue
        members = [np.flatnonzero(columns.image_rows == row).tolist() for row in rows]
        shown = [{columns.keypoints[person].tobytes() for person in own} for own in members]
        if all(one == shown[0] for one in shown) and len({images.names[row] for row in rows}) > 1:
            continue
        columns.image_rows[list(itertools.chain(*members[1:]))] = first
        merged[others] = True
    images.is_kept &= ~merged
    said.add_rows("derived", "copies", merged, images.names)
    return columns.select(~find_copies(columns))

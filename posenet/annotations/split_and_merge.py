"""COCO keypoint files merged to one, split into parts, and reduced to some of their images.

The functions return the content of COCO keypoint files. An image always stays with all of its annotations.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from posenet.annotations.coco import AnnotationFile, Names, read_document, select_sections
from posenet.annotations.rules import refuse_errors
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import sha256_of
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads

Document = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)

_RULES = (
    "image-id", "category-id", "file-name", "duplicate-file", "no-keypoints", "no-image", "no-such-category",
)  # fmt: skip
"""The rules for files whose images and annotations are moved."""


def merge_annotations(paths: Sequence[str | Path], folders: Sequence[str | Path] = ()) -> Document:
    """Merge COCO keypoint files with the same keypoints; ids are numbered anew.

    Args:
        folders: that of the images of each file. Their names are then relative to the innermost folder that holds all.

    Raises:
        DataError: a file cannot be used, or has other keypoints; or two images have the same name.
    """
    if folders and len(folders) != len(paths):
        counts = pluralize(len(folders), "folder"), pluralize(len(paths), "file")
        raise DataError("{} of images for {} of annotations; name one for each".format(*counts))
    files = [_read(path) for path in paths]
    base = os.path.commonpath([os.path.abspath(folder) for folder in folders]) if folders else ""
    document: Document = {"images": [], "annotations": [], "categories": []}
    numbers: dict[tuple[str, Names | None], int] = {}
    owners: dict[str, Path] = {}  # of every image name
    for index, file in enumerate(files):
        path = Path(file.path)
        if len({category.keypoints for one in (files[0], file) for category in one.parsed_categories} - {(), None}) > 1:
            raise DataError(
                f"{files[0].path} and {path} have categories with different keypoints; train one network on both "
                "without merging them (posenet docs custom_data)"
            )
        prefix = PurePosixPath(os.path.relpath(folders[index], base).replace(os.sep, "/") if folders else "")
        new_categories = {}
        for entry, category in zip(file.categories, file.parsed_categories):
            key = category.name, category.keypoints
            if key not in numbers:
                numbers[key] = len(numbers) + 1
                document["categories"].append(entry | {"id": numbers[key]})
            new_categories[entry["id"]] = numbers[key]
        new_images = {}
        for entry in file.images:
            name = str(prefix / entry["file_name"])
            if name in owners:
                raise DataError(
                    f"{owners[name]} and {path} both list {name}; if these are two images, name the folder of each "
                    "file, else leave it out of one file"
                )
            owners[name] = path
            new_images[entry["id"]] = len(document["images"]) + 1
            document["images"].append(entry | {"id": new_images[entry["id"]], "file_name": name})
        for entry in file.annotations:
            ids = {"image_id": new_images[entry["image_id"]], "category_id": new_categories[entry["category_id"]]}
            document["annotations"].append(entry | {"id": len(document["annotations"]) + 1} | ids)
    return document


def split_annotations(
    path: str | Path, shares: Sequence[float], seed: int = 0, images: str | Path | None = None
) -> list[Document]:
    """Divide a COCO keypoint file into parts with these shares of its images, drawn at random by the seed.

    With the folder of the ``images``, copies of one file stay in the same part. ``DataError`` if the file, an image or
    the shares cannot be used, or a part would be empty.
    """
    if any(not share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"the shares {' '.join(f'{share:g}' for share in shares)} are not above 0 with a sum of 1")
    file = _read(path)
    paths = {entry["id"]: Path(images or "", name) for entry, name in zip(file.images, file.file_names)}
    groups = [[image_id] for image_id in paths] if images is None else groups_of_copies(paths)
    ends = np.cumsum(shares) * len(file.images)
    parts: list[set[int]] = [set() for _ in shares]
    num_done = 0
    for index in np.random.default_rng(seed).permutation(len(groups)).tolist():
        middle = num_done + len(groups[index]) / 2
        parts[min(int(np.searchsorted(ends, middle)), len(parts) - 1)].update(groups[index])
        num_done += len(groups[index])
    if not all(parts):
        raise DataError(f"{path} has too few images ({len(file.images)}) for {len(parts)} parts; choose other shares")
    return [reduce_document(file.sections, part) for part in parts]


def select_images(path: str | Path, ids: Collection[int] | None = None, *, number: int = 0, seed: int = 0) -> Document:
    """Reduce a COCO keypoint file to the images with these ``ids``, or to a number of images, drawn by the seed.

    ``DataError`` if the file cannot be used, or has fewer images.
    """
    file = _read(path)
    all_ids = [entry["id"] for entry in file.images]
    if ids is not None:
        if unknown := sorted(set(ids) - set(all_ids)):
            raise DataError(f"{path} has no image {unknown[0]}; correct the ids")
        return reduce_document(file.sections, ids)
    if not 0 < number <= len(all_ids):
        raise DataError(f"{path} has {pluralize(len(all_ids), 'image')}, of which {number} cannot be taken")
    return reduce_document(file.sections, np.random.default_rng(seed).permutation(all_ids)[:number].tolist())


def reduce_document(document: Mapping[str, Any], ids: Iterable[int]) -> Document:
    """The content of a file with some of its images; what the file says about itself, such as licences, too."""
    chosen = set(ids)
    return {
        **document,
        "images": [entry for entry in document["images"] if entry["id"] in chosen],
        "annotations": [entry for entry in document["annotations"] if entry["image_id"] in chosen],
    }


def _read(path: str | Path) -> AnnotationFile:
    document = read_document(path)
    file = AnnotationFile(path, document | select_sections(document, path))
    refuse_errors(file, _RULES)
    return file


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
            f"cannot read {error.filename}: {error.strerror}; posenet annotations fix --drop leaves out such images"
        ) from error
    groups: dict[object, list[Key]] = {}
    for key in paths:
        groups.setdefault(digest_of.get(key, key), []).append(key)
    return list(groups.values())

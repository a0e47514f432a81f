"""The images of a document in the normal form: ids, names of files and sizes; and what their files say against them."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np

from posenet.annotations.adjustments import Adjustments, Ids
from posenet.annotations.category_reader import canonical_id, number_ids
from posenet.annotations.coco import Categories, Entry, Mask
from posenet.annotations.image_files import ImageFiles
from posenet.annotations.outlines import MAX_SIDE
from posenet.errors import DataError
from posenet.images import ImageHeader, check_image, has_proportions, read_header, read_image_file
from posenet.progress_bar import progress_bar
from posenet.settings import ExifFrame
from posenet.threads import map_in_threads, usable_cores

_REGIONS = ("ignore_regions_x", "ignore_regions_y")
"""PoseTrack18's polygons of an image in which people are not annotated."""


@dataclass
class Images:
    """Columns of the N images. Those that are left out, or merged into another one, stay in the columns."""

    entries: list[Entry]
    folder: Path | None
    ids: list[int]
    row_of: dict[object, int]  # by the id in the file
    names: list[str]  # paths of the files, relative to the folder
    sizes: np.ndarray  # (N, 2) int64 height, width, as annotated
    turns: np.ndarray  # (N,) int: the EXIF orientation by which the annotations are still to be turned; 1 for none
    is_kept: Mask

    def leave_out(self, code: str, is_faulty: Mask, ids: Ids, said: Adjustments) -> None:
        """Leave out the kept ones that are faulty, unless they are many."""
        self.is_kept &= ~said.leave_out_few(code, is_faulty & self.is_kept, ids, int(self.is_kept.sum()))

    def header(self, row: int, read: Callable[[Path], ImageHeader | None]) -> ImageHeader | None:
        """That of a file; None if it cannot be read."""
        try:
            return None if self.folder is None else read(self.folder / self.names[row])
        except DataError:
            return None


def read_images(entries: list[Entry], folder: Path | None, exif_frame: ExifFrame, said: Adjustments) -> Images:
    """Read the images; names and sizes that are missing are those of the files in the folder."""
    raw = [entry.get("id") for entry in entries]
    values = [canonical_id(value) for value in raw]
    row_of: dict[object, int] = {}
    firsts = [row_of.setdefault(value, row) for row, value in enumerate(values)]
    names = [name if isinstance(name := entry.get("file_name"), str) else "" for entry in entries]
    count = len(entries)
    sizes, turns = np.zeros((count, 2), np.int64), np.ones(count, np.int64)
    images = Images(entries, folder, number_ids(values), row_of, names, sizes, turns, np.ones(count, bool))
    is_second = np.array(firsts, int) != np.arange(count)
    is_same = np.array([names[first] == name for first, name in zip(firsts, names)], bool)
    said.add_rows("derived", "text-id", np.array([isinstance(value, str) for value in values], bool), raw)
    said.add_rows("derived", "repeated-image", is_second & is_same, names)
    lacks_id = np.array([value is None for value in values], bool)
    images.leave_out("image-id", is_second & ~is_same | lacks_id, names, said)
    images.is_kept &= ~(is_second & is_same)
    _find_files(images, said)
    _read_sizes(images, exif_frame, said)
    return images


def _find_files(images: Images, said: Adjustments) -> None:
    """Shorten or lengthen the names of files that are not in the folder to those that are.

    Labelling tools write paths on their server, or relative to another folder, and some sets only the last part. If
    two images would get the same file, both stay as they are.
    """
    found = list(map(_without_way_out, images.names))
    if images.folder is not None:
        files = ImageFiles(images.folder)
        for row, name in enumerate(images.names):
            path = files.find(name)
            if path is not None and path != images.folder / name:
                found[row] = path.relative_to(images.folder).as_posix()
    uses = Counter(itertools.compress(found, images.is_kept))
    changed = np.array([new != old and uses[new] == 1 for old, new in zip(images.names, found)], bool)
    images.names = [new if is_new else old for old, new, is_new in zip(images.names, found, changed)]
    said.add_rows("derived", "paths", changed, images.names)
    has_none = [not name.isprintable() or not name or _without_way_out(name) != name for name in images.names]
    images.leave_out("file-name", np.array(has_none, bool), images.ids, said)


def _without_way_out(name: str) -> str:
    """The path itself if it stays in its folder, else without what leads out of it."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    return name if len(parts) == len(path.parts) else "/".join(parts)


def _read_sizes(images: Images, exif_frame: ExifFrame, said: Adjustments) -> None:
    for row, entry in enumerate(images.entries):
        size = canonical_id(entry.get("height")), canonical_id(entry.get("width"))
        if all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in size):
            images.sizes[row] = size
    lacks = ~images.sizes.all(axis=1) & images.is_kept
    for row in np.flatnonzero(lacks).tolist():
        if header := images.header(row, read_header):
            images.sizes[row] = header.stored_size if exif_frame == "stored" else header.displayed_size
    is_read = lacks & images.sizes.all(axis=1)
    said.add_rows("derived", "size", is_read, images.names)
    images.leave_out("image-size", lacks & ~is_read, images.names, said)


def check_files(images: Images, said: Adjustments) -> None:
    """Open the files of all images, and leave out those that cannot be used, unless they are many."""
    rows = np.flatnonzero(images.is_kept).tolist()
    workers = usable_cores()
    checks = map_in_threads(lambda row: _check_file(images, row), rows, workers=workers, ahead=2 * workers)
    texts = list(images.names)
    found: dict[str, Mask] = defaultdict(lambda: np.zeros(len(texts), bool))
    for row, (code, details) in zip(rows, progress_bar(checks, "images", len(rows))):
        texts[row] += f" ({details})" if details else ""
        found[code][row] = True
    for code in ("missing-file", "unreadable-file", "wrong-size"):
        images.is_kept &= ~said.leave_out_few(code, found[code], texts, len(rows))
    said.add_rows("derived", "resized", found["resized"], texts)


def _check_file(images: Images, row: int) -> tuple[str, str]:
    """The code of what is wrong with a file, and details; "" for nothing."""
    height, width = images.sizes[row].tolist()
    path = (images.folder or Path()) / images.names[row]
    try:
        header = check_image(read_image_file(path))
    except (OSError, ValueError) as error:
        if not os.path.exists(path):  # which is also false for a name that is too long
            return "missing-file", ""
        return "unreadable-file", re.split(r" \(|;", str(error))[0]
    size = header.displayed_size if images.turns[row] == 1 else header.stored_size
    if size == (height, width):
        return "", ""
    code = "resized" if has_proportions(size, (height, width)) else "wrong-size"
    return code, f"{size[1]} x {size[0]}, annotated {width} x {height}"


def take_ignored_regions(images: Images, categories: Categories, said: Adjustments) -> Iterator[Entry]:
    """Annotations of crowds in the place of PoseTrack18's ignored regions."""
    used = np.flatnonzero(categories.is_used).tolist()
    places = []
    for row, entry in enumerate(images.entries):
        if not used or not all(isinstance(entry.get(key), list) for key in _REGIONS):
            continue
        images.entries[row] = {key: value for key, value in entry.items() if key not in _REGIONS}
        x, y = (entry[key] if any(isinstance(part, list) for part in entry[key]) else [entry[key]] for key in _REGIONS)
        outlines = [list(itertools.chain(*zip(*pair))) for pair in zip(x, y) if all(map(_has_corners, pair))]
        if outlines and images.is_kept[row]:
            places.append(images.names[row])
        ids = {"image_id": entry.get("id"), "category_id": categories.entries[used[0]].get("id")}
        yield from ({**ids, "iscrowd": 1, "segmentation": [outline]} for outline in outlines)
    if places:
        said.add("derived", "ignored-regions", places)


def _has_corners(coordinates: object) -> bool:
    return isinstance(coordinates, list) and len(coordinates) > 2

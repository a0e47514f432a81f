"""The reader of annotations: it makes the normal form of any COCO-shaped document, and lists what it did.

What other values or the image files determine is derived, single faults are left out, and only what has no right
reading is a contradiction. ``lint`` prints the list, ``fix`` writes the normal form, and all tools work on it.

This module reads the images; ``category_reader`` reads the categories, and ``people_reader`` the annotations.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, get_args

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.category_reader import Categories, canonical_id, number_ids, read_categories
from posenet.annotations.coco import (
    SECTIONS,
    AnnotationFile,
    CocoImage,
    Entry,
    Mask,
    People,
    read_document,
    select_sections,
)
from posenet.annotations.copies import groups_of_copies
from posenet.annotations.image_files import ImageFiles
from posenet.annotations.outlines import MAX_SIDE
from posenet.annotations.people_reader import FAR_OUTSIDE, find_copies, read_people
from posenet.annotations.upright import MIRRORING, find_frame, turn_people
from posenet.devices.cpu import usable_cores
from posenet.errors import ConfigError, DataError
from posenet.images import (
    ImageHeader,
    check_image,
    check_proportions,
    read_header,
    read_image_file,
    read_oriented_header,
)
from posenet.messages import truncate_for_message
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton
from posenet.threads import map_in_threads

_REGIONS = ("ignore_regions_x", "ignore_regions_y")
"""PoseTrack18's polygons of an image in which people are not annotated."""


def read_annotation_file(
    path: str | Path,
    skeleton: Skeleton | None = None,
    *,
    folder: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    opens_images: bool = False,
    drop: bool = False,
    measures_twins: bool = False,
    compares_files: bool = True,
    required: Collection[str] = ("images", "annotations"),
    document: Any = None,
) -> AnnotationFile:
    """Read a file of annotations in the normal form; the contradictions in it are among its ``adjustments``.

    Args:
        path: of a COCO keypoint file; or, with the content as ``document``, for messages only.
        skeleton: the expected keypoints; None expects those of the categories in the file.
        folder: of the image files, which tell missing sizes and names, and in which frame they are annotated.
        exif_frame: that of the annotations of images with an EXIF orientation, where their size fits both frames. The
            normal form has them in the displayed frame.
        opens_images: open every image of the folder, and compare it with its annotations.
        drop: leave out faulty entries even if they are many, but never most.
        measures_twins: say of which keypoints neither the skeleton nor the annotations tell left and right; this takes
            time, and drafting a skeleton tells it anyway.
        compares_files: take files of the same bytes for one image, not only entries of the same name.
        required: sections without which it is no COCO file.

    Raises:
        DataError: the file cannot be read or is not a COCO file.
    """
    if document is None:
        document = read_document(path)
    if exif_frame not in get_args(ExifFrame):
        raise ConfigError(f"exif_frame {truncate_for_message(exif_frame)} is unknown; use displayed or stored")
    sections = select_sections(document, path, required)
    said = Adjustments(drop)
    annotated = {canonical_id(entry.get("image_id")) for entry in sections["annotations"]}
    images = _Images(sections["images"], annotated, None if folder is None else Path(folder), exif_frame, said)
    if opens_images:
        images.open_files()
    categories = read_categories(sections["categories"], sections["annotations"], skeleton, said)
    entries = [*sections["annotations"], *images.take_ignored_regions(categories)]
    images.swap_sizes(entries, categories)
    people = read_people(entries, images.row_of, images.is_kept, images.sizes, categories, said)
    people = images.turn_upright(people)
    people = images.merge_copies(people, opens=folder is not None and compares_files)
    images.leave_out_emptied(entries, people)
    kept = np.flatnonzero(images.is_kept).tolist()
    people.image_rows = np.cumsum(images.is_kept)[people.image_rows] - 1
    file = AnnotationFile(
        path=path,
        others={key: value for key, value in document.items() if key not in SECTIONS},
        skeleton=skeleton,
        images=[CocoImage(images.ids[row], images.names[row], *images.sizes[row].tolist()) for row in kept],
        image_entries=[images.entries[row] for row in kept],
        categories=categories.entries,
        parsed_categories=categories.parsed,
        category_ids=categories.ids,
        category_is_used=categories.is_used,
        people=people,
        adjustments=said,
    )
    try:
        from posenet.annotations.checks.plausibility import find_suspicious
    except ModuleNotFoundError:  # a part of the package that may be left out
        return file
    find_suspicious(file, measures_twins)
    return file


class _Images:
    """The images of a document. Those that are left out, or merged into another one, stay in the columns of N rows."""

    def __init__(
        self,
        entries: list[Entry],
        annotated: Collection[object],
        folder: Path | None,
        exif_frame: ExifFrame,
        said: Adjustments,
    ) -> None:
        self.entries = entries
        self.annotated = annotated
        self.folder = folder
        self.exif_frame = exif_frame
        self.said = said
        self.is_kept: Mask = np.ones(len(entries), bool)
        names = [entry.get("file_name") for entry in entries]
        self.names = [name if isinstance(name, str) else "" for name in names]
        self._read_ids()
        self._find_files()
        self._read_sizes()
        self._find_frames()
        is_unlabelled = np.array([entry.get("is_labeled") is False for entry in entries], bool) & self.is_kept
        said.add_rows("left out", "unlabelled-frame", is_unlabelled, self.names)
        self.is_kept &= ~is_unlabelled

    def _leave_out(self, code: str, is_faulty: Mask, ids: list[Any]) -> None:
        is_faulty = is_faulty & self.is_kept
        self.is_kept &= ~self.said.leave_out_few(code, is_faulty, ids, int(self.is_kept.sum()))

    def _read_ids(self) -> None:
        raw = [entry.get("id") for entry in self.entries]
        values = [canonical_id(value) for value in raw]
        self.ids = number_ids(values)
        self.row_of: dict[object, int] = {}
        firsts = [self.row_of.setdefault(value, row) for row, value in enumerate(values)]
        is_second = np.array(firsts, int) != np.arange(len(values))
        is_same = np.array([self.names[first] == name for first, name in zip(firsts, self.names)], bool)
        is_text = np.array([isinstance(value, str) for value in values], bool)
        self.said.add_rows("derived", "text-id", is_text, raw)
        self.said.add_rows("derived", "repeated-image", is_second & is_same, self.names)
        self._leave_out("image-id", is_second & ~is_same | np.array([v is None for v in values], bool), self.names)
        self.is_kept &= ~(is_second & is_same)

    def _find_files(self) -> None:
        """Shorten or lengthen the names of files that are not in the folder to those that are.

        Labelling tools write paths on their server, or relative to another folder, and some sets only the last part. If
        two images would get the same file, both stay as they are.
        """
        found = list(map(_without_way_out, self.names))
        if self.folder is not None:
            files = ImageFiles(self.folder)
            for row, name in enumerate(self.names):
                path = files.find(name)
                if path is not None and path != self.folder / name:
                    found[row] = path.relative_to(self.folder).as_posix()
        uses = Counter(itertools.compress(found, self.is_kept))
        changed = np.array([new != old and uses[new] == 1 for old, new in zip(self.names, found)], bool)
        self.names = [new if is_new else old for old, new, is_new in zip(self.names, found, changed)]
        self.said.add_rows("derived", "paths", changed, self.names)
        has_none = [not name.isprintable() or not name or _without_way_out(name) != name for name in self.names]
        self._leave_out("file-name", np.array(has_none, bool), self.ids)

    def _read_sizes(self) -> None:
        self.sizes = np.zeros((len(self.entries), 2), np.int64)
        for row, entry in enumerate(self.entries):
            height, width = canonical_id(entry.get("height")), canonical_id(entry.get("width"))
            if isinstance(height, int) and isinstance(width, int) and 0 < min(height, width) <= max(height, width):
                self.sizes[row] = (height, width) if max(height, width) <= MAX_SIDE else 0
        lacks = ~self.sizes.all(axis=1) & self.is_kept
        for row in np.flatnonzero(lacks).tolist():
            if header := self._read_header(row):
                self.sizes[row] = header.stored_size if self.exif_frame == "stored" else header.displayed_size
        is_read = lacks & self.sizes.all(axis=1)
        self.said.add_rows("derived", "size", is_read, self.names)
        self._leave_out("image-size", lacks & ~is_read, self.names)

    def _find_frames(self) -> None:
        """Find the images with an EXIF orientation, and those whose annotations are in the stored frame."""
        self.oriented: dict[int, ImageHeader] = {}
        self.is_stored: Mask = np.zeros(len(self.entries), bool)
        by_setting = self.is_stored.copy()
        is_mirrored = self.is_stored.copy()
        rows = [] if self.folder is None else np.flatnonzero(self.is_kept).tolist()
        workers = usable_cores()
        headers = map_in_threads(self._read_oriented_header, rows, workers=workers, ahead=64 * workers)
        for row, header in zip(rows, headers):
            if header is None or header.orientation == 1:
                continue
            self.oriented[row] = header
            if self.entries[row].get("exif_frame") == "displayed":  # as in the normal form
                continue
            size = (int(self.sizes[row, 0]), int(self.sizes[row, 1]))
            frame, is_open = find_frame(header, size, self.exif_frame)
            is_annotated = canonical_id(self.entries[row].get("id")) in self.annotated
            by_setting[row] = is_open and is_annotated
            self.is_stored[row] = frame == "stored"
            is_mirrored[row] = self.is_stored[row] and is_annotated and header.orientation in MIRRORING
            # What only the setting decides, and leaves as it is, may be decided otherwise later.
            if not is_open or self.is_stored[row]:
                self.entries[row] = self.entries[row] | {"exif_frame": "displayed"}
        self.said.add_rows("warning", "exif-by-setting", by_setting, self.names)
        self._leave_out("exif-mirrored", is_mirrored, self.names)
        self.is_stored &= ~is_mirrored

    def _read_header(self, row: int) -> ImageHeader | None:
        try:
            return None if self.folder is None else read_header(self.folder / self.names[row])
        except (DataError, ValueError):
            return None

    def _read_oriented_header(self, row: int) -> ImageHeader | None:
        try:
            return None if self.folder is None else read_oriented_header(self.folder / self.names[row])
        except (DataError, ValueError):
            return None

    def open_files(self) -> None:
        """Open the files of all images, and leave out those that cannot be used, unless they are many."""
        rows = np.flatnonzero(self.is_kept).tolist()
        workers = usable_cores()
        checks = map_in_threads(self._check_file, rows, workers=workers, ahead=2 * workers)
        texts = list(self.names)
        found: dict[str, Mask] = defaultdict(lambda: np.zeros(len(texts), bool))
        for row, (code, details) in zip(rows, progress_bar(checks, "images", len(rows))):
            texts[row] += f" ({details})" if details else ""
            found[code][row] = True
        for code in ("missing-file", "unreadable-file", "wrong-size"):
            self.is_kept &= ~self.said.leave_out_few(code, found[code], texts, len(rows))
        self.said.add_rows("derived", "resized", found["resized"], texts)

    def _check_file(self, row: int) -> tuple[str, str]:
        """The code of what is wrong with a file, and details; "" for nothing."""
        height, width = self.sizes[row].tolist()
        path = (self.folder or Path()) / self.names[row]
        try:
            header = check_image(read_image_file(path))
        except (OSError, ValueError) as error:
            if not os.path.exists(path):  # which is also false for a name that is too long
                return "missing-file", ""
            return "unreadable-file", re.split(r" \(|;", str(error))[0]
        size = header.stored_size if self.is_stored[row] else header.displayed_size
        if size == (height, width):
            return "", ""
        details = f"{size[1]} x {size[0]}, annotated {width} x {height}"
        try:
            check_proportions(path, size, (height, width))
        except DataError:
            return "wrong-size", details
        return "resized", details

    def take_ignored_regions(self, categories: Categories) -> Iterator[Entry]:
        """Annotations of crowds in the place of PoseTrack18's ignored regions."""
        used = np.flatnonzero(categories.is_used).tolist()
        places = []
        for row, entry in enumerate(self.entries):
            if not used or not all(isinstance(entry.get(key), list) for key in _REGIONS):
                continue
            self.entries[row] = {key: value for key, value in entry.items() if key not in _REGIONS}
            x, y = (
                entry[key] if any(isinstance(part, list) for part in entry[key]) else [entry[key]] for key in _REGIONS
            )
            polygons = [list(itertools.chain(*zip(*pair))) for pair in zip(x, y) if all(map(_is_polygon, pair))]
            if polygons and self.is_kept[row]:
                places.append(self.names[row])
            ids = {"image_id": entry.get("id"), "category_id": categories.entries[used[0]].get("id")}
            yield from ({**ids, "iscrowd": 1, "segmentation": [polygon]} for polygon in polygons)
        if places:
            self.said.add("derived", "ignored-regions", places)

    def swap_sizes(self, entries: list[Entry], categories: Categories) -> None:
        """Swap height and width of the images whose keypoints fit only the displayed image, though the size is that of
        the stored pixels: keypoints in it, and some far outside the stored pixels."""
        turns = np.array(
            [row in self.oriented and self.oriented[row].orientation >= 5 for row in range(len(self.names))]
        )
        candidates = self.is_stored & self.is_kept & turns.astype(bool)
        if not candidates.any():
            return
        # Read once in a square that holds both frames, so that no keypoint is outside.
        squares = self.sizes.max(axis=1, keepdims=True).repeat(2, axis=1)
        people = read_people(entries, self.row_of, candidates, squares, categories, Adjustments(drop=True))
        is_labelled = people.keypoints[..., 2] > 0
        sizes = self.sizes[people.image_rows][:, None, ::-1]
        points = people.keypoints[..., :2]
        is_far = (points > sizes + FAR_OUTSIDE * sizes.max(axis=2, keepdims=True)).any(axis=2) & is_labelled
        fits_turned = ((points >= -1) & (points <= sizes[..., ::-1] + 1)).all(axis=2) | ~is_labelled
        is_swapped = np.zeros(len(self.names), bool)
        for row in np.flatnonzero(candidates).tolist():
            rows = people.image_rows == row
            is_swapped[row] = is_far[rows].any() and fits_turned[rows].all()
        self.sizes[is_swapped] = self.sizes[is_swapped][:, ::-1]
        self.is_stored &= ~is_swapped
        self.said.add_rows("derived", "exif-swapped", is_swapped, self.names)

    def turn_upright(self, people: People) -> People:
        """Turn the annotations of the stored pixels. Those of categories that are not read are left out there."""
        is_turned = self.is_stored & self.is_kept
        for row in np.flatnonzero(is_turned).tolist():
            orientation = self.oriented[row].orientation
            height, width = self.sizes[row].tolist()
            rows = np.flatnonzero(people.image_rows == row)
            if len(rows):
                turn_people(people, rows, orientation, (height, width))
            self.sizes[row] = (width, height) if orientation >= 5 else (height, width)
        has_people = np.isin(np.arange(len(self.names)), people.image_rows)
        self.said.add_rows("derived", "exif-turned", is_turned & has_people, self.names)
        is_unread = is_turned[people.image_rows] & ~people.is_used
        self.said.add_rows("left out", "exif-other", is_unread, people.ids)
        return people.select(~is_unread)

    def merge_copies(self, people: People, opens: bool) -> People:
        """Give the first of several copies of an image the people of all; copies with the same people stay as they are.

        Each of them would teach that the people of the others are not there.
        """
        by_name = defaultdict(list)
        files = {}
        for row in np.flatnonzero(self.is_kept).tolist():
            path = os.path.join(self.folder or "", self.names[row])
            if (
                opens and self.folder is not None and os.path.isfile(path)
            ):  # which is also false for a name that is too long
                files[row] = Path(path)
            else:
                by_name[PurePosixPath(self.names[row])].append(row)
        merged = np.zeros(len(self.names), bool)
        for first, *others in (*groups_of_copies(files), *by_name.values()):
            if not others or (self.sizes[others] != self.sizes[first]).any():
                continue
            members = [np.flatnonzero(people.image_rows == row).tolist() for row in (first, *others)]
            shown = [{people.keypoints[person].tobytes() for person in own} for own in members]
            if all(one == shown[0] for one in shown) and len({self.names[row] for row in (first, *others)}) > 1:
                continue
            people.image_rows[list(itertools.chain(*members[1:]))] = first
            merged[others] = True
        self.is_kept &= ~merged
        self.said.add_rows("derived", "copies", merged, self.names)
        return people.select(~find_copies(people))

    def leave_out_emptied(self, entries: list[Entry], people: People) -> None:
        """Leave out images of which no annotation is left, because they would count as images of nobody."""
        rows = {self.row_of.get(canonical_id(entry.get("image_id"))) for entry in entries}
        rows -= set(people.image_rows.tolist())
        emptied = np.array([row in rows for row in range(len(self.names))], bool) & self.is_kept
        self.said.add_rows("left out", "emptied-image", emptied, self.names)
        self.is_kept &= ~emptied


def _is_polygon(coordinates: object) -> bool:
    return isinstance(coordinates, list) and len(coordinates) > 2


def _without_way_out(name: str) -> str:
    """The path itself if it stays in its folder, else without what leads out of it."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    return name if len(parts) == len(path.parts) else "/".join(parts)

"""The reader of annotations: it makes the normal form of any COCO-shaped document, and lists what it did.

What other values or the image files determine is derived, single faults are left out, and only what has no right
reading is a contradiction. ``lint`` prints the list, ``fix`` writes the normal form, and all tools work on it.

This module reads images and categories; ``people_reader`` reads the annotations, and ``plausibility`` compares them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import (
    SECTIONS,
    AnnotationFile,
    Category,
    CocoImage,
    Entry,
    Mask,
    Names,
    People,
    read_document,
    select_sections,
)
from posenet.annotations.copies import groups_of_copies
from posenet.annotations.image_files import ImageFiles
from posenet.annotations.outlines import MAX_SIDE
from posenet.annotations.people_reader import Categories, canonical_id, guess_count, number_ids, read_people
from posenet.annotations.plausibility import find_suspicious
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images import (
    AnnotatedFrame,
    ImageHeader,
    check_image,
    check_proportions,
    find_annotated_frame,
    oriented_size,
    read_header,
    read_image_file,
)
from posenet.messages import truncate_for_message
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton
from posenet.skeleton.known_names import canonical_names
from posenet.threads import map_in_threads

SAME_PERSON = 0.1
"""Two annotations in copies of an image are of the same person if their keypoints are closer than this share of the
longer side of the box."""
_FILE_PROBLEMS = {
    "missing-file": ("images without a file", "check the folder, upper and lower case, and suffixes"),
    "unreadable-file": ("files that cannot be read", "save them again, smaller if they are too large"),
    "wrong-size": ("images of other proportions than annotated", "restore the images that were annotated"),
    "resized": ("images of another size than annotated", "the annotations are scaled to the files"),
    "exif-by-setting": (
        "images with an EXIF orientation and a size that fits both frames",
        "if keypoints are wrong, set data.exif_frame",
    ),
}
"""What the file of an image can have: the message and the consequence."""
_IGNORED_REGIONS = ("ignore_regions_x", "ignore_regions_y")
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
    reorders: bool = True,
    required: Collection[str] = ("images", "annotations"),
    document: Any = None,
) -> AnnotationFile:
    """Read a file of annotations in the normal form; the contradictions in it are among its ``adjustments``.

    Args:
        path: of a COCO keypoint file; or, with the content as ``document``, for messages only.
        skeleton: the expected keypoints; None expects those of the categories in the file.
        folder: of the image files, which tell missing sizes and names; copies of one image become one.
        exif_frame: see ``posenet.images.find_annotated_frame``.
        opens_images: open every image of the folder, and compare it with its annotations.
        drop: leave out faulty entries even if they are many, but never most.
        measures_twins: say of which keypoints neither the skeleton nor the annotations tell left and right; this takes
            time, and drafting a skeleton tells it anyway.
        reorders: turn keypoints with other names, or in another order, to those of the skeleton where the names tell
            which are which; not for what is compared with results of other programs.
        required: sections without which it is no COCO file.

    Raises:
        DataError: the file cannot be read or is not a COCO file.
    """
    if document is None:
        document = read_document(path)
    sections = select_sections(document, path, required)
    said = Adjustments(drop)
    images = _Images(sections["images"], None if folder is None else Path(folder), exif_frame, said)
    if opens_images:
        images.open_files()
    annotations = sections["annotations"]
    categories = _read_categories(sections["categories"], annotations, skeleton, said)
    if skeleton is not None and reorders:
        _reorder(categories, skeleton, said)
    entries = [*annotations, *images.take_ignored_regions(categories)]
    people = read_people(entries, images.row_of, images.is_kept, images.sizes, categories, said)
    images.turn_sizes(people)
    people = images.merge_copies(people)
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
    find_suspicious(file, measures_twins)
    return file


class _Images:
    """The images of a document. Those that are left out, or merged into another one, stay in the columns of N rows."""

    def __init__(self, entries: list[Entry], folder: Path | None, exif_frame: ExifFrame, said: Adjustments) -> None:
        self.entries = entries
        self.folder = folder
        self.exif_frame = exif_frame
        self.said = said
        self.is_kept: Mask = np.ones(len(entries), bool)
        self.names = [_to_name(entry) for entry in entries]
        self._read_ids()
        self._find_files()
        self._read_sizes()
        is_labelled = np.array([entry.get("is_labeled") is not False for entry in entries], bool)
        said.add_rows(
            "left out", "unlabelled-frame", "frames that is_labeled marks as not annotated",
            "they show people all the same", self.is_kept & ~is_labelled, self.names,
        )  # fmt: skip
        self.is_kept &= is_labelled

    def _read_ids(self) -> None:
        raw = [entry.get("id") for entry in self.entries]
        values = [canonical_id(value) for value in raw]
        self.ids = number_ids(values)
        self.row_of: dict[object, int] = {}
        is_faulty = np.zeros(len(values), bool)
        is_repeated = np.zeros(len(values), bool)
        for row, value in enumerate(values):
            first = self.row_of.setdefault(value, row)
            is_repeated[row] = first != row and self.names[first] == self.names[row]
            is_faulty[row] = value is None or (first != row and not is_repeated[row])
        is_text = np.array([isinstance(value, str) for value in values], bool)
        self.said.add_rows(
            "derived", "text-id", "ids of images that are texts", "results name the numbers that replace them", is_text,
            raw,
        )  # fmt: skip
        self.said.add_rows("derived", "repeated-image", "images listed twice", "taken as one", is_repeated, self.names)
        remedy = "number the images, in image_id of their annotations too"
        message = "images without an id, or with that of another image"
        self.said.leave_out_few("image-id", message, remedy, is_faulty, self.names)
        self.is_kept &= ~(is_faulty | is_repeated)

    def _find_files(self) -> None:
        """Shorten or lengthen the names of files that are not in the folder to those that are.

        Labelling tools write paths on their server, or relative to another folder, and some sets only the last part. If
        two images would get the same file, both stay as they are.
        """
        found = [next(_ends(name), "") for name in self.names]
        if self.folder is not None:
            files = ImageFiles(self.folder)
            for row, name in enumerate(self.names):
                if is_file(self.folder, name):
                    found[row] = name
                elif path := files.find(name):
                    found[row] = path.relative_to(self.folder).as_posix()
        uses = Counter(name for name, is_kept in zip(found, self.is_kept) if is_kept)
        changed = np.zeros(len(found), bool)
        for row, (old, new) in enumerate(zip(self.names, found)):
            if new != old and uses[new] == 1:
                changed[row] = True
                self.names[row] = new
        self.said.add_rows(
            "derived", "paths", "names of images changed to those in the folder", "look at one if in doubt", changed,
            self.names,
        )  # fmt: skip
        has_none = np.array([next(_ends(name), None) != name or not name.isprintable() for name in self.names], bool)
        self.is_kept &= ~self.said.leave_out_few(
            "file-name", "images without a file name in the image folder", "write the path relative to the folder",
            has_none & self.is_kept, self.ids,
        )  # fmt: skip

    def _read_sizes(self) -> None:
        self.sizes = np.zeros((len(self.entries), 2), np.int64)
        for row, entry in enumerate(self.entries):
            height, width = (canonical_id(entry.get(key)) for key in ("height", "width"))
            if isinstance(height, int) and isinstance(width, int) and 0 < min(height, width) <= max(height, width):
                self.sizes[row] = (height, width) if max(height, width) <= MAX_SIDE else (0, 0)
        lacks = ~self.sizes.all(axis=1) & self.is_kept
        for row in np.flatnonzero(lacks).tolist():
            if header := self._read_header(row):
                is_stored = self.exif_frame == "stored"
                self.sizes[row] = header.stored_size if is_stored else header.displayed_size
        is_read = lacks & self.sizes.all(axis=1)
        self.said.add_rows(
            "derived", "size", "sizes of images read from the files", "they had none", is_read, self.names
        )
        message = "images without a width and a height"
        remedy = "write the size in which the keypoints were placed" + ("" if self.folder else ", or name the folder")
        self.is_kept &= ~self.said.leave_out_few("image-size", message, remedy, lacks & ~is_read, self.names)

    def _read_header(self, row: int) -> ImageHeader | None:
        try:
            return None if self.folder is None else read_header(self.folder / self.names[row])
        except (DataError, ValueError):
            return None

    def open_files(self) -> None:
        """Open the files of all images, and leave out those that cannot be used, unless they are many."""
        rows = np.flatnonzero(self.is_kept).tolist()
        workers = usable_cores()
        checks = map_in_threads(self._check_file, rows, workers=workers, ahead=2 * workers)
        texts = list(self.names)
        found = {code: np.zeros(len(texts), bool) for code in _FILE_PROBLEMS}
        for row, (code, details) in zip(rows, progress_bar(checks, "images", len(rows))):
            texts[row] += f" ({details})" if details else ""
            if code:
                found[code][row] = True
        for code, (message, remedy) in _FILE_PROBLEMS.items():
            if code in ("missing-file", "unreadable-file", "wrong-size"):
                self.is_kept &= ~self.said.leave_out_few(code, message, remedy, found[code], texts, len(rows))
        self.said.add_rows("derived", "resized", *_FILE_PROBLEMS["resized"], found["resized"], texts)
        code = "exif-by-setting"
        self.said.add_rows("warning", code, *_FILE_PROBLEMS[code], found[code], texts)

    def _check_file(self, row: int) -> tuple[str, str]:
        """A code of ``_FILE_PROBLEMS`` and its details; "" for none."""
        height, width = self.sizes[row].tolist()
        path = (self.folder or Path()) / self.names[row]
        try:
            header = check_image(read_image_file(path))
        except (OSError, ValueError) as error:
            if not os.path.exists(path):  # which is also false for a name that is too long
                return "missing-file", ""
            return "unreadable-file", re.split(r" \(|;", str(error))[0]
        frame = find_annotated_frame(header, height, width, self.exif_frame)
        size = oriented_size(*header.stored_size, frame.orientation)
        if size == (height, width):
            is_set = frame.reason == "setting"
            return ("exif-by-setting", f"orientation {header.orientation}, {frame}") if is_set else ("", "")
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
            if not used or not all(isinstance(entry.get(key), list) for key in _IGNORED_REGIONS):
                continue
            self.entries[row] = {key: value for key, value in entry.items() if key not in _IGNORED_REGIONS}
            columns = [entry[key] for key in _IGNORED_REGIONS]
            regions = zip(*(column if any(isinstance(x, list) for x in column) else [column] for column in columns))
            polygons = [list(itertools.chain(*zip(x, y))) for x, y in regions if isinstance(x, list) and len(x) > 2]
            if polygons and self.is_kept[row]:
                places.append(self.names[row])
            for polygon in polygons:
                category = categories.entries[used[0]].get("id")
                yield {
                    "image_id": entry.get("id"), "category_id": category, "iscrowd": 1, "segmentation": [polygon],
                }  # fmt: skip
        if places:
            consequence = "they are crowds, of which nothing is taught"
            self.said.add("derived", "ignored-regions", "images with ignored regions", consequence, places)

    def turn_sizes(self, people: People) -> None:
        """Swap height and width of images whose keypoints fit only the displayed image, not the stored pixels."""
        is_labelled = people.keypoints[..., 2] > 0
        sizes = self.sizes[people.image_rows][:, None, ::-1]
        points = people.keypoints[..., :2]
        fits, fits_turned = (
            ((points >= -1) & (points <= limits + 1)).all(axis=2).all(axis=1, where=is_labelled)
            for limits in (sizes, sizes[..., ::-1])
        )
        turned = np.zeros(len(self.names), bool)
        for row in np.unique(people.image_rows[~fits & fits_turned]).tolist():
            header = self._read_header(row)
            height, width = self.sizes[row].tolist()
            frame = header and find_annotated_frame(header, height, width, self.exif_frame)
            turned[row] = frame == AnnotatedFrame(1, "size") and bool(fits_turned[people.image_rows == row].all())
        self.sizes[turned] = self.sizes[turned, ::-1]
        self.said.add_rows(
            "derived", "exif-swapped", "images whose keypoints fit only the image as displayed",
            "their width and height are swapped", turned, self.names,
        )  # fmt: skip

    def merge_copies(self, people: People) -> People:
        """Give the first of several copies of an image the people of all; copies with the same people stay as they are.

        Each of them would teach that the people of the others are not there.
        """
        rows = np.flatnonzero(self.is_kept).tolist()
        groups = defaultdict(list)
        for row in rows:
            groups[str(PurePosixPath(self.names[row]))].append(row)
        if self.folder is not None:
            paths = {row: self.folder / self.names[row] for row in rows if is_file(self.folder, self.names[row])}
            for copies in groups_of_copies(paths):
                groups[str(PurePosixPath(self.names[copies[0]]))] = copies
        merged = np.zeros(len(self.names), bool)
        is_kept = np.ones(len(people.ids), bool)
        for first, *others in groups.values():
            if not others or (self.sizes[others] != self.sizes[first]).any():
                continue
            members = [np.flatnonzero(people.image_rows == row) for row in (first, *others)]
            shown = [{people.keypoints[person].tobytes() for person in own} for own in members]
            if all(one == shown[0] for one in shown) and len({self.names[row] for row in (first, *others)}) > 1:
                continue
            present = members[0].tolist()
            for person in itertools.chain(*(own.tolist() for own in members[1:])):
                is_kept[person] = not any(_are_same(people, person, other) for other in present)
                people.image_rows[person] = first
                present += [person] if is_kept[person] else []
            merged[others] = True
        self.is_kept &= ~merged
        self.said.add_rows(
            "derived", "copies", "copies of an image with other annotations",
            "merged: each would teach that the others are absent", merged, self.names,
        )  # fmt: skip
        return people.select(is_kept)

    def leave_out_emptied(self, entries: Sequence[Entry], people: People) -> None:
        """Leave out images of which no annotation is left, because they would count as images of nobody."""
        rows = (self.row_of.get(canonical_id(entry.get("image_id"))) for entry in entries)
        annotated = np.isin(np.arange(len(self.names)), [row for row in rows if row is not None])
        emptied = annotated & self.is_kept & ~np.isin(np.arange(len(self.names)), people.image_rows)
        self.said.add_rows(
            "left out", "emptied-image", "images of which no annotation is left", "correct their annotations", emptied,
            self.names,
        )  # fmt: skip
        self.is_kept &= ~emptied


def _are_same(people: People, person: int, other: int) -> bool:
    """Whether two annotations are of the same person, by the keypoints that both have."""
    both = (people.keypoints[[person, other], :, 2] > 0).all(axis=0)
    if not both.any():
        return bool((people.boxes[person] == people.boxes[other]).all())
    distances = np.linalg.norm(people.keypoints[person, both, :2] - people.keypoints[other, both, :2], axis=1)
    return bool(distances.mean() < SAME_PERSON * people.boxes[other, 2:].max())


def _to_name(entry: Entry) -> str:
    name = entry.get("file_name")
    return name if isinstance(name, str) else ""


def _ends(name: str) -> Iterator[str]:
    """The path itself if it stays in its folder; then its ends, the longest first, with / between their parts."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    if len(parts) == len(path.parts) and name:
        yield name
    for start in range(len(parts)):
        yield "/".join(parts[start:])


def is_file(folder: Path, name: str) -> bool:
    """Whether a file is in the folder."""
    try:
        return bool(name) and (folder / name).is_file()
    except (OSError, ValueError):  # a name that is too long or has a null character
        return False


def _read_categories(
    entries: list[Entry], annotations: Sequence[Entry], skeleton: Skeleton | None, said: Adjustments
) -> Categories:
    """Read the categories; names of keypoints that they lack come from the skeleton, or are numbered."""
    lists: dict[object, list[Any]] = defaultdict(list)
    for entry in annotations:
        lists[canonical_id(entry.get("category_id"))].append(entry.get("keypoints"))
    if not entries and any(guess_count(group) for group in lists.values()):
        entries = [{"id": next(iter(lists)), "name": "object"}]
        said.add("derived", "no-categories", "no category is listed", "all annotations are of one")
    raw = [canonical_id(entry.get("id")) for entry in entries]
    if len(entries) == 1 and len(lists) == 1:
        lists = {raw[0]: next(iter(lists.values()))}
    parsed = [_parse_category(entry, lists.get(number, []), skeleton, said) for entry, number in zip(entries, raw)]
    has_keypoints = np.array([bool(category.keypoints) for category in parsed], bool)
    fits = [skeleton is None or category.keypoints == skeleton.file_names for category in parsed]
    row_of: dict[object, int] = {}
    for row, number in enumerate(raw):
        row_of.setdefault(number, row)
    if len(entries) == 1:
        row_of[None] = 0
    is_repeated = np.array([row_of[number] != row for row, number in enumerate(raw)], bool)
    names = [category.name for category in parsed]
    said.leave_out_few("category-id", "categories with the id of another one", "number them", is_repeated, names, 1)
    return Categories(list(entries), parsed, number_ids(raw), row_of, has_keypoints & np.array(fits, bool), {})


def _reorder(categories: Categories, skeleton: Skeleton, said: Adjustments) -> None:
    """Give categories the names and the order of the skeleton's keypoints where canonical names tell the order."""
    wanted = canonical_names(skeleton.file_names, skeleton.category)
    for row, category in enumerate(categories.parsed):
        known = canonical_names(category.keypoints, category.name)
        if category.keypoints == skeleton.file_names or sorted(known) != sorted(wanted):
            continue
        edges = tuple((wanted.index(known[a]), wanted.index(known[b])) for a, b in category.edges)
        categories.parsed[row] = Category(category.name, skeleton.file_names, edges)
        categories.entries[row] = {key: value for key, value in categories.entries[row].items() if key != "flip_idx"}
        categories.orders[row] = [known.index(name) for name in wanted]
        categories.is_used[row] = True
        said.add(
            "derived", "keypoint-order", f"keypoints of {category.name} that the skeleton spells or orders otherwise",
            "turned to those of the skeleton",
        )  # fmt: skip


def _parse_category(entry: Entry, lists: Sequence[Any], skeleton: Skeleton | None, said: Adjustments) -> Category:
    title = entry.get("name", "")
    title = title if isinstance(title, str) else truncate_for_message(title)
    written = entry.get("keypoints")
    names = _clean_names(written, title, said) if isinstance(written, list) else ()
    count = guess_count(lists)
    expected = () if skeleton is None else skeleton.file_names
    if count and count == len(expected) != len(names):
        said.add(
            "derived", "names-of-skeleton", f"category {title} does not name its {count} keypoints",
            "they are those of the skeleton",
        )  # fmt: skip
        names = expected
    elif count and not names and _are_labelled(lists):
        names = tuple(f"keypoint_{number}" for number in range(1, count + 1))
        said.add(
            "derived", "numbered-keypoints", f"category {title} does not name its {count} keypoints",
            "they are keypoint_1 and so on",
        )  # fmt: skip
    return Category(title, names, _parse_edges(entry.get("skeleton"), len(names), title, said), entry.get("flip_idx"))


def _are_labelled(lists: Sequence[Any]) -> bool:
    """Whether a list has a number other than 0; tools write zeros for objects without keypoints."""
    return any(
        any(value not in (0, [0, 0, 0], [0, 0]) for value in values) for values in lists if isinstance(values, list)
    )


def _clean_names(written: Sequence[object], title: str, said: Adjustments) -> Names:
    """Names without blanks around them, each once, and none empty."""
    names: list[str] = []
    for number, value in enumerate(written, 1):
        name = (value if isinstance(value, str) else truncate_for_message(value)).strip() or f"keypoint_{number}"
        spelled = (name if copy == 1 else f"{name}_{copy}" for copy in itertools.count(1))
        names.append(next(text for text in spelled if text not in names))
    changed = [new for old, new in zip(written, names) if isinstance(old, str) and old != new]
    if changed:
        said.add(
            "derived", "keypoint-name", f"names of keypoints of {title}", "blanks and repetitions removed", changed
        )
    return tuple(names)


def _parse_edges(edges: Any, count: int, title: str, said: Adjustments) -> tuple[tuple[int, int], ...]:
    """Pairs of numbers of keypoints, from 0; COCO counts from 1, some from 0. If an edge leads to no keypoint, all are
    left out: they are those of other keypoints."""
    pairs = []
    for edge in edges if isinstance(edges, list) else []:
        ends = [canonical_id(end) for end in edge] if isinstance(edge, list) else []
        pairs.append(ends if len(ends) == 2 else [None, None])
    first = 0 if any(0 in pair for pair in pairs) else 1
    usable: dict[frozenset[int], tuple[int, int]] = {}
    lost = []
    for a, b in pairs:
        if isinstance(a, int) and isinstance(b, int) and first <= min(a, b) and max(a, b) < count + first:
            if a != b:
                usable[frozenset((a, b))] = (a - first, b - first)
        else:
            lost.append(f"{a}-{b}")
    if lost and count:
        said.add(
            "derived",
            "edges",
            f"edges of {title} that lead to no keypoint",
            "all are left out, they are those of other keypoints",
            lost,
        )
        return ()
    return tuple(usable.values())

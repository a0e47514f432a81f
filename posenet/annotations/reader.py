"""The reader of annotations: it makes the normal form of any COCO-shaped document, and lists what it did.

What other values or the image files determine is derived, single faults are left out, and only what has no right
reading is a contradiction. ``lint`` prints the list, ``fix`` writes the normal form, and all tools work on it.

``read_annotation_file`` is the order of the steps. A step that changes columns returns new ones.
"""

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, get_args

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments, Ids
from posenet.annotations.coco import (
    MAX_NUMBER,
    SECTIONS,
    AnnotationColumns,
    AnnotationFile,
    Categories,
    Category,
    CocoImage,
    Entry,
    Mask,
    read_document,
    select_sections,
)
from posenet.annotations.image_files import ImageFiles, groups_of_copies
from posenet.annotations.outlines import (
    MAX_MASK_SIDE,
    Outline,
    boxes_around,
    decode_columns,
    decode_mask,
    encode_mask,
    estimate_areas,
    parse_outline,
    polygons_to_mask,
)
from posenet.errors import ConfigError, DataError
from posenet.images import (
    ImageHeader,
    apply_orientation,
    check_image,
    has_proportions,
    read_header,
    read_image_file,
)
from posenet.messages import truncate_for_message
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton
from posenet.skeleton.known_names import canonical_names
from posenet.threads import map_in_threads, usable_cores

UNLISTED = -1
"""Row of an image or category that is not listed."""
MIRRORING = (2, 4, 5, 7)
"""EXIF orientations that mirror: what is annotated as left in the stored pixels is right in the displayed image."""
QUARTER_TURN = 5
"""This EXIF orientation and those above it swap height and width."""
IGNORED_REGIONS = ("ignore_regions_x", "ignore_regions_y")
"""PoseTrack18's polygons of an image in which people are not annotated."""
NO_CROWD = ("none", "", "0", "0.0", "false")
"""What ``iscrowd`` is where it is not set, as a text in lower case."""
MIN_EXAMPLES, MIN_PERCENT_SIDE = 20, 200
"""Percentages are recognised in so many people, if the longer side of half of the images is larger, in pixels."""
FAR_OUTSIDE = 0.1
"""Distance from the image, relative to its longer side, from which a keypoint is not labelled. The head of a person
may well be above the image."""
TINY_SHARE = 0.01
"""No object covers a smaller share of its box, but thin ones such as ropes, whose areas are above 1."""
MAX_PIXELS = 178_956_970
"""Outlines in larger images are not drawn; Pillow does not read such files by default."""
RECTANGLE_CORNERS = 9
"""An outline of at most so many corners that fills its box is that box."""


@dataclass(frozen=True, eq=False)
class _Images:
    """Columns of the N images. Those that are left out, or merged into another one, stay in the columns."""

    entries: list[Entry]
    ids: list[int]
    row_of: dict[object, int]  # by the id in the file
    names: list[str]  # paths of the files, relative to the folder
    headers: list[ImageHeader | None]  # of the files; None of those that were not read, or cannot be
    sizes: np.ndarray  # (N, 2) int64 height, width, as annotated
    turns: np.ndarray  # (N,) int64: the EXIF orientation by which the annotations are still to be turned; 1 for none
    is_kept: Mask

    def leave_out(self, code: str, is_faulty: Any, ids: Ids, adjustments: Adjustments) -> "_Images":
        """Leave out the kept ones that are faulty, unless they are many."""
        is_left_out = adjustments.leave_out_few(
            code, np.array(is_faulty, bool) & self.is_kept, ids, int(self.is_kept.sum())
        )
        return replace(self, is_kept=self.is_kept & ~is_left_out)


def read_annotation_file(
    path: str | Path,
    skeleton: Skeleton | None = None,
    *,
    folder: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    opens_images: bool = False,
    compares_files: bool = True,
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
        compares_files: take files of the same bytes for one image, not only entries of the same name.

    Raises:
        DataError: the file cannot be read or is not a COCO file.
        ConfigError: ``exif_frame`` is unknown.
    """
    if document is None:
        document = read_document(path)
    if exif_frame not in get_args(ExifFrame):
        raise ConfigError(f"exif_frame {truncate_for_message(exif_frame)} is unknown; use displayed or stored")
    sections = select_sections(document, path)
    annotations = sections["annotations"]
    adjustments = Adjustments()
    folder = None if folder is None else Path(folder)

    images = _list_images(sections["images"], adjustments)
    images = _find_files(images, folder, adjustments)
    if folder is not None:
        images = _read_files(images, folder, opens_images, adjustments)
    images = _complete_sizes(images, exif_frame, adjustments)
    images = _find_frames(
        images, {canonical_id(entry.get("image_id")) for entry in annotations}, exif_frame, adjustments
    )
    if opens_images:
        images = _compare_sizes(images, adjustments)

    categories = _read_categories(sections["categories"], annotations, skeleton, adjustments)
    images, regions = _take_ignored_regions(images, categories, adjustments)
    entries = [*annotations, *regions]

    columns = _read_annotations(entries, images, categories, adjustments)
    _compare_frames(images, columns, adjustments)
    columns = _complete_annotations(columns, images.sizes[columns.image_rows], adjustments)
    images, columns = _turn_upright(images, columns, adjustments)
    images, columns = _merge_copies(images, columns, folder if compares_files else None, adjustments)
    images = _leave_out_emptied(images, entries, columns, adjustments)
    file = AnnotationFile(
        path=path,
        others={key: value for key, value in document.items() if key not in SECTIONS},
        skeleton=skeleton,
        images=[CocoImage(*row) for row in zip(images.ids, images.names, *images.sizes.T.tolist())],
        image_entries=images.entries,
        categories=categories,
        columns=columns,
        adjustments=adjustments,
    ).select(images.is_kept)
    try:
        from posenet.annotations.checks.plausibility import find_suspicious
    except ModuleNotFoundError:  # a part of the package that may be left out
        return file
    find_suspicious(file)
    return file


# Ids


def canonical_id(value: object) -> int | str | None:
    """An id as a whole number where it is one, as in "000123" or 1.0; another text as it is; None for no id."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else text
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < 2**63 else None


def _number_ids(ids: Sequence[object]) -> list[int]:
    """Numbers in the place of ids: whole numbers that no earlier one has stay, the others get the next free ones."""
    free = itertools.count(1 + max((value for value in ids if isinstance(value, int)), default=0))
    seen: set[int] = set()
    numbers = []
    for value in ids:
        numbers.append(value if isinstance(value, int) and value not in seen else next(free))
        seen.add(numbers[-1])
    return numbers


# Images: their files, sizes and EXIF frames


def _list_images(entries: list[Entry], adjustments: Adjustments) -> _Images:
    """The images as they are written; those are left out that have no id of their own, or show what is unlabelled."""
    written = [entry.get("id") for entry in entries]
    values = [canonical_id(value) for value in written]
    names = [name if isinstance(name := entry.get("file_name"), str) else "" for entry in entries]
    sizes = np.zeros((len(entries), 2), np.int64)
    for row, entry in enumerate(entries):
        size = [canonical_id(entry.get(key)) for key in ("height", "width")]
        sizes[row] = [side if isinstance(side, int) and 0 < side <= MAX_MASK_SIDE else 0 for side in size]
    row_of: dict[object, int] = {}
    firsts = np.array([row_of.setdefault(value, row) for row, value in enumerate(values)], int)
    is_second = firsts != np.arange(len(entries))
    is_same = is_second & np.array([names[first] == name for first, name in zip(firsts.tolist(), names)], bool)
    is_unclear = np.isin(firsts, firsts[is_second & ~is_same])  # which of them is annotated
    lacks_id = np.array([value is None for value in values], bool)
    is_unlabelled = np.array([entry.get("is_labeled") is False for entry in entries], bool)
    images = _Images(
        entries=entries,
        ids=_number_ids(values),
        row_of=row_of,
        names=names,
        headers=[None] * len(entries),
        sizes=sizes,
        turns=np.ones(len(entries), np.int64),
        is_kept=np.ones(len(entries), bool),
    )
    adjustments.add_rows("derived", "text-id", [isinstance(value, str) for value in values], written)
    adjustments.add_rows("derived", "repeated-image", is_same & ~is_unclear, names)
    images = images.leave_out("image-id", is_unclear | lacks_id, names, adjustments)
    adjustments.add_rows("left out", "unlabelled-frame", is_unlabelled & images.is_kept & ~is_same, names)
    return replace(images, is_kept=images.is_kept & ~is_same & ~is_unlabelled)


def _find_files(images: _Images, folder: Path | None, adjustments: Adjustments) -> _Images:
    """Shorten or lengthen the names of files that are not in the folder to those that are.

    Labelling tools write paths on their server, or relative to another folder, and some sets only the last part. If
    two images would get the same file, both stay as they are.
    """
    found = {name: _without_way_out(name) for name in images.names}
    if folder is not None:
        for name, path in ImageFiles(folder).find_all(found).items():
            if path != folder / name:
                found[name] = path.relative_to(folder).as_posix()
    uses = Counter(found[name] for name in itertools.compress(images.names, images.is_kept))
    names = [found[name] if uses[found[name]] == 1 else name for name in images.names]
    adjustments.add_rows("derived", "paths", [old != new for old, new in zip(images.names, names)], names)
    is_no_name = [not name or not name.isprintable() or name != _without_way_out(name) for name in names]
    return replace(images, names=names).leave_out("file-name", is_no_name, images.ids, adjustments)


def _without_way_out(name: str) -> str:
    """The path itself if it stays in its folder, else without what leads out of it."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    return name if len(parts) == len(path.parts) else "/".join(parts)


def _read_files(images: _Images, folder: Path, opens_images: bool, adjustments: Adjustments) -> _Images:
    """Read the headers of the files; if they are opened, leave out those that are missing or cannot be decoded."""

    def read(row: int) -> ImageHeader | str | None:
        """The header, or what is wrong."""
        path = folder / images.names[row]
        try:
            if opens_images:
                return check_image(read_image_file(path))
            return read_header(path)
        except (OSError, ValueError, DataError) as error:
            # ``os.path.exists`` raises no error for a name that is too long.
            reason = str(error).removeprefix(f"{path} ") if os.path.exists(path) else "missing"
            return f" ({re.split(r' [(]|;', reason)[0]})"

    rows = np.flatnonzero(images.is_kept).tolist()
    workers = usable_cores()
    results = map_in_threads(read, rows, workers=workers, ahead=64 * workers)
    headers, texts = list(images.headers), list(images.names)
    is_faulty = np.zeros(len(texts), bool)
    for row, result in zip(rows, progress_bar(results, "images", len(rows), disable=not opens_images)):
        if isinstance(result, str):
            texts[row] += result
            is_faulty[row] = opens_images or not images.sizes[row].all()
        else:
            headers[row] = result
    return replace(images, headers=headers).leave_out("unreadable-file", is_faulty, texts, adjustments)


def _complete_sizes(images: _Images, exif_frame: ExifFrame, adjustments: Adjustments) -> _Images:
    """The sizes, with those of the files where none are stated."""
    sizes = images.sizes.copy()
    lacks = ~sizes.all(axis=1) & images.is_kept
    for row in np.flatnonzero(lacks).tolist():
        if header := images.headers[row]:
            sizes[row] = header.stored_size if exif_frame == "stored" else header.displayed_size
    is_read = lacks & sizes.all(axis=1)
    adjustments.add_rows("derived", "size", is_read, images.names)
    return replace(images, sizes=sizes).leave_out("image-size", lacks & ~is_read, images.names, adjustments)


def _find_frames(
    images: _Images, annotated: Collection[object], exif_frame: ExifFrame, adjustments: Adjustments
) -> _Images:
    """Find the images whose annotations are those of the stored pixels: by what they are to be turned.

    Args:
        annotated: ids of the images with annotations, as ``canonical_id`` gives them.
    """
    entries, turns = list(images.entries), images.turns.copy()
    by_setting, is_mirrored = np.zeros((2, len(entries)), bool)
    for row in np.flatnonzero(images.is_kept).tolist():
        entry, header = entries[row], images.headers[row]
        if header is None or header.orientation == 1 or entry.get("exif_frame") == "displayed":  # as in the normal form
            continue
        height, width = images.sizes[row].tolist()
        frame, is_ambiguous = _frame_of(header, (height, width), exif_frame)
        is_annotated = canonical_id(entry.get("id")) in annotated
        by_setting[row] = is_ambiguous and is_annotated
        is_mirrored[row] = frame == "stored" and is_annotated and header.orientation in MIRRORING
        if frame == "stored" and not is_mirrored[row]:
            turns[row] = header.orientation
        # What only the setting decides, and leaves as it is, may be decided otherwise later.
        if not is_ambiguous or frame == "stored":
            entries[row] = entry | {"exif_frame": "displayed"}
    adjustments.add_rows("warning", "exif-by-setting", by_setting, images.names)
    return replace(images, entries=entries, turns=turns).leave_out(
        "exif-mirrored", is_mirrored, images.names, adjustments
    )


def _frame_of(header: ImageHeader, size: tuple[int, int], exif_frame: ExifFrame) -> tuple[ExifFrame, bool]:
    """The frame of an image that is annotated as (height, width) ``size``, and whether ``exif_frame`` decides it.

    Quarter turns swap height and width, and then the size tells, or the proportions of an image that was resized. For
    others, for square images and for proportions of neither frame, ``exif_frame`` decides.
    """
    stored, displayed = header.stored_size, header.displayed_size
    is_stored, is_displayed = size == stored, size == displayed
    if not is_stored and not is_displayed:
        is_stored, is_displayed = has_proportions(stored, size), has_proportions(displayed, size)
    if is_stored == is_displayed:
        return exif_frame, True
    return ("stored" if is_stored else "displayed"), False


def _compare_sizes(images: _Images, adjustments: Adjustments) -> _Images:
    """Leave out images of other proportions than annotated."""
    texts = list(images.names)
    is_wrong, is_resized = np.zeros((2, len(texts)), bool)
    for row in np.flatnonzero(images.is_kept).tolist():
        header, annotated = images.headers[row], tuple(images.sizes[row].tolist())
        if header is None:
            continue
        size = header.displayed_size if images.turns[row] == 1 else header.stored_size
        is_resized[row] = size != annotated and has_proportions(size, annotated)
        is_wrong[row] = size != annotated and not is_resized[row]
        if size != annotated:
            texts[row] += f" ({size[1]} x {size[0]}, annotated {annotated[1]} x {annotated[0]})"
    adjustments.add_rows("derived", "resized", is_resized, texts)
    return images.leave_out("wrong-size", is_wrong, texts, adjustments)


def _compare_frames(images: _Images, columns: AnnotationColumns, adjustments: Adjustments) -> None:
    """Contradict sizes of the stored pixels if the keypoints in an image are far outside these, and not outside the
    displayed image. Label Studio exports such files in COCO's format."""
    sizes = images.sizes[columns.image_rows]
    is_turned_sideways = images.turns[columns.image_rows] >= QUARTER_TURN
    ends = columns.keypoints[..., :2].max(axis=1, where=columns.is_labelled[..., None], initial=0)
    margins = FAR_OUTSIDE * sizes.max(axis=1, keepdims=True, initial=1)
    is_outside = (ends > sizes[:, ::-1] + margins).any(axis=1) & (ends <= sizes + margins).all(axis=1)
    if (is_turned_sideways & is_outside).any():
        rows = np.unique(columns.image_rows[is_turned_sideways & is_outside]).tolist()
        adjustments.add("contradiction", "exif-size", [images.names[row] for row in rows])


def _turn_upright(
    images: _Images, columns: AnnotationColumns, adjustments: Adjustments
) -> tuple[_Images, AnnotationColumns]:
    """Turn the annotations of the stored pixels. Those of categories that are not read are left out there."""
    is_turned = (images.turns != 1) & images.is_kept
    has_people = np.isin(np.arange(len(images.names)), columns.image_rows)
    adjustments.add_rows("derived", "exif-turned", is_turned & has_people, images.names)
    is_unread = is_turned[columns.image_rows] & ~columns.is_used
    adjustments.add_rows("left out", "exif-other", is_unread, columns.ids)
    columns = columns.select(~is_unread)
    entries, outlines = list(columns.entries), list(columns.outlines)
    keypoints, boxes = columns.keypoints.copy(), columns.boxes.copy()
    for row in np.flatnonzero(is_turned[columns.image_rows]).tolist():
        image_row = columns.image_rows[row]
        orientation, size = int(images.turns[image_row]), tuple(images.sizes[image_row].tolist())
        # Keypoints count from the centre of the first pixel, boxes and outlines from its corner.
        points = _turn(keypoints[row, :, :2] + 0.5, orientation, size) - 0.5
        keypoints[row, :, :2] = np.where(keypoints[row, :, 2:] > 0, points, keypoints[row, :, :2])
        first, second = _turn(np.stack([boxes[row, :2], boxes[row, :2] + boxes[row, 2:]]), orientation, size)
        boxes[row] = *np.minimum(first, second), *np.abs(second - first)
        outline = outlines[row]
        if isinstance(outline, np.ndarray):
            mask = apply_orientation(decode_mask(outline, *size), orientation)
            outlines[row] = runs = encode_mask(mask)
            # Run lengths are written as they are in the entry.
            entries[row] = entries[row] | {"segmentation": {"size": [*mask.shape], "counts": runs.tolist()}}
        elif outline is not None:
            polygons = [np.reshape(polygon, (-1, 2)) for polygon in outline]
            outlines[row] = [_turn(polygon, orientation, size).ravel().tolist() for polygon in polygons]
    is_quarter = is_turned & (images.turns >= QUARTER_TURN)
    images = replace(images, sizes=np.where(is_quarter[:, None], images.sizes[:, ::-1], images.sizes))
    return images, replace(columns, entries=entries, keypoints=keypoints, boxes=boxes, outlines=outlines)


def _turn(points: np.ndarray, orientation: int, size: tuple[int, int]) -> np.ndarray:
    """Turn (..., 2) x, y in pixels from the corner of the stored pixels of (height, width) ``size``."""
    height, width = size
    x, y = points[..., 0], points[..., 1]
    turned = {3: (width - x, height - y), 6: (height - y, x), 8: (y, width - x)}[orientation]
    return np.stack(turned, axis=-1)


def _merge_copies(
    images: _Images, columns: AnnotationColumns, folder: Path | None, adjustments: Adjustments
) -> tuple[_Images, AnnotationColumns]:
    """Give the first of several copies of an image the people of all; copies with the same people stay as they are.

    Each of them would teach that the people of the others are not there. Copies have the same name, or, with a folder,
    files of the same bytes.
    """
    by_name: dict[PurePosixPath, list[int]] = defaultdict(list)
    files: dict[int, Path] = {}
    for row in np.flatnonzero(images.is_kept).tolist():
        # ``os.path.isfile`` raises no error for a name that is too long.
        if folder is not None and os.path.isfile(folder / images.names[row]):
            files[row] = folder / images.names[row]
        else:
            by_name[PurePosixPath(images.names[row])].append(row)
    merged_into = np.arange(len(images.names))
    for rows in (*groups_of_copies(files), *by_name.values()):
        first, *others = rows
        if not others or (images.sizes[others] != images.sizes[first]).any():
            continue
        shown = [{keypoints.tobytes() for keypoints in columns.keypoints[columns.image_rows == row]} for row in rows]
        if all(one == shown[0] for one in shown) and len({images.names[row] for row in rows}) > 1:
            continue
        merged_into[others] = first
    is_merged = merged_into != np.arange(len(images.names))
    adjustments.add_rows("derived", "copies", is_merged, images.names)
    columns = replace(columns, image_rows=merged_into[columns.image_rows])
    return replace(images, is_kept=images.is_kept & ~is_merged), columns.select(~_find_repeated(columns))


def _leave_out_emptied(
    images: _Images, entries: Sequence[Entry], columns: AnnotationColumns, adjustments: Adjustments
) -> _Images:
    """Leave out images of which no annotation is left, because they would count as images of nobody."""
    rows = {images.row_of.get(canonical_id(entry.get("image_id"))) for entry in entries}
    rows -= set(columns.image_rows.tolist())
    is_emptied = np.array([row in rows for row in range(len(images.names))], bool) & images.is_kept
    adjustments.add_rows("left out", "emptied-image", is_emptied, images.names)
    return replace(images, is_kept=images.is_kept & ~is_emptied)


# Categories


def _read_categories(
    entries: list[Entry], annotations: Sequence[Entry], skeleton: Skeleton | None, adjustments: Adjustments
) -> Categories:
    """Read the categories; names of keypoints that they lack come from the skeleton, or are numbered."""
    lists: dict[object, list[Any]] = defaultdict(list)
    for entry in annotations:
        lists[canonical_id(entry.get("category_id"))].append(entry.get("keypoints"))
    entries = list(entries)
    if not entries and any(map(_guess_count, lists.values())):
        entries = [{"id": next(iter(lists)), "name": "object"}]
        adjustments.add("derived", "no-categories")
    raw = [canonical_id(entry.get("id")) for entry in entries]
    if len(entries) == 1 and len(lists) == 1:
        lists = {raw[0]: next(iter(lists.values()))}
    parsed = [
        _parse_category(entry, lists.get(number, []), skeleton, adjustments) for entry, number in zip(entries, raw)
    ]
    row_of: dict[object, int] = {}
    is_repeated = [row_of.setdefault(number, row) != row for row, number in enumerate(raw)]
    adjustments.leave_out_few("category-id", is_repeated, [category.name for category in parsed], total=1)
    if len(entries) == 1:
        row_of[None] = 0
    expected = () if skeleton is None else skeleton.file_names
    wanted = () if skeleton is None else canonical_names(expected, skeleton.category)
    orders = {}
    for row, category in enumerate(parsed):
        known = canonical_names(category.keypoints, category.name)
        if skeleton is None or category.keypoints == expected or sorted(known) != sorted(wanted):
            continue
        orders[row] = [known.index(name) for name in wanted]
        edges = tuple((wanted.index(known[a]), wanted.index(known[b])) for a, b in category.edges)
        parsed[row] = Category(category.name, expected, edges)
        entries[row] = {key: value for key, value in entries[row].items() if key != "flip_idx"}
        adjustments.add("derived", "keypoint-order", [category.name])
    is_used = [bool(names) and (skeleton is None or names == expected) for _, names, _, _ in parsed]
    return Categories(entries, parsed, _number_ids(raw), row_of, np.array(is_used, bool), orders)


def _parse_category(
    entry: Entry, lists: Sequence[Any], skeleton: Skeleton | None, adjustments: Adjustments
) -> Category:
    title, written = _to_text(entry.get("name", "")), entry.get("keypoints")
    texts = map(_to_text, written) if isinstance(written, list) else ()
    names = tuple(text.strip() or f"keypoint_{number}" for number, text in enumerate(texts, 1))
    count = _guess_count(lists)
    expected = () if skeleton is None else skeleton.file_names
    if count and count == len(expected) != len(names):
        adjustments.add("derived", "names-of-skeleton", [f"{title}: {count}"])
        names = expected
    elif count and not names and any(map(_has_number, lists)):
        adjustments.add("derived", "numbered-keypoints", [f"{title}: {count}"])
        names = tuple(f"keypoint_{number}" for number in range(1, count + 1))
    return Category(
        title, names, _parse_edges(entry.get("skeleton"), len(names), title, adjustments), entry.get("flip_idx")
    )


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else truncate_for_message(value)


def _guess_count(lists: Sequence[Any]) -> int:
    """How many keypoints most of some lists have, nested or flat; 0 if that is not clear."""
    lengths: Counter[int] = Counter()
    for values in lists:
        if not isinstance(values, list) or not values:
            continue
        if isinstance(values[0], list):
            lengths[len(values)] += 1
        elif len(values) % 3 == 0 and set(map(type, values[2::3])) <= {int, float} and max(values[2::3]) <= 2:
            lengths[len(values) // 3] += 1
        elif len(values) % 2 == 0:
            lengths[len(values) // 2] += 1
    return max(lengths, key=lambda count: lengths[count], default=0)


def _has_number(values: Any) -> bool:
    """Whether a list has a number other than 0; tools write zeros for objects without keypoints."""
    return isinstance(values, list) and any(value not in (0, [0, 0, 0], [0, 0]) for value in values)


def _parse_edges(edges: Any, count: int, title: str, adjustments: Adjustments) -> tuple[tuple[int, int], ...]:
    """Pairs of numbers of keypoints, from 0; COCO counts from 1, some from 0.

    If an edge leads to no keypoint, all are left out: they are those of other keypoints, as in CrowdPose.
    """
    pairs: list[list[Any]] = [
        [canonical_id(end) for end in edge] if isinstance(edge, list) and len(edge) == 2 else [None, None]
        for edge in (edges if count and isinstance(edges, list) else [])
    ]
    first = 0 if any(0 in pair for pair in pairs) else 1
    numbers = range(first, count + first)
    if lost := [f"{title} {a}-{b}" for a, b in pairs if a not in numbers or b not in numbers]:
        adjustments.add("derived", "edges", lost)
        return ()
    return tuple({frozenset((a, b)): (a - first, b - first) for a, b in pairs if a != b}.values())


def _take_ignored_regions(
    images: _Images, categories: Categories, adjustments: Adjustments
) -> tuple[_Images, list[Entry]]:
    """Annotations of crowds in the place of PoseTrack18's ignored regions."""
    entries, regions = list(images.entries), []
    has_regions = np.zeros(len(entries), bool)
    for row, entry in enumerate(images.entries):
        x, y = (entry.get(key) for key in IGNORED_REGIONS)
        if not isinstance(x, list) or not isinstance(y, list) or not categories.is_used.any():
            continue
        entries[row] = {key: value for key, value in entry.items() if key not in IGNORED_REGIONS}
        if not any(isinstance(part, list) for part in (*x, *y)):
            x, y = [x], [y]  # of one region
        pairs = [pair for pair in zip(x, y) if all(isinstance(part, list) and len(part) > 2 for part in pair)]
        outlines = [list(itertools.chain(*zip(*pair))) for pair in pairs]
        has_regions[row] = images.is_kept[row] and bool(outlines)
        category = categories.entries[int(categories.is_used.argmax())].get("id")
        crowd = {"image_id": entry.get("id"), "category_id": category, "iscrowd": 1}
        regions += [crowd | {"segmentation": [outline]} for outline in outlines]
    adjustments.add_rows("derived", "ignored-regions", has_regions, images.names)
    return replace(images, entries=entries), regions


# Annotations: as they are written


def _read_annotations(
    entries: Sequence[Entry], images: _Images, categories: Categories, adjustments: Adjustments
) -> AnnotationColumns:
    """Read the annotations of the images that are kept: keypoints, boxes and areas as they are written."""
    image_rows = np.array([images.row_of.get(canonical_id(entry.get("image_id")), UNLISTED) for entry in entries], int)
    adjustments.leave_out_few("no-image", image_rows == UNLISTED, [entry.get("id") for entry in entries])
    category_rows = _find_categories(entries, categories, adjustments)
    # The row of an image that is not listed, -1, is that of the False behind the others.
    is_read = np.append(images.is_kept, False)[image_rows] & (category_rows != UNLISTED)
    rows = np.flatnonzero(is_read).tolist()
    read = [entries[row] for row in rows]
    written = [entry.get("id") for entry in read]
    raw = list(map(canonical_id, written))
    ids = np.array(_number_ids(raw), np.int64)
    is_new = [value is not None and old != new for value, old, new in zip(written, raw, ids.tolist())]
    adjustments.add_rows("derived", "annotation-id", is_new, written)
    is_used = categories.is_used[category_rows[rows]] if rows else np.zeros(0, bool)
    columns = AnnotationColumns(
        entries=read,
        ids=ids,
        image_rows=image_rows[rows],
        category_rows=category_rows[rows],
        is_used=is_used,
        is_crowd=np.array([str(entry.get("iscrowd")).lower() not in NO_CROWD for entry in read], bool),
        keypoints=np.zeros((len(read), 0, 3)),
        boxes=_to_column([entry.get("bbox") for entry in read], 4),
        areas=_to_column([[entry.get("area")] for entry in read], 1)[:, 0].clip(min=0),
        outlines=[None] * len(read),
    )
    return replace(columns, keypoints=_read_keypoints(columns, categories, adjustments))


def _find_categories(entries: Sequence[Entry], categories: Categories, adjustments: Adjustments) -> np.ndarray:
    """(A,) the rows of the categories. An unlisted one is the first of those that are used if all have the same
    keypoints."""
    ids = [entry.get("category_id") for entry in entries]
    rows = np.array([categories.row_of.get(canonical_id(value), UNLISTED) for value in ids], int)
    is_unlisted = rows == UNLISTED
    if is_unlisted.any() and categories.is_used.any() and len({one.keypoints for one in categories.parsed}) == 1:
        adjustments.add("derived", "same-category", dict.fromkeys(str(ids[row]) for row in np.flatnonzero(is_unlisted)))
        return np.where(is_unlisted, categories.is_used.argmax(), rows)
    adjustments.leave_out_few("no-such-category", is_unlisted, [entry.get("id") for entry in entries])
    return rows


def _to_numbers(values: Any) -> np.ndarray | None:
    """An array of float64, with NaN for null; None if it is not one of numbers."""
    try:
        return np.array(values, np.float64) if isinstance(values, list) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _to_column(lists: list[Any], width: int) -> np.ndarray:
    """(A, width) numbers; zeros for what has no such numbers."""
    arrays = map(_to_numbers, lists)
    rows = [array if array is not None and array.shape == (width,) else np.zeros(width) for array in arrays]
    column = np.reshape(rows, (len(lists), width))
    column[~(abs(column) < MAX_NUMBER).all(axis=1)] = 0
    return column


def _read_keypoints(columns: AnnotationColumns, categories: Categories, adjustments: Adjustments) -> np.ndarray:
    """(A, K, 3) the keypoints, in the order of the skeleton, with a visibility of 0, 1 or 2."""
    counts = [len(category.keypoints) for category in categories.parsed]
    most = max(itertools.compress(counts, categories.is_used), default=1)
    keypoints = np.zeros((len(columns.ids), most, 3))
    is_wrong, is_pair = np.zeros((2, len(columns.ids)), bool)
    for row in np.flatnonzero(columns.is_used).tolist():
        entry, count = columns.entries[row], counts[columns.category_rows[row]]
        # HumanArt has the keypoints of its 21 names in ``keypoints_21``, beside COCO's.
        if not (written := entry.get(f"keypoints_{count}") or entry.get("keypoints")):
            continue
        values = _to_numbers(written)
        if values is None or values.shape not in ((3 * count,), (count, 3), (2 * count,), (count, 2)):
            is_wrong[row] = True
            continue
        points = values.reshape(count, -1)
        keypoints[row, :count, : points.shape[1]] = points
        is_pair[row] = points.shape[1] == 2
    is_at_zero = (keypoints[..., :2] == 0).all(axis=2)
    keypoints[is_pair, :, 2] = np.where(is_at_zero[is_pair], 0, 2)
    adjustments.leave_out_few("keypoint-values", is_wrong, columns.ids)
    adjustments.add_rows("derived", "no-visibility", is_pair, columns.ids)
    is_number = np.asarray((abs(keypoints) < MAX_NUMBER).all(axis=2))
    adjustments.add_rows("derived", "no-number", (~is_number).any(axis=1), columns.ids)
    keypoints[~is_number] = 0
    visibility = keypoints[..., 2]
    is_other = ~np.isin(visibility, (0, 1, 2))
    adjustments.add_rows("derived", "visibility", is_other.any(axis=1), columns.ids)
    keypoints[..., 2] = np.where(is_other, 2 * (visibility > 0), visibility)
    for category_row, order in categories.orders.items():
        is_own = columns.category_rows == category_row
        keypoints[is_own, : len(order)] = keypoints[is_own][:, order]
    return keypoints


# Annotations: what other values determine


def _complete_annotations(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    """Leave out what is not in pixels of the images, compute what is missing, leave out what nothing determines.

    ``sizes`` are (A, 2) height, width of the images.
    """
    columns = _unlabel_fractions(columns, sizes, adjustments)
    columns = _unlabel(columns, sizes, adjustments)
    columns = _parse_outlines(columns, sizes, adjustments)
    columns = _complete_boxes(columns, sizes, adjustments)
    columns = _complete_areas(columns, sizes, adjustments)
    stated = [entry.get("num_keypoints") for entry in columns.entries]
    differs = [value is not None and value != count for value, count in zip(stated, columns.num_labelled.tolist())]
    adjustments.add_rows("derived", "num-keypoints", columns.is_used & np.array(differs, bool), columns.ids)
    is_empty = columns.is_used & ~columns.boxes.any(axis=1)
    is_repeated = _find_repeated(columns)
    adjustments.add_rows("left out", "empty-annotation", is_empty, columns.ids)
    adjustments.add_rows("left out", "same-keypoints", is_repeated, columns.ids)
    return columns.select(~(is_empty | is_repeated))


def _unlabel_fractions(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    """Unlabel single people in fractions of their image. Many of them, and percentages, are a contradiction."""
    people = columns.is_object & (columns.num_labelled >= 2)
    points = columns.keypoints[..., :2]
    ends = points.max(axis=(1, 2), where=columns.is_labelled[..., None], initial=0)
    in_unit = ((points >= 0) & (points <= 1)).all(axis=2)
    is_fraction = people & (in_unit | ~columns.is_labelled).all(axis=1) & (ends > 0)
    is_single = adjustments.leave_out_few("normalised", is_fraction, columns.ids)
    if people.sum() >= MIN_EXAMPLES and not is_fraction.any():
        are_large = np.median(sizes[people].max(axis=1)) > MIN_PERCENT_SIDE
        if are_large and ends[people].max() <= 100:
            adjustments.add("contradiction", "percent")
    return replace(columns, keypoints=np.where(is_single[:, None, None], 0, columns.keypoints))


def _unlabel(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    """Unlabel single keypoints that are far outside their image, or at (0, 0)."""
    points = columns.keypoints[..., :2]
    is_at_zero = columns.is_labelled & (points == 0).all(axis=2)
    adjustments.add_rows("derived", "labelled-at-zero", is_at_zero.any(axis=1), columns.ids)
    distance = np.maximum(-points, points - sizes[:, None, ::-1]).max(axis=2)
    is_far = columns.is_labelled & ~is_at_zero
    is_far &= distance > FAR_OUTSIDE * sizes.max(axis=1, keepdims=True, initial=1)
    is_single = adjustments.leave_out_few("outside", is_far.any(axis=1), columns.ids, int(columns.is_object.sum()))
    is_removed = is_at_zero | is_far & is_single[:, None]
    return replace(columns, keypoints=np.where(is_removed[..., None], 0, columns.keypoints))


def _parse_outlines(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    parsed = [
        parse_outline(entry.get("segmentation"), *size) if is_used else (None, False)
        for entry, size, is_used in zip(columns.entries, sizes.tolist(), columns.is_used)
    ]
    adjustments.add_rows("derived", "damaged-outline", [is_damaged for _, is_damaged in parsed], columns.ids)
    return replace(columns, outlines=[outline for outline, _ in parsed])


def _complete_boxes(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    """Compute boxes that are missing or empty, from outlines or else from keypoints; zeros where both are missing."""
    lacks = columns.is_used & ~(columns.boxes[:, 2:] > 0).all(axis=1)
    boxes = np.where(lacks[:, None], 0, columns.boxes)
    for row in np.flatnonzero(lacks).tolist():
        boxes[row] = _box_of_outline(columns.outlines[row], *sizes[row].tolist())
        points = columns.keypoints[row, columns.keypoints[row, :, 2] > 0, :2]
        if not boxes[row].any() and len(points):
            low, sides = points.min(axis=0), np.ptp(points, axis=0)
            boxes[row] = *low, *(sides if sides.all() else sides.clip(min=1))
    adjustments.add_rows("derived", "no-box", lacks & boxes.any(axis=1), columns.ids)
    return replace(columns, boxes=boxes)


def _box_of_outline(outline: Outline, height: int, width: int) -> np.ndarray:
    """x, y, width, height around an outline; zeros if it is empty."""
    if isinstance(outline, list):
        points = np.concatenate([np.reshape(polygon, (1, -1, 2)) for polygon in outline], axis=1, dtype=np.float64)
        return np.asarray(boxes_around(points, np.ones(points.shape[:2], bool))[0])
    if outline is None or not outline[1::2].any() or height * width > MAX_PIXELS:
        return np.zeros(4)
    return np.array(cv2.boundingRect(np.ascontiguousarray(decode_columns(outline, height, width).T)), np.float64)


def _complete_areas(columns: AnnotationColumns, sizes: np.ndarray, adjustments: Adjustments) -> AnnotationColumns:
    """Compute areas that are missing, far too small, or those of whole boxes, from outlines or else from boxes."""
    box_areas = columns.boxes[:, 2:].prod(axis=1)
    is_tiny = columns.areas <= np.minimum(TINY_SHARE * box_areas, 1)
    is_whole = abs(columns.areas / box_areas.clip(min=1e-9) - 1) < 1e-3
    is_wrong = (columns.areas == 0) | ((is_tiny | is_whole) & ~columns.is_crowd)
    areas = columns.areas.copy()
    estimates = estimate_areas(columns.boxes, boxes_around(columns.keypoints[..., :2], columns.is_labelled))
    from_outline = np.zeros(len(areas), bool)
    for row in np.flatnonzero(columns.is_used & columns.boxes.any(axis=1) & is_wrong).tolist():
        outline = columns.outlines[row]
        area = _area_of_outline(outline, *sizes[row].tolist())
        is_box = isinstance(outline, list) and sum(map(len, outline)) <= 2 * RECTANGLE_CORNERS
        from_outline[row] = area > 0 and not (is_box and area > 0.95 * box_areas[row])
        areas[row] = area if from_outline[row] else estimates[row]
    is_new = ~columns.is_crowd & (areas != columns.areas)
    adjustments.add_rows("derived", "outline-area", is_new & from_outline, columns.ids)
    adjustments.add_rows("derived", "box-area", is_new & ~from_outline, columns.ids)
    return replace(columns, areas=areas)


def _area_of_outline(outline: Outline, height: int, width: int) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas; 0 without one."""
    if outline is None or height * width > MAX_PIXELS:
        return 0.0
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, height, width).sum())
    return float(outline[1::2].sum())


def _find_repeated(columns: AnnotationColumns) -> Mask:
    """(A,) bool: people with exactly the keypoints of an earlier one in their image."""
    is_repeated = np.zeros(len(columns.ids), bool)
    seen: set[tuple[int, bytes]] = set()
    for row in np.flatnonzero(columns.is_labelled_person).tolist():
        person = int(columns.image_rows[row]), columns.keypoints[row].tobytes()
        is_repeated[row] = person in seen
        seen.add(person)
    return is_repeated

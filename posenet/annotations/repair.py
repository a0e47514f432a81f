"""Repairs of a COCO keypoint file: missing and malformed values that other values or the image files determine; and
leaving out what nothing determines.

A repair changes the entries of an ``AnnotationFile`` in place, and counts its changes in ``fixes`` by what was done.
After a change, the columns of the file are outdated. No keypoint is ever added.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from pathlib import PureWindowsPath

import cv2
import numpy as np

from posenet.annotations.coco import MAX_NUMBER, AnnotationFile, Mask, is_file, is_integer, is_side
from posenet.annotations.outlines import (
    SHARE_OF_BOX,
    SHARE_OF_KEYPOINT_BOX,
    Outline,
    are_around,
    boxes_around,
    decode_columns,
    polygons_to_mask,
)
from posenet.errors import DataError
from posenet.images import MAX_PIXELS, read_header

TINY_SHARE = 0.01
"""No object covers a smaller share of its box, but thin ones such as ropes, whose areas are above 1."""


def number_annotations(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Give annotations without an id of their own, a whole number, the next free ones. Nothing refers to these ids."""
    ids = file.annotation_ids
    free = itertools.count(1 + max(filter(is_integer, ids.values), default=0))
    for row in np.flatnonzero(~ids.is_usable).tolist():
        file.annotations[row]["id"] = next(free)
        fixes["annotations numbered"] += 1


def shorten_paths(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Shorten the paths of missing files to their longest end that is a file in the folder, with / between its parts.

    Labelling tools write paths on their server, or relative to another folder. If two images would get the same file,
    both stay as they are.
    """
    if file.folder is None:
        return
    written = ((row, entry.get("file_name")) for row, entry in enumerate(file.images))
    names = {row: name for row, name in written if isinstance(name, str)}
    found = {row: next((end for end in _ends(name) if is_file(file.folder, end)), name) for row, name in names.items()}
    uses = Counter(found.values())
    for row, name in found.items():
        if uses[name] == 1 and name != names[row]:
            file.images[row]["file_name"] = name
            fixes["paths shortened to the part that exists in the image folder"] += 1


def _ends(name: str) -> list[str]:
    """The path itself if it stays in its folder; then its ends, the longest first, with / between their parts."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    own = [name] if len(parts) == len(path.parts) else []
    return own + ["/".join(parts[start:]) for start in range(len(parts))]


def complete_sizes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Read missing sizes from the files, in the frame of the setting. A side that contradicts the file stays."""
    for row in np.flatnonzero(~file.has_size).tolist():
        entry = file.images[row]
        size = _size_of_file(file, entry.get("file_name"))
        known = {key: entry[key] for key in size if is_side(entry.get(key))}
        if size and known.items() <= size.items():
            entry.update(size)
            fixes["sizes of images read from the files"] += 1


def _size_of_file(file: AnnotationFile, name: object) -> dict[str, int]:
    """The height and the width of an image's file, in the frame of the setting; empty if it cannot be read."""
    if file.folder is None or not isinstance(name, str):
        return {}
    try:
        header = read_header(file.folder / name)
    except DataError:
        return {}
    size = header.stored_size if file.exif_frame == "stored" else header.displayed_size
    return dict(zip(("height", "width"), size))


def compute_boxes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute boxes that are missing, or whose width or height is not above 0."""
    around_keypoints = boxes_around(file.points, file.is_labelled)
    for row in np.flatnonzero(~file.has_box).tolist():
        if (box := _box_of_outline(file, row)).any():
            fixes["boxes computed from outlines"] += 1
        elif (box := around_keypoints[row]).any():
            fixes["boxes computed from keypoints"] += 1
        else:
            continue
        file.annotations[row]["bbox"] = box.tolist()


def compute_areas(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute missing areas, those that are not above 0 or far too small, and those of whole boxes."""
    has_area = file.areas.is_usable & (file.areas.values > 0) & ~areas_of_boxes(file) & ~tiny_areas(file)
    is_around_keypoints = _are_around_keypoints(file)
    for row in np.flatnonzero(~has_area).tolist():
        area = _area_of_outline(file, row)
        done = "areas computed from outlines"
        if area <= 0 and file.has_box[row]:
            share, box = SHARE_OF_BOX, "their box"
            if is_around_keypoints[row]:
                share, box = SHARE_OF_KEYPOINT_BOX, "the box around their keypoints"
            area = share * float(file.boxes.values[row, 2:].prod())
            done = f"areas of annotations without an outline estimated, as {share} of {box} (COCO's median)"
        if 0 < area < MAX_NUMBER:
            file.annotations[row]["area"] = area
            fixes[done] += 1


def tiny_areas(file: AnnotationFile) -> Mask:
    """(A,) bool: the area is above 0, but at most 1 and less than ``TINY_SHARE`` of the box: a share of the image."""
    limits = np.minimum(TINY_SHARE * file.boxes.values[:, 2:].prod(axis=1), 1)
    is_area = file.areas.is_usable & (file.areas.values > 0) & (file.areas.values <= limits)
    return file.is_used & ~file.is_crowd & file.has_box & is_area


def areas_of_boxes(file: AnnotationFile) -> Mask:
    """(A,) bool: the area is that of the whole box, though nothing says that the object fills it.

    Objects with an outline, crowds, and boxes around the keypoints, which are smaller, are left out.
    """
    box_areas = file.boxes.values[:, 2:].prod(axis=1)
    is_whole = file.has_box & file.areas.is_usable & (abs(file.areas.values / box_areas.clip(min=1) - 1) < 1e-3)
    found = is_whole & file.is_used & ~file.is_crowd & file.has_image & ~_are_around_keypoints(file)
    return found & np.array([outline is None for outline in file.outlines.values], bool)


def _are_around_keypoints(file: AnnotationFile) -> Mask:
    """(A,) bool: the box is the one around the labelled keypoints."""
    is_around = are_around(file.boxes.values, boxes_around(file.points, file.is_labelled))
    return file.has_box & file.is_labelled_person & is_around


def _outline_to_draw(file: AnnotationFile, row: int) -> Outline:
    """The outline of an annotation; None if it cannot be used, or the image is too large to draw it."""
    return file.outlines.values[row] if file.sizes_of_annotations[row].prod() <= MAX_PIXELS else None


def _box_of_outline(file: AnnotationFile, row: int) -> np.ndarray:
    """x, y, width, height around an outline; zeros if it is empty."""
    outline = _outline_to_draw(file, row)
    if isinstance(outline, list):
        points = np.concatenate([np.reshape(polygon, (1, -1, 2)) for polygon in outline], axis=1, dtype=np.float64)
        return np.asarray(boxes_around(points, np.ones(points.shape[:2], bool))[0])
    if outline is None or not outline[1::2].any():
        return np.zeros(4)
    mask = np.ascontiguousarray(decode_columns(outline, *file.sizes_of_annotations[row].tolist()).T)
    return np.array(cv2.boundingRect(mask), np.float64)


def _area_of_outline(file: AnnotationFile, row: int) -> float:
    """Pixels of the image that an outline covers, as COCO measures areas."""
    outline = _outline_to_draw(file, row)
    if isinstance(outline, list):
        return float(polygons_to_mask(outline, *file.sizes_of_annotations[row].tolist()).sum())
    return 0.0 if outline is None else float(outline[1::2].sum())


def count_keypoints(file: AnnotationFile, fixes: Counter[str]) -> None:
    for row in np.flatnonzero(file.has_keypoints & file.keypoints.is_usable).tolist():
        count = int(file.num_labelled[row])
        if file.annotations[row].get("num_keypoints") != count:
            file.annotations[row]["num_keypoints"] = count
            fixes["num_keypoints counted"] += 1


def leave_out(
    file: AnnotationFile, images: Collection[int], annotations: Collection[int], keypoints: Collection[int]
) -> list[str]:
    """Leave out images with all annotations of their ids; annotations; and only the keypoints of some, whose places the
    loss and the evaluation then ignore. The arguments are rows.

    An image that loses its last annotation goes too, because training would take it for one of nobody; the names of
    these images are returned.
    """
    for row in keypoints:
        del file.annotations[row]["keypoints"]
        file.annotations[row]["num_keypoints"] = 0
    ids = {_key(file.images[row].get("id")) for row in images}
    annotated = {_key(entry.get("image_id")) for entry in file.annotations} - ids
    file.annotations[:] = [
        entry
        for row, entry in enumerate(file.annotations)
        if row not in annotations and _key(entry.get("image_id")) not in ids
    ]
    emptied = annotated - {_key(entry.get("image_id")) for entry in file.annotations}
    names = [str(entry.get("file_name")) for entry in file.images if _key(entry.get("id")) in emptied]
    file.images[:] = [entry for entry in file.images if _key(entry.get("id")) not in ids | emptied]
    return names


def _key(value: object) -> str:
    """A text that tells the ids "7", 7 and 7.0 apart; "" for a value that is no id."""
    return repr(value) if isinstance(value, (str, int, float)) else ""

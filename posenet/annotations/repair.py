"""Repairs of a COCO keypoint file: missing and malformed values that other values or the image files determine; and
leaving out what nothing determines.

A repair changes the entries of an ``AnnotationFile`` in place, and counts its changes in ``fixes`` by what was done.
After a change, the columns of the file are outdated. No keypoint is ever added.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import cv2
import numpy as np

from posenet.annotations.coco import MAX_NUMBER, AnnotationFile, Mask, is_file, is_integer, is_side, whole_number
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
from posenet.images import MAX_PIXELS, AnnotatedFrame, read_header

EDGE_MARGIN = 1.0
"""Keypoints at most this far outside the image, in pixels, are at its edge: coordinates are rounded."""

NEARLY_ALL = 0.9
"""If at least this share of the people have the box around their keypoints, all boxes of the file are taken for such:
the others were cut off at the border, or lost a keypoint."""

TINY_SHARE = 0.01
"""No object covers a smaller share of its box, but thin ones such as ropes, whose areas are above 1."""

_REFERENCES = {"images": "image_id", "categories": "category_id", "annotations": ""}
"""The keys by which annotations refer to the entries of a section."""


def number_ids(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn the ids "7" and 7.0 into 7, and other ids that are no whole numbers, or repeated, into free numbers.

    References follow. An image or a category stays as it is if another one has its number, or if its id is repeated and
    annotations refer to it: nothing says to which one.
    """
    done = "ids and references turned into whole numbers, each id once"
    for section, reference in _REFERENCES.items():
        entries = file.sections[section]
        ids = [entry.get("id") for entry in entries]
        taken = {value for value in ids if is_integer(value)}
        free = itertools.count(1 + max((number for value in ids if (number := whole_number(value))), default=0))
        references = {_key(entry.get(reference)) for entry in file.annotations}
        numbers: dict[str, int] = {}
        seen: set[str] = set()
        for entry, value in zip(entries, ids):
            key = _key(value)
            is_repeated = key in seen
            seen.add(key)
            if is_integer(value) and not is_repeated:
                continue
            if reference and (not key or (is_repeated and key in references)):
                continue  # nothing can refer to it, or nothing says which one is meant
            number = None if is_integer(value) else whole_number(value)
            if number in taken and reference:
                continue
            if number is None or number in taken:
                number = next(free)
            taken.add(number)
            numbers.setdefault(key, number)
            entry["id"] = number
            fixes[done] += 1
        present = {_key(entry.get("id")) for entry in entries}
        for entry in file.annotations if reference else ():
            value = entry.get(reference)
            if isinstance(value, (str, float)) and _key(value) not in present:
                number = numbers.get(_key(value), whole_number(value))
                if number is not None and _key(number) in present:
                    entry[reference] = number
                    fixes[done] += 1


def _key(value: object) -> str:
    """A text that tells the ids "7", 7 and 7.0 apart; "" for a value that is no id."""
    return repr(value) if isinstance(value, (str, int, float)) else ""


def merge_images_of_a_file(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Move the annotations of later entries of a file to its first one, if they have the same size."""
    first: dict[tuple[str, tuple[int, int]], int] = {}
    kept_id: dict[str, int] = {}
    for row in np.flatnonzero(file.image_is_usable).tolist():
        entry = file.images[row]
        content = str(PurePosixPath(file.file_names[row])), (entry["height"], entry["width"])
        kept = first.setdefault(content, entry["id"])
        if kept != entry["id"]:
            kept_id[_key(entry["id"])] = kept
    for entry in file.annotations:
        entry_id = _key(entry.get("image_id"))
        if entry_id in kept_id:
            entry["image_id"] = kept_id[entry_id]
    file.images[:] = [entry for entry in file.images if _key(entry.get("id")) not in kept_id]
    if kept_id:
        fixes["images with the file of an earlier one merged with it"] += len(kept_id)


def shorten_paths(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Shorten the paths of missing files to their longest end that is a file in the folder, with / between its parts.

    Labelling tools write paths on their server, or relative to another folder. If no end is a file, one that differs
    from a single file in upper and lower case only becomes its name. If two images would get the same file, both stay
    as they are.
    """
    if file.folder is None:
        return
    named = [(row, name) for row, entry in enumerate(file.images) if isinstance(name := entry.get("file_name"), str)]
    ends = {row: _ends(name) for row, name in named}
    found = {row: next((end for end in ends[row] if is_file(file.folder, end)), "") for row in ends}
    without_file = [row for row, name in found.items() if not name]
    files = files_by_folded_path(file.folder) if without_file else {}
    for row in without_file:
        same = next((files[end.casefold()] for end in ends[row] if end.casefold() in files), [])
        found[row] = same[0] if len(same) == 1 else ""
    uses = Counter(found.values())
    for row, name in found.items():
        if name and uses[name] == 1 and name != file.images[row]["file_name"]:
            file.images[row]["file_name"] = name
            if row in without_file:
                fixes["file names written in the upper and lower case of the file"] += 1
            else:
                fixes["paths shortened to the part that exists in the image folder"] += 1


def files_by_folded_path(folder: Path) -> dict[str, list[str]]:
    """The files at any depth of a folder, relative to it, by their paths without case."""
    files: dict[str, list[str]] = {}
    for root, _, names in os.walk(folder):
        for path in (PurePath(root, name).relative_to(folder).as_posix() for name in names):
            files.setdefault(path.casefold(), []).append(path)
    return files


def _ends(name: str) -> list[str]:
    """The path itself if it stays in its folder; then its ends, the longest first, with / between their parts."""
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    own = [name] if len(parts) == len(path.parts) else []
    return own + ["/".join(parts[start:]) for start in range(len(parts))]


def complete_sizes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn the sides "640" and 640.0 into 640, and read missing ones from the file, in the frame of the setting."""
    for row in np.flatnonzero(~file.has_size).tolist():
        entry = file.images[row]
        sides = {key: whole_number(entry.get(key)) for key in ("height", "width")}
        known = {key: side for key, side in sides.items() if is_side(side)}
        if len(known) < 2:
            size = _size_of_file(file, entry.get("file_name"))
            known = size if known.items() <= size.items() else {}
        if known:
            entry.update(known)
            fixes["images with width and height in whole numbers, or read from the file"] += 1


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


def swap_sizes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Swap width and height of images that are annotated as displayed, but have the size of the stored pixels.

    The keypoints show it: some lie outside the stored pixels, but inside the displayed image. Then all images with an
    orientation that swaps height and width are corrected, unless the keypoints of one contradict.
    """
    if not fits_only_displayed(file).any():
        return
    sideways = _sideways_images(file)
    sizes = file.sizes_of_annotations
    fits_only_stored = are_inside(file, sizes) & ~are_inside(file, sizes[:, ::-1])
    if (fits_only_stored & np.isin(file.image_rows, sideways)).any():
        return
    for row in sideways:
        entry = file.images[row]
        entry["height"], entry["width"] = entry["width"], entry["height"]
        fixes["images with an EXIF orientation with width and height swapped to those of the displayed image"] += 1


def fits_only_displayed(file: AnnotationFile) -> Mask:
    """(A,) bool: the image has the size of its stored pixels, but the keypoints fit only the displayed image."""
    sizes = file.sizes_of_annotations
    found = ~are_inside(file, sizes) & are_inside(file, sizes[:, ::-1])
    if found.any():  # else no file has to be opened
        found &= np.isin(file.image_rows, _sideways_images(file))
    return found


def _sideways_images(file: AnnotationFile) -> list[int]:
    """The rows of images with the size of their stored pixels, whose height and width viewers swap."""
    return [row for row, check in file.file_checks.items() if check.frame == AnnotatedFrame(1, "size")]


def are_inside(file: AnnotationFile, sizes: np.ndarray) -> Mask:
    """(A,) bool: all labelled keypoints are in an image of (A, 2) height, width, or at its edge."""
    is_inside = ((file.points >= -EDGE_MARGIN) & (file.points <= sizes[:, None, ::-1] + EDGE_MARGIN)).all(axis=2)
    return (is_inside | ~file.is_labelled).all(axis=1)


def make_hidden_visible(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn visibility 1 into 2 if no keypoint of the file has another one than 0 and 1: some tools mean labelled."""
    rows = np.flatnonzero(file.has_keypoints & file.keypoints.is_usable)
    visibilities = file.keypoints.values[rows, :, 2]
    if not np.isin(visibilities, (0, 1)).all() or not visibilities.any():
        return
    for row in rows.tolist():
        values = file.annotations[row]["keypoints"]
        values[2::3] = [2 if visibility == 1 else visibility for visibility in values[2::3]]
    fixes["visibilities 1 turned into 2, because no keypoint has 2"] += int(visibilities.sum())


def compute_boxes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute missing and empty boxes. Those with negative sizes are left: they may be two corners."""
    sides = file.boxes.values[:, 2:]
    is_box = file.boxes.is_usable & ((sides != 0).all(axis=1) | (sides < 0).any(axis=1))
    around_keypoints = boxes_around(file.points, file.is_labelled)
    for row in np.flatnonzero(~is_box).tolist():
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
    """(A,) bool: the box is the one around the labelled keypoints. If nearly all are, all count as such."""
    is_person = file.has_box & file.is_labelled_person
    is_around = is_person & are_around(file.boxes.values, boxes_around(file.points, file.is_labelled))
    has_several = is_person & (file.num_labelled >= 2)
    return is_person if has_several.any() and is_around[has_several].mean() >= NEARLY_ALL else is_around


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


def drop_images(file: AnnotationFile, rows: Iterable[int]) -> None:
    """Leave out images, and all images and annotations with their ids."""
    gone = {_key(file.images[row].get("id")) for row in rows}
    file.images[:] = [entry for entry in file.images if _key(entry.get("id")) not in gone]
    file.annotations[:] = [entry for entry in file.annotations if _key(entry.get("image_id")) not in gone]


def drop_annotations(file: AnnotationFile, rows: Iterable[int]) -> None:
    gone = set(rows)
    file.annotations[:] = [entry for row, entry in enumerate(file.annotations) if row not in gone]


def drop_emptied_images(file: AnnotationFile, with_annotations: Iterable[int]) -> list[str]:
    """Leave out those of some images that have no annotation any more; return their names."""
    present = {file.image_ids.values[row] for row in file.image_rows[file.has_image].tolist()}
    gone = set(with_annotations) - present
    rows = [row for row in np.flatnonzero(file.image_is_usable).tolist() if file.image_ids.values[row] in gone]
    names = [file.file_names[row] for row in rows]
    drop_images(file, rows)
    return names


def drop_keypoints(file: AnnotationFile, rows: Iterable[int]) -> None:
    """Leave out the keypoints of people, whose places the loss and the evaluation then ignore."""
    for row in rows:
        del file.annotations[row]["keypoints"]
        file.annotations[row]["num_keypoints"] = 0

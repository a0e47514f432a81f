"""Repairs of a COCO keypoint file: missing and malformed values that other values or the image files determine; and
leaving out what nothing determines.

A repair changes the entries of an ``AnnotationFile`` in place, and counts its changes in ``fixes`` by what was done.
After a change, the columns of the file are outdated. No keypoint is ever added.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import cv2
import numpy as np

from posenet.annotations.coco import MAX_NUMBER, AnnotationFile, Mask, is_file, is_integer, is_side, whole_number
from posenet.annotations.people import (
    BOX_TOLERANCE,
    SHARE_OF_BOX,
    SHARE_OF_KEYPOINT_BOX,
    Outline,
    box_of_points,
    polygons_to_mask,
)
from posenet.annotations.run_lengths import decode_columns
from posenet.errors import DataError
from posenet.images import MAX_PIXELS, AnnotatedFrame, read_header

EDGE_MARGIN = 1.0
"""Keypoints at most this far outside the image, in pixels, are at its edge: coordinates are rounded."""

NEARLY_ALL = 0.9
"""If at least this share of the people have the box around their keypoints, all boxes of the file are taken for such:
the others were cut off at the border, or lost a keypoint."""

_REFERENCES = {"images": "image_id", "categories": "category_id", "annotations": ""}
"""The keys by which annotations refer to the entries of a section."""


def number_ids(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn the ids "7" and 7.0 into 7, and other ids that are no whole numbers, or repeated, into free numbers.

    References follow. An image or a category stays as it is if another one has its number, or if its id is repeated and
    annotations refer to it: nothing says to which one. Ids are compared by their ``repr``, because "7", 7 and 7.0 are
    different ids.
    """
    for section, reference in _REFERENCES.items():
        entries = file.sections[section]
        ids = [entry.get("id") for entry in entries]
        taken = {value for value in ids if is_integer(value)}
        free = itertools.count(1 + max((number for value in ids if (number := whole_number(value))), default=0))
        references = {repr(value) for entry in file.annotations if _is_scalar(value := entry.get(reference))}
        numbers: dict[str, int] = {}
        seen: set[str] = set()
        for entry, value in zip(entries, ids):
            key = repr(value) if _is_scalar(value) else ""
            is_repeated = key in seen
            seen.add(key)
            if (is_integer(value) and not is_repeated) or (reference and is_repeated and key in references):
                continue
            if reference and not isinstance(value, (str, int, float)):
                continue  # nothing can refer to it
            number = None if is_integer(value) else whole_number(value)
            if number in taken and reference:
                continue
            if number is None or number in taken:
                number = next(free)
            taken.add(number)
            numbers.setdefault(key, number)
            entry["id"] = number
            fixes["ids and references turned into whole numbers, each id once"] += 1
        present = {repr(entry["id"]) for entry in entries if _is_scalar(entry.get("id"))}
        for entry in file.annotations if reference else ():
            value = entry.get(reference)
            if isinstance(value, (str, float)) and repr(value) not in present:
                number = numbers.get(repr(value), whole_number(value))
                if number is not None and repr(number) in present:
                    entry[reference] = number
                    fixes["ids and references turned into whole numbers, each id once"] += 1


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float))


def merge_images_of_a_file(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Move the annotations of later entries of a file to its first one, if they have the same size."""
    first: dict[tuple[str, tuple[int, int]], int] = {}
    kept_id: dict[int, int] = {}
    for row in np.flatnonzero(file.image_is_usable).tolist():
        entry = file.images[row]
        content = str(PurePosixPath(file.file_names[row])), (entry["height"], entry["width"])
        kept_id[entry["id"]] = first.setdefault(content, entry["id"])
    merged = {image_id for image_id, kept in kept_id.items() if kept != image_id}
    if not merged:
        return
    for entry in file.annotations:
        if is_integer(entry.get("image_id")) and entry["image_id"] in merged:
            entry["image_id"] = kept_id[entry["image_id"]]
    file.images[:] = [entry for entry in file.images if not (is_integer(entry.get("id")) and entry["id"] in merged)]
    fixes["images with the file of an earlier one merged with it"] += len(merged)


def shorten_paths(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Shorten the paths of missing files to their longest end that is a file in the folder, with / between its parts.

    Labelling tools write paths on their server, or relative to another folder. If no end is a file, one that differs
    from a single file in upper and lower case only becomes its name. If two images would get the same file, both stay
    as they are.
    """
    found = [_longest_end(entry.get("file_name"), file.folder) for entry in file.images]
    other_case = _other_case(file, [row for row, name in enumerate(found) if name is None])
    uses = Counter([*found, *other_case.values()])
    for row, (entry, name) in enumerate(zip(file.images, found)):
        name = name or other_case.get(row)
        if name is not None and uses[name] == 1 and name != entry["file_name"]:
            entry["file_name"] = name
            if row in other_case:
                fixes["file names written in the upper and lower case of the file"] += 1
            else:
                fixes["paths shortened to the part that exists in the image folder"] += 1


def _other_case(file: AnnotationFile, rows: Sequence[int]) -> dict[int, str]:
    """The only files whose paths differ from the longest ends of those of images in case only, by rows of images."""
    names = {row: name for row in rows if isinstance(name := file.images[row].get("file_name"), str)}
    if file.folder is None or not names:
        return {}
    files: dict[str, list[str]] = {}
    for root, _, own in os.walk(file.folder):
        for path in (PurePath(root, name).relative_to(file.folder).as_posix() for name in own):
            files.setdefault(path.casefold(), []).append(path)
    found = {}
    for row, name in names.items():
        same = next((files[end.casefold()] for end in _ends(name) if end.casefold() in files), [])
        if len(same) == 1:
            found[row] = same[0]
    return found


def _longest_end(name: object, folder: Path | None) -> str | None:
    """The longest end of a path that is a file in the folder."""
    if not isinstance(name, str):
        return None
    path = PureWindowsPath(name)  # which also splits at /
    if is_file(folder, name) and not path.anchor and ".." not in path.parts:
        return name
    return next((end for end in _ends(name) if is_file(folder, end)), None)


def _ends(name: str) -> list[str]:
    """The ends of a path, the longest first, with / between their parts."""
    path = PureWindowsPath(name)
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    return ["/".join(parts[start:]) for start in range(len(parts))]


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
    if file.folder is None or not isinstance(name, str) or not is_file(file.folder, name):
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
    points = file.keypoints.values[..., :2]
    is_inside = ((points >= -EDGE_MARGIN) & (points <= sizes[:, None, ::-1] + EDGE_MARGIN)).all(axis=2)
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
    for row in np.flatnonzero(~is_box).tolist():
        if (box := _box_of_outline(file, row)) is not None:
            fixes["boxes computed from outlines"] += 1
        elif (box := box_of_points(_labelled_points(file, row))) is not None:
            fixes["boxes computed from keypoints"] += 1
        else:
            continue
        file.annotations[row]["bbox"] = box


def compute_areas(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute missing areas, those that are not above 0, and those of whole boxes."""
    has_area = file.areas.is_usable & (file.areas.values > 0) & ~areas_of_boxes(file)
    is_around_keypoints = _boxes_around_keypoints(file)
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


def areas_of_boxes(file: AnnotationFile) -> Mask:
    """(A,) bool: the area is that of the whole box, though nothing says that the object fills it.

    Objects with an outline, crowds, and boxes around the keypoints, which are smaller, are left out.
    """
    box_areas = file.boxes.values[:, 2:].prod(axis=1)
    is_whole = file.has_box & file.areas.is_usable & (abs(file.areas.values / box_areas.clip(min=1) - 1) < 1e-3)
    found = is_whole & file.is_used & ~file.is_crowd & file.has_image & ~_boxes_around_keypoints(file)
    for row in np.flatnonzero(found).tolist():
        found[row] = file.outlines.values[row] is None
    return found


def _boxes_around_keypoints(file: AnnotationFile) -> Mask:
    """(A,) bool: the box is the one around the labelled keypoints. If nearly all are, all count as such."""
    is_person = file.has_box & file.is_labelled_person
    rows = np.flatnonzero(is_person & (file.num_labelled >= 2))
    is_labelled = file.is_labelled[rows, :, None]
    points = file.keypoints.values[rows, :, :2]
    low = points.min(axis=1, where=is_labelled, initial=np.inf)
    sides = points.max(axis=1, where=is_labelled, initial=-np.inf) - low
    differences = abs(np.hstack([low, sides]) - file.boxes.values[rows])
    is_around = (sides > 0).all(axis=1) & (differences <= BOX_TOLERANCE).all(axis=1)
    if len(rows) and is_around.mean() >= NEARLY_ALL:
        return is_person
    found = np.zeros(len(file.annotations), bool)
    found[rows] = is_around
    return found


def _labelled_points(file: AnnotationFile, row: int) -> np.ndarray:
    """(N, 2) x, y of the labelled keypoints of an annotation."""
    return np.asarray(file.keypoints.values[row, file.is_labelled[row], :2])


def _outline_to_draw(file: AnnotationFile, row: int) -> Outline:
    """The outline of an annotation; None if it cannot be used, or the image is too large to draw it."""
    return file.outlines.values[row] if file.sizes_of_annotations[row].prod() <= MAX_PIXELS else None


def _box_of_outline(file: AnnotationFile, row: int) -> list[float] | None:
    """x, y, width, height around an outline; None if it is empty."""
    outline = _outline_to_draw(file, row)
    if isinstance(outline, list):
        return box_of_points(np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in outline]))
    if outline is None or not outline[1::2].any():
        return None
    mask = np.ascontiguousarray(decode_columns(outline, *file.sizes_of_annotations[row].tolist()).T)
    return [float(value) for value in cv2.boundingRect(mask)]


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
    gone = {_id_text(file.images[row].get("id")) for row in rows}
    file.images[:] = [entry for entry in file.images if _id_text(entry.get("id")) not in gone]
    file.annotations[:] = [entry for entry in file.annotations if _id_text(entry.get("image_id")) not in gone]


def _id_text(value: Any) -> str:
    """A text that is the same for the same ids; ids that nothing can refer to are not distinguished."""
    return repr(value) if _is_scalar(value) else "none"


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


def drop_outlines(file: AnnotationFile, rows: Iterable[int]) -> None:
    """Leave out outlines, which the boxes then replace."""
    for row in rows:
        file.annotations[row]["segmentation"] = []

"""Repairs of a COCO keypoint file: missing and malformed values that other values or the image files determine.

A value that nothing determines stays as it is, and the linter reports it. No keypoint is ever added.

A repair changes the entries of an ``AnnotationFile`` in place, and counts its changes in ``fixes`` by what was done.
After a change, the columns of the file are outdated.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import cv2
import numpy as np

from posenet.annotations.coco import (
    MAX_NUMBER,
    AnnotationFile,
    Entry,
    Mask,
    is_file,
    is_flat_outline,
    is_integer,
    is_side,
    is_text_of_numbers,
    number_from_text,
    whole_number,
)
from posenet.annotations.people import (
    SHARE_OF_BOX,
    Outline,
    box_of_points,
    decode_columns,
    estimate_area,
    is_box_of_points,
    polygons_to_mask,
)
from posenet.errors import DataError
from posenet.images import MAX_PIXELS, ImageHeader, read_header

EDGE_MARGIN = 1.0
"""Keypoints at most this far outside the image, in pixels, are moved to its edge."""

_REFERENCES = {"images": "image_id", "categories": "category_id"}
"""The keys by which annotations refer to the entries of a section."""


def make_ids_whole(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn the ids "7" and 7.0 into 7, and other text into the next free number, in references too.

    An id stays as it is if another entry has its number. Missing ids of annotations become free numbers. Ids are
    compared by their ``repr``, because "7", 7 and 7.0 are different ids.
    """
    done = "ids and references turned into whole numbers"
    for section, entries in file.sections.items():
        numbers = _number_ids([entry.get("id") for entry in entries])
        for entry in entries:
            if isinstance(entry.get("id"), (str, float)) and repr(entry["id"]) in numbers:
                entry["id"] = numbers[repr(entry["id"])]
                fixes[done] += 1
        present = {repr(entry["id"]) for entry in entries if isinstance(entry.get("id"), (str, int, float))}
        reference = _REFERENCES.get(section, "")
        for entry in file.annotations if reference else ():
            value = entry.get(reference)
            if isinstance(value, (str, float)) and repr(value) not in present:
                number = numbers.get(repr(value), whole_number(value))
                if number is not None and repr(number) in present:
                    entry[reference] = number
                    fixes[done] += 1
    free = _free_numbers(file.annotations)
    for entry in file.annotations:
        if entry.get("id") is None:
            entry["id"] = next(free)
            fixes["annotations without an id numbered"] += 1


def _number_ids(ids: list[Any]) -> dict[str, int]:
    """The new number of every id that is text or a fractional number, unless another id is that number."""
    taken = {value for value in ids if is_integer(value)}
    others = {repr(value): value for value in ids if isinstance(value, (str, float))}
    numbers: dict[str, int] = {}
    for key, value in others.items():
        number = whole_number(value)
        if number is not None and number not in taken:
            numbers[key] = number
            taken.add(number)
    free = itertools.count(max(taken, default=0) + 1)
    for key, value in others.items():
        if isinstance(value, str) and whole_number(value) is None:
            numbers[key] = next(free)
    return numbers


def renumber_repeated_ids(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Give the later entries with the id of an earlier one free numbers, if no annotation refers to that id."""
    for section, entries in file.sections.items():
        references = [entry.get(_REFERENCES.get(section, "")) for entry in file.annotations]
        kept = {value for value in references if is_integer(value)} if section in _REFERENCES else set()
        free = _free_numbers(entries)
        seen: set[int] = set()
        for entry in entries:
            entry_id = entry.get("id")
            if not is_integer(entry_id):
                continue
            if entry_id in seen and entry_id not in kept:
                entry["id"] = next(free)
                fixes["repeated ids that nothing refers to changed to free numbers"] += 1
            seen.add(entry_id)


def _free_numbers(entries: list[Entry]) -> Iterator[int]:
    """Numbers that are no id yet."""
    return itertools.count(1 + max((entry["id"] for entry in entries if is_integer(entry.get("id"))), default=0))


def separate_folders_by_slashes(file: AnnotationFile, fixes: Counter[str]) -> None:
    for entry in file.images:
        name = entry.get("file_name")
        if isinstance(name, str) and "\\" in name and not is_file(file.folder, name):
            entry["file_name"] = name.replace("\\", "/")
            fixes["file names with / in place of backslashes"] += 1


def merge_images_of_a_file(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Move the annotations of later entries of a file to its first one, if they have the same size."""
    first: dict[tuple[str, tuple[int, int]], int] = {}
    kept_id: dict[int, int] = {}
    for row in np.flatnonzero(file.image_is_usable).tolist():
        entry = file.images[row]
        content = str(PurePosixPath(file.file_names[row])), (entry["height"], entry["width"])
        kept_id[entry["id"]] = first.setdefault(content, entry["id"])
    merged = {image_id for image_id, kept in kept_id.items() if kept != image_id}
    for entry in file.annotations:
        if is_integer(entry.get("image_id")) and entry["image_id"] in merged:
            entry["image_id"] = kept_id[entry["image_id"]]
    file.images[:] = [entry for entry in file.images if not (is_integer(entry.get("id")) and entry["id"] in merged)]
    if merged:
        fixes["images with the file of an earlier one merged with it"] += len(merged)


def shorten_paths(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Shorten the paths of missing files to their longest end that is a file in the folder.

    Labelling tools write paths on their server, or relative to another folder. If two images would get the same file,
    both stay as they are.
    """
    found = [_longest_end(entry.get("file_name"), file.folder) for entry in file.images]
    uses = Counter(found)
    for entry, name in zip(file.images, found):
        if name is not None and uses[name] == 1 and name != entry["file_name"]:
            entry["file_name"] = name
            fixes["paths shortened to the part that exists in the image folder"] += 1


def _longest_end(name: object, folder: Path | None) -> str | None:
    """The longest end of a path that is a file in the folder."""
    if not isinstance(name, str):
        return None
    path = PureWindowsPath(name)  # which also splits at /
    if is_file(folder, name) and not path.anchor and ".." not in path.parts:
        return name
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    return next((end for end in ends if is_file(folder, end)), None)


def complete_sizes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn the sides "640" and 640.0 into 640, and read missing ones from the file.

    The size is that in the frame of the setting, or in the other one if only that fits the side that is known.
    """
    for entry in file.images:
        sides = {key: whole_number(entry.get(key)) for key in ("height", "width")}
        changed = {key: side for key, side in sides.items() if side is not None and not is_integer(entry[key])}
        if changed:
            entry.update(changed)
            fixes["images with width and height turned into whole numbers"] += 1
        known = {key: side for key, side in sides.items() if is_side(side)}
        header = _read_header(file, entry) if len(known) < 2 else None
        if header is None:
            continue
        displayed, stored = header.displayed_size, header.stored_size
        for height, width in (stored, displayed) if file.exif_frame == "stored" else (displayed, stored):
            size = {"height": height, "width": width}
            if known.items() <= size.items():
                entry.update(size)
                fixes["images with width and height read from the file"] += 1
                break


def swap_sizes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Swap width and height of images that are annotated as displayed, but have the size of the stored pixels.

    The keypoints show it: some lie outside the stored pixels, but inside the displayed image. Then all images with an
    orientation that swaps height and width are corrected, unless the keypoints of one contradict.
    """
    points: dict[int, list[np.ndarray]] = {}
    for entry in file.annotations:
        if is_integer(entry.get("image_id")):
            points.setdefault(entry["image_id"], []).append(_labelled_points(entry))
    candidates = []
    for entry, size in zip(file.images, file.image_sizes.tolist()):
        if all(size) and is_integer(entry.get("id")):
            of_image = np.concatenate([np.zeros((0, 2)), *points.get(entry["id"], [])])
            candidates.append((entry, _all_inside(of_image, *size), _all_inside(of_image, *size[::-1])))
    if not any(in_displayed and not in_stored for _, in_stored, in_displayed in candidates):
        return  # without opening any file
    sideways = [candidate for candidate in candidates if _is_displayed_sideways(file, candidate[0])]
    is_shown = any(in_displayed and not in_stored for _, in_stored, in_displayed in sideways)
    is_contradicted = any(in_stored and not in_displayed for _, in_stored, in_displayed in sideways)
    if is_shown and not is_contradicted:
        for entry, _, _ in sideways:
            entry["height"], entry["width"] = entry["width"], entry["height"]
            fixes["images with an EXIF orientation with width and height swapped to those of the displayed image"] += 1


def _all_inside(points: np.ndarray, height: int, width: int) -> bool:
    """Whether all (N, 2) points are in an image; a pixel of tolerance is left to rounding."""
    return bool(((points >= -1) & (points <= (width + 1, height + 1))).all())


def _is_displayed_sideways(file: AnnotationFile, entry: Entry) -> bool:
    """Whether an image has the size of its stored pixels, and is displayed with height and width swapped."""
    header = _read_header(file, entry)
    return header is not None and (entry["height"], entry["width"]) == header.stored_size != header.displayed_size


def _read_header(file: AnnotationFile, entry: Entry) -> ImageHeader | None:
    """The header of an image's file; None if it cannot be read."""
    name = entry.get("file_name")
    if file.folder is None or not isinstance(name, str) or not is_file(file.folder, name):
        return None
    try:
        return read_header(file.folder / name)
    except DataError:
        return None


def convert_text(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn numbers that are written as text into numbers, where all of a list can be converted."""
    done = "lists of numbers in quotation marks turned into numbers"
    for entry in file.annotations:
        for key in ("keypoints", "bbox"):
            if isinstance(entry.get(key), list) and is_text_of_numbers(entry[key]):
                entry[key] = [number_from_text(value) for value in entry[key]]
                fixes[done] += 1
        if is_text_of_numbers([entry.get("area")]):
            entry["area"] = number_from_text(entry["area"])
            fixes[done] += 1


def convert_boolean_visibilities(file: AnnotationFile, fixes: Counter[str]) -> None:
    for entry in file.annotations:
        values = entry.get("keypoints")
        if not isinstance(values, list):
            continue
        for place in range(2, len(values), 3):
            if isinstance(values[place], bool):
                values[place] = 2 if values[place] else 0
                fixes["visibilities true and false turned into 2 and 0"] += 1


def make_hidden_visible(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Turn visibility 1 into 2 if no keypoint of the file has 2: some tools write 1 for labelled."""
    lists = [entry["keypoints"] for entry in file.annotations if _has_usable_keypoints(entry)]
    hidden = sum(values[2::3].count(1) for values in lists)
    if hidden and not any(2 in values[2::3] for values in lists):
        fixes["visibilities 1 turned into 2, because no keypoint has 2"] += hidden
        for values in lists:
            values[2::3] = [2 if visibility == 1 else visibility for visibility in values[2::3]]


def wrap_flat_outlines(file: AnnotationFile, fixes: Counter[str]) -> None:
    for entry in file.annotations:
        if is_flat_outline(entry.get("segmentation")):
            entry["segmentation"] = [entry["segmentation"]]
            fixes["outlines that are one list of numbers turned into a list of polygons"] += 1


def move_keypoints_to_edge(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Move labelled keypoints that are up to ``EDGE_MARGIN`` outside their image."""
    for entry, has_image, size in zip(file.annotations, file.has_image, file.sizes_of_annotations.tolist()):
        if not has_image or not _has_usable_keypoints(entry):
            continue
        height, width = size
        values = entry["keypoints"]
        for start in range(0, len(values), 3):
            x, y, visibility = values[start : start + 3]
            moved = [min(max(x, 0), width), min(max(y, 0), height)]
            distance = max(abs(moved[0] - x), abs(moved[1] - y))
            if visibility > 0 and 0 < distance <= EDGE_MARGIN:
                values[start : start + 2] = moved
                fixes["keypoints up to a pixel outside moved to the edge of their image"] += 1


def fill_crowd_flags(file: AnnotationFile, fixes: Counter[str]) -> None:
    for entry in file.annotations:
        if entry.get("iscrowd") is None:
            entry["iscrowd"] = 0
            fixes["annotations without iscrowd set to 0"] += 1


def compute_boxes(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute missing and empty boxes. Those with negative sizes are left: they may be two corners."""
    sides = file.boxes.values[:, 2:]
    is_box = (file.boxes.problems == 0) & ((sides != 0).all(axis=1) | (sides < 0).any(axis=1))
    for row in np.flatnonzero(~is_box).tolist():
        entry = file.annotations[row]
        if (box := _box_of_outline(file, row)) is not None:
            fixes["boxes computed from outlines"] += 1
        elif (box := box_of_points(_labelled_points(entry))) is not None:
            fixes["boxes computed from keypoints"] += 1
        else:
            continue
        entry["bbox"] = box


def compute_areas(file: AnnotationFile, fixes: Counter[str]) -> None:
    """Compute missing areas, those that are not above 0, and those of whole boxes."""
    has_area = (file.areas.problems == 0) & (file.areas.values > 0) & ~areas_of_boxes(file)
    for row in np.flatnonzero(~has_area).tolist():
        entry = file.annotations[row]
        area = _area_of_outline(file, row)
        done = "areas computed from outlines"
        if area <= 0 and file.has_box[row]:
            area = estimate_area(file.boxes.values[row].tolist(), _labelled_points(entry))
            done = f"areas of people without an outline estimated, as {SHARE_OF_BOX} of their box (COCO's median)"
        if 0 < area < MAX_NUMBER:
            entry["area"] = area
            fixes[done] += 1


def areas_of_boxes(file: AnnotationFile) -> Mask:
    """(A,) bool: the area is that of the whole box, though nothing says that the object fills it.

    Objects with an outline, crowds, and boxes around the keypoints, which are smaller, are left out.
    """
    found = np.zeros(len(file.annotations), bool)
    box_areas = file.boxes.values[:, 2:].prod(axis=1)
    is_whole = file.has_box & (file.areas.problems == 0) & (abs(file.areas.values / box_areas.clip(min=1) - 1) < 1e-3)
    is_candidate = is_whole & file.is_used & ~file.is_crowd & file.has_image
    for row in np.flatnonzero(is_candidate).tolist():
        box = file.boxes.values[row].tolist()
        is_around_keypoints = is_box_of_points(box, _labelled_points(file.annotations[row]))
        found[row] = file.outlines.values[row] is None and not is_around_keypoints
    return found


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
    for entry in filter(_has_usable_keypoints, file.annotations):
        count = len(_labelled_points(entry))
        if entry.get("num_keypoints") != count:
            entry["num_keypoints"] = count
            fixes["num_keypoints counted"] += 1


def _has_usable_keypoints(entry: Entry) -> bool:
    """Whether the keypoints are numbers, three for each keypoint, and every visibility is 0, 1 or 2."""
    values = entry.get("keypoints")
    if not isinstance(values, list) or not values or len(values) % 3 or set(map(type, values)) - {int, float}:
        return False
    return all(abs(value) < MAX_NUMBER for value in values) and set(values[2::3]) <= {0, 1, 2}


def _labelled_points(entry: Entry) -> np.ndarray:
    """(N, 2) x, y of the labelled keypoints of an annotation of any category; empty if they cannot be used."""
    if not _has_usable_keypoints(entry):
        return np.zeros((0, 2))
    keypoints = np.array(entry["keypoints"], np.float64).reshape(-1, 3)
    return keypoints[keypoints[:, 2] > 0, :2]

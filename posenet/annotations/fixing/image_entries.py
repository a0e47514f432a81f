"""Repair of the entries of images: file names and sizes, from the files in the image folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Any, TypeGuard

import numpy as np

from posenet.annotations.coco_file import MAX_SIDE, Entry, is_integer
from posenet.annotations.fixing.ids import whole_number
from posenet.annotations.fixing.people import labelled_points
from posenet.errors import DataError
from posenet.images.image_files import ImageHeader, read_header
from posenet.settings import ExifFrame

SEPARATORS = "file names with / in place of backslashes"
FOLDERS = "file names without folders that the image folder does not have"
SIZES = "images with width and height read from the file"
SIZE_NUMBERS = "images with width and height turned into whole numbers"
SWAPPED = "images with an EXIF orientation with width and height swapped to those of the displayed image"


def fix_images(
    sections: dict[str, list[Entry]], folder: Path | None, exif_frame: ExifFrame, fixes: Counter[str]
) -> None:
    """Repair file names and sizes; without a folder, only what needs no file."""
    images = sections["images"]
    for image in images:
        _fix_separators(image, folder, fixes)
        _fix_size_numbers(image, fixes)
    if folder is None:
        return
    _fix_folders(images, folder, fixes)
    for image in images:
        if _size_of(image) is None:
            _fix_size(image, folder, exif_frame, fixes)
    _swap_sizes(sections, folder, fixes)


def _fix_separators(image: Entry, folder: Path | None, fixes: Counter[str]) -> None:
    name = image.get("file_name")
    if isinstance(name, str) and "\\" in name and not _is_file(folder, name):
        image["file_name"] = name.replace("\\", "/")
        fixes[SEPARATORS] += 1


def _fix_folders(images: Sequence[Entry], folder: Path, fixes: Counter[str]) -> None:
    """Shorten the paths of missing files to their longest end that is a file in the folder.

    Labelling tools write paths on their server, or relative to another folder. If two images would get the same file,
    both stay as they are.
    """
    found = {index: _longest_end(image.get("file_name"), folder) for index, image in enumerate(images)}
    uses = Counter(found.values())
    for index, image in enumerate(images):
        name = found[index]
        if name is not None and uses[name] == 1 and name != image["file_name"]:
            image["file_name"] = name
            fixes[FOLDERS] += 1


def _longest_end(name: object, folder: Path) -> str | None:
    """The longest end of a path that is a file in the folder."""
    if not isinstance(name, str):
        return None
    if _is_file(folder, name) and not PureWindowsPath(name).anchor and ".." not in PureWindowsPath(name).parts:
        return name
    path = PureWindowsPath(name)  # which also splits at /
    parts = [part for part in path.parts if part not in ("..", path.anchor)]
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    return next((end for end in ends if _is_file(folder, end)), None)


def _is_file(folder: Path | None, name: str) -> bool:
    try:
        return folder is not None and (folder / name).is_file()
    except (OSError, ValueError):  # a name that is too long or has a null character
        return False


def _fix_size_numbers(image: Entry, fixes: Counter[str]) -> None:
    """Turn "640" and 640.0 into 640."""
    changed = False
    for key in ("height", "width"):
        number = whole_number(image.get(key))
        if number is not None and not is_integer(image[key]):
            image[key] = number
            changed = True
    if changed:
        fixes[SIZE_NUMBERS] += 1


def _size_of(image: Entry) -> tuple[int, int] | None:
    """(height, width) of an entry; None unless both are valid."""
    height = image.get("height")
    width = image.get("width")
    return (height, width) if _is_side(height) and _is_side(width) else None


def _is_side(value: Any) -> TypeGuard[int]:
    return is_integer(value) and 0 < value <= MAX_SIDE


def _fix_size(image: Entry, folder: Path, exif_frame: ExifFrame, fixes: Counter[str]) -> None:
    """Read the size of the file, in the frame of the setting, or in the other one if only that fits a valid side."""
    header = _read_header(image, folder)
    if header is None:
        return
    sizes = [(header.height, header.width), header.displayed_size]
    if exif_frame == "displayed":
        sizes.reverse()
    for height, width in sizes:
        fits = all(
            not _is_side(image.get(key)) or image[key] == value for key, value in (("height", height), ("width", width))
        )
        if fits:
            image["height"] = height
            image["width"] = width
            fixes[SIZES] += 1
            return


def _swap_sizes(sections: dict[str, list[Entry]], folder: Path, fixes: Counter[str]) -> None:
    """Swap width and height of images that are annotated as displayed, but have the size of the stored pixels.

    The keypoints show it: some lie outside the stored pixels, but inside the displayed image. Then all images with an
    orientation that swaps height and width are corrected, unless the keypoints of one contradict.
    """
    points: dict[int, list[np.ndarray]] = {}
    for entry in sections["annotations"]:
        if is_integer(entry.get("image_id")):
            points.setdefault(entry["image_id"], []).append(labelled_points(entry))
    candidates = []
    outside_somewhere = False
    for image in sections["images"]:
        size = _size_of(image)
        if size is None or not is_integer(image.get("id")):
            continue
        of_image = np.concatenate([np.zeros((0, 2)), *points.get(image["id"], [])])
        in_stored = _all_inside(of_image, *size)
        in_displayed = _all_inside(of_image, *size[::-1])
        outside_somewhere |= in_displayed and not in_stored
        candidates.append((image, in_stored, in_displayed))
    if not outside_somewhere:
        return
    sideways = [candidate for candidate in candidates if _is_displayed_sideways(candidate[0], folder)]
    shown = any(in_displayed and not in_stored for _, in_stored, in_displayed in sideways)
    contradicted = any(in_stored and not in_displayed for _, in_stored, in_displayed in sideways)
    if shown and not contradicted:
        for image, _, _ in sideways:
            image["height"], image["width"] = image["width"], image["height"]
            fixes[SWAPPED] += 1


def _all_inside(points: np.ndarray, height: int, width: int) -> bool:
    """Whether all (N, 2) points are in an image; a pixel of tolerance is left to rounding."""
    return bool(((points >= -1) & (points <= (width + 1, height + 1))).all())


def _is_displayed_sideways(image: Entry, folder: Path) -> bool:
    """Whether an image has the size of its stored pixels, and is displayed with height and width swapped."""
    header = _read_header(image, folder)
    if header is None:
        return False
    return _size_of(image) == (header.height, header.width) != header.displayed_size


def _read_header(image: Entry, folder: Path) -> ImageHeader | None:
    """The header of an image's file; None if it cannot be read."""
    name = image.get("file_name")
    if not isinstance(name, str) or not _is_file(folder, name):
        return None
    try:
        return read_header(folder / name)
    except DataError:
        return None

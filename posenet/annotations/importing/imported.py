"""A data set of another format as COCO annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
from posenet.annotations.people import box_of_points, estimate_area
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images import read_header
from posenet.messages import to_single_line
from posenet.progress_bar import progress_bar
from posenet.skeleton import COCO
from posenet.threads import map_in_threads

DECIMALS = 3
"""Decimals of coordinates and areas."""
FEW = 0.05
"""Share of the images or tasks that may have faults of their own. If more have, the fault is that of the whole set."""
SHOWN_NAMES = 5
"""Number of names in a note."""


class ImportedPerson(NamedTuple):
    """A person in shares of the displayed image, in which the other formats annotate."""

    category_id: int
    keypoints: np.ndarray  # (K, 3) x, y and visibility
    box: Sequence[float] | None  # x, y, width, height; None for that around the labelled keypoints


class ImportedAnnotations(NamedTuple):
    """The result of an import."""

    document: dict[str, list[Entry]]
    folder: Path  # the file names of the images are relative to it
    notes: tuple[str, ...]  # what was left out, and other remarks: one line each


class Notes:
    """What an import leaves out, or does in its own way, with the names of the images or tasks."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, note: str, name: str) -> None:
        self._names.setdefault(note, []).append(name)

    def count(self, *notes: str) -> int:
        return sum(len(self._names.get(note, ())) for note in notes)

    def names(self, note: str) -> Sequence[str]:
        """The images or tasks with a note, in order; several times those that have it several times."""
        return self._names.get(note, [])

    def lines(self) -> tuple[str, ...]:
        """Each note in one line, with the number of names and the first of them."""
        return tuple(
            f"{note}: {len(names)} ({to_single_line(', '.join(names[:SHOWN_NAMES]))}"
            f"{', ...' if len(names) > SHOWN_NAMES else ''})"
            for note, names in self._names.items()
        )


def are_few(num_faults: int, count: int) -> bool:
    """Whether so many of ``count`` images or tasks can be left out: one, or ``FEW``."""
    return num_faults < count and num_faults <= max(1, FEW * count)


def to_coco(
    images: Sequence[Path],
    read_people: Callable[[Path], tuple[Sequence[ImportedPerson], str]],
    categories: Mapping[int, str],
    keypoints: Sequence[str],
    whole: float,
    notes: Notes,
    flip_idx: Sequence[int] | None = None,
) -> ImportedAnnotations:
    """Convert the people of all images to COCO annotations in pixels. Areas are estimated (see ``estimate_area``).

    A few images that cannot be used, or whose people cannot be read, are left out and named in the notes.

    Args:
        images: the innermost folder that holds all becomes that of the data set.
        read_people: the people of an image, and a note about it, or ""; ``DataError`` if they cannot be read. It is
            called by several threads.
        categories: their names by id.
        keypoints: names of the keypoints of all categories; COCO's names get COCO's connections.
        whole: the share that is the whole image: 1 for fractions, 100 for percentages.
        flip_idx: for every keypoint the number of its twin on the other side, or its own; None if that is not known.

    Raises:
        DataError: more than a few images cannot be used.
    """
    folder = Path(os.path.commonpath([path.parent for path in images]))

    def read(path: Path) -> tuple[Entry, list[Entry], str] | DataError:
        try:
            name = path.relative_to(folder).as_posix()
            if not name.isprintable():
                raise DataError(f"the name of {to_single_line(str(path))} is not UTF-8 or not printable; rename it")
            height, width = read_header(path).displayed_size
            entry: Entry = {"file_name": name, "height": height, "width": width}
            people, note = read_people(path)
            return entry, _annotations(people, np.array([width, height]) / whole), note
        except DataError as error:
            return error

    edges = COCO_CATEGORY["skeleton"] if tuple(keypoints) == COCO.file_names else []
    shape = {"keypoints": list(keypoints), "skeleton": edges}
    if flip_idx is not None:
        shape["flip_idx"] = list(flip_idx)
    document: dict[str, list[Entry]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} | shape for number, name in categories.items()],
    }
    failures: list[DataError] = []
    workers = usable_cores()
    results = map_in_threads(read, images, workers=workers, ahead=16 * workers)
    for result in progress_bar(results, "images", len(images)):
        if isinstance(result, DataError):
            failures.append(result)
            notes.add("images left out, because they or their annotations cannot be used", str(result))
            continue
        image, annotations, note = result
        if note:
            notes.add(note, image["file_name"])
        image_id = len(document["images"]) + 1
        document["images"].append({"id": image_id} | image)
        for annotation in annotations:
            number = len(document["annotations"]) + 1
            document["annotations"].append({"id": number, "image_id": image_id} | annotation)
    if failures and not are_few(len(failures), len(images)):
        others = f" (and {len(failures) - 1} of {len(images)} images more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{others}") from failures[0]
    return ImportedAnnotations(document, folder, notes.lines())


def _annotations(people: Sequence[ImportedPerson], scale: np.ndarray) -> list[Entry]:
    """The annotations of an image without ids; ``scale`` is (2,) pixels for one unit of x and y."""
    if not people:
        return []
    keypoints = np.array([person.keypoints for person in people], np.float64)  # (P, K, 3)
    labelled = keypoints[..., 2] > 0
    keypoints[..., :2] *= scale
    points = keypoints[..., :2]
    rounded = np.dstack([points.round(DECIMALS), keypoints[..., 2]])
    rounded[~labelled] = 0
    entries: list[Entry] = []
    for person, values, own, is_labelled in zip(people, rounded.reshape(len(people), -1).tolist(), points, labelled):
        values[2::3] = [int(value) if value.is_integer() else value for value in values[2::3]]
        box: Sequence[float] = box_of_points(own[is_labelled]) or [0.0, 0.0, 0.0, 0.0]
        if person.box is not None:
            box = [float(value * side) for value, side in zip(person.box, (*scale, *scale))]
        entries.append(
            {
                "category_id": person.category_id,
                "keypoints": values,
                "num_keypoints": int(is_labelled.sum()),
                "bbox": [round(value, DECIMALS) for value in box],
                "area": round(estimate_area(box, own[is_labelled]), DECIMALS),
                "iscrowd": 0,
                "segmentation": [],
            }
        )
    return entries

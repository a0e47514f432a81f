"""A data set of another format as COCO annotations."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
from posenet.annotations.outlines import boxes_around, estimate_areas
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

_FAILED = "images left out, because they or their annotations cannot be used"

Notes = defaultdict[str, list[str]]
"""What an import leaves out, or does in its own way, with the names of the images or tasks."""


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


def note_lines(notes: Notes) -> tuple[str, ...]:
    """Each note in one line, with the number of names and the first of them."""
    return tuple(
        f"{note}: {len(names)} ({to_single_line(', '.join(names[:SHOWN_NAMES]))}"
        f"{', ...' if len(names) > SHOWN_NAMES else ''})"
        for note, names in notes.items()
        if names
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
    """Convert the people of all images to COCO annotations in pixels. Areas are estimated (see ``estimate_areas``).

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

    def read(path: Path) -> tuple[Entry, Sequence[ImportedPerson], str] | DataError:
        try:
            name = path.relative_to(folder).as_posix()
            if not name.isprintable():
                raise DataError(f"the name of {to_single_line(str(path))} is not UTF-8 or not printable; rename it")
            height, width = read_header(path).displayed_size
            return {"file_name": name, "height": height, "width": width}, *read_people(path)
        except DataError as error:
            return error

    entries: list[Entry] = []
    people: list[ImportedPerson] = []
    image_of_person: list[Entry] = []
    failures: list[DataError] = []
    workers = usable_cores()
    results = map_in_threads(read, images, workers=workers, ahead=16 * workers)
    for result in progress_bar(results, "images", len(images)):
        if isinstance(result, DataError):
            failures.append(result)
            notes[_FAILED].append(str(result))
            continue
        entry, own_people, note = result
        entries.append({"id": len(entries) + 1} | entry)
        people += own_people
        image_of_person += [entries[-1]] * len(own_people)
        if note:
            notes[note].append(entry["file_name"])
    if failures and not are_few(len(failures), len(images)):
        others = f" (and {len(failures) - 1} of {len(images)} images more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{others}") from failures[0]
    shape = {
        "keypoints": list(keypoints),
        "skeleton": COCO_CATEGORY["skeleton"] if tuple(keypoints) == COCO.file_names else [],
    }
    if flip_idx is not None:
        shape["flip_idx"] = list(flip_idx)
    document = {
        "images": entries,
        "annotations": _annotations(people, image_of_person, whole),
        "categories": [{"id": number, "name": name} | shape for number, name in categories.items()],
    }
    return ImportedAnnotations(document, folder, note_lines(notes))


def _annotations(people: Sequence[ImportedPerson], images: Sequence[Entry], whole: float) -> list[Entry]:
    """The annotations of all people, each with its image."""
    if not people:
        return []
    # All people at once: arrays of a single person take most of the time of an import.
    units = np.array([(image["width"], image["height"]) for image in images]) / whole  # (P, 2) pixels for one unit
    keypoints = np.array([person.keypoints for person in people], np.float64)  # (P, K, 3)
    is_labelled = keypoints[..., 2] > 0
    keypoints[..., :2] *= units[:, None]
    around = boxes_around(keypoints[..., :2], is_labelled)
    boxes = np.array([person.box or (0, 0, 0, 0) for person in people], np.float64) * np.tile(units, 2)
    has_none = [person.box is None for person in people]
    boxes[has_none] = around[has_none]
    areas = estimate_areas(boxes, around)
    keypoints[..., :2] = keypoints[..., :2].round(DECIMALS)
    keypoints[~is_labelled] = 0
    annotations: list[Entry] = []
    rows = zip(
        people,
        images,
        keypoints.reshape(len(people), -1).tolist(),
        is_labelled.sum(axis=1).tolist(),
        boxes.tolist(),
        areas.tolist(),
    )
    for person, image, values, num_labelled, box, area in rows:
        values[2::3] = [int(value) if value.is_integer() else value for value in values[2::3]]
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image["id"],
                "category_id": person.category_id,
                "keypoints": values,
                "num_keypoints": num_labelled,
                "bbox": [round(value, DECIMALS) for value in box],
                "area": round(area, DECIMALS),
                "iscrowd": 0,
                "segmentation": [],
            }
        )
    return annotations

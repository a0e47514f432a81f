"""A data set of another format as a COCO-shaped document.

An importer transcribes: what the format does not state, such as areas, is left to the reader of COCO files.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
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
    """A person in pixels, or in shares, of the image as it is displayed."""

    category_id: int
    keypoints: np.ndarray  # (K, 3) x, y and visibility; the centre of the first pixel is (0, 0)
    box: Sequence[float] | None  # x, y, width, height; None for that around the labelled keypoints
    outline: Sequence[list[float]] = ()  # polygons x, y, x, y, ... in pixels


class Labels(NamedTuple):
    """What the keypoints of a data set are called, and how they belong together."""

    categories: Mapping[int, str]  # names by id
    keypoints: Sequence[str]
    edges: Sequence[Sequence[int]] | None = None  # pairs of numbers from 1; None for COCO's if the keypoints are COCO's
    flip_idx: Sequence[int] | None = None  # for every keypoint the number, from 0, of its twin or its own


class ImportedAnnotations(NamedTuple):
    """The result of an import."""

    document: dict[str, Any]
    folder: Path  # the file names of the images are relative to it
    notes: tuple[str, ...]  # what was left out, and other remarks: one line each


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the errors of content that is not as it should be into a ``DataError`` that names the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = to_single_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} cannot be read ({reason}); it may be damaged: export it again") from error


def note_lines(notes: Notes) -> tuple[str, ...]:
    """Each note in one line, with the number of names and the first of them."""
    lines = []
    for note, names in notes.items():
        different = list(dict.fromkeys(names))
        if different:
            shown = to_single_line(", ".join(different[:SHOWN_NAMES]))
            lines.append(f"{note}: {len(names)} ({shown}{', ...' if len(different) > SHOWN_NAMES else ''})")
    return tuple(lines)


def are_few(num_faults: int, count: int) -> bool:
    """Whether so many of ``count`` images or tasks can be left out: one, or ``FEW``."""
    return num_faults < count and num_faults <= max(1, FEW * count)


def flip_idx_of(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[int]:
    """For every name the number, from 0, of the other one of its pair, or its own."""
    twin = dict(pairs) | {b: a for a, b in pairs}
    return [names.index(twin.get(name, name)) for name in names]


def to_coco(
    images: Sequence[Path],
    read_people: Callable[[Path], tuple[Sequence[ImportedPerson], str]],
    labels: Labels,
    notes: Notes,
    whole: float | None = None,
) -> ImportedAnnotations:
    """Convert the people of all images to COCO annotations in pixels.

    A few images that cannot be used, or whose people cannot be read, are left out and named in the notes.

    Args:
        images: the innermost folder that holds all becomes that of the data set.
        read_people: the people of an image, and a note about it, or ""; ``DataError`` if they cannot be read. It is
            called by several threads.
        whole: the share that is the whole image: 1 for fractions, 100 for percentages; None for pixels.

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
    names = list(labels.keypoints)
    edges = COCO_CATEGORY["skeleton"] if tuple(names) == COCO.file_names else []
    shape: dict[str, Any] = {
        "keypoints": names,
        "skeleton": edges if labels.edges is None else [list(edge) for edge in labels.edges],
    }
    if labels.flip_idx is not None:
        shape["flip_idx"] = list(labels.flip_idx)
    document = {
        "images": entries,
        "annotations": _annotations(people, image_of_person, whole),
        "categories": [{"id": number, "name": name} | shape for number, name in labels.categories.items()],
    }
    return ImportedAnnotations(document, folder, note_lines(notes))


def _annotations(people: Sequence[ImportedPerson], images: Sequence[Entry], whole: float | None) -> list[Entry]:
    """The annotations of all people, each with its image."""
    if not people:
        return []
    # All people at once: arrays of a single person take most of the time of an import.
    keypoints = np.array([person.keypoints for person in people], np.float64)  # (P, K, 3)
    boxes = np.array([person.box or (0, 0, 0, 0) for person in people], np.float64)
    if whole is not None:
        units = np.array([(image["width"], image["height"]) for image in images]) / whole  # (P, 2) pixels for one unit
        keypoints[..., :2] *= units[:, None]
        boxes *= np.tile(units, 2)
    is_labelled = keypoints[..., 2] > 0
    keypoints[..., :2] = keypoints[..., :2].round(DECIMALS)
    keypoints[~is_labelled] = 0
    annotations: list[Entry] = []
    rows = zip(people, images, keypoints.reshape(len(people), -1).tolist(), boxes.round(DECIMALS).tolist())
    for person, image, values, box in rows:
        values[2::3] = [int(value) if value.is_integer() else value for value in values[2::3]]
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image["id"],
                "category_id": person.category_id,
                "keypoints": values,
                "segmentation": list(person.outline),
            }
        )
        if person.box is not None:
            annotations[-1]["bbox"] = box
    return annotations

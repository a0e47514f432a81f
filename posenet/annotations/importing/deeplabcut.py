"""DeepLabCut: labeled-data/VIDEO/CollectedData_SCORER.csv, beside the labelled images of each video.

A table has a row for every image and, below a header of three or four lines, two columns for every body part; with
several animals in an image, for every body part of every individual. Empty cells are not labelled; all others count as
visible. ``sleap-io`` is not used: it takes the number in the name of an image for its place among those that are
there, so that labels go to other images where some are missing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from posenet.annotations.importing.image_files import ImageFiles
from posenet.annotations.importing.imported import (
    ImportedAnnotations,
    ImportedPerson,
    Labels,
    Notes,
    readable,
    to_coco,
)
from posenet.annotations.importing.published_sets import MISSING_IMAGES
from posenet.errors import DataError
from posenet.files import read_input

CATEGORY = "animal"
_HEADER = ("scorer", "individuals", "bodyparts", "coords")

Table = tuple[list[tuple[str, str, str]], list[list[str]]]
"""Individual, body part and x or y of every column; and the rows, each with the name of its image first."""


def is_table(beginning: bytes) -> bool:
    """Whether a file begins as a table of DeepLabCut does."""
    return beginning.startswith(b"scorer,")


def find_tables(folder: Path) -> list[Path]:
    """The tables of a project; empty if the folder is none."""
    return sorted(folder.glob("labeled-data/*/CollectedData_*.csv"))


def import_deeplabcut(
    tables: Sequence[Path], source: Path, images: str | Path | None, keypoints: Sequence[str] | None
) -> ImportedAnnotations:
    """Read the labels of a project, or of one video."""
    notes = Notes(list)
    people: dict[Path, list[dict[str, tuple[float, float]]]] = {}
    names: list[str] = []
    for table in tables:
        with readable(table):
            columns, rows = _read_table(table)
        names += [part for part in dict.fromkeys(part for _, part, _ in columns) if part not in names]
        files = ImageFiles(Path(images) if images is not None else table.parent)
        for row in rows:
            image = files.find(row[0]) or files.find(Path(row[0]).name)
            if image is None:
                notes[MISSING_IMAGES].append(row[0])
                continue
            with readable(table):
                people[image] = _read_row(columns, row[1:])
    if not people:
        raise DataError(
            f"no image of {source} is there; copy the folders labeled-data too, or name one with images=DIR"
        )
    order = list(keypoints or names)
    found: dict[Path, list[ImportedPerson]] = {}
    for image, own in people.items():
        found[image] = [
            ImportedPerson(
                1, np.array([(*point, 2) if (point := one.get(name)) else (0, 0, 0) for name in order]), None
            )
            for one in own
        ]
    return to_coco(sorted(found), lambda image: (found[image], ""), Labels({1: CATEGORY}, order), notes)


def _read_table(path: Path) -> Table:
    try:
        text = read_input(path).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    lines = [line for line in csv.reader(io.StringIO(text)) if line]
    header: dict[str, list[str]] = {}
    for line in lines[: len(_HEADER)]:
        if line[0] in _HEADER:
            header[line[0]] = line
    if "bodyparts" not in header or "coords" not in header:
        raise ValueError("its header has no lines bodyparts and coords")
    # Newer versions have three columns for the parts of the name of the image.
    first = next(index for index, text in enumerate(header["coords"]) if text in ("x", "y"))
    individuals = header.get("individuals", [""] * len(header["coords"]))
    columns = list(zip(individuals[first:], header["bodyparts"][first:], header["coords"][first:]))
    rows = [["/".join(filter(None, line[:first])), *line[first:]] for line in lines[len(header) :]]
    return columns, rows


def _read_row(columns: Sequence[tuple[str, str, str]], cells: Sequence[str]) -> list[dict[str, tuple[float, float]]]:
    """The labelled body parts of every individual that has any."""
    values = {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell.strip()}
    people: dict[str, dict[str, tuple[float, float]]] = {}
    for individual, part, axis in columns:
        x, y = values.get((individual, part, "x"), math.nan), values.get((individual, part, "y"), math.nan)
        if axis == "x" and math.isfinite(x) and math.isfinite(y):
            people.setdefault(individual, {})[part] = x, y
    return list(people.values())

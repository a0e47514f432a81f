"""DeepLabCut: labeled-data/VIDEO/CollectedData_SCORER.csv, beside the labelled images of each video.

A table has a row for every image and, below a header of three or four lines, two columns for every body part; with
several animals in an image, for every body part of every individual. Empty cells are not labelled; all others count as
visible. Columns are separated by commas, semicolons or tabs. ``sleap-io`` is not used: it takes the number in the
name of an image for its place among those that are there, so that labels go to other images where some are missing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from posenet.annotations.image_files import ImageFiles
from posenet.annotations.importing.imported import (
    MISSING_IMAGES,
    ImportedAnnotations,
    Notes,
    Object,
    Source,
    readable,
    to_coco,
)
from posenet.errors import DataError
from posenet.files import read_input

CATEGORY = "animal"
_HEADER = ("scorer", "individuals", "bodyparts", "coords")


def is_table(beginning: bytes) -> bool:
    """Whether a file begins as a table of DeepLabCut does."""
    return beginning.startswith((b"scorer,", b"scorer;", b"scorer\t"))


def find_tables(folder: Path) -> list[Path]:
    """The tables of a project; empty if the folder is none."""
    return sorted(folder.glob("labeled-data/*/CollectedData_*.csv"))


def import_deeplabcut(source: Source) -> ImportedAnnotations:
    """Read the labels of a project, or of one video."""
    notes = Notes(list)
    objects_of: dict[Path, list[Object]] = {}
    names: dict[str, None] = {}
    for table in source.content:
        with readable(table):
            columns, rows = _read_table(table)
        names |= dict.fromkeys(part for _, part, _ in columns)
        files = ImageFiles(Path(source.images or table.parent))
        for name, *cells in rows:
            image = files.find(name)
            if image is None:
                notes[MISSING_IMAGES].append(name)
                continue
            with readable(table):
                objects_of[image] = _read_row(columns, cells)
    if not objects_of:
        raise DataError(
            f"no image of {source.path} is there; copy the folders labeled-data too, or name one with --images DIR"
        )
    return to_coco(dict(sorted(objects_of.items())), list(source.keypoints or names), notes)


def _read_table(path: Path) -> tuple[list[tuple[str, str, str]], list[list[str]]]:
    """Individual, body part and x or y of every column; and the rows, each with the name of its image first."""
    text = read_input(path).decode("utf-8-sig")
    # A spreadsheet may have saved the table with its own delimiter, and with quoted cells.
    delimiter = next((mark for mark in text if mark in ",;\t"), ",")
    lines = [line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if line]
    header = {line[0]: line for line in lines[: len(_HEADER)] if line[0] in _HEADER}
    if "bodyparts" not in header or "coords" not in header:
        raise ValueError("its header has no lines bodyparts and coords")
    # Newer versions have three columns for the parts of the name of the image.
    first = next(index for index, text in enumerate(header["coords"]) if text in ("x", "y"))
    individuals = header.get("individuals", [""] * len(header["coords"]))
    columns = list(zip(individuals[first:], header["bodyparts"][first:], header["coords"][first:]))
    return columns, [["/".join(filter(None, line[:first])), *line[first:]] for line in lines[len(header) :]]


def _read_row(columns: Sequence[tuple[str, str, str]], cells: Sequence[str]) -> list[Object]:
    values = {
        column: float(cell.replace(",", ".")) for column, cell in zip(columns, cells, strict=True) if cell.strip()
    }
    objects: dict[str, dict[str, tuple[float, float, int]]] = {}
    for individual, part, _ in columns:
        x, y = values.get((individual, part, "x"), math.nan), values.get((individual, part, "y"), math.nan)
        if math.isfinite(x) and math.isfinite(y):
            objects.setdefault(individual, {})[part] = x, y, 2
    return [Object(CATEGORY, points) for points in objects.values()]

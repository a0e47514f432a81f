"""A data set of another format as a COCO-shaped document.

An importer transcribes. What the format does not state, such as areas, is left to the reader of COCO files, and the
edges and twins of keypoints with known names to the draft of the skeleton.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.adjustments import are_few
from posenet.annotations.coco import Entry, shape_of
from posenet.annotations.image_files import find_images_near
from posenet.errors import DataError, PosenetError
from posenet.images import read_header
from posenet.messages import to_single_line
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads, usable_cores

DECIMALS = 3
"""Decimals of coordinates and areas."""
SHOWN_NAMES = 5
"""Number of names in a note."""
MISSING_IMAGES = "images that are not in the folder, or that several files may be, left out"


@dataclass(frozen=True)
class Source:
    """A file or a folder, what is in it, and how it is read; see ``formats.read_annotations``."""

    path: Path
    kind: str
    """yaml, object or list (of JSON), xml, mat, hdf5; or tables, labelme or posetrack, which may be several files."""
    content: Any = None
    """A document, the root of XML, the variables of a MAT file; the paths of tables; other files by their paths."""
    images: str | Path | None = None
    split: str | None = None
    frames: Path | None = None
    notes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What is left out, or done in another way than stated, with the names of the images or tasks."""
    faults: list[str] = field(default_factory=list)
    """Why images or tasks cannot be read; these are left out if they are few."""


class Object(NamedTuple):
    """An object, in pixels or in shares of the image as it is displayed."""

    category: str
    points: Mapping[str, Sequence[float]]
    """x, y and visibility by name; the centre of the first pixel is (0, 0)."""
    box: Sequence[float] | None = None  # x, y, width, height; None for that around the labelled keypoints
    outline: Sequence[list[float]] = ()  # polygons x, y, x, y, ... in pixels


class ImportedAnnotations(NamedTuple):
    """The result of an import."""

    document: dict[str, Any]
    folder: Path  # the file names of the images are relative to it
    notes: tuple[str, ...]  # what was left out, and other remarks: one line each


@contextlib.contextmanager
def readable(path: object) -> Iterator[None]:
    """Turn errors into a ``DataError`` that names the file: libraries raise many kinds for damaged content."""
    try:
        yield
    except (PosenetError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.filename or path}: {error.strerror}"
            raise DataError(f"cannot use {reason}; check the path, the permissions and the disk") from error
        reason = to_single_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} cannot be read ({reason}); it may be damaged: export it again") from error


def to_coco(
    objects_of: Mapping[str, Sequence[Object]] | Mapping[Path, Sequence[Object]],
    names: Sequence[str],
    source: Source,
    *,
    edges: Sequence[tuple[str, str]] = (),
    flip_idx: Sequence[int] | None = None,
    categories: Mapping[int, str] | None = None,
    whole: float | None = None,
) -> ImportedAnnotations:
    """Convert the objects of all images to COCO annotations in pixels.

    Images that cannot be read have no size, so that the reader of COCO files leaves them out.

    Args:
        objects_of: those of every image, by its file, or by its name, which is searched. The innermost folder that
            holds all images becomes that of the data set.
        names: of the keypoints, in order. Edges of others are left out.
        flip_idx: for every keypoint the number, from 0, of its twin or its own.
        categories: names by id; None numbers those of the objects from 1.
        whole: the share that is the whole image: 1 for fractions, 100 for percentages; None for pixels.

    Raises:
        DataError: no image is there, or many have faults.
    """
    count = len(source.faults)
    if count and (count > len(objects_of) or not are_few(count, count + len(objects_of))):
        raise DataError(source.faults[0] + (f" (and {count - 1} more)" if count > 1 else ""))
    source.notes["images or tasks that cannot be read, left out"] += source.faults
    sought = [image for image in objects_of if isinstance(image, str)]
    files: Mapping[Any, Path] = {image: image for image in objects_of if isinstance(image, Path)}
    if sought:
        _, files = find_images_near(source.path, source.images, sought)
        source.notes[MISSING_IMAGES] += [name for name in sought if name not in files]
    folder = Path(os.path.commonpath([path.parent for path in files.values()]))

    def read_size(path: Path) -> Entry:
        with contextlib.suppress(DataError):
            height, width = read_header(path).displayed_size
            return {"height": height, "width": width}
        return {}

    workers = usable_cores()
    sizes = map_in_threads(read_size, files.values(), workers=workers, ahead=16 * workers)
    entries: list[Entry] = []
    objects: list[tuple[Entry, Object]] = []
    for image, size in zip(files, progress_bar(sizes, "images", len(files))):
        entries.append({"id": len(entries) + 1, "file_name": files[image].relative_to(folder).as_posix()} | size)
        objects += [(entries[-1], item) for item in objects_of[image]]
    if categories is None:
        categories = dict(enumerate(dict.fromkeys(item.category for _, item in objects), 1))
    shape = shape_of(names, edges)
    if flip_idx is not None:
        shape["flip_idx"] = flip_idx
    document = {
        "images": entries,
        "annotations": _annotations(objects, names, {name: number for number, name in categories.items()}, whole),
        "categories": [{"id": number, "name": name} | shape for number, name in categories.items()],
    }
    lines = []
    for note, places in source.notes.items():
        different = list(dict.fromkeys(places))
        if different:
            shown = to_single_line(", ".join(different[:SHOWN_NAMES]))
            lines.append(f"{note}: {len(places)} ({shown}{', ...' if len(different) > SHOWN_NAMES else ''})")
    return ImportedAnnotations(document, folder, tuple(lines))


def _annotations(
    objects: Sequence[tuple[Entry, Object]], names: Sequence[str], ids: Mapping[str, int], whole: float | None
) -> list[Entry]:
    if not objects:
        return []
    # All objects at once: arrays of a single one take most of the time of an import.
    rows = [[item.points.get(name, (0, 0, 0)) for name in names] for _, item in objects]
    keypoints = np.array(rows, np.float64).reshape(len(rows), len(names), 3)
    boxes = np.array([item.box or (0, 0, 0, 0) for _, item in objects], np.float64)
    if whole is not None:
        # (P, 2) pixels
        units = np.array([(image.get("width", 0), image.get("height", 0)) for image, _ in objects]) / whole
        keypoints[..., :2] *= units[:, None]
        boxes *= np.tile(units, 2)
    keypoints[..., :2] = keypoints[..., :2].round(DECIMALS)
    keypoints[~(keypoints[..., 2] > 0)] = 0
    annotations: list[Entry] = []
    values_of = keypoints.reshape(len(objects), -1).tolist()
    for (image, item), values, box in zip(objects, values_of, boxes.round(DECIMALS).tolist()):
        values[2::3] = [int(value) if value.is_integer() else value for value in values[2::3]]
        entry = {"id": len(annotations) + 1, "image_id": image["id"], "category_id": ids[item.category]}
        entry |= {"keypoints": values, "segmentation": list(item.outline)}
        annotations.append(entry if item.box is None else entry | {"bbox": box})
    return annotations

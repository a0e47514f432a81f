"""A data set of another format as a COCO-shaped document.

An importer transcribes. What the format does not state, such as areas, is left to the reader of COCO files, and the
edges and twins of keypoints with known names to the draft of the skeleton.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, Entry
from posenet.annotations.image_files import find_images_near
from posenet.errors import DataError, PosenetError
from posenet.images import read_header, write_image
from posenet.messages import to_single_line
from posenet.progress_bar import progress_bar
from posenet.skeleton import COCO
from posenet.threads import map_in_threads, usable_cores

DECIMALS = 3
"""Decimals of coordinates and areas."""
FEW = 0.05
"""Share of the images that may have faults of their own. If more have, the fault is that of the whole set."""
SHOWN_NAMES = 5
"""Number of names in a note."""
MISSING_IMAGES = "images that are not in the folder, or that several files may be, left out"

Content = TypeVar("Content")


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
    keypoints: Sequence[str] | None = None
    part: str | None = None
    frames: Path | None = None
    notes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What is left out, or done in another way than stated, with the names of the images or tasks."""


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


CONTENT_ERRORS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError)
"""Errors of content that is not as it should be; that of XML is a ``SyntaxError``."""


@contextlib.contextmanager
def readable(path: object, errors: type[Exception] | tuple[type[Exception], ...] = CONTENT_ERRORS) -> Iterator[None]:
    """Turn errors into a ``DataError`` that names the file. Libraries raise ``Exception`` of many kinds."""
    try:
        yield
    except PosenetError:
        raise
    except errors as error:
        reason = to_single_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} cannot be read ({reason}); it may be damaged: export it again") from error
    except OSError as error:
        reason = f"{error.filename or path}: {error.strerror or error}"
        raise DataError(f"cannot use {reason}; check the path, the permissions and the disk") from error


def by_file(objects_of: Mapping[str, Content], source: Source) -> dict[Path, Content]:
    """What the images have, by their files in place of their names; ``DataError`` if none is there."""
    _, found = find_images_near(source.path, source.images, list(objects_of))
    source.notes[MISSING_IMAGES] += [name for name in objects_of if name not in found]
    return {file: objects_of[name] for name, file in found.items()}


def frame_paths(source: Source, stem: str, numbers: Iterable[int]) -> dict[int, Path]:
    """Where frames of a video are written as images, by their numbers."""
    folder = source.frames or source.path.with_name(f"{source.path.stem}_frames")
    return {number: folder / f"{stem}_{number:06d}.png" for number in numbers}


def is_current(frame: Path, video: Path) -> bool:
    """Whether an image was written from this video, or this file of images, as it is now."""
    return frame.exists() and frame.stat().st_mtime_ns == video.stat().st_mtime_ns


def write_frame(frame: Path, image: np.ndarray, video: Path) -> None:
    """Write a frame of a video as an image, with the time of the video."""
    write_image(frame, image)
    time = video.stat().st_mtime_ns
    os.utime(frame, ns=(time, time))


def write_frames(source: Source, video: Path, stem: str, numbers: Iterable[int]) -> dict[int, Path]:
    """Write frames of a video as images, unless they are current; ``DataError`` if one cannot be read.

    The frames are read in order, because seeking is not exact in all formats.
    """
    paths = frame_paths(source, stem, numbers)
    missing = {number for number, path in paths.items() if not is_current(path, video)}
    capture = cv2.VideoCapture(str(video))
    for number in range(max(missing, default=-1) + 1):
        is_there, image = capture.read() if number in missing else (capture.grab(), None)
        if not is_there:
            raise DataError(f"frame {number} of {video} cannot be read; give the video that was labelled, complete")
        if image is not None:
            write_frame(paths[number], image, video)
    capture.release()
    return paths


def to_coco(
    objects_of: Mapping[Path, Sequence[Object] | DataError],
    names: Sequence[str],
    source: Source,
    *,
    edges: Sequence[tuple[str, str]] = (),
    twins: Sequence[tuple[str, str]] = (),
    categories: Mapping[int, str] | None = None,
    whole: float | None = None,
) -> ImportedAnnotations:
    """Convert the objects of all images to COCO annotations in pixels.

    A few images that cannot be used, or whose objects cannot be read, are left out and named in the notes.

    Args:
        objects_of: those of every image, or why they cannot be read. The innermost folder that holds all images becomes
            that of the data set.
        names: of the keypoints, in order. Edges and twins of others are left out.
        categories: names by id; None numbers those of the objects from 1.
        whole: the share that is the whole image: 1 for fractions, 100 for percentages; None for pixels.

    Raises:
        DataError: more than a few images cannot be used.
    """
    folder = Path(os.path.commonpath([path.parent for path in objects_of]))

    def read_image(path: Path) -> Entry | DataError:
        try:
            name = path.relative_to(folder).as_posix()
            if not name.isprintable():
                raise DataError(f"the name of {to_single_line(str(path))} is not UTF-8 or not printable; rename it")
            height, width = read_header(path).displayed_size
            return {"file_name": name, "height": height, "width": width}
        except DataError as error:
            return error

    entries: list[Entry] = []
    objects: list[tuple[Entry, Object]] = []
    failures: list[DataError] = []
    workers = usable_cores()
    found = map_in_threads(read_image, objects_of, workers=workers, ahead=16 * workers)
    for own, image in zip(objects_of.values(), progress_bar(found, "images", len(objects_of))):
        if isinstance(image, DataError):
            failures.append(image)
        elif isinstance(own, DataError):
            failures.append(own)
        else:
            entries.append({"id": len(entries) + 1} | image)
            objects += [(entries[-1], item) for item in own]
    if failures and (not entries or len(failures) > max(1, FEW * len(objects_of))):
        others = f" (and {len(failures) - 1} of {len(objects_of)} images more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{others}") from failures[0]
    source.notes["images left out, because they or their annotations cannot be used"] += map(str, failures)
    if categories is None:
        categories = dict(enumerate(dict.fromkeys(item.category for _, item in objects), 1))
    shape = shape_of(names, edges, twins)
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


def shape_of(
    names: Sequence[str], edges: Sequence[tuple[str, str]] = (), twins: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """What a category has of its keypoints: names; numbers of edges, from 1; and those of twins, from 0, if there are
    some. The edges of COCO's keypoints are known."""
    number = {name: index for index, name in enumerate(names)}
    known = [[number[a] + 1, number[b] + 1] for a, b in edges if a in number and b in number]
    if not edges and tuple(names) == COCO.file_names:
        known = COCO_CATEGORY["skeleton"]
    shape: dict[str, Any] = {"keypoints": list(names), "skeleton": known}
    if twins:
        twin = dict(twins) | {b: a for a, b in twins}
        shape["flip_idx"] = [number.get(twin.get(name, name), number[name]) for name in names]
    return shape


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
        units = np.array([(image["width"], image["height"]) for image, _ in objects]) / whole  # (P, 2) pixels
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

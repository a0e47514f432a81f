"""Labels of frames of videos, mostly of animals: DeepLabCut, and what ``sleap-io`` reads.

DeepLabCut is read without ``sleap-io``, which takes the number in the name of an image for its place among those that
are there, so that labels go to other images where some are missing.
"""

import csv
import functools
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import cv2
import numpy as np

from posenet.annotations.image_files import ImageFiles
from posenet.annotations.importing.imported import (
    MISSING_IMAGES,
    ImportedAnnotations,
    Object,
    Source,
    readable,
    to_coco,
)
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import write_image

CATEGORY = "animal"
FrameReader = Callable[[Sequence[int]], Iterator[tuple[int, np.ndarray]]]
"""From numbers of frames to these frames, BGR."""
_HEADER = ("scorer", "individuals", "bodyparts", "coords")


def find_tables(folder: Path) -> list[Path]:
    """The tables of a project of DeepLabCut; empty if the folder is none."""
    return sorted(folder.glob("labeled-data/*/CollectedData_*.csv"))


def import_deeplabcut(source: Source) -> ImportedAnnotations:
    """Read the tables of a project, or of one video: labeled-data/VIDEO/CollectedData_SCORER.csv, beside its images.

    A table has a row for every image and, below a header of three or four lines, two columns for every body part; with
    several animals in an image, for every body part of every individual. Empty cells are not labelled; all others count
    as visible. A spreadsheet may have saved it with its own delimiter and decimal comma, and with quoted cells.
    """
    objects_of: dict[Path, list[Object]] = {}
    names: dict[str, None] = {}
    for table in source.content:
        files = ImageFiles(Path(source.images or table.parent))
        with readable(table):
            text = read_input(table).decode("utf-8-sig")
            delimiter = next((mark for mark in text if mark in ",;\t"), ",")
            lines = [line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if line]
            header = {line[0]: line for line in lines[: len(_HEADER)] if line[0] in _HEADER}
            if "bodyparts" not in header or "coords" not in header:
                raise ValueError("its header has no lines bodyparts and coords")
            # Newer versions have three columns for the parts of the name of the image.
            first = next(index for index, text in enumerate(header["coords"]) if text in ("x", "y"))
            individuals = header.get("individuals", [""] * len(header["coords"]))
            columns = list(zip(individuals[first:], header["bodyparts"][first:], header["coords"][first:]))
            names |= dict.fromkeys(part for _, part, _ in columns)
            for line in lines[len(header) :]:
                name = "/".join(filter(None, line[:first]))
                image = files.find(name)
                if image is None:
                    source.notes[MISSING_IMAGES].append(name)
                else:
                    objects_of[image] = _read_row(columns, line[first:])
    if not objects_of:
        raise DataError(
            f"no image of {source.path} is there; copy the folders labeled-data too, or name one with --images DIR"
        )
    return to_coco(dict(sorted(objects_of.items())), list(names), source)


def _read_row(columns: Sequence[tuple[str, str, str]], cells: Sequence[str]) -> list[Object]:
    """The animals of an image; a column is of an individual, a body part, and x or y."""
    pairs = zip(columns, cells, strict=True)
    values = {column: float(cell.replace(",", ".")) for column, cell in pairs if cell.strip()}
    objects: dict[str, dict[str, tuple[float, float, int]]] = {}
    for individual, part, _ in columns:
        x, y = (values.get((individual, part, axis), math.nan) for axis in "xy")
        if math.isfinite(x) and math.isfinite(y):
            objects.setdefault(individual, {})[part] = x, y, 2
    return [Object(CATEGORY, points) for points in objects.values()]


def import_sleap(source: Source) -> ImportedAnnotations:
    """Read the labels of SLEAP (.slp), NWB (.nwb), JABS (.h5), LEAP (.mat) or AlphaTracker (.json).

    Labels that were made or corrected by hand are read, predictions are left out. Their frames are written to images,
    unless they are images already.
    """
    try:
        import sleap_io
    except ImportError as error:
        raise ConfigError("sleap-io is not installed; pip install 'simplepose[sleap]'") from error
    path = source.path
    with readable(path):
        labels = sleap_io.load_file(str(path), open_videos=False)
        skeleton = labels.skeletons[0]
        labelled = [frame for frame in labels.labeled_frames if frame.user_instances]
    guessed = [f"frame {frame.frame_idx}" for frame in labels.labeled_frames if not frame.user_instances]
    source.notes["frames with predictions alone, which are not labels, left out"] += guessed
    if not labelled:
        raise DataError(f"{path} has no labels that were made by hand; correct predictions in SLEAP, and save them")
    # SLEAP numbers skeletons without a name.
    name = str(skeleton.name or "skeleton")
    category = CATEGORY if name.lower().startswith("skeleton") else name
    objects_of: dict[Path, list[Object]] = {}
    files = ImageFiles(Path(source.images or path.parent))
    for number, video in enumerate(labels.videos, 1):
        own = {int(frame.frame_idx): frame for frame in labelled if frame.video is video}
        paths = _find_frames(source, labels.videos, number, list(own), files) if own else {}
        source.notes[MISSING_IMAGES] += [f"frame {index} of video {number}" for index in own if index not in paths]
        for index, image in paths.items():
            objects_of[image] = [Object(category, _points(instance)) for instance in own[index].user_instances]
    if not objects_of:
        raise DataError(f"no image and no video of {path} is in {files.folder}; name their folder with --images DIR")
    names, twins = skeleton.node_names, [tuple(pair) for pair in skeleton.symmetry_names]
    twin_of = dict(twins) | {b: a for a, b in twins}
    flip_idx = [names.index(twin_of.get(name, name)) for name in names] if twins else None
    return to_coco(objects_of, names, source, edges=skeleton.edge_names, flip_idx=flip_idx)


def _points(instance: Any) -> dict[str, tuple[float, float, int]]:
    """The points of an instance; its coordinates count from the centre of the first pixel."""
    points = {}
    for point in instance.points:
        x, y = map(float, point["xy"])
        if math.isfinite(x) and math.isfinite(y):
            points[str(point["name"])] = (x, y, 2 if point["visible"] else 1)
    return points


def _find_frames(
    source: Source, videos: Sequence[Any], number: int, frames: Sequence[int], files: ImageFiles
) -> dict[int, Path]:
    """The images of the labelled frames of one of the videos: files, or frames that are written."""
    video = videos[number - 1]
    name = video.filename
    if isinstance(name, list):
        listed = {frame: name[frame] for frame in frames if frame < len(name)}
        found = {frame: Path(at) if Path(at).is_file() else files.find(at) for frame, at in listed.items()}
        return {frame: path for frame, path in found.items() if path is not None}
    if str(name).endswith((".slp", ".h5", ".nwb")):  # the images are in the file of the labels itself
        return _write_frames(source, Path(name), f"video{number}", frames, functools.partial(_read_embedded, video))
    # A video that was moved is found by the end of its path, unless that is the end of another one, too.
    parts = PureWindowsPath(name).parts
    others = {PureWindowsPath(str(one.filename)).parts for one in videos} - {parts}
    ends = [parts[first:] for first in range(len(parts))]
    own = [end for end in ends if all(other[-len(end) :] != end for other in others)]
    for path in (Path(name), *(files.folder.joinpath(*end) for end in own)):
        if path.is_file():
            stem = f"video{number}_{path.stem}"
            return _write_frames(source, path, stem, frames, functools.partial(_read_in_order, path))
    return {}


def _write_frames(source: Source, video: Path, stem: str, numbers: Sequence[int], read: FrameReader) -> dict[int, Path]:
    """Write frames of a video as images, with the time of the video, unless they are current; return their paths."""
    folder = source.frames or source.path.with_name(f"{source.path.stem}_frames")
    paths = {number: folder / f"{stem}_{number:06d}.png" for number in numbers}
    time = video.stat().st_mtime_ns
    missing = [number for number, path in paths.items() if not path.exists() or path.stat().st_mtime_ns != time]
    for number, image in read(missing):
        write_image(paths[number], image)
        os.utime(paths[number], ns=(time, time))
    return paths


def _read_in_order(path: Path, numbers: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Frames of a video, which is read from its beginning because seeking is not exact in all formats."""
    capture = cv2.VideoCapture(str(path))
    for number in range(max(numbers, default=-1) + 1):
        is_there, image = capture.read() if number in numbers else (capture.grab(), None)
        if not is_there:
            raise DataError(f"frame {number} of {path} cannot be read; give the video that was labelled, complete")
        if image is not None:
            yield number, image
    capture.release()


def _read_embedded(video: Any, frames: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    for frame in frames:
        with readable(f"frame {frame} in {video.filename}"):
            video.open()
            image = video[frame]
        is_coloured = image.shape[-1] == 3
        yield frame, np.ascontiguousarray(image[..., ::-1] if is_coloured else np.repeat(image[..., :1], 3, axis=-1))

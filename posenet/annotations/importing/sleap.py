"""What ``sleap-io`` reads: SLEAP (.slp), NWB (.nwb), JABS (.h5), LEAP (.mat) and AlphaTracker (.json).

The labels are of frames of videos: these are written to images, unless they are images already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.importing.image_files import ImageFiles, make_folder, write_frames
from posenet.annotations.importing.imported import (
    ImportedAnnotations,
    ImportedPerson,
    Labels,
    Notes,
    to_coco,
)
from posenet.annotations.importing.published_sets import MISSING_IMAGES
from posenet.errors import ConfigError, DataError
from posenet.images import write_image
from posenet.messages import to_single_line

CATEGORY = "animal"
_PREDICTIONS = "frames with predictions alone, which are not labels, left out"


def require_sleap_io() -> Any:
    """The module ``sleap_io``; ``ConfigError`` if it is not installed."""
    try:
        import sleap_io
    except ImportError as error:
        raise ConfigError("sleap-io is not installed; pip install 'simplepose[sleap]'") from error
    return sleap_io


def import_sleap(
    path: Path, images: str | Path | None, keypoints: Sequence[str] | None, frames: Path | None
) -> ImportedAnnotations:
    """Read the labels that were made or corrected by hand; predictions are left out.

    Args:
        frames: where the frames of videos are written.
    """
    sleap_io = require_sleap_io()
    notes = Notes(list)
    try:
        labels = sleap_io.load_file(str(path), open_videos=False)
        skeleton = labels.skeletons[0]
        labelled = [frame for frame in labels.labeled_frames if frame.user_instances]
    except Exception as error:  # h5py and the readers of each format raise errors of many kinds
        reason = to_single_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} cannot be read by sleap-io ({reason}); save the labels again") from error
    notes[_PREDICTIONS] += [f"frame {frame.frame_idx}" for frame in labels.labeled_frames if not frame.user_instances]
    if not labelled:
        raise DataError(f"{path} has no labels that were made by hand; correct predictions in SLEAP, and save them")
    names = [node.name for node in skeleton.nodes]
    order = list(keypoints or names)
    people: dict[Path, list[ImportedPerson]] = {}
    files = ImageFiles.near(path, images)
    folder = frames or path.with_name(f"{path.stem}_frames")
    for number, video in enumerate(labels.videos):
        own = [frame for frame in labelled if frame.video is video]
        paths = _find_images(video, number, [int(frame.frame_idx) for frame in own], files, folder) if own else {}
        for frame in own:
            image = paths.get(int(frame.frame_idx))
            if image is None:
                notes[MISSING_IMAGES].append(f"frame {frame.frame_idx} of video {number + 1}")
                continue
            people[image] = [_read_instance(instance, order) for instance in frame.user_instances]
    if not people:
        raise DataError(f"no image and no video of {path} is in {files.folder}; name their folder with images=DIR")
    edges = [
        [order.index(names[a]) + 1, order.index(names[b]) + 1]
        for a, b in skeleton.edge_inds
        if _are_in(order, names[a], names[b])
    ]
    flip_idx = _flip_idx(skeleton, order)
    shape = Labels({1: skeleton_name(skeleton)}, order, edges, flip_idx)
    return to_coco(list(people), lambda image: (people[image], ""), shape, notes)


def skeleton_name(skeleton: Any) -> str:
    """What the objects are called; SLEAP numbers skeletons without a name."""
    name = str(skeleton.name or "")
    return name if name and not name.lower().startswith("skeleton") else CATEGORY


def _are_in(order: Sequence[str], *names: str) -> bool:
    return all(name in order for name in names)


def _flip_idx(skeleton: Any, order: Sequence[str]) -> list[int] | None:
    """The twins in the skeleton's symmetries; None if it has none."""
    twin: dict[str, str] = {}
    for a, b in skeleton.symmetry_names:
        twin |= {a: b, b: a}
    return (
        [
            order.index(twin.get(name, name)) if twin.get(name, name) in order else index
            for index, name in enumerate(order)
        ]
        if twin
        else None
    )


def _read_instance(instance: Any, order: Sequence[str]) -> ImportedPerson:
    """An instance; its coordinates count from the centre of the first pixel."""
    found = {}
    for point in instance.points:
        x, y = map(float, point["xy"])
        if np.isfinite([x, y]).all():
            found[str(point["name"])] = (x, y, 2 if point["visible"] else 1)
    return ImportedPerson(1, np.array([found.get(name, (0, 0, 0)) for name in order], np.float64), None)


def _find_images(video: Any, number: int, frames: Sequence[int], files: ImageFiles, folder: Path) -> dict[int, Path]:
    """The images of the labelled frames of a video: files, or frames that are written to the folder."""
    name = video.filename
    if isinstance(name, list):
        paths = {frame: Path(name[frame]) for frame in frames if frame < len(name)}
        found = {frame: path if path.is_file() else files.find(str(path)) for frame, path in paths.items()}
        return {frame: path for frame, path in found.items() if path is not None}
    if _is_embedded(video):
        return _write_embedded(video, number, frames, folder)
    for path in (Path(name), files.folder / Path(str(name).replace("\\", "/")).name):
        if path.is_file():
            return write_frames(path, frames, folder)
    return {}


def _is_embedded(video: Any) -> bool:
    """Whether the images of the labelled frames are in the file of the labels itself."""
    return str(video.filename).endswith((".slp", ".h5", ".nwb"))


def _write_embedded(video: Any, number: int, frames: Sequence[int], folder: Path) -> dict[int, Path]:
    make_folder(folder)
    paths = {}
    for frame in frames:
        paths[frame] = folder / f"video{number + 1}_{frame:06d}.png"
        try:
            video.open()
            image = video[frame]
        except Exception as error:  # of h5py, or of a decoder
            raise DataError(
                f"frame {frame} in {video.filename} cannot be read ({to_single_line(str(error))})"
            ) from error
        image = image[..., ::-1] if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1)
        write_image(paths[frame], np.ascontiguousarray(image))
    return paths

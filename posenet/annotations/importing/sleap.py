"""What ``sleap-io`` reads: SLEAP (.slp), NWB (.nwb), JABS (.h5), LEAP (.mat) and AlphaTracker (.json).

The labels are of frames of videos: these are written to images, unless they are images already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.image_files import ImageFiles
from posenet.annotations.importing.frames import write_frames, write_images
from posenet.annotations.importing.imported import MISSING_IMAGES, ImportedAnnotations, Notes, Object, Source, to_coco
from posenet.errors import ConfigError, DataError
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


def import_sleap(source: Source) -> ImportedAnnotations:
    """Read the labels that were made or corrected by hand; predictions are left out."""
    path = source.path
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
    # SLEAP numbers skeletons without a name.
    name = str(skeleton.name or "skeleton")
    category = CATEGORY if name.lower().startswith("skeleton") else name
    objects_of: dict[Path, list[Object]] = {}
    files = ImageFiles(Path(source.images or path.parent))
    for number, video in enumerate(labels.videos, 1):
        own = {int(frame.frame_idx): frame for frame in labelled if frame.video is video}
        paths = _find_images(video, number, list(own), files, source.frames_folder) if own else {}
        notes[MISSING_IMAGES] += [f"frame {index} of video {number}" for index in own if index not in paths]
        for index, image in paths.items():
            objects_of[image] = [Object(category, _points(instance)) for instance in own[index].user_instances]
    if not objects_of:
        raise DataError(f"no image and no video of {path} is in {files.folder}; name their folder with --images DIR")
    names = list(source.keypoints or skeleton.node_names)
    edges, twins = skeleton.edge_names, [tuple(pair) for pair in skeleton.symmetry_names]
    return to_coco(objects_of, names, notes, edges=edges, twins=twins)


def _points(instance: Any) -> dict[str, tuple[float, float, int]]:
    """The points of an instance; its coordinates count from the centre of the first pixel."""
    points = {}
    for point in instance.points:
        x, y = map(float, point["xy"])
        if np.isfinite([x, y]).all():
            points[str(point["name"])] = (x, y, 2 if point["visible"] else 1)
    return points


def _find_images(video: Any, number: int, frames: Sequence[int], files: ImageFiles, folder: Path) -> dict[int, Path]:
    """The images of the labelled frames of a video: files, or frames that are written to the folder."""
    name = video.filename
    if isinstance(name, list):
        listed = {frame: name[frame] for frame in frames if frame < len(name)}
        found = {frame: Path(at) if Path(at).is_file() else files.find(at) for frame, at in listed.items()}
        return {frame: path for frame, path in found.items() if path is not None}
    if str(name).endswith((".slp", ".h5", ".nwb")):  # the images are in the file of the labels itself
        return write_images(f"video{number}", frames, folder, lambda frame: _read_embedded(video, frame))
    for path in (Path(name), files.folder / Path(str(name).replace("\\", "/")).name):
        if path.is_file():
            return write_frames(path, frames, folder)
    return {}


def _read_embedded(video: Any, frame: int) -> np.ndarray:
    try:
        video.open()
        image = video[frame]
    except Exception as error:  # of h5py, or of a decoder
        reason = to_single_line(str(error))
        raise DataError(f"frame {frame} in {video.filename} cannot be read ({reason}); save it again") from error
    return np.ascontiguousarray(image[..., ::-1] if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1))

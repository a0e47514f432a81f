"""Data sets in the YOLO-pose format of Ultralytics: a ``data.yaml``, and a text file of labels for every image.

A line of a label file is an object: class, centre x, centre y, width and height of its box; then x, y and, if the set
has it, the visibility of every keypoint. Coordinates are fractions of the displayed image. The labels of
``images/a/1.jpg`` are in ``labels/a/1.txt``; an image without such a file shows no object.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from posenet.annotations.importing.imported import ImportedAnnotations, Object, Source, readable, to_coco
from posenet.annotations.known_bodies import is_flip_idx
from posenet.errors import ConfigError, DataError
from posenet.files import read_input
from posenet.images import find_images
from posenet.messages import pluralize
from posenet.skeleton import COCO

BOX_COLUMNS = 5
"""Columns of a label line before the keypoints: class, x, y, width, height."""
MAX_FRACTION = 2.0
"""Boxes end a little outside their image in some data sets; larger numbers are not in fractions."""


class MissingPlaceError(DataError):
    """A folder, a list or an image that a ``data.yaml`` names does not exist."""


class Layout(NamedTuple):
    """What ``data.yaml`` says about the labels."""

    classes: dict[int, str]  # names by index
    keypoints: tuple[str, ...]
    flip_idx: list[int] | None  # for every keypoint the number of its twin or its own
    has_visibility: bool


def import_yolo_pose(source: Source) -> ImportedAnnotations:
    """Read one split, such as train or val, of the data set of a ``data.yaml``.

    The names of the keypoints are those in ``kpt_names``, or COCO's if there are 17, or
    keypoint_1, keypoint_2 and so on.
    """
    path = source.path
    if source.images is not None:
        raise DataError(f"{path} names the folders of its images; leave out --images DIR")
    content = _read_yaml(path)
    layout = _parse_layout(content, path)
    images = _find_images(content, path, source.split or "train")
    labels = {image: label_path(image) for image in images}
    objects_of: dict[Path, list[Object]] = {}
    for image, label in labels.items():
        try:
            objects_of[image] = _read_labels(label, layout)
        except DataError as error:
            source.faults.append(str(error))
    unlabelled = [image.name for image, label in labels.items() if not label.exists()]
    if len(unlabelled) == len(images):
        raise DataError(
            f"{path}: none of {len(images)} images has a label file, for example {labels[images[0]]}; give each "
            "label file the name of its image, and .txt"
        )
    source.notes["images without a label file, which show nobody"] += unlabelled
    categories = {index + 1: name for index, name in sorted(layout.classes.items())}
    return to_coco(objects_of, layout.keypoints, source, flip_idx=layout.flip_idx, categories=categories, whole=1)


def places_of_split(data_file: str | Path, split: str) -> list[str]:
    """What a ``data.yaml`` names as the images of a split, in the shortest way of writing; empty if it names none."""
    value = _read_yaml(Path(data_file)).get(split) or []
    return [os.path.normpath(str(place)) for place in (value if isinstance(value, list) else [value])]


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("PyYAML is not installed; pip install 'simplepose[yolo]'") from error
    with readable(path):
        content = yaml.safe_load(read_input(path).decode("utf-8-sig"))
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a data.yaml; give that of a YOLO-pose data set")
    return content


def _parse_layout(content: dict[str, Any], path: Path) -> Layout:
    shape = content.get("kpt_shape")
    count, dimensions = shape if isinstance(shape, list) and len(shape) == 2 else (0, 0)
    if type(count) is not int or count < 1 or dimensions not in (2, 3):
        raise DataError(f"{path} has no kpt_shape [keypoints, 2 or 3]; give the data.yaml of a YOLO-pose data set")
    names = content.get("names") or {}
    classes = dict(enumerate(names)) if isinstance(names, list) else dict(names)
    listed = content.get("kpt_names")
    if isinstance(listed, dict):  # by class; the keypoints are those of all classes
        listed = next(iter(listed.values()), None)
    default = COCO.file_names if count == len(COCO.file_names) else [f"keypoint_{n + 1}" for n in range(count)]
    keypoints = tuple(map(str, listed or default))
    if len(keypoints) != count or len(set(keypoints)) != count:
        raise DataError(f"{path}: kpt_names must be as many names as kpt_shape says, {count}, and no two the same")
    flip_idx = content.get("flip_idx")
    flip_idx = flip_idx if is_flip_idx(flip_idx, count) else None
    return Layout({int(index): str(name) for index, name in classes.items()}, keypoints, flip_idx, dimensions == 3)


def _find_images(content: dict[str, Any], data_file: Path, split: str) -> list[Path]:
    """The images of a split, which is a folder, a text file of paths, or a list of both.

    Links are not followed: the labels are beside the link to an image, not beside the image.
    """
    value = content.get(split)
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not all(isinstance(place, str) and place for place in places) or not places:
        known = ", ".join(key for key in ("train", "val", "test") if content.get(key)) or "none"
        raise DataError(f"{data_file} has no split {split} (found: {known}); choose one by --split NAME")
    here = data_file.absolute().parent
    stated = str(content.get("path") or "").replace("\\", "/")
    roots = [here / stated, Path(stated), here]
    inputs = []
    for place in places:
        found = _find_place(place, roots, data_file)
        if found.suffix == ".txt":
            lines = read_input(found).decode("utf-8-sig").split("\n")
            near = [found.parent, *roots]
            inputs += [_find_place(line.strip(), near, found) for line in lines if line.strip()]
        else:
            inputs.append(found)
    if not inputs:
        raise DataError(f"{data_file}: the split {split} has no images; correct the paths")
    return sorted(path.absolute() for path in find_images(inputs, recursive=True))


def _find_place(place: str, roots: Sequence[Path], source: Path) -> Path:
    """A folder, a list or an image; relative paths start at one of the folders ``roots``.

    The file may have been written elsewhere, so that the beginning of a path is not there: exports of Roboflow begin
    with one ``../`` too many, those of CVAT with the folder of an earlier format.
    """
    parts = PurePosixPath(place.replace("\\", "/")).parts
    ends = [Path(*parts[start:]) for start in range(len(parts)) if start < 2 or len(parts) - start >= 2]
    for root, end in itertools.product(roots, ends):
        if (root / end).exists():
            return root / end
    raise MissingPlaceError(f"{source}: {place} does not exist in {roots[0]}; correct path in the file")


def label_path(image: Path) -> Path:
    """The file with the labels of an image: the last folder ``images`` of its path becomes ``labels``."""
    parts = list(image.parts)
    folders = [index for index, part in enumerate(parts[:-1]) if part == "images"]
    if folders:
        parts[folders[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def _read_labels(path: Path, layout: Layout) -> list[Object]:
    """The objects in a label file, if there is one."""
    with readable(path):
        if not path.exists():
            return []
        text = read_input(path).decode("utf-8-sig", errors="replace")
    objects = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := line.split():
                objects.append(_parse_label([float(word) for word in words], layout))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; correct the line or the data.yaml") from error
    return objects


def _parse_label(row: Sequence[float], layout: Layout) -> Object:
    """An object of a label file; ``ValueError`` if the numbers are not one. Five numbers are one without keypoints."""
    step = 3 if layout.has_visibility else 2
    columns = BOX_COLUMNS + len(layout.keypoints) * step
    if len(row) not in (BOX_COLUMNS, columns):
        count = pluralize(len(layout.keypoints), "keypoint")
        raise ValueError(f"{len(row)} numbers, {columns} are expected for {count} of kpt_shape")
    class_id, x, y, width, height = row[:BOX_COLUMNS]
    if class_id not in layout.classes:
        raise ValueError(f"class {class_id:g} has no name")
    points: dict[str, tuple[float, float, float]] = {}
    for name, start in zip(layout.keypoints, range(BOX_COLUMNS, len(row), step)):
        # Without visibility, a keypoint that is not labelled is at (0, 0), or negative.
        at = row[start], row[start + 1]
        visibility = row[start + 2] if layout.has_visibility else 2.0 * (min(at) >= 0 and max(at) > 0)
        if visibility > 0:
            points[name] = *at, visibility
    numbers = [x, y, width, height, *(value for point in points.values() for value in point[:2])]
    if max(map(abs, numbers)) > MAX_FRACTION:
        raise ValueError(f"{max(numbers, key=abs):g} is no fraction of the image, from 0 to 1")
    return Object(layout.classes[int(class_id)], points, (x - width / 2, y - height / 2, width, height))

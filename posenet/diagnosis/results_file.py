"""Read COCO keypoint results files, of any network, and check their entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import MAX_NUMBER
from posenet.annotations.people import Split
from posenet.diagnosis.matching import Results, index_images
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import pluralize, truncate_for_message
from posenet.skeleton import Skeleton

_REMEDY = "give a COCO results file: a list of objects with image_id, category_id, keypoints and score"


def read_results(path: str | Path, split: Split, skeleton: Skeleton) -> Results:
    """Read the results for the images of a split. The list may be empty.

    ``DataError`` if the file is no results file, or a result has an unknown image or category, the wrong number of
    keypoints, or a coordinate or score that is not a finite number.
    """
    try:
        data = read_input(path)
    except OSError as error:
        raise DataError(f"cannot read results {path}: {error.strerror or error}") from error
    if not data.strip():
        raise DataError(f"{path} is empty; {_REMEDY}, or [] if nobody was found")
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); {_REMEDY}") from error
    return parse_results(entries, split, skeleton, name=str(path))


def parse_results(entries: Any, split: Split, skeleton: Skeleton, name: str) -> Results:
    """Check the content of a results file; see ``read_results``. ``name`` stands in the messages."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        hint = " (it is a data set, with the truth?)" if isinstance(entries, dict) and "annotations" in entries else ""
        raise DataError(f"{name} is not a list of results{hint}; {_REMEDY}")
    num_keypoints = len(skeleton.file_keypoints)
    for number, entry in enumerate(entries, 1):
        _check_entry(entry, f"{name}: result {number}", split, 3 * num_keypoints)
    index_of = index_images(split)
    ids = [int(entry["image_id"]) for entry in entries]
    if unknown := [image_id for image_id in ids if image_id not in index_of]:
        raise DataError(
            f"{name}: {pluralize(len(unknown), 'result')} of images that the annotations do not list, for example "
            f"image {unknown[0]}; give the results and the annotations of the same images"
        )
    keypoints = _finite_array([entry["keypoints"] for entry in entries], f"{name}: a keypoint")
    scores = _finite_array([entry["score"] for entry in entries], f"{name}: a score")
    images = np.array([index_of[image_id] for image_id in ids], int)
    return Results.select(images, keypoints.reshape(-1, num_keypoints, 3), scores)


def _check_entry(entry: dict[str, Any], place: str, split: Split, count: int) -> None:
    image_id: Any = entry.get("image_id")
    if not _is_whole(image_id) or abs(image_id) >= 2**63:
        raise DataError(
            f"{place} has image_id {truncate_for_message(image_id)}, which is not a whole number; {_REMEDY}, such as "
            "posenet evaluate --output writes (predict names images by their paths)"
        )
    category = entry.get("category_id")
    if not _is_whole(category) or category not in split.categories:
        expected = " or ".join(map(str, sorted(split.categories)))
        raise DataError(
            f"{place} has category_id {truncate_for_message(category)}, but the annotated people have {expected}; "
            "correct the results, or leave out those of other categories (posenet evaluate --output writes this id)"
        )
    keypoints = entry.get("keypoints")
    if not isinstance(keypoints, list):
        raise DataError(f"{place} has no list of keypoints; {_REMEDY}")
    if len(keypoints) != count:
        raise DataError(
            f"{place} has {len(keypoints)} numbers as keypoints, but the skeleton of {count // 3} needs {count}: x, y "
            "and a score of each; give the results of this skeleton, or the skeleton of the results (skeleton=FILE)"
        )
    if not set(map(type, keypoints)) <= {int, float}:
        raise DataError(f"{place} has keypoints that are not all numbers; {_REMEDY}")
    score = entry.get("score")
    if type(score) not in (int, float):
        raise DataError(f"{place} has score {truncate_for_message(score)}, which is not a number; {_REMEDY}")


def _is_whole(value: Any) -> bool:
    """Whether an id is a whole number. Some programs write 1 as 1.0."""
    return type(value) is int or (type(value) is float and value.is_integer())


def _finite_array(rows: list[Any], place: str) -> np.ndarray:
    """The numbers of all results as an array; ``DataError`` if one of them is NaN, infinite or huge."""
    try:
        array = np.array(rows, float)
    except OverflowError:  # a whole number that is too large for a float
        array = np.array([np.inf])
    valid = np.abs(array) < MAX_NUMBER  # False for NaN
    if not valid.all():
        number = int(np.argwhere(~valid)[0, 0]) + 1
        where = f" of result {number}" if len(array) == len(rows) else ""
        raise DataError(f"{place}{where} is not a finite number below {MAX_NUMBER:g}; correct or remove the result")
    return array

"""Read COCO keypoint results files, of any network, and check their entries."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import MAX_NUMBER
from posenet.annotations.people import Split
from posenet.diagnosis.matching import Results, index_images
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import truncate_for_message
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
    index_of = index_images(split)
    num_keypoints = len(skeleton.file_keypoints)
    for number, entry in enumerate(entries, 1):
        if problem := _find_problem(entry, index_of, split.categories, 3 * num_keypoints):
            raise DataError(f"{name}: result {number} {problem}")
    keypoints = np.array([entry["keypoints"] for entry in entries], float)
    images = np.array([index_of[entry["image_id"]] for entry in entries], int)
    scores = np.array([entry["score"] for entry in entries], float)
    return Results.select(images, keypoints.reshape(-1, num_keypoints, 3), scores, len(index_of))


def _find_problem(entry: dict[str, Any], images: Collection[int], categories: Collection[int], count: int) -> str:
    """Why a result cannot be used, and the remedy; empty if it can be. Some programs write an id of 1 as 1.0."""
    image_id, category, keypoints, score = map(entry.get, ("image_id", "category_id", "keypoints", "score"))
    if not _are_numbers([image_id]) or image_id not in images:
        return (
            f"has image_id {truncate_for_message(image_id)}, which the annotations do not list; give the results and "
            "the annotations of the same images, as posenet evaluate --output writes them"
        )
    if not _are_numbers([category]) or category not in categories:
        expected = " or ".join(map(str, sorted(categories)))
        return f"has category_id {truncate_for_message(category)} instead of {expected}; correct the results"
    if not isinstance(keypoints, list) or not _are_numbers([*keypoints, score]):
        return f"has keypoints or a score that are not numbers below {MAX_NUMBER:g}; {_REMEDY}"
    if len(keypoints) != count:
        return (
            f"has {len(keypoints)} numbers as keypoints instead of {count}: x, y and a score of each; give the "
            "skeleton of the results (skeleton=FILE)"
        )
    return ""


def _are_numbers(values: list[Any]) -> bool:
    """Whether all values are finite numbers; True and False are not numbers, and NaN is not below the limit."""
    return all(type(value) in (int, float) and abs(value) < MAX_NUMBER for value in values)

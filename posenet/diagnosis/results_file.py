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
from posenet.messages import truncate_for_message
from posenet.skeleton import Skeleton

_REMEDY = "give a COCO results file: a list of objects with image_id, category_id, keypoints and score"


def read_results(path: str | Path, split: Split, skeleton: Skeleton) -> Results:
    """Read the results for the images of a split; ``DataError`` if they cannot be used, see ``parse_results``."""
    try:
        entries = json.loads(read_input(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read results {path}: {error}; {_REMEDY}") from error
    return parse_results(entries, split, skeleton, name=str(path))


def parse_results(entries: Any, split: Split, skeleton: Skeleton, name: str) -> Results:
    """The content of a results file, which may be an empty list. ``name`` stands in the messages.

    ``DataError`` if it is no list of results, or one has an unknown image or category, the wrong number of keypoints,
    or a coordinate or score that is not a finite number.
    """
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{name} is not a list of results, nor are the annotations one; {_REMEDY}")
    index_of = index_images(split)
    num_keypoints = len(skeleton.file_keypoints)
    expected = {"image_id": index_of, "category_id": split.categories}
    for number, entry in enumerate(entries, 1):
        keypoints, score = entry.get("keypoints"), entry.get("score")
        for key, known in expected.items():
            if not _are_numbers([entry.get(key)]) or entry[key] not in known:
                value = truncate_for_message(entry.get(key))
                raise DataError(f"{name}: result {number} has {key} {value}, which the annotations do not list")
        if not isinstance(keypoints, list) or not _are_numbers([*keypoints, score]):
            raise DataError(f"{name}: result {number} has keypoints or a score that are no numbers; {_REMEDY}")
        if len(keypoints) != 3 * num_keypoints:
            raise DataError(
                f"{name}: result {number} has {len(keypoints)} numbers as keypoints instead of {3 * num_keypoints}: "
                "x, y and a score of each; give the skeleton of the results (skeleton=FILE)"
            )
    keypoints = np.array([entry["keypoints"] for entry in entries], float)
    images = np.array([index_of[entry["image_id"]] for entry in entries], int)
    scores = np.array([entry["score"] for entry in entries], float)
    return Results.select(images, keypoints.reshape(-1, num_keypoints, 3), scores, len(index_of))


def _are_numbers(values: list[Any]) -> bool:
    """Whether all values are finite numbers; True and False are not numbers, and NaN is not below the limit."""
    return all(type(value) in (int, float) and abs(value) < MAX_NUMBER for value in values)

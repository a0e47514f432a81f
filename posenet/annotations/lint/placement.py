"""Checks of keypoints against the box of their annotation: positions far away, and coordinates that are not pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenet.annotations.coco_file import CocoImage
from posenet.annotations.lint.findings import Findings
from posenet.annotations.problems import error_kind, warning_kind

NORMALISED = error_kind(
    "normalised",
    "annotations with keypoints between 0 and 1: fractions of the image, not pixels",
    "multiply x by the width of the image and y by its height, in boxes too if they are fractions",
)
PERCENT = error_kind(
    "percent",
    "no keypoint is beyond 100 on either axis, in larger images: percentages of the image, not pixels",
    "multiply x by width / 100 and y by height / 100 of the image, in boxes too if they are percentages",
)
FAR_FROM_BOX = warning_kind(
    "far-from-box",
    "annotations with labelled keypoints far outside their own box",
    "look at the image; correct the box, or the keypoints if they belong to someone else or to a resized image",
)

FAR = 1.0
"""Distance from the box, relative to its longer side, from which a keypoint is reported."""
OUTSIDE = 0.1
"""Distance from the box, relative to its longer side, from which a keypoint counts as outside. In COCO's annotations,
one person in a hundred has half of the keypoints outside."""
MIN_SIDE = 16
"""Smaller images, in pixels, are not checked for fractions."""
MIN_PERCENT_SIDE = 200
"""Percentages are reported if the longer side of half of the images is larger than this, in pixels."""
MIN_EXAMPLES = 20
"""If the boxes do not contradict percentages, at least this many annotations are needed to report them."""


@dataclass(frozen=True)
class PlacedPerson:
    """The labelled keypoints of an annotation, its image and its box."""

    id: object
    points: np.ndarray
    """(N, 2) x, y."""
    image: CocoImage | None
    box: Sequence[float] | None
    """x, y, width, height; None if it cannot be used."""


def check_placement(people: Sequence[PlacedPerson], findings: Findings) -> None:
    """Compare the keypoints of all annotations with their boxes and images."""
    people = [person for person in people if not _check_fractions(person, findings)]
    distances = {index: _distances(person) for index, person in enumerate(people) if person.box is not None}
    misplaced = [index for index, far in distances.items() if np.mean(far > OUTSIDE) >= 0.5]
    longer_sides = [max(person.image.height, person.image.width) for person in people if person.image is not None]
    if longer_sides and np.median(longer_sides) > MIN_PERCENT_SIDE:
        is_certain = len(people) >= MIN_EXAMPLES or len(misplaced) > len(people) / 2
        if is_certain and max(person.points.max() for person in people) <= 100:
            findings.add(PERCENT)
            return
    for index, far in distances.items():
        if (far > FAR).any():
            findings.add(FAR_FROM_BOX, people[index].id)


def _check_fractions(person: PlacedPerson, findings: Findings) -> bool:
    """Report a person with several keypoints that are all between 0 and 1; return whether it is one."""
    if person.image is None or min(person.image.height, person.image.width) < MIN_SIDE:
        return False
    if len(person.points) < 2 or person.points.min() < 0 or person.points.max() > 1 or not person.points.any():
        return False
    findings.add(NORMALISED, person.id)
    return True


def _distances(person: PlacedPerson) -> np.ndarray:
    """(N,) distance of every point from the box along the farther axis, relative to the longer side of the box."""
    x, y, width, height = person.box or (0.0, 0.0, 0.0, 0.0)
    below = np.array([x, y]) - person.points
    above = person.points - np.array([x + width, y + height])
    distances: np.ndarray = np.maximum(below, above).max(axis=1).clip(min=0) / max(width, height, 1.0)
    return distances

"""Coordinates that are not pixels: fractions of the image, and boxes that are two corners.

They are converted where the people leave no doubt. Percentages are refused.
"""

from __future__ import annotations

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import AnnotationColumns

MIN_EXAMPLES = 20
"""At least this many people are needed to recognise percentages."""
MIN_PERCENT_SIDE = 200
"""Percentages are recognised if the longer side of half of the images is larger than this, in pixels."""
CORNER_MARGIN = 1.1
"""A box that is written as two corners is recognised if x, y, width, height would end beyond this many image widths or
heights, as in more than half of COCO's people. Some tools do not cut boxes off at the border, but they end before."""
MANY = 0.2
"""Share of the boxes that must end so far outside."""
BEYOND = 1.1
"""Boxes that are fractions of the image end before this."""
EDGE_MARGIN = 1.0
"""Pixels by which coordinates are outside the image because they are rounded."""
FAR_OUTSIDE = 0.1
"""Distance from the image, relative to its longer side, from which a keypoint is not labelled. The head of a person
may well be above the image."""
BOX_MARGIN = 0.1
"""Distance from the box, relative to its longer side, up to which a keypoint belongs to it."""


def convert_fractions(columns: AnnotationColumns, sizes: np.ndarray, said: Adjustments) -> None:
    """Convert fractions of the images, of (A, 2) height, width ``sizes``, to pixels; single ones are not labelled."""
    is_labelled = columns.is_labelled
    people = columns.is_object & (columns.num_labelled >= 2)
    points = columns.keypoints[..., :2]
    in_unit = ((points >= 0) & (points <= 1)).all(axis=2)
    is_fraction = people & (in_unit | ~is_labelled).all(axis=1) & (points.max(axis=(1, 2)) > 0)
    if not is_fraction.any():
        ends = points.max(axis=(1, 2), where=is_labelled[..., None], initial=0)[people]
        are_large = len(ends) >= MIN_EXAMPLES and np.median(sizes[people].max(axis=1)) > MIN_PERCENT_SIDE
        if are_large and ends.max() <= 100:
            said.add("contradiction", "percent")
    elif is_fraction.sum() < people.sum():
        columns.keypoints[said.leave_out_few("normalised", is_fraction, columns.ids)] = 0
    else:
        units = sizes[:, ::-1]
        points *= units[:, None]
        if (columns.boxes[:, :2] + columns.boxes[:, 2:]).max(initial=0) <= BEYOND:
            columns.boxes *= np.tile(units, 2)
        said.add("derived", "fractions")


def convert_corners(columns: AnnotationColumns, sizes: np.ndarray, said: Adjustments) -> None:
    """Convert boxes of two corners to x, y, width, height.

    They are corners if nearly all would be in the image and around the keypoints, and many end outside as they are.
    """
    first, second = columns.boxes[:, :2], columns.boxes[:, 2:]
    limits = sizes[:, ::-1]
    people = columns.is_object & (columns.boxes != 0).any(axis=1)
    is_inside = ((first >= -EDGE_MARGIN) & (second > first) & (second <= limits + EDGE_MARGIN)).all(axis=1)
    as_corners = np.hstack([first, (second - first).clip(min=1)])
    is_near = distances_from_boxes(columns.keypoints[..., :2], as_corners) <= BOX_MARGIN
    fits = (is_inside & (is_near | ~columns.is_labelled).all(axis=1))[people]
    ends_outside = fits & (first + second > CORNER_MARGIN * limits).any(axis=1)[people]
    if people.any() and ends_outside.mean() > MANY and fits.mean() > 1 - MANY / 2:
        columns.boxes[people] = as_corners[people]
        said.add("derived", "box-corners")


def distances_from_boxes(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(P, K) distance of points from their box along the farther axis, relative to its longer side."""
    low, size = boxes[:, None, :2], boxes[:, None, 2:]
    beyond = np.maximum(low - points, points - low - size).max(axis=2).clip(min=0)
    return np.asarray(beyond / size.max(axis=2).clip(min=1))

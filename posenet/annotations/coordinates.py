"""Coordinates that are not pixels: fractions and percentages of the image, and boxes that are two corners.

They are converted where the people leave no doubt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posenet.annotations.adjustments import Adjustments

MIN_EXAMPLES = 20
"""At least this many people are needed to recognise percentages."""
MIN_PERCENT_SIDE = 200
"""Percentages are recognised if the longer side of half of the images is larger than this, in pixels."""
MIN_REACH = 80
"""Percentages reach this far in both directions, or their boxes are pixels and confirm them."""
CORNER_MARGIN = 1.1
"""A box that is written as two corners is recognised if x, y, width, height would end beyond this many image widths or
heights, as in more than half of COCO's people. Some tools do not cut boxes off at the border, but they end before."""
MANY = 0.2
"""Share of the boxes that must end so far outside."""
BEYOND = 1.1
"""Boxes that are shares of the image end before this one, in wholes."""
EDGE_MARGIN = 1.0
"""Pixels by which coordinates are outside the image because they are rounded."""
BOX_MARGIN = 0.1
"""Distance from the box, relative to its longer side, up to which a keypoint belongs to it."""


def convert_keypoints(
    keypoints: np.ndarray, boxes: np.ndarray, is_person: Any, sizes: np.ndarray, said: Adjustments
) -> Any:
    """Convert fractions and percentages of the image to pixels, in place.

    Args:
        keypoints, boxes: (A, K, 3) x, y, visibility, and (A, 4) x, y, width, height, zeros where there is none.
        is_person: (A,) bool: not a crowd, of a used category.
        sizes: (A, 2) height, width of the images.

    Returns:
        (A,) bool: single people whose keypoints are fractions where those of others are not.
    """
    is_labelled = keypoints[..., 2] > 0
    people = is_person & (is_labelled.sum(axis=1) >= 2)
    in_unit = (keypoints[..., :2] >= 0) & (keypoints[..., :2] <= 1)
    is_fraction = people & (in_unit.all(axis=2) | ~is_labelled).all(axis=1) & (keypoints[..., :2].max(axis=(1, 2)) > 0)
    if is_fraction.any() and is_fraction.sum() == people.sum():
        _multiply(keypoints, boxes, sizes, 1)
        _say_converted(said, "normalised", "keypoints are fractions of the image", len(keypoints))
        return np.zeros_like(is_fraction)
    if is_fraction.any():
        return is_fraction
    if people.sum() < MIN_EXAMPLES or np.median(sizes[people].max(axis=1)) <= MIN_PERCENT_SIDE:
        return is_fraction
    ends = keypoints[..., :2].max(axis=1, where=is_labelled[..., None], initial=-np.inf)[people]
    if ends.max() > 100:
        return is_fraction
    has_box = people & (boxes[:, 2:] > 0).all(axis=1)
    box_ends = (boxes[:, :2] + boxes[:, 2:])[has_box]
    if len(box_ends) and box_ends.max() > 100 * BEYOND:  # the boxes are pixels
        scaled = keypoints[has_box, :, :2] * (sizes[has_box, None, ::-1] / 100)
        is_in_box = (distances_from_boxes(scaled, boxes[has_box]) <= BOX_MARGIN) | ~is_labelled[has_box]
        is_certain = is_in_box.mean() > 1 - MANY / 2
    else:
        is_certain = bool(ends.max(axis=0).min() >= MIN_REACH)
    if is_certain:
        _multiply(keypoints, boxes, sizes, 100)
        _say_converted(said, "percent", "keypoints are percentages of the image", len(keypoints))
    else:
        said.add(
            "contradiction",
            "percent",
            "no keypoint is beyond 100 in larger images, as if they were percentages",
            "write keypoints and boxes in pixels of the image",
        )
    return is_fraction


def _say_converted(said: Adjustments, code: str, message: str, count: int) -> None:
    said.add("derived", code, f"{message}, not pixels ({count} annotations)", "they are multiplied by its size")


def _multiply(keypoints: np.ndarray, boxes: np.ndarray, sizes: np.ndarray, whole: float) -> None:
    units = sizes[:, ::-1] / whole
    keypoints[..., :2] *= units[:, None]
    if (boxes[:, :2] + boxes[:, 2:]).max(initial=0) <= BEYOND * whole:
        boxes *= np.tile(units, 2)


def convert_corners(
    boxes: np.ndarray, keypoints: np.ndarray, is_person: Any, sizes: np.ndarray, said: Adjustments
) -> None:
    """Convert boxes of two corners to x, y, width, height, in place. The arguments are those of ``convert_keypoints``.

    They are corners if all would be in the image and around the keypoints, and many would end outside as they are.
    """
    first, second = boxes[:, :2], boxes[:, 2:]
    limits = sizes[:, ::-1]
    people = is_person & (boxes != 0).any(axis=1)
    if not people.any():
        return
    is_inside = ((first >= -EDGE_MARGIN) & (second > first) & (second <= limits + EDGE_MARGIN)).all(axis=1)
    is_labelled = keypoints[..., 2] > 0
    as_corners = np.hstack([first, (second - first).clip(min=1)])
    is_around = ((distances_from_boxes(keypoints[..., :2], as_corners) <= BOX_MARGIN) | ~is_labelled).all(axis=1)
    fits = np.asarray(is_inside & is_around)[people]
    ends_outside = np.asarray((first + second > CORNER_MARGIN * limits).any(axis=1))[people]
    if not (fits & ends_outside).any() or (fits & ends_outside).mean() <= MANY:
        return
    if fits.mean() > 1 - MANY / 2:
        boxes[people] = as_corners[people]
        said.add(
            "derived", "box-corners", f"boxes are two corners ({people.sum()} annotations)", "width and height computed"
        )
    elif (fits & ends_outside).sum() > 2:
        said.add(
            "contradiction",
            "box-corners",
            "many boxes end outside their image and fit it as two corners, others do not",
            "write bbox as x, y of the upper left corner, width, height",
        )


def distances_from_boxes(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(P, K) distance of points from their box along the farther axis, relative to its longer side."""
    low, size = boxes[:, None, :2], boxes[:, None, 2:]
    beyond = np.maximum(low - points, points - low - size).max(axis=2).clip(min=0)
    return np.asarray(beyond / size.max(axis=2).clip(min=1))

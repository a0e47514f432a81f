"""People to picture."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from posenet.inference.images import to_bgr
from posenet.inference.person import Person
from posenet.skeleton import Skeleton

LEFT, RIGHT, MIDDLE = (255, 160, 40), (30, 130, 255), (90, 210, 90)
"""BGR: blue, orange and green."""
OUTLINE = (25, 25, 25)
DOT = (255, 255, 255)

FAINT = 0.5
"""Keypoints that score less than this share of their person's mean are guesses: not drawn."""

_BITS = 4
"""Fractional bits of the coordinates given to OpenCV."""


def draw_people(image: np.ndarray, people: Sequence[Person], *, min_score: float = 0.0,
                keypoint_min_score: float = 0.0) -> np.ndarray:
    """Draw the keypoints and limbs of people on a copy of a picture.

    The person's left is blue, the right orange, the middle green. Lines grow with the person and the picture.

    Args:
        image: (H, W, 3) BGR; grey, BGRA and 16-bit pictures are converted.
        people: keypoints in pixels of the picture; the first lie on top.
        min_score: people who score less are left out.
        keypoint_min_score: keypoints that score less are left out, like those that are faint beside the person's own.

    Returns:
        (H, W, 3) uint8 BGR.

    Raises:
        DataError: an array that is not a picture.
    """
    canvas = to_bgr(image).copy()
    for person in reversed(people):
        if person.score >= min_score:
            _draw_person(canvas, person, keypoint_min_score)
    return canvas


def _draw_person(canvas: np.ndarray, person: Person, min_score: float) -> None:
    skeleton = person.skeleton
    score = person.keypoints[:, 2]
    shown = person.found & (score >= max(min_score, FAINT * score[person.found].mean() if person.found.any() else 0))
    points = [tuple(point) for point in np.rint(person.keypoints[:, :2] * 2**_BITS).astype(int).tolist()]
    limbs = [(a, b) for a, b in _limbs(skeleton) if shown[a] and shown[b]]
    width = _line_width(canvas, person)
    sides = _sides(skeleton)
    # All outlines come first, so that none cuts through a limb.
    for extra, outline in ((2 * max(1, width // 3), True), (0, False)):
        for a, b in limbs:
            colour = OUTLINE if outline else _limb_colour(sides[a], sides[b])
            cv2.line(canvas, points[a], points[b], colour, width + extra, cv2.LINE_AA, _BITS)
    radius = round(0.9 * width * 2**_BITS)
    for k in np.flatnonzero(shown).tolist():
        cv2.circle(canvas, points[k], radius + (max(1, width // 3) << _BITS), OUTLINE, -1, cv2.LINE_AA, _BITS)
        cv2.circle(canvas, points[k], radius, DOT if sides[k] == MIDDLE else sides[k], -1, cv2.LINE_AA, _BITS)


def _limb_colour(first: tuple[int, int, int], second: tuple[int, int, int]) -> tuple[int, int, int]:
    """The side that the ends agree on; from side to side, the middle's."""
    named = {first, second} - {MIDDLE}
    return named.pop() if len(named) == 1 else MIDDLE


def _line_width(canvas: np.ndarray, person: Person) -> int:
    """Pixels: a fiftieth of the person's size, but neither hidden nor smothering in a picture of this size."""
    left, top, right, bottom = person.box()
    picture = max(canvas.shape[:2])
    return round(float(np.clip(max(right - left, bottom - top) / 50, max(1, picture / 320), max(1, picture / 120))))


def _limbs(skeleton: Skeleton) -> list[tuple[int, int]]:
    """The ends of what is drawn."""
    return [(skeleton.index(a), skeleton.index(b)) for a, b in skeleton.drawn or skeleton.parts]


def _sides(skeleton: Skeleton) -> list[tuple[int, int, int]]:
    """The colour of every keypoint: its own, else its side's."""
    colours = {name: colour for pair in skeleton.left_right for name, colour in zip(pair, (LEFT, RIGHT))}
    colours |= {name: tuple(bytes.fromhex(colour[1:])[::-1]) for name, colour in skeleton.colours.items()}
    return [colours.get(name, MIDDLE) for name in skeleton.keypoints]

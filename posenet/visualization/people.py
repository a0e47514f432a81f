"""People to image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np

from posenet.images.image_files import to_bgr
from posenet.inference.person import Person
from posenet.skeleton import Skeleton

LEFT, RIGHT, MIDDLE = (255, 160, 40), (30, 130, 255), (250, 250, 250)
"""BGR: blue, orange and white, which nobody takes for one another, whatever the eyes."""
OUTLINE = (25, 25, 25)

PALETTE = (
    (233, 180, 86),
    (0, 159, 230),
    (167, 121, 204),
    (66, 228, 240),
    (115, 158, 0),
    (0, 94, 213),
    (178, 114, 0),
    (230, 230, 230),
)
"""BGR, for one person each: the colours of Okabe and Ito, chosen for the colour-blind, with white for their black."""

Colour = tuple[int, int, int]
Colours = Literal["side", "person"]

MIN_SCORE, KEYPOINT_MIN_SCORE = 0.25, 0.2
"""People and keypoints that score less are not worth showing, as a rule."""

FAINT = 0.5
"""Keypoints that score less than this share of their person's mean are guesses: not drawn."""

_BITS = 4
"""Fractional bits of the coordinates given to OpenCV."""


def draw_people(
    image: np.ndarray,
    people: Sequence[Person],
    *,
    min_score: float = 0.0,
    keypoint_min_score: float = 0.0,
    line_width: int = 0,
    colours: Colours = "side",
) -> np.ndarray:
    """Draw the keypoints and limbs of people on a copy of an image.

    Args:
        image: (H, W, 3) BGR; grey, BGRA and 16-bit images are converted.
        people: keypoints in pixels of the image; the first lie on top.
        min_score: people who score less are left out.
        keypoint_min_score: keypoints that score less are left out, like those that are faint beside the person's own.
        line_width: of the limbs, in pixels; 0 suits the sizes of the person and of the image.
        colours: "side": the person's left blue, the right orange, the middle white; "person": a colour for each, in
            the order of ``PALETTE``.

    Returns:
        (H, W, 3) uint8 BGR.

    Raises:
        DataError: an array that is not an image.
    """
    canvas = to_bgr(image).copy()
    for i, person in reversed([*enumerate(people)]):
        if person.score >= min_score:
            sides = (
                _sides(person.skeleton)
                if colours == "side"
                else [PALETTE[i % len(PALETTE)]] * person.skeleton.num_keypoints
            )
            _draw_person(canvas, person, sides, keypoint_min_score, line_width or _line_width(canvas, person))
    return canvas


def _draw_person(canvas: np.ndarray, person: Person, sides: Sequence[Colour], min_score: float, width: int) -> None:
    score = person.keypoints[:, 2]
    shown = person.found & (score >= max(min_score, FAINT * score[person.found].mean() if person.found.any() else 0))
    points = [tuple(point) for point in np.rint(person.keypoints[:, :2] * 2**_BITS).astype(int).tolist()]
    limbs = [(a, b) for a, b in _limbs(person.skeleton) if shown[a] and shown[b]]
    # All outlines come first, so that none cuts through a limb.
    for extra, outline in ((2 * max(1, width // 3), True), (0, False)):
        for a, b in limbs:
            colour = OUTLINE if outline else _limb_colour(sides[a], sides[b])
            cv2.line(canvas, points[a], points[b], colour, width + extra, cv2.LINE_AA, _BITS)
    radius = round(0.9 * width * 2**_BITS)
    for k in np.flatnonzero(shown).tolist():
        cv2.circle(canvas, points[k], radius + (max(1, width // 3) << _BITS), OUTLINE, -1, cv2.LINE_AA, _BITS)
        cv2.circle(canvas, points[k], radius, sides[k], -1, cv2.LINE_AA, _BITS)


def _limb_colour(first: Colour, second: Colour) -> Colour:
    """The side that the ends agree on; from side to side, the middle's."""
    named = {first, second} - {MIDDLE}
    return named.pop() if len(named) == 1 else MIDDLE


def _line_width(canvas: np.ndarray, person: Person) -> int:
    """Pixels: a fiftieth of the person's size, but neither hidden nor smothering in an image of this size."""
    left, top, right, bottom = person.box()
    picture = max(canvas.shape[:2])
    return round(float(np.clip(max(right - left, bottom - top) / 50, max(1, picture / 500), max(1, picture / 120))))


def _limbs(skeleton: Skeleton) -> list[tuple[int, int]]:
    """The ends of what is drawn."""
    return [(skeleton.index(a), skeleton.index(b)) for a, b in skeleton.drawn or skeleton.parts]


def _sides(skeleton: Skeleton) -> list[Colour]:
    """The colour of every keypoint: its own, else its side's."""
    colours = {name: colour for pair in skeleton.left_right for name, colour in zip(pair, (LEFT, RIGHT))}
    colours |= {name: tuple(bytes.fromhex(colour[1:])[::-1]) for name, colour in skeleton.colours.items()}
    return [colours.get(name, MIDDLE) for name in skeleton.keypoints]

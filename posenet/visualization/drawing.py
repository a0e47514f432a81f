"""Drawings of people: their keypoints and limbs on an image."""

import math
from collections.abc import Iterable

import cv2
import numpy as np

from posenet.images import ChannelOrder, ImageInput, to_bgr
from posenet.person import Person, require_people
from posenet.skeleton import Skeleton

Colour = tuple[int, int, int]
"""BGR."""

# Blue, orange and white, which colour-blind people can distinguish too.
LEFT: Colour = (255, 160, 40)
RIGHT: Colour = (30, 130, 255)
MIDDLE: Colour = (250, 250, 250)
OUTLINE: Colour = (25, 25, 25)
PALETTE: tuple[Colour, ...] = (
    (233, 180, 86), (0, 159, 230), (167, 121, 204), (66, 228, 240), (115, 158, 0), (0, 94, 213), (178, 114, 0),
    (230, 230, 230),
)  # fmt: skip
"""Colours of people: the palette of Okabe and Ito, which colour-blind people can distinguish, with white for black."""

MIN_SCORE = 0.25
"""Recommended ``min_score``."""
KEYPOINT_MIN_SCORE = 0.2
"""Recommended ``keypoint_min_score``."""
MIN_RELATIVE_SCORE = 0.5
"""A keypoint with a lower score than this share of the mean of its person is probably wrong, and is not drawn."""
MANY_KEYPOINTS = 40
"""More keypoints, such as those of faces and fingers, are drawn as thin lines without dots: dots would cover them."""
_FRACTIONAL_BITS = 4
"""Fractional bits of the fixed-point coordinates that OpenCV draws with."""


class Drawing(np.ndarray):
    """A drawing, (H, W, 3) uint8 BGR, which notebooks show as an image."""

    def _repr_png_(self) -> bytes | None:
        is_image = self.ndim == 3 and self.size > 0 and self.dtype == np.uint8
        return cv2.imencode(".png", self)[1].tobytes() if is_image else None


def draw_people(
    image: ImageInput,
    people: Iterable[Person],
    *,
    channels: ChannelOrder = "bgr",
    min_score: float = 0.0,
    keypoint_min_score: float = 0.0,
    numbers: bool = False,
) -> Drawing:
    """Draw the keypoints and limbs of people on a copy of an image; (H, W, 3) uint8 BGR.

    A person's left is blue, the right orange and the middle white, or as the skeleton says. People with an ``id``, and
    those of a skeleton without sides and colours, have one colour each; an ``id`` stands above the person.

    Args:
        image: what ``Predictor`` accepts: an image file, a PIL image or an array. For people on black, give a black
            array: ``numpy.zeros_like(image)``.
        channels: order of the colours of an array.
        people: a result, or people with keypoints in pixels of the image; the first person is drawn on top.
        min_score: people with a lower score are not drawn.
        keypoint_min_score: keypoints with a lower score are not drawn. Keypoints that score much less than the
            others of their person are never drawn.
        numbers: write the number of each person above it: its ``id``, or its position in ``people``, from 1.

    Raises:
        DataError: ``image`` cannot be read, or is not an image.
        ValueError: ``people`` are something else.
    """
    drawing = to_bgr(image, channels).copy()
    everybody = require_people(people)
    is_tracked = any(person.id is not None for person in everybody)
    numbered = [(person, number if person.id is None else person.id) for number, person in enumerate(everybody, 1)]
    shown = [(person, number) for person, number in reversed(numbered) if person.score >= min_score]
    for person, number in shown:
        skeleton = person.skeleton
        if is_tracked or not (skeleton.left_right or skeleton.colours):
            colours = [_person_colour(number)] * skeleton.num_keypoints
        else:
            colours = _side_colours(skeleton)
        _draw_person(drawing, person, colours, _visible_keypoints(person, keypoint_min_score))
    for person, number in shown:  # after all people, who would hide them
        if numbers or person.id is not None:
            _draw_number(drawing, person, number)
    return drawing.view(Drawing)


def round_min_score(score: float) -> float:
    """A short number at or below a score, as a ``min_score`` that keeps it: a multiple of 0.05, or of 0.01 if low."""
    steps = 20 if score >= 0.05 else 100
    return math.floor(score * steps) / steps


def _person_colour(number: int) -> Colour:
    return PALETTE[(number - 1) % len(PALETTE)]


def _draw_person(drawing: np.ndarray, person: Person, colours: list[Colour], is_visible: np.ndarray) -> None:
    """Draw limbs, then keypoints. All outlines of limbs come first, so that no outline crosses a limb."""
    skeleton = person.skeleton
    has_many = skeleton.num_keypoints > MANY_KEYPOINTS
    left, top, right, bottom = person.box
    size = _size_of(drawing)
    # A fiftieth of the person's size, within limits that depend on the size of the drawing.
    width = round(float(np.clip(max(right - left, bottom - top) / 50, max(1, size / 500), max(1, size / 120))))
    width = 1 if has_many else width
    outline = max(1, width // 3)
    points: list[list[int]] = np.rint(person.keypoints[:, :2] * 2**_FRACTIONAL_BITS).astype(int).tolist()
    ends = [(skeleton.index(a), skeleton.index(b)) for a, b in skeleton.drawn or skeleton.parts]
    ends = [(a, b) for a, b in ends if is_visible[a] and is_visible[b]]
    for a, b in [] if has_many else ends:
        cv2.line(drawing, points[a], points[b], OUTLINE, width + 2 * outline, cv2.LINE_AA, _FRACTIONAL_BITS)
    for a, b in ends:
        # The colour of both ends, or of the end that is not MIDDLE; MIDDLE between different sides.
        sides = {colours[a], colours[b]} - {MIDDLE}
        colour = sides.pop() if len(sides) == 1 else MIDDLE
        cv2.line(drawing, points[a], points[b], colour, width, cv2.LINE_AA, _FRACTIONAL_BITS)
    radius = round(0.9 * width * 2**_FRACTIONAL_BITS)
    for k in np.flatnonzero(is_visible).tolist():
        if not has_many:
            outer = radius + (outline << _FRACTIONAL_BITS)
            cv2.circle(drawing, points[k], outer, OUTLINE, -1, cv2.LINE_AA, _FRACTIONAL_BITS)
        cv2.circle(drawing, points[k], radius, colours[k], -1, cv2.LINE_AA, _FRACTIONAL_BITS)


def _draw_number(drawing: np.ndarray, person: Person, number: int) -> None:
    """Write a number above the box of a person."""
    left, top, _, _ = person.box.astype(int).tolist()
    scale = _size_of(drawing) / 800
    position = (max(0, left), max(round(30 * scale), top - round(8 * scale)))
    own = MIDDLE if person.id is None else _person_colour(person.id)
    for colour, width in ((OUTLINE, 4), (own, 1)):
        thickness = max(1, round(2 * width * scale))
        cv2.putText(drawing, str(number), position, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thickness, cv2.LINE_AA)


def _visible_keypoints(person: Person, min_score: float) -> np.ndarray:
    """(K,) bool: the keypoints with a score high enough to be drawn."""
    found = person.found
    if not found.any():
        return found
    scores = person.keypoints[:, 2]
    return np.asarray(found & (scores >= max(min_score, MIN_RELATIVE_SCORE * scores[found].mean())))


def _size_of(drawing: np.ndarray) -> int:
    """The longer side in pixels, but at most twice the shorter one: people are hardly taller than a panorama."""
    height, width = drawing.shape[:2]
    return int(min(max(height, width), 2 * min(height, width)))


def _side_colours(skeleton: Skeleton) -> list[Colour]:
    """The colour of every keypoint: the one in the skeleton, else that of its side."""
    colours: dict[str, Colour] = {}
    for left, right in skeleton.left_right:
        colours |= {left: LEFT, right: RIGHT}
    for name, hex_colour in skeleton.colours.items():
        red, green, blue = bytes.fromhex(hex_colour.removeprefix("#"))
        colours[name] = (blue, green, red)
    return [colours.get(name, MIDDLE) for name in skeleton.keypoints]

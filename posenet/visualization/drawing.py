"""Drawings of people: their keypoints and limbs on an image, and the trails of tracked people."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Literal

import cv2
import numpy as np

from posenet.images import ChannelOrder, ImageInput, to_bgr
from posenet.person import Person
from posenet.skeleton import Skeleton

Colour = tuple[int, int, int]
"""BGR."""
ColourScheme = Literal["side", "person"]

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
TRAIL_SECONDS = 2.0
"""Length of a trail."""

_FRACTIONAL_BITS = 4
"""Fractional bits of the fixed-point coordinates that OpenCV draws with."""


class Drawing(np.ndarray):
    """A drawing, (H, W, 3) uint8 BGR, which notebooks show as an image."""

    def _repr_png_(self) -> bytes | None:
        is_image = self.ndim == 3 and self.size > 0 and self.dtype == np.uint8
        return cv2.imencode(".png", self)[1].tobytes() if is_image else None


def draw_people(
    image: ImageInput,
    people: Sequence[Person],
    *,
    channels: ChannelOrder = "bgr",
    min_score: float = 0.0,
    keypoint_min_score: float = 0.0,
    line_width: int = 0,
    colours: ColourScheme = "side",
) -> Drawing:
    """Draw the keypoints and limbs of people on a copy of an image; (H, W, 3) uint8 BGR.

    Args:
        image: what ``Predictor`` accepts: an image file, a PIL image or an array.
        channels: order of the colours of an array.
        people: keypoints in pixels of the image; the first person is drawn on top.
        min_score: people with a lower score are not drawn.
        keypoint_min_score: keypoints with a lower score are not drawn. Keypoints that score much less than the
            others of their person are never drawn.
        line_width: width of the limbs in pixels; 0 chooses it by the sizes of the person and of the image.
        colours: "side" draws a person's left blue, the right orange and the middle white; "person" draws each
            person in one colour, by ``id`` if it has one and with that number beside it, else by its position in
            ``people``.

    Raises:
        DataError: ``image`` cannot be read, or is not an image.
    """
    drawing = to_bgr(image, channels).copy()
    for index, person in reversed([*enumerate(people)]):
        if person.score < min_score:
            continue
        if colours == "side":
            keypoint_colours = _side_colours(person.skeleton)
        else:
            colour = PALETTE[index % len(PALETTE)] if person.id is None else person_colour(person.id)
            keypoint_colours = [colour] * person.skeleton.num_keypoints
        width = line_width if line_width > 0 else _choose_line_width(drawing, person)
        _draw_person(drawing, person, keypoint_colours, keypoint_min_score, width)
        if colours == "person" and person.id is not None:
            _draw_id(drawing, person, person.id)
    return drawing.view(Drawing)


def person_colour(id: int) -> Colour:
    """The colour of a tracked person."""
    return PALETTE[(id - 1) % len(PALETTE)]


class Trails:
    """Draws where tracked people were in the last seconds, in their colours; older parts are thinner.

    A trail follows the keypoints found in both of two frames: others would let it jump.
    """

    def __init__(self) -> None:
        self._video: Hashable = None
        self._people: dict[int, Person] = {}  # as last seen
        self._points: dict[int, deque[tuple[float, np.ndarray]]] = {}  # seconds and (2,) x, y

    def draw(self, drawing: np.ndarray, video: Hashable, seconds: float, people: Sequence[Person]) -> None:
        """Add the trails of the people who have an ``id`` to the drawing of a frame, at a time of a video.

        Another ``video``, which may be anything that names it, starts without trails.
        """
        if video != self._video:
            self._video = video
            self._people = {}
            self._points = {}
        for person in people:
            if person.id is not None:
                self._points.setdefault(person.id, deque()).append((seconds, self._next_point(person, person.id)))
                self._people[person.id] = person
        widest = max(2, _size_of(drawing) // 200)
        for id, points in self._points.items():
            while points and seconds - points[0][0] > TRAIL_SECONDS:
                points.popleft()
            for (_, start), (end_seconds, end) in itertools.pairwise(points):
                width = max(1, round(widest * (1 - (seconds - end_seconds) / TRAIL_SECONDS)))
                pixels = np.rint([start, end]).astype(int).tolist()
                cv2.line(drawing, pixels[0], pixels[1], person_colour(id), width, cv2.LINE_AA)
        self._points = {id: points for id, points in self._points.items() if points}
        self._people = {id: self._people[id] for id in self._points}

    def _next_point(self, person: Person, id: int) -> np.ndarray:
        """(2,) x, y of the trail's next point."""
        last = self._people.get(id)
        both = np.zeros(0, bool) if last is None else person.found & last.found
        if last is None or not both.any():
            return np.asarray(person.box().reshape(2, 2).mean(0))
        return np.asarray(self._points[id][-1][1] + (person.keypoints - last.keypoints)[both, :2].mean(0))


def _draw_id(drawing: np.ndarray, person: Person, id: int) -> None:
    """Write the number of a tracked person above its box."""
    left, top, _, _ = person.box().astype(int).tolist()
    scale = _size_of(drawing) / 800
    position = (max(0, left), max(round(30 * scale), top - round(8 * scale)))
    for colour, width in ((OUTLINE, 4), (person_colour(id), 1)):
        thickness = max(1, round(2 * width * scale))
        cv2.putText(drawing, str(id), position, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thickness, cv2.LINE_AA)


def _draw_person(
    drawing: np.ndarray, person: Person, colours: Sequence[Colour], min_score: float, line_width: int
) -> None:
    """Draw one person; ``colours`` has one for each keypoint."""
    visible = _visible_keypoints(person, min_score)
    points = np.rint(person.keypoints[:, :2] * 2**_FRACTIONAL_BITS).astype(int).tolist()
    skeleton = person.skeleton
    pairs = [(skeleton.index(a), skeleton.index(b)) for a, b in skeleton.drawn or skeleton.parts]
    limbs = [(a, b) for a, b in pairs if visible[a] and visible[b]]
    outline_width = max(1, line_width // 3)
    # Draw all outlines first, so that no outline crosses a limb.
    for a, b in limbs:
        width = line_width + 2 * outline_width
        cv2.line(drawing, points[a], points[b], OUTLINE, width, cv2.LINE_AA, _FRACTIONAL_BITS)
    for a, b in limbs:
        # The colour of both ends, or of the end that is not MIDDLE; MIDDLE between different sides.
        side_colours = {colours[a], colours[b]} - {MIDDLE}
        colour = side_colours.pop() if len(side_colours) == 1 else MIDDLE
        cv2.line(drawing, points[a], points[b], colour, line_width, cv2.LINE_AA, _FRACTIONAL_BITS)
    radius = round(0.9 * line_width * 2**_FRACTIONAL_BITS)
    outline_radius = radius + (outline_width << _FRACTIONAL_BITS)
    for k in np.flatnonzero(visible).tolist():
        cv2.circle(drawing, points[k], outline_radius, OUTLINE, -1, cv2.LINE_AA, _FRACTIONAL_BITS)
        cv2.circle(drawing, points[k], radius, colours[k], -1, cv2.LINE_AA, _FRACTIONAL_BITS)


def _visible_keypoints(person: Person, min_score: float) -> np.ndarray:
    """(K,) bool: the keypoints with a score high enough to be drawn."""
    found = person.found
    if not found.any():
        return found
    scores = person.keypoints[:, 2]
    visible: np.ndarray = found & (scores >= max(min_score, MIN_RELATIVE_SCORE * scores[found].mean()))
    return visible


def _choose_line_width(drawing: np.ndarray, person: Person) -> int:
    """Line width in pixels: a fiftieth of the person's size, within limits that depend on the size of the drawing."""
    left, top, right, bottom = person.box()
    drawing_size = _size_of(drawing)
    narrowest, widest = max(1, drawing_size / 500), max(1, drawing_size / 120)
    return round(float(np.clip(max(right - left, bottom - top) / 50, narrowest, widest)))


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

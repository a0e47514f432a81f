"""Drawings of people: their keypoints and limbs on an image."""

from __future__ import annotations

import colorsys
import math
import numbers as numbers_module
from typing import Any, Literal, NamedTuple, get_args

import cv2
import numpy as np

from posenet.images import ChannelOrder, ImageInput, to_bgr
from posenet.messages import truncate_for_message
from posenet.person import Person, to_people
from posenet.skeleton import COCO, Skeleton

Colour = tuple[int, int, int]
"""BGR."""
ColourScheme = Literal["side", "rainbow", "person"]
Style = Literal["standard", "openpose"]
COLOUR_SCHEMES: tuple[ColourScheme, ...] = get_args(ColourScheme)
STYLES: tuple[Style, ...] = get_args(Style)

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

OPENPOSE_LIMBS = (
    ("neck", "right_shoulder"), ("neck", "left_shoulder"), ("right_shoulder", "right_elbow"),
    ("right_elbow", "right_wrist"), ("left_shoulder", "left_elbow"), ("left_elbow", "left_wrist"),
    ("neck", "right_hip"), ("right_hip", "right_knee"), ("right_knee", "right_ankle"), ("neck", "left_hip"),
    ("left_hip", "left_knee"), ("left_knee", "left_ankle"), ("neck", "nose"), ("nose", "right_eye"),
    ("right_eye", "right_ear"), ("nose", "left_eye"), ("left_eye", "left_ear"),
)  # fmt: skip
"""The limbs that OpenPose draws, in the order of their hues. Its 18 keypoints are ours, in the same order."""
OPENPOSE_OPACITY = 0.6
"""Of limbs in the style of OpenPose."""

MIN_SCORE = 0.25
"""Recommended ``min_score``."""
KEYPOINT_MIN_SCORE = 0.2
"""Recommended ``keypoint_min_score``."""
MIN_RELATIVE_SCORE = 0.5
"""A keypoint with a lower score than this share of the mean of its person is probably wrong, and is not drawn."""

MAX_COORDINATE = 1e6
"""Keypoints at larger coordinates are not drawn: the fixed-point numbers of OpenCV would overflow."""

MANY_KEYPOINTS = 40
"""With more keypoints, those that are close together are drawn smaller, and without outlines."""
_FRACTIONAL_BITS = 4
"""Fractional bits of the fixed-point coordinates that OpenCV draws with."""


class Drawing(np.ndarray):
    """A drawing, (H, W, 3) uint8 BGR, which notebooks show as an image."""

    def _repr_png_(self) -> bytes | None:
        is_image = self.ndim == 3 and self.size > 0 and self.dtype == np.uint8
        return cv2.imencode(".png", self)[1].tobytes() if is_image else None


def draw_people(
    image: ImageInput,
    people: Any,
    *,
    channels: ChannelOrder = "bgr",
    min_score: float = 0.0,
    keypoint_min_score: float = 0.0,
    line_width: int = 0,
    radius: int = 0,
    style: Style = "standard",
    colours: ColourScheme | None = None,
    numbers: bool = False,
) -> Drawing:
    """Draw the keypoints and limbs of people on a copy of an image; (H, W, 3) uint8 BGR.

    Args:
        image: what ``Predictor`` accepts: an image file, a PIL image or an array. For people on black, give a black
            array: ``numpy.zeros_like(image)``.
        channels: order of the colours of an array.
        people: a result, people, or what other programs find (see ``posenet.person.to_people``), with keypoints in
            pixels of the image; the first person is drawn on top.
        min_score: people with a lower score are not drawn.
        keypoint_min_score: keypoints with a lower score are not drawn. Keypoints that score much less than the
            others of their person are never drawn.
        line_width: width of the limbs in pixels; 0 chooses it by the sizes of the person and of the image.
        radius: radius of the keypoints in pixels; 0 chooses it by the width of the limbs.
        style: "standard" draws outlined lines, "openpose" what OpenPose draws: translucent ellipses as limbs and a dot
            for each keypoint. For COCO's skeleton, limbs and colours are those of its 18 keypoints.
        colours: "side" draws a person's left blue, the right orange and the middle white; "rainbow" gives every
            keypoint and every limb a hue; "person" draws each person in one colour, by ``id`` if it has one and with
            that number above it, else by its position in ``people``. By default, "rainbow" in the style "openpose",
            "person" for a skeleton without sides and colours, else "side".
        numbers: write the number of each person above it: its ``id``, or its position in ``people``, from 1.

    Raises:
        DataError: ``image`` cannot be read, or is not an image.
        ValueError: ``people`` are something else, the style or the colours are none of these, or a size is negative or
            no number of pixels.
    """
    for name, value, known in (("style", style, STYLES), ("colours", colours or "side", COLOUR_SCHEMES)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {truncate_for_message(value)}")
    if not (isinstance(line_width, numbers_module.Integral) and line_width >= 0 and radius >= 0):
        raise ValueError(f"line_width {line_width} must be 0 or more whole pixels, and radius {radius} 0 or more")
    drawing = to_bgr(image, channels).copy()
    is_standard = style == "standard"
    figures = []
    for index, person in reversed([*enumerate(to_people(people))]):
        if person.score < min_score:
            continue
        person = person.within(MAX_COORDINATE)
        limbs = _limbs_of(person.skeleton, style)
        has_sides = bool(person.skeleton.left_right or person.skeleton.colours)
        scheme = colours or ("rainbow" if not is_standard else "side" if has_sides else "person")
        keypoint_colours, limb_colours = _choose_colours(person, index, limbs, scheme)
        is_visible = _visible_keypoints(person, keypoint_min_score)
        width = line_width or _choose_line_width(drawing, person, style)
        figure = _Figure(
            person,
            keypoints=[(k, colour) for k, colour in enumerate(keypoint_colours) if is_visible[k]],
            limbs=[(a, b, colour) for (a, b), colour in zip(limbs, limb_colours) if is_visible[a] and is_visible[b]],
            line_width=width,
            outline_width=max(1, width // 3) if is_standard else 0,
            radius=radius or (0.9 if is_standard else 0.5) * width,
            number=(person.id or index + 1) if numbers else person.id if scheme == "person" else None,
        )
        figures.append(figure)
    if not is_standard:
        limbs_of_all = drawing.copy()
        for figure in figures:
            _draw_ellipses(limbs_of_all, figure)
        cv2.addWeighted(limbs_of_all, OPENPOSE_OPACITY, drawing, 1 - OPENPOSE_OPACITY, 0, dst=drawing)
    for figure in figures:
        if is_standard:
            _draw_lines(drawing, figure)
        _draw_keypoints(drawing, figure)
        if not numbers:  # of which none is hidden below a person
            _draw_number(drawing, figure)
    for figure in figures if numbers else []:
        _draw_number(drawing, figure)
    return drawing.view(Drawing)


def round_min_score(score: float) -> float:
    """A short number at or below a score, as a ``min_score`` that keeps it: a multiple of 0.05, or of 0.01 if low."""
    steps = 20 if score >= 0.05 else 100
    return math.floor(score * steps) / steps


def person_colour(id: int) -> Colour:
    """The colour of a tracked person."""
    return PALETTE[(id - 1) % len(PALETTE)]


class _Figure(NamedTuple):
    """A person as it is drawn."""

    person: Person
    keypoints: list[tuple[int, Colour]]  # those to draw
    limbs: list[tuple[int, int, Colour]]  # those to draw, with the indices of both ends
    line_width: int
    outline_width: int  # of limbs and keypoints; 0 for none
    radius: float
    number: int | None  # above the box


def _limbs_of(skeleton: Skeleton, style: Style) -> list[tuple[int, int]]:
    """The limbs that drawings of this style have: the indices of both ends."""
    is_coco = skeleton.keypoints == COCO.keypoints
    pairs = OPENPOSE_LIMBS if style == "openpose" and is_coco else skeleton.drawn or skeleton.parts
    return [(skeleton.index(a), skeleton.index(b)) for a, b in pairs]


def _choose_colours(
    person: Person, index: int, limbs: list[tuple[int, int]], colours: ColourScheme
) -> tuple[list[Colour], list[Colour]]:
    """The colours of all keypoints and of all limbs of the person in row ``index``."""
    if colours == "rainbow":
        count = person.skeleton.num_keypoints
        # OpenPose has 18 hues for its 17 limbs, too.
        return _rainbow(count), _rainbow(max(len(limbs), count))
    if colours == "side":
        keypoint_colours = _side_colours(person.skeleton)
    else:
        colour = PALETTE[index % len(PALETTE)] if person.id is None else person_colour(person.id)
        keypoint_colours = [colour] * person.skeleton.num_keypoints
    limb_colours = []
    for a, b in limbs:
        # The colour of both ends, or of the end that is not MIDDLE; MIDDLE between different sides.
        side_colours = {keypoint_colours[a], keypoint_colours[b]} - {MIDDLE}
        limb_colours.append(side_colours.pop() if len(side_colours) == 1 else MIDDLE)
    return keypoint_colours, limb_colours


def _rainbow(count: int) -> list[Colour]:
    """Bright colours with equally spaced hues, from red over green and blue; for 18 they are OpenPose's."""
    rgb = (colorsys.hsv_to_rgb(number / count, 1, 1) for number in range(count))
    return [(round(255 * blue), round(255 * green), round(255 * red)) for red, green, blue in rgb]


def _free_distances(figure: _Figure) -> np.ndarray:
    """(K,) pixels from every keypoint to the nearest other one that is drawn, if there are so many that those of faces
    and fingers would cover each other; else without end."""
    shown = [k for k, _ in figure.keypoints]
    free = np.full(figure.person.skeleton.num_keypoints, np.inf)
    if len(free) > MANY_KEYPOINTS and len(shown) > 1:
        points = figure.person.keypoints[shown, :2]
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        np.fill_diagonal(distances, np.inf)
        free[shown] = distances.min(axis=1)
    return free


def _draw_lines(drawing: np.ndarray, figure: _Figure) -> None:
    """Draw outlined limbs; all outlines first, so that no outline crosses a limb."""
    points = _fixed_point(figure.person.keypoints[:, :2])
    free = _free_distances(figure)
    limbs, outlines = [], []
    for a, b, colour in figure.limbs:
        width = int(min(figure.line_width, max(1, min(free[a], free[b]) / 2)))
        limbs.append((a, b, colour, width))
        if width == figure.line_width:
            outlines.append((a, b, OUTLINE, width + 2 * figure.outline_width))
    for a, b, colour, width in outlines + limbs:
        cv2.line(drawing, points[a], points[b], colour, width, cv2.LINE_AA, _FRACTIONAL_BITS)


def _draw_ellipses(drawing: np.ndarray, figure: _Figure) -> None:
    """Draw limbs as OpenPose does."""
    xy = figure.person.keypoints[:, :2].astype(float)
    for a, b, colour in figure.limbs:
        across, down = (xy[b] - xy[a]).tolist()
        half_axes = np.array([math.hypot(across, down), figure.line_width]) / 2
        centre, axes = _fixed_point(np.array([(xy[a] + xy[b]) / 2, half_axes]))
        angle = math.degrees(math.atan2(down, across))
        cv2.ellipse(drawing, centre, axes, angle, 0, 360, colour, -1, cv2.LINE_AA, _FRACTIONAL_BITS)


def _draw_keypoints(drawing: np.ndarray, figure: _Figure) -> None:
    points = _fixed_point(figure.person.keypoints[:, :2])
    free = _free_distances(figure)
    for k, colour in figure.keypoints:
        radius = round(min(figure.radius, max(1, 0.3 * free[k])) * 2**_FRACTIONAL_BITS)
        if figure.outline_width and free[k] > 3 * figure.radius:
            outline_radius = radius + (figure.outline_width << _FRACTIONAL_BITS)
            cv2.circle(drawing, points[k], outline_radius, OUTLINE, -1, cv2.LINE_AA, _FRACTIONAL_BITS)
        cv2.circle(drawing, points[k], radius, colour, -1, cv2.LINE_AA, _FRACTIONAL_BITS)


def _fixed_point(xy: np.ndarray) -> list[list[int]]:
    """(N, 2) pixels as OpenCV's fixed-point numbers."""
    rounded: list[list[int]] = np.rint(xy * 2**_FRACTIONAL_BITS).astype(int).tolist()
    return rounded


def _draw_number(drawing: np.ndarray, figure: _Figure) -> None:
    """Write the number of a person above its box."""
    if figure.number is None:
        return
    left, top, _, _ = figure.person.box.astype(int).tolist()
    scale = _size_of(drawing) / 800
    position = (max(0, left), max(round(30 * scale), top - round(8 * scale)))
    own = MIDDLE if figure.person.id is None else person_colour(figure.person.id)
    for colour, width in ((OUTLINE, 4), (own, 1)):
        thickness = max(1, round(2 * width * scale))
        cv2.putText(
            drawing, str(figure.number), position, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thickness, cv2.LINE_AA
        )


def _visible_keypoints(person: Person, min_score: float) -> np.ndarray:
    """(K,) bool: the keypoints with a score high enough to be drawn."""
    found = person.found
    if not found.any():
        return found
    scores = person.keypoints[:, 2]
    return np.asarray(found & (scores >= max(min_score, MIN_RELATIVE_SCORE * scores[found].mean())))


def _choose_line_width(drawing: np.ndarray, person: Person, style: Style) -> int:
    """Line width in pixels: a fiftieth of the person's size, within limits that depend on the size of the drawing.

    OpenPose's limbs, which have no outline, are twice as wide.
    """
    left, top, right, bottom = person.box
    drawing_size = _size_of(drawing)
    narrowest, widest = max(1, drawing_size / 500), max(1, drawing_size / 120)
    width = float(np.clip(max(right - left, bottom - top) / 50, narrowest, widest))
    return round(2 * width if style == "openpose" else width)


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

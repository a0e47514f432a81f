"""Random settings for people: a street, a park, a room or a plain backdrop, and obstacles that hide people."""

from __future__ import annotations

import cv2
import numpy as np

from posenet.synthetic.canvas import Canvas, Colour, box, ellipse, hsv, hull, mix, ribbon, shade, smooth

Point = tuple[float, float]


def paint_backdrop(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, float]:
    """Paint an empty setting; return the (H, W, 3) uint8 BGR image and the first row of the ground."""
    horizon = height * rng.uniform(0.28, 0.52)
    setting = rng.choice(4, p=(0.3, 0.3, 0.3, 0.1))
    above, below = _ground_colours(rng, setting)
    rows = np.arange(height)[:, None]
    brightness = 1 + (rows / height - 0.5) * rng.uniform(-0.35, 0.35)
    colours = np.where(rows < horizon, [above], [below]) * brightness
    canvas = Canvas(np.repeat(np.minimum(colours, 255).astype(np.uint8)[:, None], width, axis=1))
    paint = (_street, _park, _room, _plain)[setting]
    paint(canvas, rng, horizon)
    return _add_texture(rng, canvas.image), horizon


def paint_obstacle(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    """Paint an obstacle that stands on ``base``; ``size`` is the height of a person there."""
    paint = (_bush, _post, _crate, _table, _sign, _fence)[rng.integers(6)]
    paint(canvas, rng, base, size, code)


def _ground_colours(rng: np.random.Generator, setting: int) -> tuple[Colour, Colour]:
    """Colours of the upper and the lower part of a setting."""
    sky = hsv(rng.uniform(0.52, 0.62), rng.uniform(0.1, 0.45), rng.uniform(0.7, 1))
    stone = hsv(rng.uniform(0.05, 0.15), rng.uniform(0, 0.15), rng.uniform(0.4, 0.75))
    grass = hsv(rng.uniform(0.2, 0.33), rng.uniform(0.3, 0.6), rng.uniform(0.4, 0.75))
    wall = hsv(rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.5, 0.95))
    floor = hsv(rng.uniform(0.03, 0.12), rng.uniform(0.2, 0.6), rng.uniform(0.35, 0.75))
    darker_wall = shade(wall, rng.uniform(0.7, 1))
    return ((sky, stone), (sky, grass), (wall, floor), (wall, darker_wall))[setting]


def _colour_at(canvas: Canvas, row: int) -> Colour:
    """Colour of the first pixel of a row."""
    blue, green, red = canvas.image[row, 0].tolist()
    return float(blue), float(green), float(red)


def _street(canvas: Canvas, rng: np.random.Generator, horizon: float) -> None:
    """Paint houses with windows, pavement with lines towards the horizon, trees and lamps."""
    height, width = canvas.image.shape[:2]
    left = -rng.uniform(0, 0.2) * width
    while left < width:
        right = left + rng.uniform(0.14, 0.34) * width
        _house(canvas, rng, left, right, horizon)
        left = right
    for share in rng.uniform(0.02, 0.3, 2):
        row = horizon + share * (height - horizon)
        canvas.fill(box(0, row, width, row + 2), (90, 90, 90))
    for x in np.linspace(-width, 2 * width, 9):
        line = np.array([[width / 2 + 0.3 * (x - width / 2), horizon], [x, height]])
        canvas.trace(line, (110, 110, 115))
    for _ in range(rng.integers(0, 4)):
        x = rng.uniform(0, width)
        paint = _tree if rng.random() < 0.5 else _lamp
        paint(canvas, rng, (x, horizon + rng.uniform(0, 0.15) * height), 0.5 * height)


def _house(canvas: Canvas, rng: np.random.Generator, left: float, right: float, bottom: float) -> None:
    width = canvas.image.shape[1]
    top = bottom * rng.uniform(-0.1, 0.6)
    colour = hsv(rng.random(), rng.uniform(0.05, 0.45), rng.uniform(0.35, 0.85))
    canvas.fill_outlined(box(left, top, right, bottom), colour, None, 0.5)
    pane = mix(colour, (90, 70, 60) if rng.random() < 0.7 else (200, 235, 250), 0.65)
    step = width * rng.uniform(0.035, 0.06)
    for x in np.arange(left + 0.3 * step, right - 0.7 * step, step):
        for y in np.arange(top + 0.4 * step, bottom - step, step * 1.4):
            canvas.fill(box(x, y, x + 0.5 * step, y + 0.8 * step), pane)


def _park(canvas: Canvas, rng: np.random.Generator, horizon: float) -> None:
    """Paint clouds, hills, grass with blades, sometimes a path, trees and bushes."""
    height, width = canvas.image.shape[:2]
    for _ in range(rng.integers(0, 5)):
        x = rng.uniform(0, width)
        y = rng.uniform(0, 0.7) * horizon
        size = rng.uniform(0.03, 0.09) * width
        for dx in (-0.9, 0, 0.8):
            canvas.fill(ellipse(np.array([x + dx * size, y]), (size, 0.45 * size)), (250, 248, 245))
    hills = hsv(rng.uniform(0.25, 0.55), rng.uniform(0.15, 0.4), rng.uniform(0.45, 0.75))
    for _ in range(3):
        centre = np.array([rng.uniform(0, width), horizon + 0.1 * height])
        hills = shade(hills, 0.93)
        canvas.fill(ellipse(centre, (rng.uniform(0.3, 0.6) * width, rng.uniform(0.15, 0.35) * height)), hills)
    ground = _colour_at(canvas, -1)
    canvas.fill(box(-2, horizon, width + 2, height + 2), ground)
    if rng.random() < 0.5:
        x = rng.uniform(0.2, 0.8) * width
        path = [[x, horizon], [x + 0.06 * width, horizon], [x + 0.4 * width, height], [x - 0.3 * width, height]]
        canvas.fill(np.array(path), hsv(0.1, 0.25, 0.75))
    for _ in range(rng.integers(15, 40)):
        x = rng.uniform(0, width)
        y = rng.uniform(horizon, height)
        length = (y - horizon) / height * 0.05 * height + 2
        blade = np.array([[x - 1, y], [x + 1, y], [x + rng.uniform(-2, 2), y - length]])
        canvas.fill(blade, shade(ground, 0.8))
    for _ in range(rng.integers(2, 7)):
        base = (rng.uniform(0, width), horizon + rng.uniform(0, 0.12) * height)
        if rng.random() < 0.6:
            _tree(canvas, rng, base, height * rng.uniform(0.35, 0.7))
        else:
            _bush(canvas, rng, base, height * rng.uniform(0.3, 0.5), None)


def _room(canvas: Canvas, rng: np.random.Generator, horizon: float) -> None:
    """Paint a wall, sometimes with stripes, floorboards, framed paintings and furniture."""
    height, width = canvas.image.shape[:2]
    wall = _colour_at(canvas, 0)
    floor = _colour_at(canvas, -1)
    if rng.random() < 0.5:
        step = width * rng.uniform(0.03, 0.08)
        for x in np.arange(0, width, step):
            canvas.fill(box(x, 0, x + step / 2, horizon), shade(wall, rng.uniform(0.93, 0.97)))
    for x in np.linspace(-1.2 * width, 2.2 * width, 15):
        line = np.array([[width / 2 + 0.35 * (x - width / 2), horizon], [x, height]])
        canvas.trace(line, shade(floor, 0.8))
    canvas.fill(box(0, horizon - 0.02 * height, width, horizon), shade(wall, 0.6))
    for _ in range(rng.integers(1, 5)):
        x = rng.uniform(0, 0.9) * width
        y = rng.uniform(0.02, 0.5) * horizon
        wide = rng.uniform(0.06, 0.2) * width
        high = rng.uniform(0.25, 0.5) * horizon
        canvas.fill_outlined(box(x, y, x + wide, y + high), (225, 225, 220), None, 1.5)
        inner = hsv(rng.random(), rng.uniform(0.1, 0.6), rng.uniform(0.5, 1))
        canvas.fill(box(x + 3, y + 3, x + wide - 3, y + high - 3), inner)
        motif = np.array([x + rng.uniform(0.3, 0.7) * wide, y + rng.uniform(0.4, 0.7) * high])
        canvas.fill(ellipse(motif, (wide * 0.2, high * 0.2)), shade(inner, 0.7))
    for _ in range(rng.integers(0, 4)):
        paint = (_shelf, _sofa, _lamp, _plant)[rng.integers(4)]
        base = (rng.uniform(0, width), horizon + rng.uniform(0.01, 0.06) * height)
        paint(canvas, rng, base, 0.6 * height)


def _plain(canvas: Canvas, rng: np.random.Generator, horizon: float) -> None:
    """Paint random blobs."""
    height, width = canvas.image.shape[:2]
    for _ in range(rng.integers(3, 14)):
        centre = rng.uniform((0, 0), (width, height))
        radius = rng.uniform(0.03, 0.16) * height
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 9)))
        shape = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        rounds = int(rng.integers(0, 3))
        canvas.fill(smooth(shape, rounds), hsv(rng.random(), rng.uniform(0.1, 0.7), rng.uniform(0.3, 1)))


def _add_texture(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Add blotches of two sizes to the whole image."""
    height, width = image.shape[:2]
    large = rng.standard_normal((8, 8), dtype=np.float32) * rng.uniform(3, 12)
    small = rng.standard_normal((64, 64), dtype=np.float32) * rng.uniform(1, 6)
    blotches = cv2.resize(cv2.resize(large, (64, 64)) + small, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.add(image, cv2.merge([blotches] * 3), dtype=cv2.CV_8U)


def _leaf_colour(rng: np.random.Generator) -> Colour:
    return hsv(rng.uniform(0.2, 0.42), rng.uniform(0.35, 0.75), rng.uniform(0.25, 0.65))


# Each function below paints one object that stands on ``base``; ``size`` is about the height of a person there.


def _tree(canvas: Canvas, rng: np.random.Generator, base: Point, size: float) -> None:
    x, y = base
    leaves = _leaf_colour(rng)
    wood = hsv(0.07, 0.5, rng.uniform(0.2, 0.45))
    trunk = ribbon(np.array([x, y]), np.array([x, y - 0.5 * size]), (0.045 * size, 0.03 * size))
    canvas.fill_outlined(trunk, wood, None, 0.5)
    for _ in range(6):
        centre = np.array([x, y - 0.65 * size]) + rng.normal(0, 0.11, 2) * size
        canvas.fill(ellipse(centre, (0.17 * size, 0.15 * size)), shade(leaves, rng.uniform(0.8, 1.15)))


def _lamp(canvas: Canvas, rng: np.random.Generator, base: Point, size: float) -> None:
    x, y = base
    metal = hsv(rng.random(), 0.1, rng.uniform(0.15, 0.5))
    canvas.fill(box(x - 0.012 * size, y - 0.9 * size, x + 0.012 * size, y), metal)
    canvas.fill(ellipse(np.array([x, y - 0.92 * size]), (0.05 * size, 0.06 * size)), (190, 240, 250))


def _shelf(canvas: Canvas, rng: np.random.Generator, base: Point, size: float) -> None:
    x, y = base
    wood = hsv(0.08, 0.5, rng.uniform(0.3, 0.7))
    wide = rng.uniform(0.2, 0.35) * size
    canvas.fill_outlined(box(x - wide, y - 0.8 * size, x + wide, y), wood, None, 1)
    for row in np.arange(0.1, 0.8, 0.2):
        canvas.fill(box(x - 0.9 * wide, y - (row + 0.14) * size, x + 0.9 * wide, y - row * size), shade(wood, 0.5))
        for book in np.arange(-0.88, 0.8, 0.16):
            if rng.random() < 0.8:
                colour = hsv(rng.random(), 0.6, rng.uniform(0.3, 0.9))
                top = y - (row + rng.uniform(0.08, 0.13)) * size
                canvas.fill(box(x + book * wide, top, x + (book + 0.12) * wide, y - row * size), colour)


def _sofa(canvas: Canvas, rng: np.random.Generator, base: Point, size: float) -> None:
    x, y = base
    cloth = hsv(rng.random(), 0.5, rng.uniform(0.3, 0.8))
    wide = rng.uniform(0.35, 0.55) * size
    for side in (-0.85, 0.85):
        canvas.fill(box(x + side * wide - 3, y, x + side * wide + 3, y + 0.05 * size), (40, 50, 60))
    canvas.fill_outlined(box(x - 0.95 * wide, y - 0.46 * size, x + 0.95 * wide, y - 0.1 * size), cloth, None, 1)
    for side in (-0.46, 0.46):
        cushion = box(x + (side - 0.44) * wide, y - 0.25 * size, x + (side + 0.44) * wide, y)
        canvas.fill_outlined(cushion, shade(cloth, 1.15), None, 1)
    for side in (-1, 1):
        arm = ellipse(np.array([x + side * wide, y - 0.14 * size]), (0.12 * wide, 0.16 * size))
        canvas.fill_outlined(arm, cloth, None, 1)


def _plant(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int | None = None) -> None:
    x, y = base
    root = np.array(base) - (0, 0.16 * size)
    leaves = _leaf_colour(rng)
    for angle in np.linspace(-1.1, 1.1, 7) + rng.normal(0, 0.1, 7):
        tip = root + np.array([np.sin(angle), -np.cos(angle)]) * rng.uniform(0.2, 0.38) * size
        leaf = ribbon(root, tip, np.array((0.01, 0.045, 0.004)) * size)
        canvas.fill_outlined(leaf, leaves, code, 0.5)
    clay = hsv(rng.uniform(0, 0.12), 0.5, rng.uniform(0.4, 0.8))
    rim = y - 0.18 * size
    pot = np.array([[x - 0.1 * size, rim], [x + 0.1 * size, rim], [x + 0.07 * size, y], [x - 0.07 * size, y]])
    canvas.fill_outlined(pot, clay, code, 0.5)


def _bush(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int | None) -> None:
    leaves = _leaf_colour(rng)
    wide = rng.uniform(0.15, 0.3) * size
    for k in range(9):
        centre = np.array(base) + (rng.uniform(-1, 1) * wide, -rng.uniform(0.02, 0.22) * size)
        canvas.fill(ellipse(centre, (0.10 * size, 0.09 * size)), shade(leaves, 0.75 + 0.05 * k), code)


def _post(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    x, y = base
    half = rng.uniform(0.02, 0.045) * size
    top = y - rng.uniform(0.6, 1.7) * size
    colour = hsv(rng.random(), rng.uniform(0, 0.5), rng.uniform(0.2, 0.8))
    canvas.fill_outlined(box(x - half, top, x + half, y), colour, code, 0.7)


def _crate(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    x, y = base
    wood = hsv(0.08, 0.5, rng.uniform(0.4, 0.8))
    wide = rng.uniform(0.12, 0.25) * size
    high = 0.28 * size
    canvas.fill_outlined(box(x - wide, y - high, x + wide, y), wood, code, 1)
    for row in (0.3, 0.65):
        canvas.fill(box(x - wide, y - row * high - 1, x + wide, y - row * high + 1), shade(wood, 0.7))
    if rng.random() < 0.5:
        _plant(canvas, rng, (x, y - high), 0.8 * size, code)


def _table(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    x, y = base
    wood = hsv(rng.uniform(0.05, 0.12), 0.5, rng.uniform(0.3, 0.8))
    wide = rng.uniform(0.25, 0.45) * size
    for side in (-0.9, 0.82):
        leg = box(x + side * wide, y - 0.38 * size, x + (side + 0.08) * wide, y)
        canvas.fill_outlined(leg, shade(wood, 0.8), code, 0.7)
    canvas.fill_outlined(box(x - wide, y - 0.42 * size, x + wide, y - 0.37 * size), wood, code, 0.7)
    plate = ellipse(np.array([x, y - 0.45 * size]), (0.04 * size, 0.03 * size))
    canvas.fill_outlined(plate, (230, 230, 235), code, 0.5)


def _sign(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    x, y = base
    colour = hsv(rng.random(), rng.uniform(0.5, 0.9), rng.uniform(0.5, 0.95))
    canvas.fill(box(x - 0.015 * size, y - 0.75 * size, x + 0.015 * size, y), (70, 70, 70), code)
    plate = ellipse(np.array([x, y - 0.8 * size]), (0.12 * size, 0.12 * size))
    if rng.random() >= 0.5:  # a square instead of a round plate
        plate = hull(plate[::5])
    canvas.fill_outlined(plate, colour, code, 1)
    canvas.fill(box(x - 0.07 * size, y - 0.82 * size, x + 0.07 * size, y - 0.78 * size), (245, 245, 245))


def _fence(canvas: Canvas, rng: np.random.Generator, base: Point, size: float, code: int) -> None:
    x, y = base
    wood = hsv(0.09, rng.uniform(0.1, 0.5), rng.uniform(0.4, 0.95))
    wide = rng.uniform(0.3, 0.6) * size
    for row in (0.12, 0.26):
        rail = box(x - wide, y - row * size, x + wide, y - (row - 0.035) * size)
        canvas.fill_outlined(rail, shade(wood, 0.9), code, 0.5)
    for left in np.arange(x - wide, x + wide, 0.13 * size):
        canvas.fill_outlined(box(left, y - 0.34 * size, left + 0.05 * size, y), wood, code, 0.5)

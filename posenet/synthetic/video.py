"""Render videos of people who walk, cross, leave and come back, with annotations of every frame."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import cv2
import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.skeleton import COCO
from posenet.synthetic.canvas import Canvas
from posenet.synthetic.figure import Figure, Part, random_look
from posenet.synthetic.labels import figure_keypoints, flatten_keypoints
from posenet.synthetic.posture import random_body, walk, walking_posture
from posenet.synthetic.scene import OBSTACLE_CODE, paint_backdrop, paint_obstacle

if TYPE_CHECKING:
    from av.video.stream import VideoStream

RATE = 25.0
"""Frames per second."""
DEFAULT_SECONDS = 10.0
"""Length of a video."""
ASPECT = 16 / 9
"""Width by height of a video, if only the width is given."""

_NUM_PEOPLE = (3, 4, 5, 6, 7)
_FOCAL_LENGTH = 0.9  # of the camera, in image widths
_NEAR, _FAR = 0.8, 1.9  # depths of people; at depth 1, feet stand on the lower border of the image
_CODEC = "mpeg4"
_BIT_RATE = 3.0  # bits of a second of video per pixel of a frame


def film(
    rng: np.random.Generator, width: int, height: int, num_frames: int
) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """Render the frames of one video: three to seven people and an obstacle, before a camera that stands still.

    Yields:
        The (H, W, 3) uint8 BGR image, and all people of whom a pixel is visible: ``id`` (from 1; a person who comes
        back keeps it), ``bbox`` around the visible pixels, ``keypoints`` (see ``labels.figure_keypoints``) and
        ``visible``, the share of the person's pixels inside the image that nothing hides.
    """
    backdrop, horizon = paint_backdrop(rng, width, height)
    eye = rng.uniform(0.75, 1.0)
    tilt = rng.uniform(2, 8)
    border_size = (height - horizon) / eye  # height of a person who stands on the lower border
    focal_length = _FOCAL_LENGTH * width
    count = int(rng.choice(_NUM_PEOPLE))
    depths = rng.permutation(np.linspace(_NEAR, _FAR, count)) * focal_length / border_size
    bodies = [random_body(rng) for _ in depths]
    looks = [random_look(rng) for _ in depths]
    walks = [
        walk(np.random.default_rng(rng.integers(2**32)), depth, width * depth / focal_length / 2, 1 / RATE)
        for depth in depths
    ]
    obstacle_seed = rng.integers(2**32)
    obstacle_size = rng.uniform(0.6, 1.0) * border_size
    obstacle_base = (rng.uniform(0.15, 0.85) * width, horizon + eye * obstacle_size)
    for _ in range(num_frames):
        queue: list[tuple[float, Figure | None]] = [(obstacle_base[1], None)]  # None stands for the obstacle
        for number, (body, look, steps) in enumerate(zip(bodies, looks, walks), 1):
            step = next(steps)
            x, depth = step.position
            size = focal_length / depth
            ground = np.array([width / 2 + x * size, horizon + eye * size])
            figure = Figure(body, walking_posture(body, step, tilt), look, size, ground, number * len(Part))
            queue.append((ground[1], figure))
        canvas = Canvas(backdrop.copy())
        painted = []
        for _, item in sorted(queue, key=lambda entry: entry[0]):  # from far to near
            if item is None:
                obstacle_rng = np.random.default_rng(obstacle_seed)
                paint_obstacle(canvas, obstacle_rng, obstacle_base, obstacle_size, OBSTACLE_CODE)
            else:
                item.paint(canvas)
                painted.append((item, int(_mask(canvas, item).sum())))
        painted.sort(key=lambda entry: entry[0].code)
        yield canvas.image, [_annotate(canvas, *entry) for entry in painted if _mask(canvas, entry[0]).any()]


def _mask(canvas: Canvas, figure: Figure) -> np.ndarray:
    """(H, W) bool: the visible pixels of a person."""
    return np.asarray(canvas.owner // len(Part) == figure.code // len(Part))


def _annotate(canvas: Canvas, figure: Figure, num_painted: int) -> dict[str, Any]:
    """The annotation of a person who had ``num_painted`` pixels before others were painted."""
    mask = _mask(canvas, figure)
    return {
        "id": figure.code // len(Part),
        "bbox": list(cv2.boundingRect(mask.astype(np.uint8))),
        "keypoints": flatten_keypoints(figure_keypoints(figure, canvas.owner)),
        "visible": round(int(mask.sum()) / num_painted, 3),
    }


def write_video(path: Path, rng: np.random.Generator, width: int, height: int, seconds: float) -> dict[str, Any]:
    """Render one video, write it as an MPEG-4 file, and return the content of its JSON file.

    Returns:
        ``file_name``, ``width``, ``height``, ``rate`` (frames per second), ``keypoints`` (their names) and ``frames``.
        Each frame has ``frame`` (counts from 0), ``time`` in seconds, and ``people`` (see ``film``).

    Raises:
        ConfigError: PyAV is not installed, or lacks the encoder.
        DataError: the file cannot be written.
    """
    try:
        import av
    except ImportError as error:
        raise ConfigError("videos need PyAV; pip install 'simplepose[video]'") from error
    if _CODEC not in av.codecs_available:
        raise ConfigError(f"PyAV was built without the encoder {_CODEC}; pip install --force-reinstall av")
    frames = []
    try:
        with av.open(str(path), "w", format="mp4") as container:
            stream = cast("VideoStream", container.add_stream(_CODEC, rate=Fraction(RATE)))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.bit_rate = int(_BIT_RATE * width * height)
            stream.thread_count = 1  # so that the same frames give the same bytes
            for number, (image, people) in enumerate(film(rng, width, height, max(1, round(seconds * RATE)))):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "bgr24")))
                frames.append({"frame": number, "time": round(number / RATE, 4), "people": people})
            container.mux(stream.encode(None))
    except OSError as error:  # PyAV's errors are of this kind
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    return {
        "file_name": path.name,
        "width": width,
        "height": height,
        "rate": RATE,
        "keypoints": list(COCO.file_names),
        "frames": frames,
    }

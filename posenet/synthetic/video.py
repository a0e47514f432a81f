"""Render videos of people who walk, cross, leave and come back, with annotations of every frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cv2
import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.skeleton import COCO
from posenet.synthetic.canvas import Canvas
from posenet.synthetic.figure import Figure, Part, random_look
from posenet.synthetic.labels import figure_keypoints
from posenet.synthetic.posture import random_body, walk, walking_posture
from posenet.synthetic.scene import paint_backdrop, paint_obstacle

if TYPE_CHECKING:
    from av.video.stream import VideoStream

RATE = 25.0
"""Frames per second."""
DEFAULT_SECONDS = 10.0
"""Length of a video."""
ASPECT = 16 / 9
"""Width by height of a video, if only the width is given."""

_NUM_PEOPLE = (3, 4, 5, 6, 7)
_FOCAL_LENGTH = 0.9
"""Focal length of the camera, in image widths."""
_NEAR, _FAR = 0.8, 1.9
"""Depths of the nearest and the farthest person. At depth 1, feet stand on the lower border of the image."""
_CODEC = "mpeg4"
_BIT_RATE = 3.0
"""Bits of a second of video per pixel of a frame."""


class FilmedPerson(NamedTuple):
    """Annotation of a person in one frame."""

    id: int
    """The person's number in this video, from 1; a person who comes back keeps it."""
    box: np.ndarray
    """(4,) left, top, width and height of the pixels that show the person."""
    keypoints: np.ndarray
    """(17, 3) x, y in pixels and visibility: 2 visible, 1 hidden, 0 outside or on the averted side of a face."""
    visible: float
    """Share of the person's pixels inside the image that nothing hides."""

    def to_dict(self) -> dict[str, Any]:
        """The person as an entry of the JSON file."""
        keypoints: list[float] = []
        for x, y, visibility in self.keypoints.tolist():
            keypoints += [round(x, 1), round(y, 1), int(visibility)]
        box = self.box.tolist()
        return {"id": self.id, "bbox": box, "keypoints": keypoints, "visible": round(self.visible, 3)}


class FilmFrame(NamedTuple):
    """A frame of a video."""

    image: np.ndarray
    """(H, W, 3) BGR uint8."""
    people: list[FilmedPerson]
    """All people of whom at least one pixel is visible."""


def film(rng: np.random.Generator, width: int, height: int, num_frames: int) -> Iterator[FilmFrame]:
    """Render the frames of one video: three to seven people and an obstacle, before a camera that stands still."""
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
        canvas = Canvas(backdrop.copy())
        obstacle_rng = np.random.default_rng(obstacle_seed)
        paint = partial(paint_obstacle, canvas, obstacle_rng, obstacle_base, obstacle_size)
        queue: list[tuple[float, Callable[[], object]]] = [(obstacle_base[1], paint)]
        painted: dict[int, tuple[Figure, int]] = {}
        for number, (body, look, steps) in enumerate(zip(bodies, looks, walks), 1):
            step = next(steps)
            x, depth = step.position
            size = focal_length / depth
            ground = np.array([width / 2 + x * size, horizon + eye * size])
            figure = Figure(body, walking_posture(body, step, tilt), look, size, ground, number * len(Part))
            queue.append((ground[1], partial(_paint_person, canvas, figure, number, painted)))
        for _, paint_item in sorted(queue, key=lambda item: item[0]):  # from far to near
            paint_item()
        yield FilmFrame(canvas.image, list(_annotate(canvas, painted)))


def _paint_person(canvas: Canvas, figure: Figure, number: int, painted: dict[int, tuple[Figure, int]]) -> None:
    """Paint a person; record the figure in ``painted`` with the number of its pixels."""
    figure.paint(canvas)
    painted[number] = figure, int(np.count_nonzero(canvas.owner // len(Part) == number))


def _annotate(canvas: Canvas, painted: dict[int, tuple[Figure, int]]) -> Iterator[FilmedPerson]:
    for number, (figure, num_pixels) in sorted(painted.items()):
        mask = canvas.owner // len(Part) == number
        if mask.any():
            box = np.array(cv2.boundingRect(mask.astype(np.uint8)))
            keypoints = figure_keypoints(figure, canvas.owner)
            yield FilmedPerson(number, box, keypoints, np.count_nonzero(mask) / num_pixels)


def write_video(path: Path, rng: np.random.Generator, width: int, height: int, seconds: float) -> dict[str, Any]:
    """Render one video, write it as an MPEG-4 file, and return the content of its JSON file.

    Returns:
        ``file_name``, ``width``, ``height``, ``rate`` (frames per second), ``keypoints`` (their names) and ``frames``.
        Each frame has ``frame`` (counts from 0), ``time`` in seconds, and ``people``: ``FilmedPerson.to_dict``.

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
            for number, frame in enumerate(film(rng, width, height, max(1, round(seconds * RATE)))):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame.image, "bgr24")))
                people = [person.to_dict() for person in frame.people]
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

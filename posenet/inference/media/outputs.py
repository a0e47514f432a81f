"""Where people go who have been found: into files of keypoints, drawings, sheets of maps and a window."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.files import atomic_replacement
from posenet.images import image_files as images
from posenet.images.image_files import write_image
from posenet.inference.coco_evaluation import to_coco_result
from posenet.inference.media import video
from posenet.inference.media.sources import Frame, Source
from posenet.inference.media.video import VideoWriter
from posenet.inference.person import Person

_log = logging.getLogger(__name__)


class Output(Protocol):
    """Takes every frame with its people and the drawing of them, in order."""

    def __call__(self, frame: Frame, people: Sequence[Person], drawn: np.ndarray) -> None: ...


@contextlib.contextmanager
def people_file(path: Path) -> Iterator[Output]:
    """People as COCO results, each with its ``file_name`` and in videos its ``frame`` and ``time`` in seconds.

    A ``.jsonl`` file has one person per line and is complete to the last frame at any time; any other is one list,
    which replaces an earlier file when the block ends well.
    """
    lines = path.suffix.lower() == ".jsonl"
    with (
        contextlib.nullcontext(path) if lines else atomic_replacement(path) as target,
        open(target, "w", encoding="utf-8") as file,
    ):
        separators = itertools.chain(["[\n"], itertools.repeat(",\n"))

        def write(frame: Frame, people: Sequence[Person], drawn: np.ndarray) -> None:
            for person in people:
                text = json.dumps(entry(frame, person))
                file.write(text + "\n" if lines else next(separators) + text)
            file.flush()

        yield write
        if not lines:
            file.write("[]\n" if next(separators) == "[\n" else "\n]\n")


def entry(frame: Frame, person: Person) -> dict[str, Any]:
    """A person in COCO's results format; other images than COCO's, which have numbers, are known by their path."""
    name, stem = frame.source.name, frame.source.stem
    if frame.number is not None:
        place = {"frame": frame.number, "time": round(frame.seconds, 4)}
        return to_coco_result(person, f"{name}#{frame.number}") | {"file_name": name} | place
    return to_coco_result(person, int(stem) if stem.isascii() and stem.isdecimal() else name) | {"file_name": name}


def output_paths(
    sources: Sequence[Source], folder: Path, suffix: str | None = None, moving_suffix: str | None = None
) -> dict[Source, Path]:
    """Where what is made of each source goes: under its own name, numbered where an earlier one has the same.

    Args:
        suffix: of what is made of an image; None keeps the image's own where it can be written.
        moving_suffix: the same for videos and cameras.
    """
    paths: dict[Source, Path] = {}
    taken: set[str] = set()
    for source in sources:
        own = source.path.suffix if source.path else ""
        if source.kind == "image":
            end = (own if own.lower() in images.WRITABLE_SUFFIXES else ".png") if suffix is None else suffix
        else:
            end = (own if own.lower() in video.WRITTEN else ".mp4") if moving_suffix is None else moving_suffix
        names = itertools.chain([source.stem + end], (f"{source.stem}-{n}{end}" for n in itertools.count(2)))
        # Some file systems take Photo.jpg and photo.jpg for one.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        paths[source] = folder / name
        if source.path and name != source.stem + end:
            _log.info("%s goes to %s", source.name, name)
    return paths


@contextlib.contextmanager
def drawings(paths: dict[Source, Path], codec: str = video.CODEC) -> Iterator[Output]:
    """Drawn images and videos; a video is ended as soon as another source's frames come, or the block ends."""
    current: tuple[Source, VideoWriter] | None = None

    def end() -> None:
        nonlocal current
        if current is not None:
            current[1].close()
            current = None

    def write(frame: Frame, people: Sequence[Person], drawn: np.ndarray) -> None:
        nonlocal current
        source = frame.source
        if current is not None and current[0] != source:
            end()
        if frame.number is None:
            write_image(paths[source], drawn)
            return
        if current is None:
            current = source, VideoWriter(paths[source], frame.rate, drawn.shape[:2], codec)
        if source.kind == "camera":
            current[1].write_until(drawn, frame.seconds)
        else:
            current[1].write(drawn)

    try:
        yield write
    finally:
        end()


class Window:
    """Shows the drawings; Q, Escape or closing the window ends it. A single image stays until a key is pressed.

    Args:
        stop_asked: asked while an image stays; true ends the wait.

    Attributes:
        closed: whether the user has had enough.
    """

    TITLE = "posenet"

    @staticmethod
    def require_display() -> None:
        """Refuse early what this cannot do.

        Raises:
            ConfigError: OpenCV cannot open a window here.
        """
        if reason := _no_display():
            raise ConfigError(f"--show needs a display: {reason}; leave it out and give --output DIR")

    def __init__(self, stop_asked: Callable[[], bool] = lambda: False) -> None:
        self.closed, self._stop_asked = False, stop_asked

    def __call__(self, frame: Frame, people: Sequence[Person], drawn: np.ndarray) -> None:
        cv2.namedWindow(self.TITLE, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        cv2.imshow(self.TITLE, drawn)
        key = cv2.waitKey(1)
        while frame.number is None and key < 0 and self._visible() and not self._stop_asked():
            key = cv2.waitKey(50)
        self.closed = key & 0xFF in (ord("q"), ord("Q"), 27) or not self._visible()

    def _visible(self) -> bool:
        return cv2.getWindowProperty(self.TITLE, cv2.WND_PROP_VISIBLE) >= 1

    def close(self) -> None:
        cv2.destroyAllWindows()


def _no_display() -> str:
    """Why OpenCV cannot open a window here; empty where it can."""
    if re.search(r"GUI:\s+NONE", cv2.getBuildInformation()):
        return "this OpenCV has no windows (opencv-python-headless)"
    if not sys.platform.startswith("linux"):
        return ""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "there is none (DISPLAY is not set)"
    # Where the display cannot be reached, the window's library ends the whole process: another one tries it.
    attempt = "import cv2; cv2.namedWindow('posenet'); cv2.destroyAllWindows()"
    try:
        subprocess.run([sys.executable, "-c", attempt], capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError:
        return f"the one of DISPLAY={os.environ.get('DISPLAY', '')} cannot be used"
    return ""

"""Outputs of prediction: what every output does, and drawings as images, as videos or in a window."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.files import atomic_replacement, name_file_in_errors, resolve_link
from posenet.images import WRITABLE_SUFFIXES, write_image
from posenet.inference.media.sources import VIDEO_SUFFIXES, Frame, Source
from posenet.inference.person import Person

WRITABLE_VIDEO_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Formats of videos that are written."""
WINDOW_TITLE = "posenet"
_ESCAPE = 27
_CLOSE_KEYS = frozenset([ord("q"), ord("Q"), _ESCAPE])

Draw = Callable[[Frame, Sequence[Person]], np.ndarray]
"""Draws people on a copy of their frame, (H, W, 3) uint8 BGR."""

_log = logging.getLogger(__name__)


class Output(ABC):
    """Receives every frame that could be read, in order, with its people.

    At the end of its context the output is completed; after an error, files that it has begun are discarded, and
    earlier files of their names stay.
    """

    is_closed = False
    """Whether the user has closed it, so that nothing more is to be written."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    @abstractmethod
    def write(self, frame: Frame, people: Sequence[Person]) -> None:
        """Receive a frame."""

    def finish(self) -> None:  # noqa: B027  # many have nothing to write at the end
        """Write what comes after the last frame."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            with self._stack:
                self.finish()
        else:
            self._stack.__exit__(kind, error, traceback)


def output_paths(
    sources: Sequence[Source], folder: Path, suffixes_of: Callable[[Source], Sequence[str]]
) -> dict[Source, list[Path]]:
    """Choose the paths in ``folder`` that the output of each source may have: one for each of its suffixes.

    An output has the name and the subfolder of its source. It is numbered if an earlier output has the same name.
    """
    paths: dict[Source, list[Path]] = {}
    taken: set[str] = set()
    for source in sources:
        for name in itertools.chain([source.stem], (f"{source.stem}-{number}" for number in itertools.count(2))):
            paths[source] = [folder / source.subfolder / (name + suffix) for suffix in suffixes_of(source)]
            # Photo.jpg and photo.jpg are the same file on some file systems.
            files = {str(path).lower() for path in paths[source]}
            if not files & taken:
                break
        taken |= files
        if source.kind != "camera" and name != source.stem:
            _log.info("The output of %s is named %s", source.name, name)
    return paths


def drawing_suffixes(source: Source) -> list[str]:
    """Suffixes that the drawing of a source may have: as an image, as a video, or either for an animation."""
    as_image = source.suffix if source.suffix.lower() in WRITABLE_SUFFIXES else ".png"
    as_video = source.suffix if source.suffix.lower() in WRITABLE_VIDEO_SUFFIXES else ".mp4"
    return {"image": [as_image], "animation": [as_image, as_video]}.get(source.kind, [as_video])


class DrawingOutput(Output):
    """Writes the drawing of each source as an image or as a video.

    A video is completed when frames of another source arrive, or at the end.

    Args:
        paths: see ``output_paths`` and ``drawing_suffixes``.
    """

    def __init__(self, paths: Mapping[Source, Sequence[Path]], draw: Draw) -> None:
        super().__init__()
        self._paths = paths
        self._draw = draw
        self._video_source: Source | None = None

    def write(self, frame: Frame, people: Sequence[Person]) -> None:
        if frame.source != self._video_source:
            self._stack.close()  # completes the video of the last source
            self._video_source = None
        drawing = self._draw(frame, people)
        paths = self._paths[frame.source]
        if frame.number is None:
            with name_file_in_errors(paths[0]):
                write_image(paths[0], drawing)
            return
        if self._video_source is None:
            self._open_video(paths[-1], frame, drawing)
        self._video.write(drawing, frame.seconds)

    def _open_video(self, path: Path, frame: Frame, drawing: np.ndarray) -> None:
        from posenet.inference.media.video import VideoWriter  # needs PyAV

        source_path = frame.source.path
        has_sound = source_path is not None and source_path.suffix.lower() in VIDEO_SUFFIXES
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._stack.enter_context(atomic_replacement(resolve_link(path), path.suffix))
        sound_from = source_path if has_sound else None
        self._video = VideoWriter(temporary, drawing.shape[:2], frame.rate, aspect=frame.aspect, sound_from=sound_from)
        self._stack.callback(self._video.close)
        self._video_source = frame.source


class Window(Output):
    """Shows the drawings. An image stays until a key is pressed or ``stop_requested`` returns true."""

    def __init__(self, draw: Draw, stop_requested: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._draw = draw
        self._stop_requested = stop_requested
        self._stack.callback(cv2.destroyAllWindows)

    def write(self, frame: Frame, people: Sequence[Person]) -> None:
        cv2.namedWindow(WINDOW_TITLE, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        cv2.imshow(WINDOW_TITLE, self._draw(frame, people))
        key = cv2.waitKey(1)
        while frame.number is None and key < 0 and self._is_visible() and not self._stop_requested():
            key = cv2.waitKey(50)
        self.is_closed = (key & 0xFF) in _CLOSE_KEYS or not self._is_visible()

    def _is_visible(self) -> bool:
        return cv2.getWindowProperty(WINDOW_TITLE, cv2.WND_PROP_VISIBLE) >= 1


def require_display() -> None:
    """Raise ``ConfigError`` unless OpenCV can open a window here."""
    reason = _why_no_window()
    if reason:
        raise ConfigError(f"--show needs a display: {reason}; leave out --show and use --output DIR")


def _why_no_window() -> str:
    """Why OpenCV cannot open a window here; empty if it can."""
    if re.search(r"GUI:\s+NONE", cv2.getBuildInformation()):
        return "this OpenCV is built without windows (opencv-python-headless)"
    if not sys.platform.startswith("linux"):
        return ""
    display = os.environ.get("DISPLAY", "")
    if not display and not os.environ.get("WAYLAND_DISPLAY"):
        return "there is none (DISPLAY is not set)"
    # If the display cannot be reached, the window library ends the whole process. So another process tries it.
    attempt = "import cv2; cv2.namedWindow('posenet'); cv2.destroyAllWindows()"
    try:
        subprocess.run([sys.executable, "-c", attempt], capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError:
        return f"DISPLAY={display} cannot be used"
    return ""

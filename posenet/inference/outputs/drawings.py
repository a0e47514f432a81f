"""Outputs of prediction: drawings as images, as videos or in a window.

An output is a context, which yields a function that writes. At the end it is completed; after an error, what it has
begun is discarded, and earlier files stay.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.files import atomic_replacement, resolve_link
from posenet.images import write_image
from posenet.inference.media.sources import Frame

if TYPE_CHECKING:
    from posenet.inference.media.video import VideoWriter

WINDOW_TITLE = "posenet"
_CLOSE_KEYS = frozenset([*b"qQ", 27])
"""27 is Escape."""

Show = Callable[[Frame, np.ndarray], None]
"""Writes or shows the drawing of a frame, (H, W, 3) uint8 BGR."""


@contextlib.contextmanager
def write_drawing(path: Path) -> Iterator[Show]:
    """Write the drawing of one source, as an image or as a video; ``output_files`` has the suffixes."""
    video: VideoWriter | None = None
    with contextlib.ExitStack() as stack:

        def write(frame: Frame, drawing: np.ndarray) -> None:
            nonlocal video
            if frame.number is None:
                write_image(path, drawing)
                return
            if video is None:
                from posenet.inference.media.video import VideoWriter  # needs PyAV

                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = stack.enter_context(atomic_replacement(resolve_link(path), path.suffix))
                video = VideoWriter(temporary, drawing.shape[:2], frame.rate, aspect=frame.aspect)
                stack.enter_context(contextlib.closing(video))
            video.write(drawing, frame.seconds)

        yield write


@contextlib.contextmanager
def show_in_window(stop_requested: Callable[[], bool], on_close: Callable[[], None]) -> Iterator[Show]:
    """Show the drawings, until the user closes the window and ``on_close`` is called.

    An image stays until a key is pressed or ``stop_requested`` returns true.
    """

    def is_visible() -> bool:
        return cv2.getWindowProperty(WINDOW_TITLE, cv2.WND_PROP_VISIBLE) >= 1

    def show(frame: Frame, drawing: np.ndarray) -> None:
        cv2.namedWindow(WINDOW_TITLE, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        cv2.imshow(WINDOW_TITLE, drawing)
        key = cv2.waitKey(1)
        while frame.number is None and key < 0 and is_visible() and not stop_requested():
            key = cv2.waitKey(50)
        if (key & 0xFF) in _CLOSE_KEYS or not is_visible():
            on_close()

    try:
        yield show
    finally:
        cv2.destroyAllWindows()


def require_display() -> None:
    """Raise ``ConfigError`` unless OpenCV can open a window here."""
    # If the display cannot be reached, the window library ends the whole process. So another process tries it.
    attempt = "import cv2; cv2.namedWindow('posenet'); cv2.destroyAllWindows()"
    try:
        subprocess.run([sys.executable, "-c", attempt], capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        raise ConfigError(
            f"--show needs a display, and OpenCV cannot open a window here (DISPLAY={os.environ.get('DISPLAY', '')};"
            " opencv-python-headless never can); leave it out, and use --output DIR"
        ) from error

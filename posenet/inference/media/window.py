"""A window that shows the drawings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.inference.media.sources import Frame
from posenet.inference.person import Person

TITLE = "posenet"
ESCAPE = 27
CLOSE_KEYS = frozenset([ord("q"), ord("Q"), ESCAPE])


class Window:
    """Shows the drawings. An image stays until a key is pressed or ``stop_requested`` returns true."""

    def __init__(self, stop_requested: Callable[[], bool] = lambda: False) -> None:
        self.closed = False
        """Whether the user has closed the window, by Q or Escape."""
        self._stop_requested = stop_requested

    @staticmethod
    def require_display() -> None:
        """Raise ``ConfigError`` unless OpenCV can open a window here."""
        reason = _why_no_window()
        if reason:
            raise ConfigError(f"--show needs a display: {reason}; leave out --show and use --output DIR")

    def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
        """Show a drawing."""
        cv2.namedWindow(TITLE, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        cv2.imshow(TITLE, drawing)
        key = cv2.waitKey(1)
        while frame.number is None and key < 0 and self._is_visible() and not self._stop_requested():
            key = cv2.waitKey(50)
        self.closed = (key & 0xFF) in CLOSE_KEYS or not self._is_visible()

    def _is_visible(self) -> bool:
        return cv2.getWindowProperty(TITLE, cv2.WND_PROP_VISIBLE) >= 1

    def close(self) -> None:
        cv2.destroyAllWindows()


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

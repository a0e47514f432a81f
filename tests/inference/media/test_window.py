"""The window that shows the drawings."""

import shutil
import sys

import cv2
import pytest

from posenet.errors import ConfigError
from posenet.inference.media.sources import CameraSource, Frame
from posenet.inference.media.window import Window
from tests.helpers.videos import GREY


def test_a_missing_display_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  GUI:                           QT5\n")
    with pytest.raises(ConfigError, match="--show needs a display: there is none"):
        Window.require_display()
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setattr(sys, "executable", shutil.which("false") or pytest.skip("no command that fails"))
    with pytest.raises(ConfigError, match="DISPLAY=:77 cannot be used"):
        Window.require_display()
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  GUI:                           NONE\n")
    with pytest.raises(ConfigError, match="headless"):
        Window.require_display()


@pytest.mark.parametrize(
    "key, visible, closed", [(ord("q"), 1, True), (27, 1, True), (ord("n"), 1, False), (-1, 0, True)]
)
def test_a_window_is_closed_by_q_by_escape_and_by_hand(monkeypatch, key, visible, closed):
    shown = []
    monkeypatch.setattr(cv2, "namedWindow", lambda *_: None)
    monkeypatch.setattr(cv2, "imshow", lambda _, image: shown.append(image))
    monkeypatch.setattr(cv2, "waitKey", lambda _: key)
    monkeypatch.setattr(cv2, "getWindowProperty", lambda *_: visible)
    monkeypatch.setattr(cv2, "destroyAllWindows", lambda: None)
    window = Window()
    window.write(Frame(CameraSource(2), GREY, 0), [], GREY)
    assert window.closed == closed and len(shown) == 1
    window.close()


def test_a_single_image_stays_until_a_key_is_pressed(monkeypatch):
    keys = iter([-1, -1, -1, ord("n")])
    monkeypatch.setattr(cv2, "namedWindow", lambda *_: None)
    monkeypatch.setattr(cv2, "imshow", lambda *_: None)
    monkeypatch.setattr(cv2, "waitKey", lambda _: next(keys))
    monkeypatch.setattr(cv2, "getWindowProperty", lambda *_: 1)
    window = Window()
    window.write(Frame(CameraSource(2), GREY), [], GREY)
    assert not window.closed and not list(keys)

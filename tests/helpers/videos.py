"""Small videos for tests, and a camera and a window that need no hardware."""

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.inference.media.frames import Frame, FrameSelection, read_frames
from tests.helpers.spot_networks import spot_image

GREY = np.full((48, 64, 3), 90, np.uint8)
"""An image without people."""


def grey_image(number: int, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    """An image with noise, so that every frame takes some bytes; a later one is lighter."""
    noise = np.random.default_rng(number).integers(0, 30, (*size, 3))
    return np.clip(noise + 15 * number, 0, 255).astype(np.uint8)


def write_video(path: Path, count: int = 12, size: tuple[int, int] = (48, 64)) -> Path:
    """Write grey frames that grow lighter, ten a second."""
    video = pytest.importorskip("posenet.inference.media.video")
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(video.VideoWriter(path, size, 10)) as writer:
        for number in range(count):
            writer.write(grey_image(number, size), number / 10)
    return path


def write_spot_video(path: Path, count: int = 22) -> Path:
    """Write a person of spots, which ``SpotNetwork`` finds, who walks to the right; ten frames a second."""
    video = pytest.importorskip("posenet.inference.media.video")
    with contextlib.closing(video.VideoWriter(path, (98, 132), 10)) as writer:
        for number in range(count):
            writer.write(spot_image(98, 132, (20 + 2 * (number % 30), 20), (90, 60), 4), number / 10)
    return path


def read_video(path: Path, **selection: float) -> list[Frame]:
    """The frames of a video, and one with an error for what cannot be read."""
    return list(read_frames(path, selection=FrameSelection(**selection)))  # type: ignore[arg-type]


def write_media(
    path: Path,
    times: Sequence[float] = tuple(np.arange(20) / 10),
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    aspect: Fraction = Fraction(1),
    sound: float = 0.0,
) -> Path:
    """Write grey frames of 64 x 48 pixels at some times, and silence of ``sound`` seconds, with PyAV."""
    av = pytest.importorskip("av", reason="needs PyAV to make the file")
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=10)
        video.width = 64
        video.height = 48
        video.pix_fmt = pixels
        video.sample_aspect_ratio = aspect
        # AVI has no times: its frames follow each other at the rate of its clock.
        clock = Fraction(1, 10 if path.suffix == ".avi" else 1000)
        video.codec_context.time_base = clock
        video.codec_context.max_b_frames = 0
        if sound:
            audio = container.add_stream("aac", rate=48000, layout="mono")
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(grey_image(number % 12), format="bgr24")
            frame.pts = round(time / clock)
            frame.time_base = clock
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if sound:
            for start in range(0, round(sound * 48000), 960):
                block = av.AudioFrame(format="s16", layout="mono", samples=960)
                block.planes[0].update(bytes(block.planes[0].buffer_size))
                block.pts = start
                block.sample_rate = 48000
                container.mux(audio.encode(block))
            container.mux(audio.encode(None))
    return path


def write_animation(path: Path, count: int = 20) -> Path:
    """An animation of one image every 100 ms, or a TIFF file with as many pages."""
    images = [grey_image(number % 12) for number in range(count)]
    if path.suffix.lower() == ".tif":
        assert cv2.imwritemulti(str(path), images)
    else:
        animation = cv2.Animation()
        animation.frames = images
        animation.durations = [100] * count
        assert cv2.imwriteanimation(str(path), animation)
    return path


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """In this context no file can grow beyond ``size`` bytes: writing fails as on a full disk."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


class FakeCapture:
    """Stands in for ``cv2.VideoCapture``: camera 0 or 3, which delivers an image whenever ``requested`` permits it."""

    requested = threading.Semaphore(0)
    count = 3  # images until the camera fails

    def __init__(self, device: int | str) -> None:
        self._device = device
        self._number = 0

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch, count: int) -> threading.Semaphore:
        """Use it instead of cameras; return what requests an image."""
        pytest.importorskip("posenet.inference.media.video")
        monkeypatch.setattr(cls, "requested", threading.Semaphore(0))
        monkeypatch.setattr(cls, "count", count)
        monkeypatch.setattr(cv2, "VideoCapture", cls)
        return cls.requested

    def isOpened(self) -> bool:
        return self._device in (0, 3, "/dev/video0")

    def get(self, _: int) -> float:
        return 0.0

    def grab(self) -> bool:
        self.requested.acquire(timeout=2)
        self._number += 1
        return self._number <= self.count

    def retrieve(self) -> tuple[bool, np.ndarray]:
        return True, np.full((4, 6, 3), self._number % 256, np.uint8)

    def release(self) -> None: ...


def install_window(
    monkeypatch: pytest.MonkeyPatch, press_key: Callable[[], int], is_visible: bool = True
) -> list[np.ndarray]:
    """Stand in for OpenCV's window, in which ``press_key`` returns the next key or -1; return what it shows."""
    shown: list[np.ndarray] = []
    monkeypatch.setattr(cv2, "namedWindow", lambda *_: None)
    monkeypatch.setattr(cv2, "imshow", lambda _, image: shown.append(image))
    monkeypatch.setattr(cv2, "waitKey", lambda _: press_key())
    monkeypatch.setattr(cv2, "getWindowProperty", lambda *_: int(is_visible))
    monkeypatch.setattr(cv2, "destroyAllWindows", lambda: None)
    return shown

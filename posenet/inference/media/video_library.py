"""Choose the library for videos: PyAV where it is installed, else OpenCV."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from posenet.errors import DataError
from posenet.files import atomic_replacement, resolve_link
from posenet.inference.media import opencv_video
from posenet.inference.media.opencv_video import OpenCVVideo, OpenCVWriter
from posenet.inference.media.video import VideoReader, VideoWriter

WITHOUT_PYAV = (
    "PyAV is not installed: OpenCV writes videos at a constant rate, without sound and not as H.264, and reads fewer "
    "codecs; pip install 'posenet[video]'"
)


def has_pyav() -> bool:
    return importlib.util.find_spec("av") is not None


def open_video(location: Path | str, name: str) -> VideoReader:
    """Open a video file or the URL of a stream.

    Args:
        name: for messages.

    Raises:
        DataError: no such file, an empty one, or nothing that the library can read.
    """
    if isinstance(location, Path):
        if not location.is_file():
            raise DataError(f"cannot read {name}: no such file")
        if not location.stat().st_size:
            raise DataError(f"{name} is empty (0 bytes)")
    if has_pyav():
        from posenet.inference.media.pyav_video import PyAVVideo

        return PyAVVideo(location, name)
    return OpenCVVideo(location, name)


@contextlib.contextmanager
def open_video_writer(
    path: Path,
    size: tuple[int, int],
    rate: float,
    *,
    aspect: float = 1.0,
    codec: str | None = None,
    sound_from: Path | None = None,
) -> Iterator[VideoWriter]:
    """Open a video for writing. It replaces an earlier file when the block ends without an error.

    Args:
        path: its suffix, one of ``WRITABLE_SUFFIXES``, gives the format.
        size: (height, width) of the images.
        rate: frames per second; with PyAV only a hint, as every image has its time.
        aspect: width of a pixel divided by its height.
        codec: four letters, or with PyAV an encoder of FFmpeg; None for H.264 with PyAV and MPEG-4 without.
        sound_from: a video whose sound is copied; OpenCV cannot.

    Raises:
        ConfigError: the library cannot write the codec in this format and size.
        OSError: the disk is full.
    """
    with atomic_replacement(resolve_link(path), path.suffix) as temporary, contextlib.ExitStack() as stack:
        writer: VideoWriter
        if has_pyav():
            from posenet.inference.media import pyav_video

            codec = codec or pyav_video.DEFAULT_CODEC
            writer = pyav_video.PyAVWriter(temporary, size, rate, aspect, codec, sound_from)
        else:
            writer = OpenCVWriter(temporary, size, rate, aspect, codec or opencv_video.DEFAULT_CODEC)
        stack.callback(writer.close)
        yield writer

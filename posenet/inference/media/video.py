"""Videos and streams through PyAV (the extra ``video``), which brings its own FFmpeg, and cameras through OpenCV.

Of cameras and live streams always the newest image is read. ``VideoWriter`` writes drawings.
"""

import contextlib
import io
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.reformatter import Colorspace, VideoReformatter
from av.video.stream import VideoStream

from posenet.errors import DataError
from posenet.images import apply_orientation, parse_header, to_bgr
from posenet.inference.media.frames import DEFAULT_FRAME_RATE, READ_AHEAD, Frame, FrameSelection, Source
from posenet.messages import MAX_REASON, to_single_line
from posenet.threads import read_ahead

MAX_UNREADABLE_IN_A_ROW = 100
"""After this many frames in a row that cannot be decoded, a video counts as ended, and a camera as lost."""
SAME_TIME = 1e-6
"""Times that differ by no more seconds are the same: they are sums and quotients, and rounded."""
TICK = Fraction(1, 60000)
"""Clock of written videos, in seconds."""
_ANY_TAGS: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""How PyAV opens a file whose tags are not UTF-8. From version 19 on it does so by itself."""
NO_VIDEOS = frozenset(["tty", "tiff_pipe", "webp_pipe"])
"""Formats of any text, and of files of several images of which FFmpeg reads one at most."""
STREAM_OPTIONS = {
    "reconnect": "1",
    "reconnect_on_network_error": "1",
    "reconnect_delay_max": "5",
    "rtsp_transport": "tcp",
}
_ORIENTATION_OF = {
    (1, 0, 0, 1): 1, (-1, 0, 0, 1): 2, (-1, 0, 0, -1): 3, (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5, (0, 1, -1, 0): 6, (0, -1, -1, 0): 7, (0, -1, 1, 0): 8,
}  # fmt: skip
"""The EXIF orientation of each display matrix (a, b, c, d): the pixel (x, y) is shown at (a x + c y, b x + d y)."""

_log = logging.getLogger(__name__)


def read_video(source: Source, selection: FrameSelection, stop_requested: Callable[[], bool]) -> Iterator[Frame]:
    """The selected frames of a video, a stream or a camera; ``DataError`` if it cannot be opened or ends early."""
    reader: Camera | PyAVReader = Camera(source) if source.kind == "camera" else PyAVReader(source)
    if isinstance(reader, Camera) or reader.is_live:
        yield from _read_live(reader, selection, stop_requested)
    else:
        with contextlib.closing(reader):
            yield from read_ahead(reader.frames(selection), READ_AHEAD)


def plausible_rate(rate: float) -> float:
    """A stated frame rate, or the default where it is implausible: not a number, or the ticks of a clock."""
    return rate if 1 <= rate <= 480 else DEFAULT_FRAME_RATE


class PyAVReader:
    """A video file or a stream, at a path or an address, which is read once.

    Attributes:
        is_live: whether it has no end that is known, as a live stream has none.
        length: in seconds, as the file states it; 0 if it states none.
        end: the end of what was read, in seconds.
        rate: frames per second; an average where the rate varies.
        aspect: width of a pixel divided by its height; that of the last image.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.aspect = 1.0
        name, path = source.name, source.path
        if path is not None and not (path.is_file() and path.stat().st_size):  # opening a FIFO would wait
            raise DataError(f"cannot read {name}: it is no file, or empty (0 bytes); copy it or download it again")
        # A stream counts as lost after ten seconds without data.
        how: dict[str, Any] = {"options": STREAM_OPTIONS, "timeout": 10.0} if source.url else {}
        try:
            self._container = av.open(source.url or f"file:{path}", **how, **_ANY_TAGS)
        except av.FFmpegError as error:
            remedy = "check the address, or download it" if path is None else "it may be cut off or damaged"
            raise DataError(f"{name} cannot be opened as a video: {error.strerror}; {remedy}") from error
        stream = self._container.streams.best("video")
        is_refused = self._container.format.name in NO_VIDEOS
        if is_refused or not stream or not stream.codec_context or Disposition.attached_pic in stream.disposition:
            self._container.close()
            raise DataError(
                f"{name} has no images that FFmpeg can decode, several pages, or only the cover of its sound; "
                "convert it to MP4 (H.264), or give single images"
            )
        self._stream = cast(VideoStream, stream)
        # Threads that decode several frames at a time would delay a live stream by as many frames. They would also
        # return the frame of an earlier packet, and these codecs have image files as packets, with their EXIF data.
        has_image_files = self._stream.codec_context.name in ("mjpeg", "png", "apng", "webp")
        self._stream.thread_type = "SLICE" if path is None or has_image_files else "AUTO"
        self._frame: av.VideoFrame
        self._packet: Packet[Any] | None = None
        # PyAV's own, one for each thread, has threads that a forked process lacks, and would wait for forever.
        self._reformatter = VideoReformatter()
        # AVI has no times, and FFmpeg's are wrong if frames are not stored in order: frames follow at a constant rate.
        self._has_times = self._container.format.name != "avi"
        self._first_time = _seconds(stream.start_time, stream) if self._has_times else math.nan
        self._packets = self._read_packets()
        self._pending: list[Packet[Any] | None] = []  # were read, but not decoded
        self._from_time = -math.inf  # frames before this are not complete without frames that were skipped
        self.end = 0.0
        self.length = (self._container.duration or 0) / av.time_base
        if not self._has_times:  # FFmpeg estimates the length of a file that was cut off
            self.length = _seconds(self._stream.frames, self._stream)
        is_playlist = self._container.format.name in ("hls", "dash")  # its size is that of the list of parts
        is_endless = (self._container.size or 0) <= 0 or is_playlist
        self.is_live = source.url is not None and is_endless and not self.length
        self.rate = plausible_rate(float(self._stream.average_rate or self._stream.guessed_rate or 0))

    def frames(self, selection: FrameSelection) -> Iterator[Frame]:
        """Yield the selected frames, and one with an error for each damaged frame that intact frames follow.

        ``DataError`` at the end if the video was cut off or has no frame after the start of the selection.
        """
        name = self.source.name
        end = selection.start + selection.duration
        first = self._seek(selection.start)
        number = first - 1
        unreadable = 0  # frames since the last intact one
        seconds = -math.inf
        first_selected: int | None = None
        for number, stated in enumerate(self.decode(), first):
            if stated is None:
                unreadable += 1
                if unreadable == MAX_UNREADABLE_IN_A_ROW:
                    break
                continue
            for damaged in range(number - unreadable, number):
                yield Frame(self.source, error=DataError(f"frame {damaged} of {name} cannot be decoded"))
            unreadable = 0
            if stated > seconds:
                seconds = stated
            else:  # unknown, or damaged: the frame follows the previous one
                seconds = 0.0 if seconds == -math.inf else seconds + 1 / self.rate
            if seconds > end - SAME_TIME:
                return
            if seconds < selection.start - SAME_TIME:
                continue
            if first_selected is None:
                first_selected = number
            if (number - first_selected) % selection.stride:
                continue
            try:
                image = self.image()
            except Exception as error:
                reason = to_single_line(str(error))[:MAX_REASON]
                yield Frame(self.source, error=DataError(f"frame {number} of {name} cannot be used ({reason})"))
                continue
            rate = self.rate / selection.stride
            expected = max(0, math.ceil((min(self.length, end) - seconds) * rate - 0.5))
            yield Frame(self.source, image, number, seconds, rate, self.aspect, expected)
        frames_read = number + 1 - unreadable
        if frames_read == 0:
            # FFmpeg cannot read all files from servers that do not send parts of them.
            raise DataError(f"{name} is damaged: no frame can be decoded; download it again, and give the file")
        # Lengths in headers are rough: 5 % of the length or three frames may be missing at the end.
        if self.length - self.end > max(3 / self.rate, 0.05 * self.length):
            raise DataError(f"{name} ends early: it has {self.end:.2f} of {self.length:.2f} seconds")
        if first_selected is None:
            raise DataError(f"{name} has no frame after {selection.start:g} s; the last is at {seconds:.2f} s")

    def decode(self) -> Iterator[float | None]:
        """Decode frame after frame. Yield the time of each in seconds, NaN if unknown; None if it is damaged."""
        for packet in itertools.chain(self._pending, self._packets):
            self._packet = packet
            try:
                frames = packet.decode() if packet is not None else self._stream.codec_context.decode(None)
            except Exception:  # PyAV also raises others than its own, for what it does not know
                yield None
                continue
            for frame in frames:
                seconds = _seconds(frame.pts, self._stream) if self._has_times else math.nan
                if math.isnan(self._first_time):
                    self._first_time = seconds
                if not seconds < self._from_time:
                    self._frame = frame
                    yield seconds - self._first_time

    def _read_packets(self) -> "Iterator[Packet[Any] | None]":
        """The packets of the images; None instead of the last, empty one if the file is damaged."""
        try:
            # Sound and images may end at different times: the later end is compared with the stated length.
            for packet in self._container.demux(self._stream, *self._container.streams.audio):
                if not math.isnan(shown := _time_shown(packet)):
                    self.end = max(self.end, shown + _seconds(packet.duration or 0, packet.stream))
                if packet.stream is self._stream:
                    yield packet
        except Exception:
            yield None

    def image(self) -> np.ndarray:
        """The image of the frame that was decoded last, (H, W, 3) BGR uint8, rotated as the metadata say."""
        orientation = _orientation_of(self._frame, self._packet)
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        self.aspect = float(1 / aspect if orientation >= 5 else aspect)
        image = self._reformatter.reformat(self._frame, format="bgr24").to_ndarray()
        return np.ascontiguousarray(apply_orientation(image, orientation))

    def _seek(self, seconds: float) -> int:
        """Skip all before the last keyframe before ``seconds``, without decoding it; return its number of frames."""
        if seconds <= 0 or math.isnan(self._first_time):
            return 0
        start = self._first_time + seconds + SAME_TIME
        times: list[float] = []  # of the frames that are shown
        for packet in self._packets:
            time = math.nan if packet is None else _time_shown(packet)
            if packet is not None and packet.is_keyframe and time <= start:
                self._from_time = time
                self._pending.clear()
            self._pending.append(packet)
            # Videos that were cut without encoding them again have frames that are not shown.
            if packet is None or not packet.is_discard:
                times.append(time)
            # No later packet is shown before it is decoded.
            if packet is None or packet.dts is None or _seconds(packet.dts, self._stream) > start:
                break
        return sum(time < self._from_time for time in times)

    def close(self) -> None:
        """Release the file or the connection."""
        self._container.close()


class Camera:
    """A camera, through OpenCV; ``DataError`` if there is none, or another program uses it."""

    aspect = 1.0  # of a pixel

    def __init__(self, source: Source) -> None:
        self.source = source
        self._capture = cv2.VideoCapture(source.location)  # a number or a device file
        if not self._capture.isOpened():
            raise DataError(f"{source.name} cannot be opened; connect it, and close other programs that use it")
        self.rate = plausible_rate(self._capture.get(cv2.CAP_PROP_FPS))

    def decode(self) -> Iterator[float | None]:
        """Wait for frame after frame, whose times are unknown; like ``PyAVReader.decode``."""
        while self._capture.grab():
            yield math.nan

    def image(self) -> np.ndarray:
        """The last image, (H, W, 3) BGR uint8; an error if the camera has sent none."""
        return to_bgr(self._capture.retrieve()[1])

    def close(self) -> None:
        """Release the device."""
        self._capture.release()


def _read_live(
    reader: Camera | PyAVReader, selection: FrameSelection, stop_requested: Callable[[], bool]
) -> Iterator[Frame]:
    """Yield the newest image of a camera or a stream each time, until the selection ends, or it is lost; then an error.

    Images that arrive before the last was taken are dropped: the stride of the selection does not apply. A stream that
    is lost is opened again; a camera is not. The reader is closed at the end.
    """
    newest: queue.Queue[Frame] = queue.Queue(1)
    closing = threading.Event()
    thread = threading.Thread(target=_keep_newest, args=(reader, newest, closing), daemon=True)
    thread.start()
    try:
        while not stop_requested():
            has_ended = not thread.is_alive()
            try:
                frame = newest.get(timeout=0.2)  # so often a request to stop is looked for
            except queue.Empty:
                if has_ended:
                    yield Frame(reader.source, error=DataError(f"{reader.source.name} delivers no more images"))
                    return
                continue
            if frame.seconds >= selection.start + selection.duration:
                return
            if frame.seconds >= selection.start:
                yield frame
    finally:
        closing.set()
        thread.join()


def _keep_newest(reader: Camera | PyAVReader | None, newest: queue.Queue[Frame], closing: threading.Event) -> None:
    """Keep the newest image in a queue until ``closing`` is set or the source is lost.

    Images that are damaged are dropped like those that come too fast. After many in a row the source counts as lost.
    """
    begin: float | None = None
    numbers = itertools.count()
    while reader is not None:
        # Whatever a library raises, the source is lost.
        with contextlib.suppress(Exception), contextlib.closing(reader):
            unreadable = 0
            for seconds_of_stream in reader.decode():
                now = time.monotonic()
                if closing.is_set():
                    return
                image = None
                with contextlib.suppress(Exception):
                    image = None if seconds_of_stream is None else reader.image()
                if image is None:
                    unreadable += 1
                    if unreadable == MAX_UNREADABLE_IN_A_ROW:
                        break
                    continue
                unreadable = 0
                begin = now if begin is None else begin
                about = next(numbers), now - begin, reader.rate, reader.aspect
                with contextlib.suppress(queue.Empty):
                    newest.get_nowait()
                newest.put(Frame(reader.source, image, *about, is_live=True))
        reader = None if isinstance(reader, Camera) else _reconnect(reader.source, closing)


def _reconnect(source: Source, closing: threading.Event) -> PyAVReader | None:
    """The stream, opened again, which is tried every second for a minute; None if that did not succeed."""
    if not closing.is_set():
        _log.warning("%s is lost; connecting again", source.name)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not closing.wait(1):
        with contextlib.suppress(Exception):
            return PyAVReader(source)
    return None


class VideoWriter:
    """Writes an H.264 video with the exact times of its images; it has no sound.

    Args:
        path: its suffix gives the format; ``posenet.predict`` writes MP4.
        size: (height, width) of the images. The codec needs even sides: an odd side is stretched by one pixel.
        rate: frames per second, on average.
        aspect: width of a pixel divided by its height.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: float, *, aspect: float = 1.0) -> None:
        exact_rate = Fraction(max(rate, 0.001)).limit_denominator(1001)  # files store rates as fractions
        self._last_tick = -1
        self._start: float | None = None
        self._reformatter = VideoReformatter()
        # The index comes first, so that browsers need not load the whole file before they play it.
        self._container = av.open(f"file:{path}", "w", options={"movflags": "faststart"})
        options = {"crf": "20", "preset": "veryfast"}
        self._stream = self._container.add_stream("libx264", exact_rate, options=options)
        context = self._stream.codec_context
        context.height, context.width = (side + side % 2 for side in size)
        context.pix_fmt = "yuv420p"
        context.time_base = TICK
        context.sample_aspect_ratio = Fraction(aspect).limit_denominator(1000)
        context.colorspace = Colorspace.ITU709
        # Frames that are stored out of order confuse the length of files with a variable rate.
        context.max_b_frames = 0
        self._container.start_encoding()

    def write(self, image: np.ndarray, seconds: float) -> None:
        """Append a (H, W, 3) BGR uint8 image that is shown from ``seconds`` on; times increase, from any first one.

        One of another size is resized.
        """
        if self._start is None:
            self._start = seconds
        time = seconds - self._start
        self._last_tick = max(self._last_tick + 1, round(time / TICK))
        frame = av.VideoFrame.from_ndarray(image, format="bgr24")
        width, height = self._stream.width, self._stream.height
        frame = self._reformatter.reformat(frame, width, height, "yuv420p", dst_colorspace=Colorspace.ITU709)
        frame.pts = self._last_tick
        frame.time_base = TICK
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Complete the file."""
        try:
            self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()


def _orientation_of(frame: av.VideoFrame, packet: "Packet[Any] | None") -> int:
    """The EXIF orientation, 1-8, by which a frame is turned."""
    try:
        matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV 18 has no name for EXIF data, nor for others of FFmpeg 8
        data = b"" if packet is None else bytes(packet)
        if data.startswith((b"\xff\xd8", b"\x89PNG")):
            return parse_header(io.BytesIO(data)).orientation
        return {180: 3, 90: 8, -90: 6}.get(frame.rotation, 1)
    if matrix is None:
        return 1
    a, b, c, d = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2].ravel().tolist()
    signs = np.sign((0, b, c, 0) if abs(b) > abs(a) else (a, 0, 0, d)).tolist()  # it may also resize
    return _ORIENTATION_OF.get(tuple(signs), 1)


def _time_shown(packet: "Packet[Any]") -> float:
    """When the images of a packet are shown, in seconds; some files state only when they are decoded."""
    return _seconds(packet.dts if packet.pts is None else packet.pts, packet.stream)


def _seconds(ticks: int | None, stream: Stream) -> float:
    """A time in seconds; NaN if it is not stated."""
    return math.nan if ticks is None else float(ticks * (stream.time_base or 0))

"""What a prediction writes: the names of all files, which are checked before any work is done; drawings; the window."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from posenet.errors import ConfigError
from posenet.files import (
    atomic_replacement,
    check_outputs,
    name_numbers,
    resolve_link,
)
from posenet.images import IMAGE_SUFFIXES, WRITABLE_SUFFIXES, write_image
from posenet.inference.media.frames import VIDEO_SUFFIXES, Frame, FrameSelection, Source
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE

if TYPE_CHECKING:
    from posenet.inference.media.video import VideoWriter

WRITABLE_VIDEO_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Formats of videos that are written."""
DEFAULT_FOLDER = "predictions"
"""Where drawings go if no output is named; ``predictions-2`` and so on if it exists."""
WINDOW_TITLE = "posenet"
_CLOSE_KEYS = frozenset([*b"qQ", 27])
"""27 is Escape."""
_OUTPUTS = ("output", "json", "coco", "csv", "heatmaps")

Show = Callable[[Frame, np.ndarray], None]
"""Writes or shows the drawing of a frame, (H, W, 3) uint8 BGR."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PredictionOptions(FrameSelection):
    """The options of ``posenet.predict``, which explains them; those of ``FrameSelection`` among them."""

    output: str | None = None
    json: str | None = None
    coco: str | None = None
    csv: str | None = None
    heatmaps: str | None = None
    show: bool = False
    overwrite: bool = False
    resume: bool = False
    recursive: bool = False
    track: bool = False
    smooth: bool = False
    keypoint_score: float = KEYPOINT_MIN_SCORE
    numbers: bool = False


@dataclass(frozen=True)
class Outputs:
    """The files that a prediction writes; see ``output_paths`` for those of each source."""

    drawings: dict[Source, Path]
    """Empty without drawings."""
    sheets: dict[Source, Path]
    """Of all maps; empty without them."""
    people: dict[Source, Path]
    """A file of the people of each source; empty without them."""
    of_all: dict[str, str]
    """The files of all people, by the options that name them."""
    lines: Path | None
    """A file with a line for each image, which is also put into those of all people where a prediction is resumed."""
    folders: list[str]
    """The folders that are named by the user, or chosen."""
    new_folders: list[str]
    """Those that did not exist."""

    @property
    def files(self) -> list[str]:
        """The files of all people, and of lines."""
        return [*([str(self.lines)] if self.lines else []), *self.of_all.values()]

    def of_source(self, source: Source) -> list[Path]:
        """The files that a source has for itself, which show that it is done; without the sheets of a video."""
        of_kinds = [self.drawings, self.people, *([self.sheets] if source.kind == "image" else [])]
        return [paths[source] for paths in of_kinds if source in paths]


def choose_outputs(
    sources: Sequence[Source], options: PredictionOptions, other_inputs: Iterable[str | Path | int]
) -> Outputs:
    """Choose the names of all files that will be written, check them, and make their folders.

    ``ConfigError`` if the options contradict each other, ``DataError`` if a file cannot be written.
    """
    of_all = {name: os.fspath(path) for name in _OUTPUTS if (path := getattr(options, name))}
    json = of_all.get("json", "")
    is_folder = {"output", "heatmaps"} | ({"json"} if json and _is_folder(json) else set())
    folders = {name: of_all.pop(name) for name in _OUTPUTS if name in of_all and name in is_folder}
    lines = resolve_link(Path(of_all.pop("json"))) if json.lower().endswith(".jsonl") and "json" in of_all else None
    if options.resume and not lines and (of_all or not folders):
        raise ConfigError(
            "--resume needs an output that shows what is done: --json FILE.jsonl, or a folder for a file of each input "
            "without a file of all people"
        )
    new_folders = [] if options.show or of_all or folders or lines else [_make_default_folder()]
    if new_folders:
        folders["output"] = new_folders[0]
    for name, folder in folders.items():
        suffix = Path(folder).suffix
        if suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES and not Path(folder).exists():
            raise ConfigError(f"{name} {folder} would be a folder for files named like the inputs; leave out {suffix}")

    def paths_in(name: str, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
        return output_paths(sources, Path(folders[name]), suffix_of) if name in folders else {}

    outputs = Outputs(
        drawings=paths_in("output", drawing_suffix),
        # The sheets of a video are files in a folder.
        sheets=paths_in("heatmaps", lambda source: ".jpg" if source.kind == "image" else ""),
        people=paths_in("json", lambda source: ".json"),
        lines=lines,
        of_all=of_all,
        folders=list(folders.values()),
        new_folders=new_folders or [folder for folder in folders.values() if not os.path.exists(folder)],
    )
    # What is there was written by an earlier run; without lines, because nothing that is there is written again.
    is_continued = options.resume and (lines is None or lines.is_file())
    of_sources = itertools.chain.from_iterable(map(outputs.of_source, sources))
    check_outputs(
        [*outputs.files, *of_sources],
        itertools.chain(other_inputs, (source.path for source in sources if source.path is not None)),
        overwrite=options.overwrite or is_continued,
        folders=[path for source, path in outputs.sheets.items() if source.kind != "image"],
    )
    return outputs


def _is_folder(path: str) -> bool:
    """Whether a name stands for a folder: one that exists, ends with a slash, or is new and has no suffix."""
    return path != "-" and (
        os.path.isdir(path) or path.endswith(("/", os.sep)) or not (Path(path).suffix or os.path.lexists(path))
    )


def _make_default_folder() -> str:
    """Make the first folder of the default names that does not exist: no other process can choose it too."""
    for name in (DEFAULT_FOLDER + number for number in name_numbers()):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name)
            break
    return name


def output_paths(sources: Sequence[Source], folder: Path, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
    """The path in ``folder`` of the output of each source, which has the name and the subfolder of the source.

    It is numbered if an earlier one has the same name.
    """
    paths: dict[Source, Path] = {}
    taken: set[str] = set()
    for source in sources:
        for number in name_numbers():
            paths[source] = folder / source.subfolder / f"{source.stem}{number}{suffix_of(source)}"
            # Photo.jpg and photo.jpg are the same file on some file systems.
            file = str(paths[source]).lower()
            if file not in taken:
                break
        taken.add(file)
        if number:
            _log.info("The output of %s is named %s", source.name, paths[source].name)
    return paths


def drawing_suffix(source: Source) -> str:
    """The suffix of the drawing of a source: its own, or that of another format if the drawing cannot have it."""
    if source.kind == "image":
        return source.suffix if source.suffix.lower() in WRITABLE_SUFFIXES else ".png"
    return source.suffix if source.suffix.lower() in WRITABLE_VIDEO_SUFFIXES else ".mp4"


@contextlib.contextmanager
def write_drawing(path: Path) -> Iterator[Show]:
    """Write the drawing of one source: an image, or a video that is there when the context ends without an error."""
    video: VideoWriter | None = None
    with contextlib.ExitStack() as stack:

        def write(frame: Frame, drawing: np.ndarray) -> None:
            nonlocal video
            if frame.number is None:
                write_image(path, drawing)
                return
            if video is None:
                from posenet.inference.media.video import VideoWriter  # needs PyAV

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

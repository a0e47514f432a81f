"""What a prediction writes: the names of all files, which are checked before any work is done, drawings, and people.

Files of people are COCO results as JSON, a COCO data set and a CSV table, which may also be standard output. The
``.jsonl`` file has a line for each image, also for one without people; it shows what is done.
"""

import contextlib
import csv
import itertools
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import cv2
import numpy as np

from posenet.annotations.coco import COCO_CATEGORY, shape_of
from posenet.errors import ConfigError, DataError
from posenet.files import (
    atomic_replacement,
    check_outputs,
    name_file_in_errors,
    name_numbers,
    open_output,
    open_text_output,
    resolve_link,
)
from posenet.images import IMAGE_SUFFIXES, WRITABLE_SUFFIXES, write_image
from posenet.inference.media.frames import VIDEO_SUFFIXES, Frame, FrameSelection, Source
from posenet.inference.result import Result
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import twins

if TYPE_CHECKING:
    from posenet.inference.media.video import VideoWriter

WINDOW_TITLE = "posenet"

Show = Callable[[Frame, np.ndarray], None]
"""Writes or shows the drawing of a frame, (H, W, 3) uint8 BGR."""

Record = dict[str, Any]
"""An image or a frame, and the people in it, in types of JSON; see ``record_of``."""
Write = Callable[[Record], None]
"""Writes the record of an image that could be read. Records come in order."""

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
    track: bool = False


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
    kinds = ("output", "json", "coco", "csv", "heatmaps")
    named = {name: os.fspath(path) for name in kinds if (path := getattr(options, name))}
    folders = {name: path for name, path in named.items() if _is_folder(name, path)}
    of_all = {name: path for name, path in named.items() if name not in folders}
    has_lines = of_all.get("json", "").lower().endswith(".jsonl")
    lines = resolve_link(Path(of_all.pop("json"))) if has_lines else None
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


def _is_folder(option: str, path: str) -> bool:
    """Whether an output is a folder: one of ``json`` exists as one, ends with a slash, or is new and has no suffix."""
    if option != "json":
        return option in ("output", "heatmaps")
    return path != "-" and (
        os.path.isdir(path) or path.endswith(("/", os.sep)) or not (Path(path).suffix or os.path.lexists(path))
    )


def _make_default_folder() -> str:
    """Make the first of predictions, predictions-2 ... that does not exist: no other process can choose it too."""
    for name in ("predictions" + number for number in name_numbers()):
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
        names = (f"{source.stem}{number}{suffix_of(source)}" for number in name_numbers())
        possible = (folder / source.subfolder / name for name in names)
        # Photo.jpg and photo.jpg are the same file on some file systems.
        paths[source] = next(path for path in possible if str(path).lower() not in taken)
        taken.add(str(paths[source]).lower())
        if paths[source].name != f"{source.stem}{suffix_of(source)}":
            _log.info("The output of %s is named %s", source.name, paths[source].name)
    return paths


def drawing_suffix(source: Source) -> str:
    """The suffix of the drawing of a source: that of a video is MP4, and that of an image its own, or else PNG."""
    if source.kind != "image":
        return ".mp4"
    return source.suffix if source.suffix.lower() in WRITABLE_SUFFIXES else ".png"


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
        if (key & 0xFF) in (*b"qQ", 27) or not is_visible():  # 27 is Escape
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


def image_numbers(sources: Iterable[Source]) -> dict[str, int]:
    """The numbers in the names of images, as in COCO, by the names of sources; only those that no other image has."""
    stems = {source.name: source.stem for source in sources if source.kind == "image"}
    numbers = {name: int(stem) for name, stem in stems.items() if stem.isascii() and stem.isdecimal()}
    count = Counter(numbers.values())
    # Many JSON readers round larger numbers.
    return {name: number for name, number in numbers.items() if number < 2**53 and count[number] == 1}


def record_of(result: Result, numbers: Mapping[str, int]) -> Record:
    """The image that was read, its size in pixels, and its people in COCO's results format, each with its box.

    The ``image_id`` of an image is its number in ``numbers`` (``image_numbers``), else its path; that of a frame is
    ``path#frame``, or ``camera N#frame``. No two are equal.
    """
    frame = result.frame
    name = frame.source.name
    image_id = numbers.get(name, name) if frame.number is None else f"{name}#{frame.number}"
    height, width = frame.size
    people = []
    for person in result:
        entry = person.to_coco_result(image_id, person.skeleton.category_id)
        entry["box"] = person.box.astype(float).round(3).tolist()
        if person.skeleton.category != COCO.category:
            entry["category"] = person.skeleton.category
        if person.id is not None:
            entry["id"] = person.id
        people.append(entry)
    moment = {} if frame.number is None else {"frame": frame.number, "time": round(frame.seconds, 4)}
    about = {"image_id": image_id, "file_name": name, **moment}
    return about | {"height": height, "width": width, "people": people}


@contextlib.contextmanager
def write_json(path: Path) -> Iterator[Write]:
    """COCO results as one JSON list, one line for each person. Nothing is held in memory.

    A person has also the file name, in a video the frame and the time, the id if it is tracked, and the name of the
    category if that is not a person.
    """
    with open_text_output(path) as file:
        before = "[\n"

        def write(record: Record) -> None:
            nonlocal before
            about = {name: record[name] for name in ("file_name", "frame", "time") if name in record}
            for person in record["people"]:
                entry = {name: value for name, value in person.items() if name not in ("box", "id")} | about
                file.write(before + json.dumps(entry | {"id": person["id"]} if "id" in person else entry))
                before = ",\n"
            file.flush()

        yield write
        file.write("[]\n" if before == "[\n" else "\n]\n")


def _listed_names(sources: Iterable[Source]) -> dict[str, str]:
    """The names in a COCO data set of sources, relative to the innermost folder that holds all; all are different.

    That of a video is the folder of its frames: frame 3 of clip.mp4 is listed as clip/000003.jpg.
    """
    folders = [os.path.abspath(source.path.parent) for source in sources if source.path is not None]
    folder = os.path.commonpath(folders or [os.getcwd()])
    names: dict[str, str] = {}
    taken: set[str] = set()
    # Image files keep their names: they come first.
    for source in sorted(sources, key=lambda source: source.kind != "image" or source.path is None):
        path = Path() if source.path is None else Path(os.path.relpath(source.path, folder))
        suffix = source.suffix if source.kind == "image" else ""
        possible = ((path.parent / f"{source.stem}{number}{suffix}").as_posix() for number in name_numbers())
        names[source.name] = next(name for name in possible if name not in taken)
        taken.add(names[source.name])
        if source.kind == "image":
            taken.add(path.parent.as_posix())
    return names


@contextlib.contextmanager
def write_coco(path: Path, sources: Sequence[Source], skeleton: Skeleton) -> Iterator[Write]:
    """Images and people as a COCO data set, written at the end; see docs/predicting.md.

    A person of whom only derived keypoints were found, such as the neck, has no keypoint that COCO knows and is left
    out.
    """
    names = _listed_names(sources)
    numbers = image_numbers(sources)
    taken = set(numbers.values())
    free_numbers = (number for number in itertools.count(1) if number not in taken)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []

    def write(record: Record) -> None:
        name = record["file_name"]
        image_id = numbers[name] if name in numbers else next(free_numbers)
        image = {"id": image_id, "file_name": names[name], "height": record["height"], "width": record["width"]}
        if (number := record.get("frame")) is not None:
            image["file_name"] += f"/{number:06d}.jpg"
            image |= {"video": name, "frame": number, "time": record["time"]}
        images.append(image)
        for person in record["people"]:
            keypoints = np.reshape(person["keypoints"], (-1, 3))
            if keypoints[:, 2].any():
                entry = {"id": len(annotations) + 1, "image_id": image_id, "category_id": person["category_id"]}
                entry |= _annotation(keypoints) | {"score": person["score"]}
                annotations.append(entry | {"track_id": person["id"]} if "id" in person else entry)

    with open_text_output(path) as file:
        yield write
        about = {"description": "People found by posenet"}
        document = {"info": about, "licenses": [], "categories": [_category(skeleton)]}
        file.write(json.dumps(document | {"annotations": annotations, "images": images}) + "\n")


def _category(skeleton: Skeleton) -> dict[str, Any]:
    """The entry of ``categories`` for a skeleton: COCO's own, or one with the lines that drawings have."""
    if skeleton.file_names == COCO.file_names and skeleton.category == COCO.category:
        return COCO_CATEGORY | {"id": skeleton.category_id}
    names, twin = skeleton.file_keypoints, twins(skeleton.left_right)
    about = {"supercategory": skeleton.category, "id": skeleton.category_id, "name": skeleton.category}
    of_annotations = {
        "keypoints": list(skeleton.file_names),
        "flip_idx": [names.index(twin.get(name, name)) for name in names],
    }
    return about | shape_of(names, skeleton.drawn or skeleton.parts) | of_annotations


def _annotation(keypoints: np.ndarray) -> dict[str, Any]:
    """An entry of ``annotations`` without its ids, for (F, 3) x, y and score in file order, at least one found."""
    found = keypoints[:, 2] > 0
    left, top = keypoints[found, :2].min(axis=0)
    width, height = np.maximum(np.ptp(keypoints[found, :2], axis=0), 1)  # many tools refuse empty boxes
    visible = np.where(found[:, None], keypoints * (1, 1, 0) + (0, 0, 2), 0)
    return {
        "iscrowd": 0,
        "bbox": np.round([left, top, width, height], 3).tolist(),
        "area": round(float(width * height), 3),
        "segmentation": [],
        "num_keypoints": int(found.sum()),
        "keypoints": visible.round(3).ravel().tolist(),
        "keypoint_scores": keypoints[:, 2].round(3).tolist(),
    }


@contextlib.contextmanager
def write_csv(path: Path, skeleton: Skeleton) -> Iterator[Write]:
    """A table with one person per row; cells that do not apply are empty."""
    columns = ["file_name", "frame", "time", "id", "score", "left", "top", "right", "bottom"]
    for name in skeleton.file_keypoints:
        columns += [f"{name}_x", f"{name}_y", f"{name}_score"]
    with open_text_output(path) as file:
        rows = csv.writer(file)
        rows.writerow(columns)

        def write(record: Record) -> None:
            for person in record["people"]:
                row = [record["file_name"], record.get("frame", ""), record.get("time", ""), person.get("id", "")]
                row += [round(person["score"], 4), *person["box"]]
                for x, y, score in np.reshape(person["keypoints"], (-1, 3)).tolist():
                    row += [x, y, score] if score > 0 else ["", "", ""]
                rows.writerow(row)
            file.flush()

        yield write


@contextlib.contextmanager
def write_lines(path: Path, kept: Collection[str] | None) -> Iterator[Write]:
    """A line for each image and frame, and one after the last frame of a video, with their number.

    Each line is written at once, so that a kill can only cut the last one. The first one makes the file, and so does
    the end without an error.

    Args:
        kept: the inputs whose lines in the file stay; None replaces the file.
    """
    if kept is not None and path.is_file():
        with open_output(path) as copy:
            copy.writelines(line for line, record in read_lines(path) if record["file_name"] in kept)
    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None

        def open_file() -> BinaryIO:
            nonlocal file
            if file is None:
                if kept is None and path.is_file():  # a FIFO is written to
                    path.unlink()  # a hard link to it keeps its content
                file = stack.enter_context(open(path, "ab", buffering=0))
            return file

        def write(record: Record) -> None:
            with name_file_in_errors(path):
                open_file().write(json.dumps(record).encode() + b"\n")

        yield write
        open_file()


def complete_inputs(path: Path) -> set[str]:
    """The names of the inputs that have all their lines in a file; a video that could only be read in part has not."""
    if not path.is_file():
        return set()
    return {record["file_name"] for _, record in read_lines(path) if not record.keys() & {"frame", "error"}}


def read_lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    """The lines of a file of ``write_lines``, and what they say; without a last one that was cut.

    ``DataError`` if it is a file of something else.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                is_known = isinstance(record["file_name"], str) and record.keys() & {"people", "frames"}
            except (ValueError, RecursionError, TypeError, KeyError):
                is_known = False
            if not is_known:
                raise DataError(
                    f"line {number} of {path} is not one of a prediction that can be continued; choose another name, "
                    "or start again without --resume"
                )
            yield line, record

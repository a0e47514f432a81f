"""Choosing and checking what a prediction writes, before any work is done."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenet.errors import ConfigError, DataError
from posenet.files import MAX_NAME_BYTES, check_outputs, is_standard_output, name_numbers, resolve_link, shorten_name
from posenet.images import IMAGE_SUFFIXES, WRITABLE_SUFFIXES
from posenet.inference.media.sources import VIDEO_SUFFIXES, FrameSelection, Source
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE

WRITABLE_VIDEO_SUFFIXES = frozenset(".avi .m4v .mkv .mov .mp4".split())
"""Formats of videos that are written."""
DEFAULT_FOLDER = "predictions"
"""Where drawings go if no output is named; ``predictions-2`` and so on if it exists."""
_OUTPUTS = ("output", "json", "coco", "csv", "export", "heatmaps")
_NEEDS_OUTPUT = (
    "--resume needs an output that shows what is done: --json FILE.jsonl, another file of people, or a folder for a "
    "file of each input"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PredictionOptions(FrameSelection):
    """The options of ``posenet.predict``, which explains them; those of ``FrameSelection`` among them."""

    output: str | None = None
    json: str | None = None
    coco: str | None = None
    csv: str | None = None
    export: str | None = None
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
    """A file with a line for each image. Where a prediction is resumed, those of all people are made from it."""
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
    if options.resume and not (options.show or of_all):
        raise ConfigError(_NEEDS_OUTPUT)
    made = None if options.show or of_all else _make_default_folder()
    folders = {"output": made} if made else {}
    folders |= {name: of_all.pop(name) for name in ("output", "heatmaps") if name in of_all}
    json = of_all.get("json", "")
    if json and _is_folder(json):
        folders["json"] = of_all.pop("json")
    elif Path(json).suffix.lower() not in ("", ".json", ".jsonl"):
        raise ConfigError(
            f"{json} is no name of a JSON file; end it with .json, or .jsonl for one image per line, or name a "
            "folder for a file of each image"
        )
    for name, folder in folders.items():
        suffix = Path(folder).suffix
        if suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES and not Path(folder).exists():
            raise ConfigError(f"{name} {folder} would be a folder for files named like the inputs; leave out {suffix}")

    def paths_in(name: str, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
        return output_paths(sources, Path(folders[name]), suffix_of) if name in folders else {}

    is_lines = Path(of_all.get("json", "")).suffix.lower() == ".jsonl"
    outputs = Outputs(
        drawings=paths_in("output", drawing_suffix),
        # The sheets of a video are files in a folder.
        sheets=paths_in("heatmaps", lambda source: ".jpg" if source.kind == "image" else ""),
        people=paths_in("json", lambda source: ".json"),
        lines=resolve_link(Path(of_all.pop("json"))) if is_lines else None,
        of_all=of_all,
        folders=list(folders.values()),
        new_folders=[folder for folder in folders.values() if folder == made or not os.path.exists(folder)],
    )
    if options.resume:
        outputs = _with_lines(outputs)
    # What is there was written by an earlier run; without lines, because nothing that is there is written again.
    is_continued = options.resume and (outputs.lines is None or outputs.lines.is_file())
    sheets = outputs.sheets.items()
    sheets_of_images = [path for source, path in sheets if source.kind == "image"]
    check_outputs(
        [*outputs.files, *outputs.drawings.values(), *outputs.people.values(), *sheets_of_images],
        itertools.chain(other_inputs, (source.path for source in sources if source.path is not None)),
        overwrite=options.overwrite or is_continued,
        folders=[path for source, path in sheets if source.kind != "image"],
    )
    return outputs


def _with_lines(outputs: Outputs) -> Outputs:
    """The outputs of a prediction that can be resumed: with a file of lines beside the first file of all people."""
    of_all = [Path(path) for path in outputs.files if not is_standard_output(path)]
    regular = [resolve_link(path) for path in of_all if path.is_file() or not path.exists()]
    if outputs.lines is None and regular:
        outputs = dataclasses.replace(outputs, lines=regular[0].with_suffix(".jsonl"))
    if outputs.lines is None and (outputs.of_all or not (outputs.drawings or outputs.people or outputs.sheets)):
        raise ConfigError(_NEEDS_OUTPUT)
    return outputs


def _is_folder(path: str) -> bool:
    """Whether a name stands for a folder: one that exists, ends with a slash, or is new and has no suffix."""
    return path != "-" and (
        os.path.isdir(path) or path.endswith(("/", os.sep)) or not (Path(path).suffix or os.path.lexists(path))
    )


def _make_default_folder() -> str:
    """Make the first folder of the default names that does not exist: no other process can choose it too."""
    for name in (DEFAULT_FOLDER + number for number in name_numbers()):
        try:
            os.mkdir(name)
            return name
        except FileExistsError:
            continue
        except OSError as error:
            raise DataError(f"cannot make the folder {name}: {error.strerror}; name one with --output DIR") from error
    raise AssertionError("there are endless numbers")


def output_paths(sources: Sequence[Source], folder: Path, suffix_of: Callable[[Source], str]) -> dict[Source, Path]:
    """The path in ``folder`` of the output of each source, which has the name and the subfolder of the source.

    It is numbered if an earlier one has the same name, and shortened if it would be longer than file systems allow.
    """
    paths: dict[Source, Path] = {}
    taken: set[str] = set()
    for source in sources:
        suffix = suffix_of(source)
        length = MAX_NAME_BYTES - len(suffix)
        for number in name_numbers():
            name = shorten_name(source.stem, length - len(number)) + number
            paths[source] = folder / source.subfolder / (name + suffix)
            # Photo.jpg and photo.jpg are the same file on some file systems.
            file = str(paths[source]).lower()
            if file not in taken:
                break
        taken.add(file)
        if source.kind != "camera" and name != source.stem:
            _log.info("The output of %s is named %s", source.name, name)
    return paths


def drawing_suffix(source: Source) -> str:
    """The suffix of the drawing of a source: its own, or that of another format if the drawing cannot have it."""
    if source.kind == "image":
        return source.suffix if source.suffix.lower() in WRITABLE_SUFFIXES else ".png"
    return source.suffix if source.suffix.lower() in WRITABLE_VIDEO_SUFFIXES else ".mp4"

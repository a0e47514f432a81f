"""Where the images of a data set are: the names in files of annotations are relative to many folders."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

import cv2

from posenet.errors import DataError
from posenet.images import IMAGE_SUFFIXES, write_image

FOLDERS_OF_LABELS = frozenset("annot annotations labels".split())
"""Folders that are beside those of the images."""


class ImageFiles:
    """The image files in a folder, at any depth."""

    def __init__(self, folder: Path, outer: Path | None = None) -> None:
        """``outer`` is searched in place of the folder if that has none of the images that ``require`` needs."""
        self.folder = folder
        self.outer = outer
        self._by_name: dict[str, list[Path]] | None = None

    @classmethod
    def near(cls, path: Path, images: str | Path | None) -> ImageFiles:
        """Those in ``images``; by default those beside annotations, or beside the folder of annotations they are in."""
        if images is not None:
            return cls(Path(images))
        folder = path if path.is_dir() else path.parent
        inner = folder.absolute()
        above = next((place for place in (inner, inner.parent) if place.name.lower() in FOLDERS_OF_LABELS), None)
        return cls(folder, above.parent if above else None)

    def _named(self, name: str) -> list[Path]:
        """All image files with a name; the folder is searched when the first one is asked for."""
        if self._by_name is None:
            self._by_name = {}
            for folder, inner, names in os.walk(self.folder):
                inner[:] = [name for name in inner if not name.startswith(".")]
                for found in names:
                    if os.path.splitext(found)[1].lower() in IMAGE_SUFFIXES:
                        self._by_name.setdefault(found, []).append(Path(folder, found))
        return self._by_name.get(name, [])

    def find(self, name: str) -> Path | None:
        """The file of this name: relative to the folder, or else the one whose path ends like it most, at the nearest
        level; None if no file or several do."""
        best = self._candidates(name)
        return best[0] if len(best) == 1 else None

    def _candidates(self, name: str) -> list[Path]:
        parts = PureWindowsPath(name).parts  # which are separated by / or \
        if not parts:
            return []
        try:
            if (self.folder / name).is_file() and not Path(name).is_absolute() and ".." not in parts:
                return [self.folder / name]
        except (OSError, ValueError):  # too long, or with a null character
            return []
        found = {path: (_common_end(path.parts, parts), -len(path.parts)) for path in self._named(parts[-1])}
        best = max(found.values(), default=None)
        return [path for path, rank in found.items() if rank == best]

    def require(self, names: Sequence[str], source: Path) -> tuple[dict[str, Path], list[str]]:
        """The files of the names that are there, and the names of the others; ``DataError`` if none is there."""
        found = {name: self.find(name) for name in dict.fromkeys(names)}
        files = {name: path for name, path in found.items() if path is not None}
        if not files and self.outer is not None:
            self.folder, self.outer, self._by_name = self.outer, None, None
            return self.require(names, source)
        if not files:
            first = next(iter(found), "")
            several = self._candidates(first)[:2]
            reason = f"no folder in {self.folder} has"
            if several:
                reason = f"{several[0].parent} and {several[1].parent} both have"
            such = f", such as {first}" if first else ""
            raise DataError(f"{reason} the images of {source}{such}; name the folder with images=DIR")
        return files, [name for name in found if name not in files]


def _common_end(a: Sequence[str], b: Sequence[str]) -> int:
    """How many items two sequences have in common at their ends."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(reversed(a), reversed(b)))
    return sum(1 for _ in same)


def write_frames(video: Path, numbers: Sequence[int], folder: Path) -> dict[int, Path]:
    """Write frames of a video to images in a folder, unless they are there; ``DataError`` if one cannot be read.

    The frames are read in order, because seeking is not exact in all formats.
    """
    paths = {number: folder / f"{video.stem}_{number:06d}.png" for number in numbers}
    missing = {number for number, path in paths.items() if not path.exists()}
    if not missing:
        return paths
    make_folder(folder)
    capture = cv2.VideoCapture(str(video))
    try:
        for number in range(max(missing) + 1):
            if not capture.grab():
                raise DataError(f"{video} has no frame {max(missing)}, only {number} frames; give the labelled video")
            if number in missing:
                is_read, image = capture.retrieve()
                if not is_read:
                    raise DataError(f"frame {number} of {video} cannot be read; copy the video again")
                write_image(paths[number], image)
    finally:
        capture.release()
    return paths


def make_folder(folder: Path) -> None:
    """Make a folder for frames; ``DataError`` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {folder} for frames: {error.strerror or error}") from error

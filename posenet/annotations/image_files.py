"""Where the images of a data set are: the names in files of annotations are relative to many folders."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

from posenet.errors import DataError
from posenet.images import IMAGE_SUFFIXES

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
        """All image files with a name, or else with its spelling, or with another suffix."""
        if self._by_name is None:
            self._by_name = {}
            for folder, inner, names in os.walk(self.folder):
                inner[:] = [name for name in inner if not name.startswith(".")]
                for found in names:
                    if os.path.splitext(found)[1].lower() in IMAGE_SUFFIXES:
                        for key in {found, _spell(found), _spell(Path(found).stem)}:
                            self._by_name.setdefault(key, []).append(Path(folder, found))
        same = [path for path in self._by_name.get(name, []) if path.name == name]
        return same or self._by_name.get(_spell(name)) or self._by_name.get(_spell(Path(name).stem), [])

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
        """The files of the names that are there, and the names of the others; ``DataError`` if none is there.

        A file that two paths may mean, such as those of two cameras, is that of the more similar one, or of neither.
        """
        claims: dict[Path, list[tuple[int, str]]] = {}
        for name in dict.fromkeys(names):
            if path := self.find(name):
                claims.setdefault(path, []).append((-_common_end(path.parts, PureWindowsPath(name).parts), name))
        files = {}
        for path, own in claims.items():
            (best, name), *others = sorted(own)
            if not any(rank == best for rank, _ in others):
                files[name] = path
        if not files and self.outer is not None:
            self.folder, self.outer, self._by_name = self.outer, None, None
            return self.require(names, source)
        if not files:
            first = next(iter(names), "")
            several = self._candidates(first)[:2]
            reason = f"no folder in {self.folder} has"
            if len(several) == 2:
                reason = f"{several[0].parent} and {several[1].parent} both have"
            such = f", such as {first[:100]}" if first else ""
            raise DataError(f"{reason} the images of {source}{such}; name the folder with images=DIR")
        order = dict.fromkeys(names)
        return {name: files[name] for name in order if name in files}, [name for name in order if name not in files]


def _spell(name: str) -> str:
    """A name without what tools change when they store a file: upper case, blanks, brackets, the form of Unicode, and
    the eight digits that Label Studio puts before it."""
    text = unicodedata.normalize("NFC", name).strip().replace(" ", "_").lower()
    return re.sub(r"^[0-9a-f]{8}-|[^-\w.]", "", text)


def _common_end(a: Sequence[str], b: Sequence[str]) -> int:
    """How many items two sequences have in common at their ends."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(reversed(a), reversed(b)))
    return sum(1 for _ in same)

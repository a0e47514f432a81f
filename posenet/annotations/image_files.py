"""Where the images of a data set are, as the names in files of annotations are relative to many folders; and copies."""

import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from posenet.errors import DataError
from posenet.files import sha256_of
from posenet.images import IMAGE_SUFFIXES
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads, usable_cores


class ImageFiles:
    """The image files in a folder, at any depth."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_name: dict[str, list[Path]] | None = None

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
        """The file of this name, relative to the folder; or else that whose path ends like it most, at the nearest
        level. None if no file or several may be it."""
        parts = PureWindowsPath(name).parts  # which are separated by / or \
        if not parts:
            return None
        try:
            if (self.folder / name).is_file() and not Path(name).is_absolute() and ".." not in parts:
                return self.folder / name
        except (OSError, ValueError):  # too long, or with a null character
            return None
        found = {path: (_common_end(path, name), -len(path.parts)) for path in self._named(parts[-1])}
        first = max(found.values(), default=None)
        best = [path for path, rank in found.items() if rank == first]
        return best[0] if len(best) == 1 else None

    def find_all(self, names: Iterable[str]) -> dict[str, Path]:
        """The files of the names that are there, in their order; a file that two names may mean, such as those of two
        cameras, is that of the name which is its own, or of neither."""
        files = {name: path for name in names if (path := self.find(name))}
        uses = Counter(files.values())
        return {name: path for name, path in files.items() if uses[path] == 1 or path == self.folder / name}


def find_images_near(path: Path, images: str | Path | None, names: Sequence[str]) -> tuple[ImageFiles, dict[str, Path]]:
    """The image files of annotations by their names, in the folder ``images``.

    By default, they are beside the annotations, or else beside the folder of annotations they are in. ``DataError`` if
    none is there.
    """
    folder = path if path.is_dir() else path.parent
    near = (folder.absolute(), folder.absolute().parent)
    outer = [place.parent for place in near if place.name.lower() in ("annot", "annotations", "labels")][:1]
    places = [ImageFiles(Path(place)) for place in ([folder, *outer] if images is None else [images])]
    for files in places:
        if found := files.find_all(dict.fromkeys(names)):
            return files, found
    such = f", such as {names[0][:100]}" if names else ""
    raise DataError(
        f"no folder in {places[-1].folder} has the images of {path}, or several have them{such}; "
        "name it with --images DIR"
    )


def groups_of_copies(paths: Mapping[int, Path]) -> list[list[int]]:
    """The numbers of files, those of files with the same bytes together. Only files of the same size are read.

    ``DataError`` if a file cannot be read.
    """
    try:
        sizes = {key: path.stat().st_size for key, path in paths.items()}
        counts = Counter(sizes.values())
        unclear = [key for key, size in sizes.items() if counts[size] > 1]
        workers = usable_cores()
        digests = map_in_threads(sha256_of, [paths[key] for key in unclear], workers=workers, ahead=4 * workers)
        digest_of = dict(zip(unclear, progress_bar(digests, "images", len(unclear))))
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}; posenet annotations fix leaves out such images"
        ) from error
    groups: dict[str | int, list[int]] = {}
    for key in paths:
        groups.setdefault(digest_of.get(key, key), []).append(key)
    return list(groups.values())


def _spell(name: str) -> str:
    """A name without what tools change when they store a file: upper case, blanks, brackets, the form of Unicode, and
    the eight digits that Label Studio puts before it."""
    text = unicodedata.normalize("NFC", name).strip().replace(" ", "_").lower()
    return re.sub(r"^[0-9a-f]{8}-|[^-\w.]", "", text)


def _common_end(path: Path, name: str) -> int:
    """How many parts a path and a name have in common at their ends."""
    pairs = zip(reversed(path.parts), reversed(PureWindowsPath(name).parts))
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

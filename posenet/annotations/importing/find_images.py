"""The folder of the images that a file of annotations lists."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from posenet.errors import DataError

SAMPLED_NAMES = 20
"""Number of listed images by which their folder is found."""


def find_images(file: Path, images: Sequence[dict[str, Any]]) -> Path:
    """The folder beside an annotation file that has most of the images which it lists.

    The nearest level of folders that has some decides; a tree in which only the last parts of their names are is taken
    as a whole. ``DataError`` if no folder or several have most.
    """
    written = [image["file_name"] for image in images if isinstance(image.get("file_name"), str)][:SAMPLED_NAMES]
    names = [name for name in written if not PurePath(name).is_absolute()]
    last_parts = {PureWindowsPath(name).name for name in written}
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    level, has_parts = [base], False
    while level:
        counts: dict[Path, int] = {}
        below: list[Path] = []
        for folder in level:
            with contextlib.suppress(OSError), os.scandir(folder) as listing:
                entries = {entry.name: entry for entry in listing}
                near = [name for name in names if PurePath(name).parts[:1] and PurePath(name).parts[0] in entries]
                counts[folder] = sum((folder / name).is_file() for name in near)
                has_parts = has_parts or not last_parts.isdisjoint(entries)
                below += [
                    folder / name
                    for name, entry in entries.items()
                    if not name.startswith(".") and entry.is_dir(follow_symlinks=False)
                ]
        found = [folder for folder, count in counts.items() if 0 < count == max(counts.values())]
        if len(found) == 1:
            return found[0]
        if found and counts[found[0]] < len(names):  # the images are scattered over several
            return base
        if found:
            reason = f"{found[0]} and {found[1]} both have"
            break
        level = below
    else:
        if has_parts:
            return base
        reason = f"no folder in {base} has"
    such = f", such as {written[0]}" if written else ""
    raise DataError(
        f"{reason} the images of {file}{such}; name the folder with images=DIR, or val_images=DIR for validation"
    )

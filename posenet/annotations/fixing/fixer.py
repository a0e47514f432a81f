"""Repair a COCO keypoint file: derive missing and malformed values from other values and from the image files.

A value that nothing determines stays as it is, and the linter reports it. No keypoint is ever added.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from posenet.annotations import coco_file
from posenet.annotations.fixing.ids import fix_ids
from posenet.annotations.fixing.image_entries import fix_images
from posenet.annotations.fixing.people import fix_people
from posenet.errors import DataError
from posenet.files import is_standard_output, write_atomically
from posenet.settings import DataConfig, ExifFrame


def fix_annotations(
    path: str | Path,
    output: str | Path,
    images: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> dict[str, int]:
    """Write a repaired copy of a COCO keypoint file to ``output``, completely or not at all.

    Args:
        images: folder of the image files, which determine sizes and file names; None leaves both as they are.
        exif_frame: frame of missing sizes of images with an EXIF orientation; see ``find_annotated_frame``.

    Returns:
        The number of repairs of every kind.

    Raises:
        DataError: ``path`` cannot be read or is not a COCO file, or ``output`` is the same file or cannot be written.
    """
    path = Path(path)
    output = Path(output)
    if is_standard_output(output):
        raise DataError("the repaired file cannot be written to standard output, because it is checked; name a file")
    if output.exists() and output.resolve() == path.resolve():
        raise DataError(f"{output} is the file to repair, which is never changed; choose another output")
    document = coco_file.read_document(path)
    sections = coco_file.select_sections(document, path)
    fixes: Counter[str] = Counter()
    fix_ids(sections, fixes)
    fix_images(sections, None if images is None else Path(images), exif_frame, fixes)
    fix_people(sections, fixes)
    try:
        write_atomically(output, json.dumps(document).encode())
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror or error}; choose another output") from error
    return dict(fixes)

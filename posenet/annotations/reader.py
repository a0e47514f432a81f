"""The reader of annotations: it makes the normal form of any COCO-shaped document, and lists what it did.

What other values or the image files determine is derived, single faults are left out, and only what has no right
reading is a contradiction. ``lint`` prints the list, ``fix`` writes the normal form, and all tools work on it.

``read_annotation_file`` is the order of the steps; ``image_reader``, ``category_reader`` and ``annotation_reader`` read
the sections, ``upright`` finds the EXIF frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.annotation_reader import complete_columns, read_columns
from posenet.annotations.category_reader import canonical_id, read_categories
from posenet.annotations.coco import (
    SECTIONS,
    AnnotationColumns,
    AnnotationFile,
    CocoImage,
    Entry,
    read_document,
    select_sections,
)
from posenet.annotations.copies import merge_copies
from posenet.annotations.image_reader import Images, check_files, read_images, take_ignored_regions
from posenet.annotations.upright import find_frames, swap_sizes, turn_upright
from posenet.errors import ConfigError
from posenet.messages import truncate_for_message
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton


def read_annotation_file(
    path: str | Path,
    skeleton: Skeleton | None = None,
    *,
    folder: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    opens_images: bool = False,
    drop: bool = False,
    measures_twins: bool = False,
    compares_files: bool = True,
    document: Any = None,
) -> AnnotationFile:
    """Read a file of annotations in the normal form; the contradictions in it are among its ``adjustments``.

    Args:
        path: of a COCO keypoint file; or, with the content as ``document``, for messages only.
        skeleton: the expected keypoints; None expects those of the categories in the file.
        folder: of the image files, which tell missing sizes and names, and in which frame they are annotated.
        exif_frame: that of the annotations of images with an EXIF orientation, where their size fits both frames. The
            normal form has them in the displayed frame.
        opens_images: open every image of the folder, and compare it with its annotations.
        drop: leave out faulty entries even if they are many, but never most.
        measures_twins: say of which keypoints neither the skeleton nor the annotations tell left and right; this takes
            time, and drafting a skeleton tells it anyway.
        compares_files: take files of the same bytes for one image, not only entries of the same name.

    Raises:
        DataError: the file cannot be read or is not a COCO file.
    """
    if document is None:
        document = read_document(path)
    if exif_frame not in get_args(ExifFrame):
        raise ConfigError(f"exif_frame {truncate_for_message(exif_frame)} is unknown; use displayed or stored")
    sections = select_sections(document, path)
    said = Adjustments(drop)
    images = read_images(sections["images"], None if folder is None else Path(folder), exif_frame, said)
    annotated = {canonical_id(entry.get("image_id")) for entry in sections["annotations"]}
    find_frames(images, annotated, exif_frame, said)
    is_unlabelled = np.array([entry.get("is_labeled") is False for entry in images.entries], bool) & images.is_kept
    said.add_rows("left out", "unlabelled-frame", is_unlabelled, images.names)
    images.is_kept &= ~is_unlabelled
    if opens_images:
        check_files(images, said)
    categories = read_categories(sections["categories"], sections["annotations"], skeleton, said)
    entries = [*sections["annotations"], *take_ignored_regions(images, categories, said)]
    columns = read_columns(entries, images, categories, said)
    swap_sizes(images, columns, said)
    columns = complete_columns(columns, images.sizes[columns.image_rows], said)
    columns = turn_upright(images, columns, said)
    columns = merge_copies(images, columns, compares_files, said)
    _leave_out_emptied(images, entries, columns, said)
    file = AnnotationFile(
        path=path,
        others={key: value for key, value in document.items() if key not in SECTIONS},
        skeleton=skeleton,
        images=[CocoImage(*row) for row in zip(images.ids, images.names, *images.sizes.T.tolist())],
        image_entries=images.entries,
        categories=categories,
        columns=columns,
        adjustments=said,
    ).select(images.is_kept)
    try:
        from posenet.annotations.checks.plausibility import find_suspicious
    except ModuleNotFoundError:  # a part of the package that may be left out
        return file
    find_suspicious(file, measures_twins)
    return file


def _leave_out_emptied(images: Images, entries: Sequence[Entry], columns: AnnotationColumns, said: Adjustments) -> None:
    """Leave out images of which no annotation is left, because they would count as images of nobody."""
    rows = {images.row_of.get(canonical_id(entry.get("image_id"))) for entry in entries}
    rows -= set(columns.image_rows.tolist())
    emptied = np.array([row in rows for row in range(len(images.names))], bool) & images.is_kept
    said.add_rows("left out", "emptied-image", emptied, images.names)
    images.is_kept &= ~emptied

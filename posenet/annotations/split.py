"""The images of a file of annotations, of which some are split off by a checksum of their names."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from posenet.annotations.coco import AnnotationFile
from posenet.annotations.image_files import groups_of_copies
from posenet.errors import DataError
from posenet.messages import pluralize


def split_annotations(
    file: AnnotationFile, share: float, folder: Path, usable: Collection[int]
) -> tuple[AnnotationFile, AnnotationFile]:
    """Divide a file: about this share of its images is the second part.

    A checksum of its name decides for each image, so that most stay where they are when some are added. Either part
    gets one; copies of one file are in the same part, and images that show nobody are in the first.

    Args:
        folder: of the images.
        usable: ids of the images that show people; if there are none, all with labelled keypoints count.

    Raises:
        DataError: an image cannot be read, or a part would be empty.
    """
    if not usable:
        people = file.columns.select(file.columns.is_labelled_person)
        usable = {file.images[row].id for row in people.image_rows.tolist()}
    usable = set(usable)
    names = {image.id: image.file_name for image in file.images}
    groups = groups_of_copies({image_id: folder / name for image_id, name in names.items()})
    groups = [group for group in groups if not usable.isdisjoint(group)]
    if len(groups) < 2:
        raise DataError(
            f"{file.path} has keypoints in {pluralize(len(groups), 'image')}, too few for 2 parts; label more images"
        )
    ranked = sorted((min(_rank(names[image_id]) for image_id in group), group) for group in groups)
    count = max(sum(rank < share for rank, _ in ranked), 1)
    drawn = {image_id for _, group in ranked[: min(count, len(ranked) - 1)] for image_id in group}
    is_drawn = np.array([image_id in drawn for image_id in names], bool)
    return file.select(~is_drawn), file.select(is_drawn)


def _rank(name: str) -> float:
    """A number from 0 to 1 that depends on a name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32

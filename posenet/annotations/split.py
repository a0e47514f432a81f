"""The images of a file of annotations, split into parts by a checksum of their names."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from posenet.annotations.coco import AnnotationFile
from posenet.annotations.image_files import groups_of_copies
from posenet.errors import DataError
from posenet.messages import pluralize


def split_annotations(
    file: AnnotationFile,
    shares: Sequence[float],
    folder: Path | None = None,
    usable: Collection[int] | None = None,
) -> list[AnnotationFile]:
    """Divide a file into parts with about these shares of its images.

    A checksum of its name decides for each image, so that most stay where they are when some are added. Every part gets
    one; images that show nobody are in the first part.

    Args:
        folder: of the images; then copies of one file stay in the same part.
        usable: ids of the images that show people; None for all with labelled keypoints.

    Raises:
        DataError: a share is not above 0, they are not 1 together, an image cannot be read, or a part would be empty.
    """
    if any(not share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"the shares {' '.join(f'{share:g}' for share in shares)} are not above 0 with a sum of 1")
    if usable is None:
        people = file.columns.select(file.columns.is_labelled_person)
        usable = {file.images[row].id for row in people.image_rows.tolist()}
    names = {image.id: image.file_name for image in file.images}
    paths = {image_id: Path(folder or "", name) for image_id, name in names.items()}
    groups = [[image_id] for image_id in paths] if folder is None else groups_of_copies(paths)
    usable = set(usable)
    groups = [group for group in groups if not usable.isdisjoint(group)]
    if len(groups) < len(shares):
        raise DataError(
            f"{file.path} has keypoints in {pluralize(len(groups), 'image')}, too few for {len(shares)} parts; label "
            "more images"
        )
    ranked = sorted((min(_rank(names[image_id]) for image_id in group), group) for group in groups)
    part_of = dict.fromkeys(names, 0)
    start, end_rank = 0, 0.0
    for part in range(len(shares) - 1, 0, -1):
        end_rank += shares[part]
        end = max(sum(rank < end_rank for rank, _ in ranked), start + 1)
        end = min(end, len(ranked) - part)  # enough for the parts that follow
        part_of |= {image_id: part for _, group in ranked[start:end] for image_id in group}
        start = end
    parts = np.array(list(part_of.values()))
    return [file.select(parts == part) for part in range(len(shares))]


def _rank(name: str) -> float:
    """A number from 0 to 1 that depends on a name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32

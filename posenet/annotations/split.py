"""A file of annotations split into parts with some of its images each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.image_files import groups_of_copies
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError

_log = logging.getLogger(__name__)


def split_annotations(
    path: str | Path, shares: Sequence[float], seed: int = 0, images: str | Path | None = None
) -> list[dict[str, Any]]:
    """Divide a file of annotations into parts with these shares of its images, drawn at random by the seed.

    With the folder of the ``images``, copies of one file stay in the same part. The parts are the content of COCO
    keypoint files. ``DataError`` if the file, an image or the shares cannot be used, or a part would be empty.
    """
    if any(not share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"the shares {' '.join(f'{share:g}' for share in shares)} are not above 0 with a sum of 1")
    file = read_annotation_file(path, folder=images)
    file.adjustments.refuse(path)
    for adjustment in file.adjustments:
        if adjustment.kind == "left out":
            _log.warning("%s: %s", path, adjustment)
    paths = {image.id: Path(images or "", image.file_name) for image in file.images}
    groups = [[image_id] for image_id in paths] if images is None else groups_of_copies(paths)
    ends = np.cumsum(shares) * len(file.images)
    parts: list[set[int]] = [set() for _ in shares]
    num_done = 0
    for index in np.random.default_rng(seed).permutation(len(groups)).tolist():
        middle = num_done + len(groups[index]) / 2
        parts[min(int(np.searchsorted(ends, middle)), len(parts) - 1)].update(groups[index])
        num_done += len(groups[index])
    if not all(parts):
        raise DataError(f"{path} has too few images ({len(file.images)}) for {len(parts)} parts; choose other shares")
    return [file.select(np.array([image.id in part for image in file.images])).document for part in parts]

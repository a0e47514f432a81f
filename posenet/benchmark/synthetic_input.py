"""Images drawn by program, for benchmarks that were given none."""

from __future__ import annotations

from pathlib import Path

from posenet.data.store.build import build_store
from posenet.synthetic.dataset import write_dataset


def drawn_images(folder: Path, count: int) -> tuple[Path, Path]:
    """Draw images below ``folder``; the folder they are in, and their annotation file."""
    write_dataset(folder / "coco", train=count, val=0, workers=1)
    return folder / "coco" / "train2017", folder / "coco" / "annotations" / "person_keypoints_train2017.json"


def drawn_store(folder: Path, count: int) -> Path:
    """A store of drawn images, below ``folder``."""
    images, annotations = drawn_images(folder, count)
    build_store(images, annotations, folder / "drawn.h5", workers=1)
    return folder / "drawn.h5"

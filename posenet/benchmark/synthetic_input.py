"""Synthetic images and stores, the default input of the benchmarks."""

from __future__ import annotations

from pathlib import Path

from posenet.data.build import build_store
from posenet.synthetic.dataset import write_dataset


def write_synthetic_images(folder: Path, count: int) -> tuple[Path, Path]:
    """Write synthetic images below ``folder``; return the folder of the images and their annotation file."""
    write_dataset(folder / "coco", train=count, val=0, workers=1)
    return folder / "coco" / "train2017", folder / "coco" / "annotations" / "person_keypoints_train2017.json"


def build_synthetic_store(folder: Path, count: int) -> Path:
    """Build a store of synthetic images below ``folder``."""
    images, annotations = write_synthetic_images(folder, count)
    store = folder / "synthetic.h5"
    build_store(images, annotations, store, workers=1, progress=False)
    return store

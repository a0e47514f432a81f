"""Input that several benchmarks share."""

from pathlib import Path

import pytest


@pytest.fixture
def coco(tiny_coco: Path) -> tuple[Path, Path]:
    """A folder of three images, and their annotation file."""
    return tiny_coco / "val2017", tiny_coco / "annotations" / "person_keypoints_val2017.json"


@pytest.fixture
def store(stores: dict[str, Path]) -> Path:
    """The store of the same images."""
    return stores["val"]

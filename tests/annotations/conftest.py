"""Real annotations, for tests of all that reads them."""

import json
from pathlib import Path

import pytest

from tests.helpers.changed_annotations import Document


@pytest.fixture
def real(coco_sample: Path) -> Document:
    """150 images of COCO."""
    content: Document = json.loads(
        (coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json").read_text()
    )
    return content

"""COCO evaluation during training."""

import json

import cv2
import pytest
import torch

from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.inference.coco_evaluation import METRICS
from posenet.model.posenet import PoseNet
from posenet.settings import LogConfig, load_config
from posenet.training.coco_validation import TILE_SIZE, CocoValidation
from posenet.training.run_log import RunLog
from posenet.visualization.contact_sheet import GAP, LABEL_HEIGHT


@pytest.fixture
def make(tiny_coco, tmp_path):
    log = RunLog(tmp_path, LogConfig(tensorboard=False, curves=True))

    def build(*overrides: str):
        config = load_config(
            None,
            [
                "model.stacks=1",
                "model.width=16",
                "model.growth=2",
                "inference.height=64",
                "log.pictures=2",
                f"data.val_images={tiny_coco / 'val2017'}",
                f"data.val_annotations={tiny_coco / 'annotations' / 'person_keypoints_val2017.json'}",
                *overrides,
            ],
        )
        return CocoValidation.from_config(config, PoseNet.from_config(config), Runtime(torch.device("cpu")), log)

    yield build
    log.close()


def test_gives_cocos_numbers_and_a_sheet(make, tmp_path):
    scores = make()(epoch=3, step=10)
    assert tuple(scores) == METRICS
    assert (tmp_path / "pictures" / "epoch_0003.jpg").stat().st_size > 1000


def test_is_absent_where_nothing_is_to_be_evaluated(make):
    assert make("data.val_images=") is None
    assert make("train.evaluate_every=0") is None


def test_unusable_annotations_are_refused_before_the_first_epoch(make, tmp_path):
    bare = tmp_path / "image_info.json"
    bare.write_text('{"images": [{"id": 1, "file_name": "a.jpg", "width": 4, "height": 4}], "categories": []}')
    with pytest.raises(DataError, match="annotat"):
        make(f"data.val_annotations={bare}")


def test_the_sheet_shows_pictures_with_people_and_the_truth_beside_what_was_found(make, tmp_path, tiny_coco):
    """Images without anybody come first in the file; nothing is found, so that the right halves stay as they were."""
    annotations = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    keep = annotations["annotations"][-1]["image_id"]
    annotations["annotations"] = [a for a in annotations["annotations"] if a["image_id"] == keep]
    (tmp_path / "few.json").write_text(json.dumps(annotations))
    validation = make(f"data.val_annotations={tmp_path / 'few.json'}")
    assert [validation.share[i].id for i in validation.drawn_indices] == [keep]
    validation.predictor.batch = lambda images: [[] for _ in images]
    validation(epoch=1, step=1)
    image = cv2.imread(str(tmp_path / "pictures" / "epoch_0001.jpg"))
    height, width = TILE_SIZE
    assert image.shape == (height + LABEL_HEIGHT + 2 * GAP, 2 * width + 3 * GAP, 3)
    truth, found = (image[GAP + LABEL_HEIGHT :, left : left + width].astype(int) for left in (GAP, 2 * GAP + width))
    assert (abs(truth - found).max(axis=2) > 60).sum() > 100

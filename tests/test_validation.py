"""COCO evaluation during training."""

import pytest
import torch

from posenet.config import load_config
from posenet.errors import DataError
from posenet.inference.evaluate import METRICS
from posenet.model.posenet import PoseNet
from posenet.runlog import RunLog
from posenet.runtime import Runtime
from posenet.validation import CocoValidation


@pytest.fixture
def make(tiny_coco, tmp_path):
    log = RunLog(tmp_path, tensorboard=False)

    def build(*overrides: str):
        config = load_config(None, [
            "model.stacks=1", "model.width=16", "model.growth=2", "inference.height=64", "log.pictures=2",
            f"data.val_images={tiny_coco / 'val2017'}",
            f"data.val_annotations={tiny_coco / 'annotations' / 'person_keypoints_val2017.json'}", *overrides])
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

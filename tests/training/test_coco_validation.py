"""COCO's scores during training: the contact sheet, refused data, and the shares of the ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import pytest
import torch
from posenet.devices.cudnn import cudnn_flags
from posenet.training.coco_validation import TILE_SIZE, CocoValidation, share_of_rank
from posenet.training.run_log import RunLog
from posenet.training.setup import prepare_network
from torch import nn

from posenet.annotations.coco import CocoImage
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.inference.coco_evaluation import METRICS
from posenet.model.posenet import PoseNet
from posenet.settings import Config, LogConfig, load_config
from posenet.visualization.sheets import GAP, LABEL_HEIGHT
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.oriented_images import oriented_image
from tests.helpers.tiny_training import CPU, TINY_OVERRIDES, coco_overrides

MakeValidation = Callable[..., CocoValidation | None]


@pytest.fixture
def make_validation(tiny_coco: Path, tmp_path: Path) -> Iterator[MakeValidation]:
    """A function that makes the validation of a tiny network; its arguments are settings."""
    log = RunLog(tmp_path, Config(log=LogConfig(tensorboard=False, curves=False)))
    log.start()

    def make(*overrides: str) -> CocoValidation | None:
        config = load_config(None, [*TINY_OVERRIDES, *coco_overrides(tiny_coco), "log.pictures=2", *overrides])
        network = prepare_network(PoseNet.from_config(config), config, Runtime(CPU)).eval()
        return CocoValidation.from_config(config, network, Runtime(CPU), log)

    yield make
    log.close()


def test_the_scores_are_those_of_coco_and_a_contact_sheet_is_written(
    make_validation: MakeValidation, tmp_path: Path
) -> None:
    scores = make_validation()(epoch=3, step=10)
    assert tuple(scores) == METRICS
    assert (tmp_path / "pictures" / "epoch_0003.jpg").stat().st_size > 1000


@pytest.mark.parametrize("amp, dtype", [("off", torch.float32), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_network_predicts_in_the_precision_and_memory_format_of_the_run(
    make_validation: MakeValidation, amp: str, dtype: torch.dtype, channels_last: bool
) -> None:
    validation = make_validation(f"train.amp={amp}", f"train.channels_last={str(channels_last).lower()}")
    network = validation.predictor.backend.network
    seen: list[tuple[torch.dtype, bool, bool]] = []

    def record(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        is_channels_last = inputs[0].is_contiguous(memory_format=torch.channels_last)
        seen.append((output.dtype, is_channels_last, torch.backends.cudnn.benchmark))

    network.stem.entry.conv.register_forward_hook(record)
    with cudnn_flags(benchmark=True):
        validation(epoch=1, step=1)
        assert torch.backends.cudnn.benchmark
    assert set(seen) == {(dtype, channels_last, False)}


def test_without_images_or_with_evaluation_turned_off_there_is_no_validation(make_validation: MakeValidation) -> None:
    assert make_validation("data.val_images=''") is None
    assert make_validation("train.evaluate_every=0") is None


def test_annotations_without_people_are_refused_before_the_first_epoch(
    make_validation: MakeValidation, tmp_path: Path
) -> None:
    path = tmp_path / "image_info.json"
    content = {"images": [{"id": 1, "file_name": "a.jpg", "width": 4, "height": 4}], "categories": []}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="annotat"):
        make_validation(f"data.val_annotations={str(path)!r}")


def test_the_contact_sheet_shows_an_image_with_people_and_the_truth_beside_the_predictions(
    make_validation: MakeValidation, tmp_path: Path, tiny_coco: Path
) -> None:
    """The images before it have no people. There are no predictions, so that nothing is drawn on the right half."""
    content = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    image_id = content["annotations"][-1]["image_id"]
    content["annotations"] = [person for person in content["annotations"] if person["image_id"] == image_id]
    path = tmp_path / "one_image.json"
    path.write_text(json.dumps(content))
    validation = make_validation(f"data.val_annotations={str(path)!r}")
    assert [validation.share[index].id for index in validation.drawn_indices] == [image_id]
    validation.predictor.stream = lambda images: ([] for _ in images)
    validation(epoch=1, step=1)
    sheet = cv2.imread(str(tmp_path / "pictures" / "epoch_0001.jpg")).astype(int)
    height, width = TILE_SIZE
    assert sheet.shape == (height + LABEL_HEIGHT + 2 * GAP, 2 * width + 3 * GAP, 3)
    tiles = sheet[GAP + LABEL_HEIGHT :]
    truth = tiles[:, GAP : GAP + width]
    predictions = tiles[:, 2 * GAP + width : 2 * GAP + 2 * width]
    num_different_pixels = (abs(truth - predictions).max(axis=2) > 60).sum()
    assert num_different_pixels > 100


def test_the_shares_of_all_ranks_hold_every_image_once_and_similar_numbers_of_every_shape() -> None:
    images = [CocoImage(i, f"{i}.jpg", height=100, width=100 + 100 * (i % 2)) for i in range(11)]
    shares = [share_of_rank(images, rank, 3) for rank in range(3)]
    assert sorted(image.id for share in shares for image in share) == list(range(11))
    assert [len(share) for share in shares] == [4, 4, 3]
    for share in shares:
        num_wide = sum(image.width == 200 for image in share)
        assert num_wide in (1, 2)


def test_the_frames_of_images_with_an_orientation_are_logged_once(
    make_validation: MakeValidation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = oriented_image(6)
    (tmp_path / "a.jpg").write_bytes(drawn.data)
    content = document([1], [person(1, 1)])
    height, width = drawn.sizes["displayed"]
    content["images"][0] |= {"file_name": "a.jpg", "height": height, "width": width}
    annotations = write_annotations(tmp_path / "a.json", content)
    validation = make_validation(f"data.val_images={str(tmp_path)!r}", f"data.val_annotations={str(annotations)!r}")
    with caplog.at_level(logging.INFO):
        validation(epoch=1, step=1)
        validation(epoch=2, step=2)
    assert caplog.text.count("1 image with an EXIF orientation: displayed frame by size") == 1

"""Validation during training: the loss over all ranks, and COCO's scores with their contact sheet."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

import posenet
from posenet.errors import DataError
from posenet.person import Person
from posenet.skeleton import COCO
from posenet.training import batches, validation
from tests.helpers.drawn_data import flip_bit, write_annotations
from tests.helpers.process_groups import need_processes
from tests.helpers.run_logs import read_log
from tests.helpers.source_files import ROOT
from tests.helpers.tiny_training import TINY, Stores, coco_settings, data_settings, last, train_tiny

# A rate that leaves the weights as they are, so that all runs validate the same network.
STILL = ("train.epochs=1", "optim.lr=1e-30", "optim.weight_decay=0")


def test_two_ranks_give_the_loss_and_the_scores_of_one(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    """Each of the samples counts once, also in batches of unequal size; BatchNorm is that of all samples.

    The weights are random. People of a huge area make some of what they find right, so that there is an AP.
    """
    need_processes()
    content = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    for entry in content["annotations"]:
        entry["area"] = 3e6
    annotations = write_annotations(tmp_path / "large.json", content)
    settings = (*STILL, *coco_settings(tiny_coco), "model.conv_std=0.3")
    settings += (f"data.val_annotations={annotations}", "parallel.sync_bn=true")
    one, two = tmp_path / "one", tmp_path / "two"
    train_tiny(stores, one, *settings, "train.batch_size=4")
    # In processes of their own: forked ones lack the threads that this one may have used for a prediction.
    words = [*TINY, *data_settings(stores), f"checkpoint.path={two}", *settings, "train.batch_size=2"]
    command = [sys.executable, "-m", "posenet", "train-distributed", "--nproc", "2", "--device", "cpu", "--set", *words]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
    expected, values = (read_log(folder, "epoch")[-1] for folder in (one, two))
    assert values["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-3)
    evaluation = posenet.evaluate(one / "last.pth", tiny_coco / "val2017", annotations, progress=False)
    assert evaluation is not None and evaluation.metrics["AP"] > 0.1
    for scores in (expected, values):
        assert {name: scores[name] for name in evaluation.metrics} == pytest.approx(evaluation.metrics, abs=1e-3)


def test_unreadable_samples_are_limited(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_UNREADABLE_SAMPLES", 0.9)
    path = tmp_path / "val.h5"
    shutil.copy(stores["val"], path)
    flip_bit(path, "images", 0)
    damaged = stores | {"val": path}
    intact = train_tiny(stores, tmp_path / "intact", "train.epochs=1").best["val_loss"]
    loss = train_tiny(damaged, tmp_path / "run", "train.epochs=1").best["val_loss"]
    assert loss != intact and loss == pytest.approx(intact, rel=0.5)
    assert "WARNING: samples replaced by others: " in (tmp_path / "run" / "log.txt").read_text()
    monkeypatch.setattr(batches, "MAX_UNREADABLE_SAMPLES", 0.0)
    with pytest.raises(DataError, match="more than 0 of"):
        train_tiny(damaged, tmp_path / "refused", "train.epochs=1")
    assert last(tmp_path / "refused")["progress"]["step"] == 7


def test_the_sheet_shows_annotated_people_beside_as_many_of_the_best_predicted_ones(
    stores: Stores, tiny_coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in images that are half as large as annotated."""
    coco = shutil.copytree(tiny_coco, tmp_path / "coco")
    for path in (coco / "val2017").iterdir():
        height, width, _ = (pixels := cv2.imread(str(path))).shape
        cv2.imwrite(str(path), cv2.resize(pixels, (width // 2, height // 2)))
    drawn: list[Sequence[Person]] = []

    def draw(image: np.ndarray, people: Sequence[Person], **_: float) -> np.ndarray:
        drawn.append(people)
        return image

    monkeypatch.setattr(validation, "draw_people", draw)
    monkeypatch.setattr(validation, "NUM_DRAWN", 2)
    train_tiny(stores, tmp_path / "run", *STILL, *coco_settings(coco), "model.conv_std=0.3")
    assert len(drawn) == 2 * 2
    content = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    points = np.reshape([entry["keypoints"] for entry in content["annotations"]], (-1, 17, 3))
    labelled = (COCO.to_network_order(points)[..., :2] + 0.5) / 2 - 0.5  # the centre of the first pixel is 0, 0
    for person in drawn[0]:
        assert np.abs(labelled[:, person.found] - person.keypoints[person.found, :2]).max(axis=(1, 2)).min() < 1e-3
    scores = [person.score for person in drawn[1]]
    assert len(scores) == len(drawn[0]) and scores == sorted(scores, reverse=True)

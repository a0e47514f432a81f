"""Validation during training: the loss over all ranks, and COCO's scores with their contact sheet."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import posenet
from posenet.checkpoints.file import read_checkpoint
from posenet.errors import DataError
from posenet.inference.evaluation import Evaluation, compute_coco_metrics
from posenet.person import Person
from posenet.skeleton import COCO
from posenet.training import batches, validation
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, MIN_SCORE
from tests.helpers.drawn_data import flip_bit, write_annotations
from tests.helpers.run_logs import read_log
from tests.helpers.source_files import ROOT
from tests.helpers.tiny_training import TINY, Stores, coco_settings, data_settings, last, train_tiny

# A rate that leaves the weights as they are, so that all runs validate the same network.
STILL = ("train.epochs=1", "optim.lr=1e-30", "optim.weight_decay=0")


def test_two_ranks_give_the_loss_and_the_scores_of_one(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    """Each of the samples counts once, also in batches of unequal size; BatchNorm is that of all samples.

    The weights are random. People of a huge area make some of what they find right, so that there is an AP.
    """
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
    # What the checkpoint says is what evaluating it gives, so it need not be evaluated again.
    saved = read_checkpoint(one / "best.pth")["evaluation"]
    assert saved["metrics"] == evaluation.metrics
    assert (saved["images"], saved["min_score"]) == (evaluation.images, evaluation.min_score)
    assert read_checkpoint(two / "best.pth")["evaluation"]["metrics"] == pytest.approx(evaluation.metrics, abs=1e-3)


def test_unreadable_samples_are_limited(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_UNREADABLE", 0.9)
    path = tmp_path / "val.h5"
    shutil.copy(stores["val"], path)
    flip_bit(path, "images", 0)
    damaged = stores | {"val": path}
    intact = train_tiny(stores, tmp_path / "intact", "train.epochs=1").best["val_loss"]
    loss = train_tiny(damaged, tmp_path / "run", "train.epochs=1").best["val_loss"]
    assert loss != intact and loss == pytest.approx(intact, rel=0.5)
    assert "WARNING: samples replaced by others: " in (tmp_path / "run" / "log.txt").read_text()
    monkeypatch.setattr(batches, "MAX_UNREADABLE", 0.0)
    with pytest.raises(DataError, match="more than 0 of"):
        train_tiny(damaged, tmp_path / "refused", "train.epochs=1")
    assert last(tmp_path / "refused")["progress"]["step"] == 7


def test_the_sheet_shows_annotated_people_beside_those_from_the_recommended_min_score_on(
    stores: Stores, tiny_coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in images that are half as large as annotated."""
    coco = shutil.copytree(tiny_coco, tmp_path / "coco")
    for path in (coco / "val2017").iterdir():
        height, width, _ = (pixels := cv2.imread(str(path))).shape
        cv2.imwrite(str(path), cv2.resize(pixels, (width // 2, height // 2)))
    notes: list[tuple[str, str]] = []
    drawn: list[Sequence[Person]] = []

    def draw(image: np.ndarray, people: Sequence[Person], keypoint_min_score: float = 0.0) -> np.ndarray:
        assert keypoint_min_score == (KEYPOINT_MIN_SCORE if len(drawn) % 2 else 0)
        drawn.append(people)
        return np.full_like(image, len(drawn))

    def label(tile: np.ndarray, name: str, size: tuple[int, int], note: str) -> np.ndarray:
        notes.append((name, note))
        assert tile[0, 0, 0] == 2 * ((len(notes) - 1) // 2) + 1 + note.startswith("predicted")
        return tile[:99, :99]

    monkeypatch.setattr(validation, "draw_people", draw)
    monkeypatch.setattr(validation, "label_tile", label)

    def evaluate_with_low_scores(*args: Any) -> Evaluation:
        return dataclasses.replace(compute_coco_metrics(*args), min_score=0.06)

    monkeypatch.setattr(validation, "compute_coco_metrics", evaluate_with_low_scores)
    monkeypatch.setattr(validation, "NUM_DRAWN", 2)
    train_tiny(stores, tmp_path / "run", *STILL, *coco_settings(coco), "model.conv_std=0.3")
    content = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    assert len(notes) == 2 * 2 < 2 * len(content["images"])
    for number in (0, 2):
        (name, truth), (_, predicted) = notes[number : number + 2]
        [image] = [image for image in content["images"] if image["file_name"] == name]
        points = [entry["keypoints"] for entry in content["annotations"] if entry["image_id"] == image["id"]]
        expected = COCO.to_network_order(np.reshape([values for values in points if any(values)], (-1, 17, 3)))
        zoom = [image["width"] // 2 / image["width"], image["height"] // 2 / image["height"]]
        positions = (expected[:, :, :2] + 0.5) * zoom - 0.5  # the centre of the first pixel is 0, 0
        found = np.stack([person.keypoints for person in drawn[number]])
        assert np.array_equal(found[:, :, 2], expected[:, :, 2] > 0)
        np.testing.assert_allclose(found[:, :, :2], np.where(found[:, :, 2:], positions, 0), atol=1e-3)
        assert truth == f"truth: {COCO.count(len(expected))}"
        assert predicted == f"predicted: {COCO.count(len(drawn[number + 1]))}, min-score 0.06"
    assert min(person.score for person in drawn[1]) < MIN_SCORE

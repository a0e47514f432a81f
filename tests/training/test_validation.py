"""The validation loss when samples cannot be read."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.training.input_stream import CollectiveDataError
from tests.helpers.drawn_data import flip_bit
from tests.helpers.tiny_training import CPU, tiny_trainer

ONE_EPOCH = ("train.epochs=1", "train.batch_size=2")


@pytest.fixture
def damaged(stores: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """The stores, with one image of the validation store damaged."""
    path = tmp_path / "val.h5"
    shutil.copy(stores["val"], path)
    flip_bit(path, "images", 0)
    return stores | {"val": path}


def test_some_unreadable_validation_samples_may_be_replaced(damaged: dict[str, Path], tmp_path: Path) -> None:
    settings = (*ONE_EPOCH, "data.max_unreadable=0.9")
    with tiny_trainer(Runtime(CPU), damaged, tmp_path / "run", *settings) as trainer:
        assert math.isfinite(trainer.validate())


def test_too_many_unreadable_validation_samples_end_the_run_with_a_checkpoint(
    damaged: dict[str, Path], tmp_path: Path
) -> None:
    settings = (*ONE_EPOCH, "data.max_unreadable=0.0")
    with tiny_trainer(Runtime(CPU), damaged, tmp_path / "run", *settings) as trainer:
        with pytest.raises(CollectiveDataError, match="more than 0 of"):
            trainer.run()
        assert read_checkpoint(trainer.folder.last)["progress"]["step"] == trainer.input.steps_per_epoch

"""Training on a store in several files, and on several data sets with different keypoints."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from posenet.training.setup import open_stores
from torch import Tensor

from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint
from posenet.data.dataset import PoseDataset
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, DataError
from posenet.settings import DataSetConfig, load_config
from posenet.skeleton import COCO, load_skeleton
from posenet.skeleton.keypoint_mapping import KeypointMapping
from tests.helpers.drawn_data import split_store
from tests.helpers.faceless_people import FACELESS, write_faceless_store, write_store_with_skeleton
from tests.helpers.process_groups import train_in_one_and_two_processes
from tests.helpers.tiny_training import CPU, tiny_trainer, train_tiny_network

LEARNING = ("optim.name='adamw'", "optim.lr=1e-3", "train.batch_size=2", "train.epochs=2", "log.every_steps=2")


@pytest.fixture
def limbs(stores: dict[str, Path], tmp_path: Path) -> Path:
    """A store without faces."""
    return write_faceless_store(stores["val"], tmp_path / "limbs.h5")


@pytest.fixture
def both(stores: dict[str, Path], limbs: Path) -> str:
    """The setting that trains on people with faces and on people without."""
    return f'data.train=[{{path="{stores["train"]}", name="faces"}}, {{path="{limbs}", weight=2.5}}]'


def assert_same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def read_records(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.mark.parametrize("workers", [0, 2])
def test_several_stores_train_to_the_same_weights_as_a_single_one(
    stores: dict[str, Path], tmp_path: Path, workers: int
) -> None:
    parts = split_store(stores["train"], tmp_path / "parts", 3)
    runs = []
    for name, setting in (("one", str(stores["train"])), ("many", parts)):
        overrides = (*LEARNING, f"data.train={setting!r}", f"data.workers={workers}")
        runs.append(train_tiny_network(Runtime(CPU), stores, tmp_path / name, *overrides, steps=4))
    assert runs[0][0] == runs[1][0]
    assert_same_weights(runs[0][1], runs[1][1])


def test_keypoints_that_a_set_lacks_get_exactly_zero_gradient(
    stores: dict[str, Path], tmp_path: Path, both: str
) -> None:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *LEARNING, both, "model.stacks=2") as trainer:
        dataset = trainer.input.loader.loader.dataset
        faces, limbs = 0, len(dataset) - 1
        batch = dataset.__getitems__([(0, faces), (0, limbs)])
        outputs: list[Tensor] = []

        def keep_gradients(module: object, inputs: object, predictions: list[list[Tensor]]) -> None:
            for scales in predictions:
                for maps in scales:
                    maps.retain_grad()
                    outputs.append(maps)

        trainer.model.network.train().register_forward_hook(keep_gradients)
        trainer.model(batch.images, batch.joints, batch.person_mask, batch.mask_miss, batch.supervised).sum().backward()
    supervised = torch.from_numpy(KeypointMapping(FACELESS, COCO).supervised_channels()).bool()
    assert len(outputs) == 10 and 0 < supervised.sum() < 50
    # The maps of the first stack are also an input of the second, which adds to their gradient.
    for maps in outputs[5:]:
        with_faces, without_faces = (maps.grad != 0).flatten(2).any(2)
        assert with_faces.all()
        assert torch.equal(without_faces, supervised)


def test_the_loss_does_not_depend_on_predictions_of_unsupervised_channels(
    stores: dict[str, Path], tmp_path: Path, both: str
) -> None:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *LEARNING, both) as trainer:
        dataset = trainer.input.loader.loader.dataset
        batch = dataset.__getitems__([(0, len(dataset) - 1)])
        target = trainer.model.renderer(batch.joints, batch.person_mask.float() / 255)
        mask = batch.mask_miss[:, None].float() / 255
        scales = [torch.rand(1, 50, 16 >> scale, 16 >> scale) for scale in range(5)]
        changed = [maps + 5 * (batch.supervised == 0)[:, :, None, None] for maps in scales]
        losses = [trainer.model.loss([maps], target, mask, batch.supervised) for maps in (scales, changed)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_run_on_several_sets_resumes_exactly_in_the_middle_of_an_epoch(
    stores: dict[str, Path], tmp_path: Path, both: str, step: int
) -> None:
    overrides = (*LEARNING, both)
    losses, weights = train_tiny_network(Runtime(CPU), stores, tmp_path / "whole", *overrides)
    first_losses, _ = train_tiny_network(Runtime(CPU), stores, tmp_path / "parts", *overrides, steps=step)
    last = tmp_path / "parts" / "last.pth"
    rest_losses, resumed = train_tiny_network(Runtime(CPU), stores, tmp_path / "parts", *overrides, resume=last)
    assert first_losses + rest_losses == losses
    assert_same_weights(resumed, weights)


def test_two_processes_train_on_the_samples_of_one(stores: dict[str, Path], tmp_path: Path, both: str) -> None:
    overrides = (*LEARNING[:2], "train.epochs=1", both, "optim.lr=1e-6")
    alone, together = train_in_one_and_two_processes(stores, tmp_path, *overrides)
    assert together == pytest.approx(alone, rel=1e-3)


def test_the_log_names_the_sets(
    stores: dict[str, Path], tmp_path: Path, both: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="posenet"):
        train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *LEARNING, both)
    steps = read_records(tmp_path / "run", "train")
    epochs = read_records(tmp_path / "run", "epoch")
    for record in (*steps, *epochs):
        assert list(record["sets"]) == ["faces", "limbs"]
        assert all(values["loss"] is None or values["loss"] > 0 for values in record["sets"].values())
    for epoch in epochs:
        in_epoch = [step["sets"] for step in steps if step["epoch"] == epoch["epoch"] - 1]
        for name, values in epoch["sets"].items():
            assert sum(sets[name]["samples"] for sets in in_epoch) == values["samples"] > 0
    assert "Epoch 2  losses of the data sets: faces " in caplog.text


def test_a_single_store_has_no_sets_in_the_log(stores: dict[str, Path], tmp_path: Path) -> None:
    train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *LEARNING, steps=2)
    assert not any("sets" in record for record in read_records(tmp_path / "run", "train"))


def test_a_checkpoint_contains_the_sets(stores: dict[str, Path], tmp_path: Path, both: str) -> None:
    train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *LEARNING, both, steps=1)
    path = tmp_path / "run" / "last.pth"
    train = config_of_checkpoint(read_checkpoint(path), path).data.train
    assert train == load_config(None, [both]).data.train
    assert [(item.label, item.weight) for item in train] == [("faces", 1.0), ("limbs", 2.5)]


class TestOpening:
    def open(self, *overrides: str) -> tuple:
        with contextlib.ExitStack() as stack:
            return open_stores(load_config(None, overrides), stack)

    def test_what_every_set_contributes_is_logged(self, both: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", logger="posenet"):
            train, _ = self.open(both)
        size = len(PoseDataset(train, (64, 64))) - len(train.parts[0])
        assert f"Data set limbs: {size} samples, {round(2.5 * size)} of them per epoch; not supervised: nose, Reye" in (
            caplog.text
        )
        assert "WARNING" not in caplog.text

    def test_keypoints_that_no_set_annotates_are_an_error(self, limbs: Path) -> None:
        with pytest.raises(DataError, match="no data set of data.train annotates nose, Reye, Leye, Rear, Lear of"):
            self.open(f'data.train=[{{path="{limbs}"}}]')

    def test_body_parts_that_no_set_annotates_are_a_warning(
        self, stores: dict[str, Path], tmp_path: Path, limbs: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        skeleton = tmp_path / "tail.toml"
        skeleton.write_text('keypoints = ["nose", "right_wrist"]\nparts = [["nose", "right_wrist"]]\n')
        nose = tmp_path / "nose.toml"
        nose.write_text('keypoints = ["nose", "neck"]\nparts = [["nose", "neck"]]\n')
        noses = write_store_with_skeleton(stores["train"], tmp_path / "noses.h5", load_skeleton(nose))
        with caplog.at_level("INFO", logger="posenet"):
            self.open(f"model.skeleton={skeleton}", f'data.train=[{{path="{noses}"}}, {{path="{limbs}"}}]')
        assert "no data set annotates both ends of nose-right_wrist, so these body parts are not learned" in caplog.text
        assert "not supervised: right_wrist; ignored, not in model.skeleton: neck" in caplog.text
        assert "no data set annotates all keypoints of model.skeleton, so the map of the keypoint foreg" in caplog.text

    def test_images_of_any_set_must_not_be_validated(self, stores: dict[str, Path], both: str) -> None:
        with pytest.raises(DataError, match=r"limbs\.h5 and .* share 3 images .*data\.allow_overlap=true"):
            self.open(both, f"data.val={stores['val']}")
        assert self.open(both, f"data.val={stores['val']}", "data.allow_overlap=true")[1] is not None

    def test_validation_data_may_lack_keypoints(self, stores: dict[str, Path], tmp_path: Path, limbs: Path) -> None:
        val = f'data.val=[{{path="{limbs}"}}]'
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *LEARNING, val) as trainer:
            assert trainer.validate() > 0

    def test_a_weight_in_validation_is_an_error(self, limbs: Path) -> None:
        with pytest.raises(ConfigError, match=r"data\.val: validation reads every sample once"):
            self.open(f'data.val=[{{path="{limbs}", weight=2}}]')
        assert load_config(None, [f'data.val=[{{path="{limbs}"}}]']).data.val == (DataSetConfig(str(limbs)),)

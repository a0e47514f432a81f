"""Training on several data sets with different keypoints, and on one set in several files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenet.checkpoints.weights import stored_config
from posenet.errors import DataError
from posenet.settings import load_config
from posenet.skeleton import COCO, load_skeleton
from posenet.skeleton.skeleton import KeypointMapping
from tests.helpers.faceless_people import FACELESS, write_faceless_store, write_store_with_skeleton
from tests.helpers.process_runs import assert_same_run
from tests.helpers.tiny_training import AfterStep, Stores, WatchedRuntime, train_tiny


@pytest.fixture
def limbs(stores: Stores, tmp_path: Path) -> Path:
    """A store without faces."""
    return write_faceless_store(stores["val"], tmp_path / "limbs.h5")


@pytest.fixture
def both(stores: Stores, limbs: Path) -> str:
    """The setting that trains on people with faces and on people without."""
    return f'data.train=[{{path="{stores["train"]}", name="faces"}}, {{path="{limbs}", weight=2.5}}]'


@pytest.fixture
def no_val(stores: Stores) -> Stores:
    """The stores without the validation images, which ``limbs`` contains."""
    return {"train": stores["train"]}


def test_keypoints_that_a_set_lacks_get_exactly_zero_gradient(no_val: Stores, tmp_path: Path, both: str) -> None:
    masks: list[Tensor] = []
    outputs: list[Tensor] = []
    used = torch.zeros(2, 50, dtype=torch.bool)  # the channels with a gradient: without faces, and with faces

    def keep_outputs(*args: Any) -> None:
        for maps in args[-1][-1]:  # of the last stack: the first one's maps are also an input of the second
            maps.retain_grad()
            outputs.append(maps)

    def watch(module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda _, args: masks.append(args[-1].bool()))
        module.network.register_forward_hook(keep_outputs)

    def collect_gradients() -> None:
        for maps in outputs[-5:]:
            for mask, gradient in zip(masks[-1], maps.grad, strict=True):
                used[int(mask.all())] |= gradient.ne(0).flatten(1).any(1)

    callbacks = [AfterStep(0, collect_gradients)]
    settings = (both, "model.stacks=2")
    train_tiny(no_val, tmp_path / "run", *settings, runtime=WatchedRuntime(watch), callbacks=callbacks, max_steps=5)
    supervised = torch.from_numpy(KeypointMapping(FACELESS, COCO).supervised_channels()).bool()
    assert 0 < supervised.sum() < 50
    assert torch.equal(used, torch.stack([supervised, torch.ones_like(supervised)]))


def test_a_run_on_several_sets_names_each_and_resumes_exactly(no_val: Stores, tmp_path: Path, both: str) -> None:
    # inference.height as train.input_size. BatchNorm over two cells has exploding gradients, which the guard skips.
    settings = both, "inference.height=64", "guard.factor=0", "train.epochs=1"
    train_tiny(no_val, tmp_path / "whole", *settings)
    log = (tmp_path / "whole" / "log.txt").read_text()
    assert "WARNING" not in log
    train_tiny(no_val, tmp_path / "parts", *settings, max_steps=5)
    train_tiny(no_val, tmp_path / "parts", *settings, resume=True)
    checkpoint = tmp_path / "whole" / "last.pth"
    assert stored_config(checkpoint).data.train == load_config(None, [both]).data.train
    for folder in ("parts", "whole"):  # without validation data there is no best checkpoint
        (tmp_path / folder / "best.pth").hardlink_to(tmp_path / folder / "last.pth")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_sets_that_cannot_be_used_together(
    stores: Stores, no_val: Stores, tmp_path: Path, limbs: Path, both: str
) -> None:
    one = f'data.train=[{{path="{limbs}"}}]'
    with pytest.raises(
        DataError, match=r"no data set of data.train annotates nose, right_eye, left_eye, right_ear, left_ear of"
    ):
        train_tiny(no_val, tmp_path / "run", one)
    with pytest.raises(DataError, match=r"limbs\.h5 and .* share 3 images .*data\.allow_overlap=true"):
        train_tiny(stores, tmp_path / "run", both)


def test_body_parts_that_no_set_annotates_are_a_warning(no_val: Stores, tmp_path: Path, limbs: Path) -> None:
    for name, keypoints in {"tail": ["nose", "right_wrist"], "nose": ["nose", "neck"]}.items():
        (tmp_path / f"{name}.toml").write_text(f"keypoints = {keypoints}\nparts = [{keypoints}]\n")
    noses = write_store_with_skeleton(no_val["train"], tmp_path / "noses.h5", load_skeleton(tmp_path / "nose.toml"))
    sets = f'data.train=[{{path="{noses}"}}, {{path="{limbs}"}}]'
    train_tiny({}, tmp_path / "run", f"model.skeleton={tmp_path / 'tail.toml'}", sets, max_steps=1)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "no data set annotates both ends of nose-right_wrist, so these body parts are not learned" in log

"""Resuming: what a checkpoint restores, which settings may differ, and which checkpoints are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.errors import CheckpointError
from posenet.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]

FP16 = "train.amp='fp16'"
FIXED_SCALE = "train.loss_scale=32.0"


@pytest.fixture
def last(tmp_path: Path) -> Path:
    """The checkpoint of the trainers that ``make_trainer`` makes."""
    return tmp_path / "run" / "last.pth"


def test_another_network_is_refused(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer(steps=1).run()
    with pytest.raises(CheckpointError, match="another architecture"):
        make_trainer("model.width=32", resume=last)


def test_other_frozen_parameters_are_refused(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer(steps=1).run()
    with pytest.raises(CheckpointError, match="train.freeze"):
        make_trainer(frozen=("stem.*",), resume=last)


@pytest.mark.parametrize("saved, configured", [("adamw", "sgd"), ("sgd", "adamw")])
def test_another_optimizer_is_refused(make_trainer: MakeTrainer, last: Path, saved: str, configured: str) -> None:
    make_trainer(f"optim.name={saved!r}", steps=1).run()
    with pytest.raises(CheckpointError, match="optim.name"):
        make_trainer(f"optim.name={configured!r}", resume=last)


def test_bare_weights_are_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match="--weights"):
        trainer.load_state_dict({"model": trainer.model.network.state_dict()}, "bare.pth")


def test_new_optimizer_settings_apply_and_the_momentum_is_restored(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer("optim.name='sgd'", steps=1).run()
    trainer = make_trainer("optim.name='sgd'", "optim.weight_decay=0.3", "optim.momentum=0.1", resume=last)
    (group,) = trainer.optimizer.param_groups
    assert group["weight_decay"] == 0.3
    assert group["momentum"] == 0.1
    assert any("momentum_buffer" in state for state in trainer.optimizer.state.values())


def test_a_dynamic_loss_scale_is_restored(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer(FP16, steps=1).run()
    state = read_checkpoint(last)
    state["scaler"]["scale"] = 2048.0
    trainer = make_trainer(FP16)
    trainer.load_state_dict(state, str(last))
    assert trainer.scaler.get_scale() == 2048


def test_a_fixed_loss_scale_is_a_setting_and_not_restored(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer(FP16, steps=1).run()
    assert make_trainer(FP16, FIXED_SCALE, resume=last).scaler.get_scale() == 32
    assert not make_trainer(resume=last).scaler.is_enabled()


def test_a_dynamic_loss_scale_stays_dynamic_after_a_fixed_one(make_trainer: MakeTrainer, last: Path) -> None:
    make_trainer(FP16, FIXED_SCALE, steps=1).run()
    scaler = make_trainer(FP16, resume=last).scaler
    assert scaler.get_backoff_factor() < 1
    assert scaler.get_growth_interval() < 10**6


def test_the_guard_and_the_random_state_are_restored(make_trainer: MakeTrainer, last: Path) -> None:
    trainer = make_trainer(steps=2)
    trainer.guard.good_since_roll_back = 7
    torch.manual_seed(123)
    trainer.run()
    expected = torch.rand(3)
    torch.manual_seed(5)
    resumed = make_trainer(resume=last)
    assert resumed.guard.good_since_roll_back == 9
    assert torch.equal(torch.rand(3), expected)


def test_a_run_with_another_batch_size_continues_after_the_same_share_of_the_epoch(
    make_trainer: MakeTrainer, last: Path
) -> None:
    trainer = make_trainer("train.batch_size=1", "train.input_size=128", steps=4)
    old_steps = trainer.input.steps_per_epoch
    trainer.run()
    resumed = make_trainer("train.batch_size=2", "train.input_size=128", resume=last)
    assert resumed.progress.total_steps == 4
    assert resumed.progress.step == 4 * resumed.input.steps_per_epoch // old_steps

"""The training step, and training runs: bad losses, stop signals, validation, checkpoints and logs."""

from __future__ import annotations

import copy
import math
import os
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from posenet.checkpoints.file import read_checkpoint
from posenet.data.batch import Batch
from posenet.devices.precision import Amp, make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import DataError, TrainingError
from posenet.settings import GuardConfig, OptimConfig
from posenet.training.loss_guard import LossGuard
from posenet.training.optimizer import make_optimizer
from posenet.training.trainer import Trainer, TrainStep
from tests.helpers.process_runs import find_differences, start_or_resume
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import CPU, before_step, copy_weights

MakeTrainer = Callable[..., Trainer]

BATCH_SIZE = 6
LR = 0.1


class LinearModelWithLoss(nn.Module):
    """A tiny model with BatchNorm that returns one loss per image, scaled by ``mask_miss``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 1)

    def forward(self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor) -> Tensor:
        return self.linear(self.norm(images))[:, 0] ** 2 * mask_miss


def make_batch(seed: int, loss_scale: float = 1.0) -> Batch:
    images = torch.randn(BATCH_SIZE, 4, generator=torch.Generator().manual_seed(seed))
    return Batch(images, images, images, torch.full((BATCH_SIZE,), loss_scale), torch.arange(BATCH_SIZE))


def make_train_step(
    amp: Amp = "off", max_grad_norm: float = 0.0, loss_scale: float = 0.0
) -> tuple[LinearModelWithLoss, Optimizer, TrainStep]:
    torch.manual_seed(0)
    model = LinearModelWithLoss().train()
    optimizer = make_optimizer(model, OptimConfig(lr=LR, momentum=0.9, weight_decay=0.0))
    scaler = make_grad_scaler(CPU, amp, loss_scale)
    return model, optimizer, TrainStep(model, optimizer, scaler, LossGuard(GuardConfig()), Runtime(CPU), max_grad_norm)


def copy_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_step_with_one_bad_loss_changes_nothing(bad: float, position: int) -> None:
    model, optimizer, train_step = make_train_step()
    train_step([make_batch(1)])
    before = copy_state(model, optimizer)
    batches = [make_batch(2), make_batch(3), make_batch(4)]
    batches[position] = make_batch(9, loss_scale=bad)
    result = train_step(batches)
    assert result.loss is None
    assert result.bad_value is not None
    assert find_differences(copy_state(model, optimizer), before) == []
    assert all(parameter.grad is None for parameter in model.parameters())
    assert train_step([make_batch(5)]).loss is not None


def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model, optimizer, train_step = make_train_step()
    before = copy_state(model, optimizer)
    model.linear.weight.register_hook(lambda gradient: gradient * math.nan)
    result = train_step([make_batch(1)])
    assert result.loss is None
    assert math.isnan(result.bad_value)
    assert find_differences(copy_state(model, optimizer), before) == []


def test_accumulated_batches_train_on_the_mean_of_their_gradients() -> None:
    model, _, train_step = make_train_step()
    model.norm.eval()
    reference = copy.deepcopy(model)
    first = make_batch(1)
    second = make_batch(2)
    train_step([first, second])
    reference(*(torch.cat(tensors) for tensors in zip(first[:4], second[:4]))).mean().backward()
    for parameter, expected in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter.detach(), expected.detach() - LR * expected.grad, atol=1e-6, rtol=0)


@pytest.mark.parametrize("amp, loss_scale", [("off", 0.0), ("fp16", 1024.0)])
def test_the_gradient_is_clipped_after_the_loss_scale_is_removed(amp: Amp, loss_scale: float) -> None:
    model, _, train_step = make_train_step(amp, max_grad_norm=0.01, loss_scale=loss_scale)
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    train_step([make_batch(1, loss_scale=100.0)])
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert (after - before).norm().item() == pytest.approx(LR * 0.01, rel=1e-3)


def test_an_overflow_that_a_lower_loss_scale_fixes_is_no_bad_step() -> None:
    model, _, train_step = make_train_step("fp16")

    def overflow_at_large_scales(gradient: Tensor) -> Tensor:
        return gradient * (math.inf if train_step.scaler.get_scale() > 20_000 else 1)

    model.linear.weight.register_hook(overflow_at_large_scales)
    results = [train_step([make_batch(1)]) for _ in range(4)]
    assert [result.loss is None for result in results] == [True, True, False, False]
    assert all(result.bad_value is None for result in results)


def make_losses_nan(trainer: Trainer, steps: Collection[int]) -> None:
    """Make the losses of the given training steps, counted from 1, NaN."""
    forward = trainer.model.forward

    def forward_with_nan(*batch: Tensor) -> Tensor:
        is_bad = trainer.model.training and trainer.progress.total_steps + 1 in steps
        return forward(*batch) * (math.nan if is_bad else 1)

    trainer.model.forward = forward_with_nan


def test_a_run_writes_checkpoints_and_logs(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    assert trainer.run()
    folder = trainer.folder.path
    assert {"last.pth", "best.pth", "log.txt", "log.jsonl"} <= set(os.listdir(folder))
    first, second = read_log(folder, "epoch")
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert second["train_loss"] < first["train_loss"]
    assert second["val_loss"] > 0
    assert read_log(folder, "train")[0].keys() >= {"loss", "lr", "samples_per_s", "data_wait"}
    assert "Epoch 1  train_loss" in (folder / "log.txt").read_text()
    best = min((first, second), key=lambda entry: entry["val_loss"])
    assert read_checkpoint(folder / "best.pth")["progress"]["epoch"] == best["epoch"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_the_run_after_the_step_with_a_checkpoint(make_trainer: MakeTrainer, number: int) -> None:
    trainer = make_trainer("train.epochs=50")
    before_step(trainer, 3, lambda: os.kill(os.getpid(), number))
    assert not trainer.run()
    assert read_checkpoint(trainer.folder.last)["progress"]["total_steps"] == 3


def test_a_step_with_a_bad_loss_is_skipped_and_the_log_names_its_images(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    make_losses_nan(trainer, {2})
    assert trainer.run()
    (skip,) = read_log(trainer.folder.path, "skip")
    assert skip["step"] == 2
    assert len(skip["image_ids"]) == 2
    assert all(tensor.isfinite().all() for tensor in copy_weights(trainer).values())
    assert all(math.isfinite(entry["train_loss"]) for entry in read_log(trainer.folder.path, "epoch"))


def test_too_many_skips_in_a_row_return_to_the_checkpoint_before_them(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("guard.max_skips=2", "checkpoint.every_steps=1", "train.epochs=3")
    restored_steps = []
    load_weights = trainer.state.load_weights

    def load_and_record(state: dict[str, Any], path: str) -> None:
        restored_steps.append(state["progress"]["total_steps"])
        load_weights(state, path)

    trainer.state.load_weights = load_and_record
    make_losses_nan(trainer, {3, 4})
    assert trainer.run()
    assert restored_steps == [2]
    assert trainer.progress.total_steps == 3 * trainer.input.steps_per_epoch


def test_the_return_restores_weights_from_before_the_explosion(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("guard.max_skips=3", "guard.threshold=1e4", "checkpoint.every_steps=1", "train.epochs=3")

    def explode() -> None:
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1e4)

    before_step(trainer, 5, explode)
    assert trainer.run()
    assert len(read_log(trainer.folder.path, "skip")) == 3
    assert all(parameter.abs().max() < 1e4 for parameter in trainer.model.parameters())


def test_the_return_waits_for_the_checkpoint_that_is_being_written(stores: dict[str, Path], tmp_path: Path) -> None:
    """It must not use an older one: which weights a run returns to must not depend on the speed of the disk."""
    restored_steps: list[int] = []

    def return_once_with_a_slow_disk(trainer: Trainer) -> None:
        save = trainer.folder.save
        load_weights = trainer.state.load_weights

        def save_slowly(*args: Any) -> None:
            threading.Event().wait(0.2)
            save(*args)

        def load_and_record(state: dict[str, Any], path: str) -> None:
            restored_steps.append(state["progress"]["total_steps"])
            load_weights(state, path)

        trainer.folder.save = save_slowly
        trainer.state.load_weights = load_and_record
        before_step(trainer, 3, trainer._return_to_checkpoint)

    settings = ("train.epochs=1", "checkpoint.every_steps=2", "guard.threshold=2e5")
    start_or_resume(Runtime(CPU), stores, tmp_path / "run", *settings, on_start=return_once_with_a_slow_disk)
    assert restored_steps == [2]


def test_an_explosion_soon_after_a_return_ends_the_run(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("guard.max_skips=2", "checkpoint.every_steps=1", "train.epochs=9")
    make_losses_nan(trainer, range(3, 99))
    with pytest.raises(TrainingError, match="explodes again"):
        trainer.run()


def test_an_explosion_before_the_first_checkpoint_ends_the_run(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("guard.max_skips=2")
    make_losses_nan(trainer, range(99))
    with pytest.raises(TrainingError, match="before the first checkpoint"):
        trainer.run()


def test_frozen_parameters_and_their_statistics_stay_bit_identical(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(frozen=("stem.*", "stacks.0.hourglass.*"))
    before = copy_weights(trainer)
    assert trainer.run()
    after = copy_weights(trainer)
    frozen = [name for name in before if name.startswith(("stem.", "stacks.0.hourglass."))]
    heads = [name for name in before if name.startswith("stacks.0.heads.")]
    assert any("running_mean" in name for name in frozen)
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert any(not torch.equal(before[name], after[name]) for name in heads)


def test_the_best_checkpoint_has_the_highest_ap(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("train.epochs=4")
    scores = iter([0.1, 0.4, 0.3, 0.2])
    trainer.evaluate = lambda epoch, step, check_stop: {"AP": next(scores)}
    assert trainer.run()
    progress = read_checkpoint(trainer.folder.best)["progress"]
    assert progress["epoch"] == 2
    assert progress["best"] == 0.4


def test_a_run_in_bf16_keeps_its_weights_finite(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("train.amp='bf16'", steps=2)
    assert not trainer.run()
    assert trainer.progress.total_steps == 2
    assert all(tensor.isfinite().all() for tensor in copy_weights(trainer).values())


@pytest.mark.parametrize("minutes, num_checkpoints", [(1e-9, 3), (60.0, 1)])
def test_checkpoints_are_saved_after_the_configured_minutes(
    make_trainer: MakeTrainer, minutes: float, num_checkpoints: int
) -> None:
    trainer = make_trainer(f"checkpoint.every_minutes={minutes}", "train.epochs=1")
    assert trainer.run()
    assert len(trainer.folder.history()) == num_checkpoints


@pytest.mark.parametrize("stage", ["loss", "AP"])
def test_a_stop_signal_ends_the_validation_and_the_resumed_run_repeats_it(
    make_trainer: MakeTrainer, stage: str
) -> None:
    trainer = make_trainer("train.epochs=1")

    def evaluate(epoch: int, step: int, check_stop: Callable[[], None]) -> dict[str, float]:
        if stage == "AP":
            os.kill(os.getpid(), signal.SIGTERM)
        check_stop()
        return {"AP": 0.5}

    def set_eval_mode() -> nn.Module:
        if stage == "loss":
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.Module.eval(trainer.model)

    trainer.evaluate = evaluate
    trainer.model.eval = set_eval_mode
    assert not trainer.run()
    assert read_log(trainer.folder.path, "epoch") == []
    resumed = make_trainer("train.epochs=1", resume=trainer.folder.last)
    assert resumed.progress.step == resumed.input.steps_per_epoch
    assert resumed.run()
    assert len(read_log(resumed.folder.path, "epoch")) == 1


def test_an_error_in_the_validation_does_not_lose_the_steps_before_it(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("train.epochs=1")

    def evaluate(*_: Any) -> dict[str, float]:
        raise DataError("an image is damaged")

    trainer.evaluate = evaluate
    with pytest.raises(DataError):
        trainer.run()
    assert read_checkpoint(trainer.folder.last)["progress"]["step"] == trainer.input.steps_per_epoch


@pytest.mark.parametrize("every, expected", [(1, [1, 2, 3]), (2, [2, 3]), (5, [3])])
def test_coco_scores_are_computed_every_few_epochs_and_after_the_last(
    make_trainer: MakeTrainer, every: int, expected: list[int]
) -> None:
    trainer = make_trainer(f"train.evaluate_every={every}", "train.epochs=3")
    evaluated = []

    def evaluate(epoch: int, step: int, check_stop: Callable[[], None]) -> dict[str, float]:
        evaluated.append(epoch)
        return {"AP": 0.0}

    trainer.evaluate = evaluate
    assert trainer.run()
    assert evaluated == expected

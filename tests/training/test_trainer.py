"""Training runs: bad losses, stop signals, validation, checkpoints and logs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from posenet.checkpoints.file import read_checkpoint
from posenet.data.loader import Batch
from posenet.devices.runtime import Runtime
from posenet.errors import DataError, TrainingError
from posenet.training.input_stream import CollectiveDataError
from posenet.training.train_step import StepResult
from posenet.training.trainer import Trainer
from tests.helpers.process_runs import STATEFUL_OVERRIDES, find_differences, start_or_resume
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import CPU, before_step, copy_weights, tiny_trainer

MakeTrainer = Callable[..., Trainer]


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
    assert trainer.was_interrupted
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


class ReadyResult(NamedTuple):
    """The result of a step that was computed in advance."""

    result: StepResult

    def read(self) -> StepResult:
        return self.result


@contextlib.contextmanager
def trainer_with_results(
    stores: dict[str, Path],
    folder: Path,
    *overrides: str,
    results: Iterable[StepResult] = (),
    val_losses: Iterable[float] = (),
    steps: int = 0,
    resume: Path | None = None,
) -> Iterator[Trainer]:
    """Yield a trainer whose network never runs: steps and validations return the given values, in the end 1."""
    step_results = map(ReadyResult, itertools.chain(results, itertools.repeat(StepResult(loss=1.0))))
    losses = itertools.chain(val_losses, itertools.repeat(1.0))
    settings = ("train.batch_size=1", "train.input_size=128", "train.epochs=4", "checkpoint.keep=99", *overrides)
    runtime = Runtime(CPU)
    with tiny_trainer(runtime, stores, folder, *settings, steps=steps, resume=resume) as trainer:
        trainer.train_step = lambda batches: next(step_results)
        trainer.validate = lambda: next(losses)
        yield trainer


@pytest.mark.parametrize("patience, epochs", [(0, 9), (1, 4), (2, 7)])
def test_a_run_stops_early_after_as_many_epochs_without_a_better_score(
    stores: dict[str, Path], tmp_path: Path, patience: int, epochs: int
) -> None:
    val_losses = [5.0, 4.0, 3.0, 3.0, 2.0, 2.5, 2.0, 1.0, 1.0]
    overrides = (f"train.patience={patience}", "train.epochs=9")
    with trainer_with_results(stores, tmp_path / "run", *overrides, val_losses=val_losses) as trainer:
        assert trainer.run() == (patience == 0)
        assert trainer.progress.epoch == epochs
        assert read_checkpoint(trainer.folder.last)["progress"]["epoch"] == epochs


def test_the_log_has_every_nth_step_and_the_last_one_of_every_epoch(stores: dict[str, Path], tmp_path: Path) -> None:
    overrides = ("log.every_steps=4", "train.epochs=2")
    with trainer_with_results(stores, tmp_path / "run", *overrides) as trainer:
        trainer.run()
        length = trainer.input.steps_per_epoch
        steps = [line["step"] for line in read_log(trainer.folder.path, "train")]
    assert length > 4
    assert steps == [step for step in range(1, 2 * length + 1) if step % 4 == 0 or step % length == 0]


def test_a_run_that_ends_with_an_epoch_validates_before_it_stops(stores: dict[str, Path], tmp_path: Path) -> None:
    with trainer_with_results(stores, tmp_path / "probe") as trainer:
        length = trainer.input.steps_per_epoch
    for steps, epochs in ((length - 1, 0), (length, 1), (length + 1, 1)):
        with trainer_with_results(stores, tmp_path / str(steps), steps=steps) as trainer:
            assert not trainer.run()
            assert (trainer.progress.total_steps, trainer.progress.epoch) == (steps, epochs)
            assert len(read_log(trainer.folder.path, "epoch")) == epochs


def test_every_step_has_the_learning_rate_of_the_schedule(stores: dict[str, Path], tmp_path: Path) -> None:
    rates = []
    with trainer_with_results(stores, tmp_path / "run", "train.epochs=2", "optim.warmup_epochs=2") as trainer:
        length = trainer.input.steps_per_epoch

        def record_rate(batches: Sequence[Batch]) -> ReadyResult:
            rates.append(trainer.optimizer.param_groups[0]["lr"])
            return ReadyResult(StepResult(loss=1.0))

        trainer.train_step = record_rate
        trainer.run()
    assert rates == pytest.approx([1e-5 * (step + 1) / (2 * length) for step in range(2 * length)])


def test_an_overflow_of_the_loss_scale_is_neither_logged_nor_counted_nor_averaged(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    results = [StepResult(loss=1.0), StepResult(), StepResult(loss=3.0), StepResult(bad_value=math.nan)]
    with trainer_with_results(stores, tmp_path / "run", "train.epochs=1", results=results) as trainer:
        averaged_after = []
        trainer.average.after_step = lambda: averaged_after.append(trainer.progress.total_steps)
        trainer.run()
        length = trainer.input.steps_per_epoch
        assert [line["step"] for line in read_log(trainer.folder.path, "skip")] == [4]
        assert averaged_after == [1, 3, *range(5, length + 1)]
        [epoch] = read_log(trainer.folder.path, "epoch")
        assert epoch["train_loss"] == pytest.approx((1 + 3 + length - 4) / (length - 2))


def test_no_checkpoint_is_saved_between_bad_steps(stores: dict[str, Path], tmp_path: Path) -> None:
    bad = StepResult(bad_value=math.inf)
    results = [StepResult(loss=1.0), bad, bad, StepResult(loss=1.0)]
    overrides = ("train.epochs=1", "checkpoint.every_steps=1", "guard.max_skips=9", "log.every_steps=99")
    with trainer_with_results(stores, tmp_path / "run", *overrides, results=results) as trainer:
        trainer.run()
        names = {path.name for path in trainer.folder.history()}
        assert {"step-00000001.pth", "step-00000004.pth"} <= names
        assert not {"step-00000002.pth", "step-00000003.pth"} & names


def test_the_return_is_to_the_newest_checkpoint_from_before_the_bad_steps(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    good, bad = StepResult(loss=1.0), StepResult(bad_value=math.inf)
    overrides = ("checkpoint.every_steps=1", "guard.max_skips=2")
    with trainer_with_results(stores, tmp_path, *overrides, results=[good, good, bad], steps=3) as trainer:
        trainer.run()
    last = tmp_path / "last.pth"
    assert read_checkpoint(last)["guard"]["bad_in_a_row"] == 1  # saved by the end of the run after a bad step
    with trainer_with_results(stores, tmp_path, *overrides, results=[bad], steps=6, resume=last) as trainer:
        restored = []
        load_weights = trainer.state.load_weights

        def record_and_load(state: dict[str, Any], path: str) -> None:
            restored.append((state["progress"]["total_steps"], Path(path).name))
            load_weights(state, path)

        trainer.state.load_weights = record_and_load
        trainer.run()
        assert restored == [(2, "step-00000002.pth")]
        assert trainer.progress.total_steps == 6


def test_the_images_of_all_ranks_with_a_bad_loss_are_named(stores: dict[str, Path], tmp_path: Path) -> None:
    ids = [torch.arange(2), torch.arange(2)]
    with trainer_with_results(stores, tmp_path / "run") as trainer:
        trainer.runtime.gather_objects = lambda own: [own, (math.inf, [7]), (3.0, [8]), (1e30, [9])]
        assert trainer._find_cause(1.0, ids) == (math.inf, [7, 9])
        assert trainer._find_cause(1e20, ids) == (1e20, [0, 1, 0, 1, 7, 9])
        trainer.runtime.gather_objects = lambda own: [own, own]
        assert trainer._find_cause(1.0, ids) == (1.0, [0, 1, 0, 1])


@pytest.mark.parametrize(
    "world_size, error, saved",
    [
        (1, DataError("the disk is gone"), True),
        (1, OSError("the disk is gone"), True),
        (2, CollectiveDataError("the disk is gone"), True),
        (2, DataError("the disk is gone"), False),
    ],
)
def test_a_run_is_saved_after_a_data_error_that_all_processes_know_of(
    stores: dict[str, Path], tmp_path: Path, world_size: int, error: Exception, saved: bool
) -> None:
    with trainer_with_results(stores, tmp_path / "run") as trainer:
        trainer.runtime.world_size = world_size

        def fail() -> None:
            raise error

        trainer.validate = fail
        with pytest.raises(type(error), match="the disk is gone"):
            trainer.run()
        assert trainer.folder.last.exists() == saved


def test_the_validation_loss_is_none_without_validation_loader(stores: dict[str, Path], tmp_path: Path) -> None:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run") as trainer:
        assert trainer.validate() > 0
        trainer.validation_loader = None
        assert trainer.validate() is None


def test_the_other_ranks_return_to_the_checkpoint_that_rank_0_has_found(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    with trainer_with_results(stores, tmp_path, steps=2) as trainer:
        trainer.run()
        weights_at_step_2 = copy_weights(trainer)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(2)
        trainer.runtime.rank = 1
        trainer.runtime.broadcast_object = lambda value: trainer.folder.last
        trainer._return_to_checkpoint()
        assert find_differences(copy_weights(trainer), weights_at_step_2) == []


def test_a_stopped_run_logs_where_it_continues(
    stores: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trainer_with_results(stores, tmp_path, steps=2) as trainer, caplog.at_level(logging.INFO):
        trainer.run()
    assert "Stopped after step 2 (epoch 1); --resume continues from there" in caplog.text


class EventResult(NamedTuple):
    """The result of a step that records when it is read."""

    step: int
    result: StepResult
    events: list[str]

    def read(self) -> StepResult:
        self.events.append(f"read {self.step}")
        return self.result


def record_events(trainer: Trainer, results: Iterable[StepResult]) -> list[str]:
    """Give the trainer steps with the given results; collect what it does with them, and when."""
    events: list[str] = []
    step_results = iter(results)

    def train(batches: Sequence[Batch]) -> EventResult:
        step = trainer.progress.total_steps + 1
        events.append(f"step {step}")
        return EventResult(step, next(step_results), events)

    trainer.train_step = train
    trainer._return_to_checkpoint = lambda: events.append("return")
    write = trainer._write
    trainer._write = lambda *args, **options: (events.append("save"), write(*args, **options))
    return events


GOOD = StepResult(loss=1.0)
BAD = StepResult(bad_value=math.inf)


@pytest.mark.parametrize(
    "settings, results, expected",
    [
        ((), [GOOD] * 4, "step 1, step 2, read 1, step 3, read 2, step 4, read 3, read 4, save"),
        (("checkpoint.every_steps=2",), [GOOD] * 3, "step 1, step 2, read 1, read 2, save, step 3, read 3, save"),
        (("log.every_steps=2",), [GOOD] * 3, "step 1, step 2, read 1, read 2, step 3, read 3, save"),
        (
            ("guard.max_skips=2",),
            [BAD, BAD, GOOD, BAD, GOOD],
            "step 1, step 2, read 1, read 2, return, step 3, step 4, read 3, step 5, read 4, read 5, save",
        ),
        (("guard.max_skips=1",), [GOOD, BAD, GOOD], "step 1, read 1, step 2, read 2, return, step 3, read 3, save"),
    ],
    ids=["good steps", "checkpoint", "log", "return after two", "return after one"],
)
def test_a_result_is_read_after_the_next_step_unless_it_is_needed_before(
    stores: dict[str, Path], tmp_path: Path, settings: tuple[str, ...], results: list[StepResult], expected: str
) -> None:
    overrides = ("log.every_steps=99", *settings)
    with trainer_with_results(stores, tmp_path / "run", *overrides, steps=len(results)) as trainer:
        events = record_events(trainer, results)
        trainer.run()
    assert ", ".join(events) == expected


def test_reading_results_late_changes_nothing(stores: dict[str, Path], tmp_path: Path) -> None:
    """Bad steps, the return to a checkpoint, the moving average and all saved counts are the same."""
    settings = (*STATEFUL_OVERRIDES, "guard.max_skips=2", "train.epochs=99", "train.patience=0")
    checkpoints = []
    for every_steps in (1, 99):  # results are read at once for the log, or late
        folder = tmp_path / str(every_steps)
        overrides = (*settings, f"log.every_steps={every_steps}")
        with tiny_trainer(Runtime(CPU), stores, folder, *overrides, steps=14) as trainer:
            make_losses_nan(trainer, {2, 5, 6, 9, 13})
            trainer.run()
        assert [line["step"] for line in read_log(folder, "skip")] == [2, 5, 6, 9, 13]
        checkpoint = read_checkpoint(folder / "last.pth")
        del checkpoint["config"]
        checkpoints.append(checkpoint)
    assert checkpoints[0]["average"]["count"] == 14 - 5 - 1  # the return to step 3 takes back the average of step 4
    assert find_differences(checkpoints[1], checkpoints[0]) == []


class LostContact(RuntimeError):
    """Another process has ended."""


def lose_contact_in_step(trainer: Trainer, number: int, method: str, at_once: bool = False) -> None:
    """From the step with this number on, a method of the runtime fails as if another process had ended.

    With ``at_once``, the step itself fails too.
    """
    train_step = trainer.train_step

    def lose_contact(*_: Any) -> Any:
        raise LostContact

    def train(batches: Sequence[Batch]) -> Any:
        if trainer.progress.total_steps == number - 1:
            setattr(trainer.runtime, method, lose_contact)
            if at_once:
                lose_contact()
        return train_step(batches)

    trainer.train_step = train
    trainer.runtime.has_lost_contact = lambda error: isinstance(error, LostContact)
    trainer.runtime.explain_lost_contact = lambda error: TrainingError("lost")


@pytest.mark.parametrize("last, saved_step", [(GOOD, 2), (StepResult(), 2), (BAD, None)])
def test_after_the_loss_of_another_process_the_last_step_is_saved_unless_it_was_bad(
    stores: dict[str, Path], tmp_path: Path, last: StepResult, saved_step: int | None
) -> None:
    with trainer_with_results(stores, tmp_path / "run", "log.every_steps=99", results=[GOOD, last]) as trainer:
        lose_contact_in_step(trainer, 3, "gather_objects", at_once=True)
        with pytest.raises(TrainingError, match="lost"):
            trainer.run()
        if saved_step is None:
            assert not trainer.folder.has_checkpoints()
        else:
            progress = read_checkpoint(trainer.folder.last)["progress"]
            assert progress["total_steps"] == saved_step
            assert progress["loss_steps"] == 1 + (last.loss is not None)


@pytest.mark.parametrize(
    "lost_in, max_skips, results, every_steps",
    [
        ("gather_objects", 3, [GOOD, BAD, GOOD], 99),  # the images are collected when step 3 has changed the weights
        ("gather_objects", 3, [GOOD, BAD], 2),
        ("gather_objects", 1, [GOOD, BAD], 99),
        ("broadcast_object", 1, [GOOD, BAD], 99),  # the weights are those that a return to a checkpoint is to replace
    ],
)
def test_nothing_is_saved_if_contact_is_lost_in_reaction_to_a_bad_step(
    stores: dict[str, Path], tmp_path: Path, lost_in: str, max_skips: int, results: list[StepResult], every_steps: int
) -> None:
    """Number of steps, guard and weights would be those of different steps."""
    overrides = (f"guard.max_skips={max_skips}", f"log.every_steps={every_steps}")
    with trainer_with_results(stores, tmp_path / "run", *overrides, results=results) as trainer:
        lose_contact_in_step(trainer, 2, lost_in)  # the bad step
        with pytest.raises(TrainingError, match="lost"):
            trainer.run()
        assert not trainer.folder.has_checkpoints()

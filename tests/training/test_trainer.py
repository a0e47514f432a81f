"""Training runs on drawn people: learning, resuming, guarding, freezing and what they leave behind."""

import contextlib
import itertools
import json
import logging
import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posenet.checkpoints.file import read_checkpoint
from posenet.data.batch import Batch
from posenet.data.store.reader import Store
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, DataError, TrainingError
from posenet.model.posenet import PoseNet
from posenet.settings import GuardConfig, LogConfig, load_config
from posenet.training.freezing import freeze
from posenet.training.input_stream import CollectiveDataError
from posenet.training.loss_guard import LossGuard
from posenet.training.run_log import RunLog
from posenet.training.setup import build_trainer
from posenet.training.trainer import StepResult, Trainer, TrainStep
from tests.helpers.tiny_training import tiny_trainer


@pytest.fixture
def make(stores, tmp_path):
    """Builds trainers of a tiny network; keyword ``steps`` is --max-steps, the rest are overrides."""
    opened = []

    def build(*overrides: str, folder: str = "run", steps: int = 0, frozen=()):
        path = tmp_path / folder
        config = load_config(
            None,
            [
                f"checkpoint.path={str(path)!r}",
                "model.stacks=1",
                "model.width=16",
                "model.growth=2",
                "train.input_size=64",
                "train.batch_size=2",
                "train.epochs=2",
                "optim.name='adamw'",
                "optim.lr=1e-3",
                "optim.warmup_epochs=1",
                "data.workers=0",
                "log.tensorboard=false",
                "log.every_steps=2",
                f"data.train={str(stores['train'])!r}",
                f"data.val={str(stores['val'])!r}",
                *overrides,
            ],
        )
        torch.manual_seed(config.train.seed)
        network = PoseNet.from_config(config)
        freeze(network, frozen)
        log = RunLog(path, LogConfig(tensorboard=False, curves=False))
        train, val = Store(config.data.train), Store(config.data.val)
        opened.extend([log, train, val])
        runtime = Runtime(torch.device("cpu"))
        return build_trainer(config, network, runtime, train, val, log, steps)

    yield build
    for thing in opened:
        thing.close()


def weights(trainer):
    return {n: t.clone() for n, t in trainer.model.network.state_dict().items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert [n for n in a if not torch.equal(a[n], b[n])] == []


def lines(trainer, kind):
    text = (trainer.folder.path / "log.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


def losses(trainer):
    return [(e["epoch"], e["train_loss"], e["val_loss"]) for e in lines(trainer, "epoch")]


def test_a_run_leaves_checkpoints_and_logs(make):
    trainer = make()
    assert trainer.run()
    path = trainer.folder.path
    assert {"last.pth", "best.pth", "log.txt", "log.jsonl"} <= set(os.listdir(path))
    epochs = lines(trainer, "epoch")
    assert [e["epoch"] for e in epochs] == [1, 2]
    assert epochs[1]["train_loss"] < epochs[0]["train_loss"] and epochs[1]["val_loss"] > 0
    assert lines(trainer, "train")[0].keys() >= {"loss", "lr", "samples_per_s", "data_wait"}
    assert "Epoch 1  train_loss" in (path / "log.txt").read_text()
    best = min(epochs, key=lambda e: e["val_loss"])
    assert read_checkpoint(path / "best.pth")["progress"]["epoch"] == best["epoch"]


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_resuming_anywhere_gives_the_uninterrupted_run(make, cut):
    extra = ["optim.accumulate=2", "guard.max_skips=2"]
    whole = make(*extra, "train.epochs=3", folder="whole")
    assert whole.run()
    first = make(*extra, "train.epochs=3", folder="cut", steps=cut)
    assert not first.run() and first.progress.total_steps == cut
    second = make(*extra, "train.epochs=3", folder="cut")
    path, state = second.folder.newest_intact()
    second.load_state_dict(state, str(path))
    assert second.run()
    assert_equal(weights(second), weights(whole))
    assert losses(second) == losses(whole)
    assert second.progress.best == whole.progress.best


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_step_and_saves(make, number):
    trainer = make("train.epochs=50")
    update, calls = trainer.train_step, []

    def interrupted(batches):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return update(batches)

    trainer.train_step = interrupted
    assert not trainer.run()
    assert read_checkpoint(trainer.folder.last)["progress"]["total_steps"] == 3


def exploding(trainer, at):
    """Make the loss of the given calls NaN."""
    forward, calls = trainer.model.forward, []

    def explode(*batch):
        calls.append(1)
        return forward(*batch) * (math.nan if len(calls) in at else 1)

    trainer.model.forward = explode
    return calls


def test_guard_skips_and_names_the_images(make):
    trainer = make()
    exploding(trainer, {2})
    assert trainer.run()
    (skip,) = lines(trainer, "skip")
    assert skip["step"] == 2 and len(skip["image_ids"]) == 2
    assert all(torch.isfinite(t).all() for t in weights(trainer).values())
    assert all(math.isfinite(e["train_loss"]) for e in lines(trainer, "epoch"))


def test_skips_in_a_row_return_to_the_checkpoint_and_go_on_after_them(make):
    trainer = make("guard.max_skips=2", "checkpoint.every_steps=1", "train.epochs=3")
    restored = []
    load_weights = trainer.state.load_weights

    def remember(state, *rest):
        restored.append(state["progress"]["total_steps"])
        load_weights(state, *rest)

    trainer.state.load_weights = remember
    exploding(trainer, {3, 4})
    assert trainer.run()
    assert len(restored) == 1 and restored[0] >= 2
    assert trainer.progress.total_steps == 3 * trainer.input.steps_per_epoch


def test_the_return_is_to_weights_from_before_the_explosion(make):
    trainer = make("guard.max_skips=3", "guard.threshold=1e4", "checkpoint.every_steps=1", "train.epochs=3")
    update, calls = trainer.train_step, []

    def explode_once(batches):
        calls.append(1)
        if len(calls) == 5:
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.mul_(1e4)
        return update(batches)

    trainer.train_step = explode_once
    assert trainer.run()
    assert len(lines(trainer, "skip")) == 3
    assert all(t.abs().max() < 1e4 for n, t in weights(trainer).items() if "running" not in n)


def test_explosion_after_the_return_ends_the_run_with_a_typed_error(make):
    trainer = make("guard.max_skips=2", "checkpoint.every_steps=1", "train.epochs=9")
    exploding(trainer, set(range(3, 99)))
    with pytest.raises(TrainingError, match="explodes again"):
        trainer.run()


def test_explosion_from_the_start_says_so(make):
    trainer = make("guard.max_skips=2")
    exploding(trainer, set(range(99)))
    with pytest.raises(TrainingError, match="before the first checkpoint"):
        trainer.run()


def test_frozen_weights_and_statistics_stay_bit_identical(make):
    trainer = make(frozen=["stem.*", "stacks.0.hourglass.*"])
    before = weights(trainer)
    assert trainer.run()
    after = weights(trainer)
    frozen = [n for n in before if n.startswith(("stem.", "stacks.0.hourglass."))]
    assert any("running_mean" in n for n in frozen)
    assert_equal({n: before[n] for n in frozen}, {n: after[n] for n in frozen})
    assert any(not torch.equal(before[n], after[n]) for n in before if n.startswith("stacks.0.heads."))


def test_another_network_is_not_resumed(make):
    make(steps=1).run()
    other = make("model.width=32")
    with pytest.raises(CheckpointError, match="another architecture"):
        other.load_state_dict(read_checkpoint(other.folder.last), "last.pth")


def test_other_frozen_parameters_are_not_resumed_silently(make):
    make(steps=1).run()
    other = make(frozen=["stem.*"])
    with pytest.raises(CheckpointError, match="train.freeze"):
        other.load_state_dict(read_checkpoint(other.folder.last), "last.pth")


@pytest.mark.parametrize("first, second", [("adamw", "sgd"), ("sgd", "adamw")])
def test_another_optimizer_is_not_resumed(make, first, second):
    make(f"optim.name={first!r}", steps=1).run()
    other = make(f"optim.name={second!r}")
    with pytest.raises(CheckpointError, match="optim.name"):
        other.load_state_dict(read_checkpoint(other.folder.last), "last.pth")


def test_new_optimizer_settings_hold_after_resuming(make):
    make("optim.name='sgd'", steps=1).run()
    trainer = make("optim.name='sgd'", "optim.weight_decay=0.3", "optim.momentum=0.1")
    trainer.load_state_dict(read_checkpoint(trainer.folder.last), "last.pth")
    (group,) = trainer.optimizer.param_groups
    assert (group["weight_decay"], group["momentum"]) == (0.3, 0.1)
    assert any("momentum_buffer" in state for state in trainer.optimizer.state.values())


def test_bare_weights_are_not_a_run(make, tmp_path):
    trainer = make()
    with pytest.raises(CheckpointError, match="--weights"):
        trainer.load_state_dict({"model": trainer.model.network.state_dict()}, "bare.pth")


def test_best_is_judged_by_ap_where_it_is_evaluated(make):
    trainer = make("train.epochs=4")
    scores = iter([0.1, 0.4, 0.3, 0.2])
    trainer.evaluate = lambda epoch, step, check_stop: {"AP": next(scores)}
    assert trainer.run()
    best = read_checkpoint(trainer.folder.best)["progress"]
    assert best["epoch"] == 2 and best["best"] == 0.4


def test_bf16_trains(make):
    trainer = make("train.amp='bf16'", steps=2)
    assert not trainer.run()
    assert all(torch.isfinite(t).all() for t in weights(trainer).values())


def resumed(make, *overrides, **rest):
    trainer = make(*overrides, **rest)
    trainer.load_state_dict(read_checkpoint(trainer.folder.last), "last.pth")
    return trainer


def test_loss_scale_is_a_state_where_dynamic_and_a_setting_where_fixed(make):
    fp16, fixed = "train.amp='fp16'", "train.loss_scale=32.0"
    make(fp16, steps=1).run()
    trainer = make(fp16)
    state = read_checkpoint(trainer.folder.last)
    state["scaler"]["scale"] = 2048.0
    trainer.load_state_dict(state, "last.pth")
    assert trainer.scaler.get_scale() == 2048
    assert resumed(make, fp16, fixed).scaler.get_scale() == 32
    assert not resumed(make).scaler.is_enabled()
    make(fp16, fixed, folder="fixed", steps=1).run()
    scaler = resumed(make, fp16, folder="fixed").scaler
    assert scaler.get_backoff_factor() < 1 and scaler.get_growth_interval() < 10**6


def test_guard_and_random_states_come_back(make):
    trainer = make(steps=2)
    trainer.guard.good_since_roll_back = 7
    torch.manual_seed(123)
    trainer.run()
    expected = torch.rand(3)
    torch.manual_seed(5)
    other = resumed(make)
    assert other.guard.good_since_roll_back == 9
    assert torch.equal(torch.rand(3), expected)


def test_resuming_with_another_batch_size_keeps_the_share_of_the_epoch(make):
    trainer = make("train.batch_size=1", "train.input_size=128", steps=4)
    whole = trainer.input.steps_per_epoch
    trainer.run()
    other = resumed(make, "train.batch_size=2", "train.input_size=128")
    assert other.progress.step == 4 * other.input.steps_per_epoch // whole and other.progress.total_steps == 4


def test_checkpoints_by_the_clock(make):
    for minutes, count in ((1e-9, 3), (60.0, 1)):
        trainer = make(f"checkpoint.every_minutes={minutes}", "train.epochs=1", folder=f"every_{minutes}")
        assert trainer.run()
        assert len(trainer.folder.history()) == count


@pytest.mark.parametrize("where", ["validate", "evaluate"])
def test_a_signal_breaks_validation_off_and_the_resumed_run_repeats_it(make, where):
    trainer = make("train.epochs=1")

    def evaluate(epoch, step, check_stop):
        check_stop()
        return {"AP": 0.5}

    trainer.evaluate = evaluate
    ask = {"validate": trainer.model.eval, "evaluate": trainer.validate}[where]

    def ask_and_go_on():
        os.kill(os.getpid(), signal.SIGTERM)
        return ask()

    setattr(*{"validate": (trainer.model, "eval"), "evaluate": (trainer, "validate")}[where], ask_and_go_on)
    assert not trainer.run()
    assert lines(trainer, "epoch") == []
    other = resumed(make, "train.epochs=1")
    assert other.progress.step == other.input.steps_per_epoch and other.run()
    assert len(lines(other, "epoch")) == 1


def test_an_error_while_validating_loses_nothing(make):
    trainer = make("train.epochs=1")

    def evaluate(*_):
        raise DataError("an image is damaged")

    trainer.evaluate = evaluate
    with pytest.raises(DataError):
        trainer.run()
    assert read_checkpoint(trainer.folder.last)["progress"]["step"] == trainer.input.steps_per_epoch


@pytest.mark.parametrize("every, evaluated", [(1, [1, 2, 3]), (2, [2, 3]), (5, [3])])
def test_evaluation_comes_every_so_many_epochs_and_last(make, every, evaluated):
    trainer = make(f"train.evaluate_every={every}", "train.epochs=3")
    seen = []
    trainer.evaluate = lambda epoch, step, check_stop: seen.append(epoch) or {"AP": 0.0}
    assert trainer.run() and seen == evaluated


def test_scores_of_different_kinds_are_not_compared(make):
    trainer = make("train.epochs=1")
    trainer.evaluate = lambda *_: {"AP": 0.5}
    assert trainer.run()
    other = resumed(make, "train.epochs=2")
    assert other.run()
    assert read_checkpoint(other.folder.best)["progress"]["epoch"] == 2


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_layout_is_the_configured_one(make, channels_last):
    trainer = make(f"train.channels_last={str(channels_last).lower()}", steps=1)
    seen = []
    trainer.model.network.stem.register_forward_hook(lambda *x: seen.append(x[2]))
    trainer.run()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert seen[0].is_contiguous(memory_format=layout)


class RecordingRuntime(Runtime):
    """A runtime of one process that records the calls which only several processes need.

    Attributes:
        synced: for each backward pass, whether it would average the gradients over the processes.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.synced: list[bool] = []
        self._sync = True

    @contextlib.contextmanager
    def no_gradient_sync(self, module: nn.Module) -> Iterator[None]:
        self._sync = False
        yield
        self._sync = True

    def record_backward(self, gradient: torch.Tensor) -> None:
        self.synced.append(self._sync)


class Linear(nn.Module):
    """A module that takes a batch as the training step does; its weights are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, images, joints, person_mask, mask_miss):
        return images @ self.weight * mask_miss


def ones_batch(factor: float = 1.0) -> Batch:
    """Two images of four ones; the loss of each is 4 times the factor."""
    images = torch.ones(2, 4)
    return Batch(images, images, images, torch.full((2,), factor), torch.arange(2))


def linear_step(runtime: Runtime, clip: float = 0.0) -> tuple[Linear, TrainStep]:
    module = Linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scaler = make_grad_scaler(torch.device("cpu"), "off", 0.0)
    return module, TrainStep(module, optimizer, scaler, LossGuard(GuardConfig(threshold=100)), runtime, clip)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_only_the_last_backward_pass_of_a_step_averages_the_gradients(num_batches: int) -> None:
    runtime = RecordingRuntime()
    module, step = linear_step(runtime)
    module.weight.register_hook(runtime.record_backward)
    step([ones_batch() for _ in range(num_batches)])
    assert runtime.synced == [False] * (num_batches - 1) + [True]


@pytest.mark.parametrize(
    "world_size, num_batches, bad, synced",
    [
        (1, 1, 0, []),
        (1, 3, 0, []),
        (1, 3, 2, [False, False]),
        (2, 1, 0, []),
        (2, 3, 0, []),
        (2, 3, 1, [False]),
        (2, 3, 2, [False, False, True]),
    ],
)
def test_a_bad_last_batch_still_averages_if_several_processes_accumulate(
    world_size: int, num_batches: int, bad: int, synced: list[bool]
) -> None:
    """DistributedDataParallel has prepared for it in the forward pass."""
    runtime = RecordingRuntime()
    runtime.world_size = world_size
    module, step = linear_step(runtime)
    module.weight.register_hook(runtime.record_backward)
    result = step([ones_batch(1e9 if number == bad else 1.0) for number in range(num_batches)])
    assert result.loss is None and result.bad_value == 4e9
    assert runtime.synced == synced
    assert module.weight.grad is None and module.weight.tolist() == [1.0] * 4


def test_the_loss_of_a_step_is_the_mean_over_its_batches_and_all_processes() -> None:
    runtime = RecordingRuntime()
    runtime.world_size = 2
    runtime.all_reduce_sum = lambda values: values + torch.tensor([10.0, 0.0])  # the other process's loss is 10
    _, step = linear_step(runtime)
    result = step([ones_batch(1.0), ones_batch(2.0)])
    assert result.loss == pytest.approx((4 + 10 + 8 + 10) / 4)


def test_a_step_is_dropped_if_another_process_has_a_bad_loss() -> None:
    runtime = RecordingRuntime()
    runtime.all_reduce_sum = lambda values: values + torch.tensor([0.0, 1.0])
    module, step = linear_step(runtime)
    result = step([ones_batch()])
    assert result.loss is None and result.bad_value == 4
    assert module.weight.tolist() == [1.0] * 4


def test_a_gradient_up_to_the_limit_is_not_clipped() -> None:
    for clip, weight in ((0.0, 0.0), (2.0, 0.0), (1.0, 0.5)):  # the gradient is (1, 1, 1, 1), its norm 2
        module, step = linear_step(Runtime(torch.device("cpu")), clip)
        step([ones_batch()])
        torch.testing.assert_close(module.weight.detach(), torch.full((4,), weight), atol=1e-5, rtol=0)


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
    step_results = itertools.chain(results, itertools.repeat(StepResult(loss=1.0)))
    losses = itertools.chain(val_losses, itertools.repeat(1.0))
    settings = ("train.batch_size=1", "train.input_size=128", "train.epochs=4", "checkpoint.keep=99", *overrides)
    runtime = Runtime(torch.device("cpu"))
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
        steps = [line["step"] for line in lines(trainer, "train")]
    assert length > 4
    assert steps == [step for step in range(1, 2 * length + 1) if step % 4 == 0 or step % length == 0]


def test_a_run_that_ends_with_an_epoch_validates_before_it_stops(stores: dict[str, Path], tmp_path: Path) -> None:
    with trainer_with_results(stores, tmp_path / "probe") as trainer:
        length = trainer.input.steps_per_epoch
    for steps, epochs in ((length - 1, 0), (length, 1), (length + 1, 1)):
        with trainer_with_results(stores, tmp_path / str(steps), steps=steps) as trainer:
            assert not trainer.run()
            assert (trainer.progress.total_steps, trainer.progress.epoch) == (steps, epochs)
            assert len(lines(trainer, "epoch")) == epochs


def test_every_step_has_the_learning_rate_of_the_schedule(stores: dict[str, Path], tmp_path: Path) -> None:
    rates = []
    with trainer_with_results(stores, tmp_path / "run", "train.epochs=2", "optim.warmup_epochs=2") as trainer:
        length = trainer.input.steps_per_epoch

        def record_rate(batches: Sequence[Batch]) -> StepResult:
            rates.append(trainer.optimizer.param_groups[0]["lr"])
            return StepResult(loss=1.0)

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
        assert [line["step"] for line in lines(trainer, "skip")] == [4]
        assert averaged_after == [1, 3, *range(5, length + 1)]
        [epoch] = lines(trainer, "epoch")
        assert epoch["train_loss"] == pytest.approx((1 + 3 + length - 4) / (length - 2))


def test_no_checkpoint_is_saved_between_bad_steps(stores: dict[str, Path], tmp_path: Path) -> None:
    bad = StepResult(bad_value=math.inf)
    results = [StepResult(loss=1.0), bad, bad, StepResult(loss=1.0)]
    overrides = ("train.epochs=1", "checkpoint.every_steps=1", "guard.max_skips=3")
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
    batches = [ones_batch(), ones_batch()]
    with trainer_with_results(stores, tmp_path / "run") as trainer:
        trainer.runtime.gather_objects = lambda own: [own, (math.inf, [7]), (3.0, [8]), (1e30, [9])]
        assert trainer._find_cause(1.0, batches) == (math.inf, [7, 9])
        assert trainer._find_cause(1e20, batches) == (1e20, [0, 1, 0, 1, 7, 9])
        trainer.runtime.gather_objects = lambda own: [own, own]
        assert trainer._find_cause(1.0, batches) == (1.0, [0, 1, 0, 1])


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


def test_the_validation_loss_is_none_without_validation_data(stores: dict[str, Path], tmp_path: Path) -> None:
    with tiny_trainer(Runtime(torch.device("cpu")), stores, tmp_path / "run") as trainer:
        assert trainer.validate() > 0
        trainer.validation_data = None
        assert trainer.validate() is None


def test_the_other_ranks_return_to_the_checkpoint_that_rank_0_has_found(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    with trainer_with_results(stores, tmp_path, steps=2) as trainer:
        trainer.run()
        weights_at_step_2 = weights(trainer)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(2)
        trainer.runtime.rank = 1
        trainer.runtime.broadcast_object = lambda value: trainer.folder.last
        trainer._return_to_checkpoint()
        assert_equal(weights(trainer), weights_at_step_2)


def test_a_stopped_run_logs_where_it_continues(
    stores: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trainer_with_results(stores, tmp_path, steps=2) as trainer, caplog.at_level(logging.INFO):
        trainer.run()
    assert "Stopped after step 2 (epoch 1); --resume continues from there" in caplog.text

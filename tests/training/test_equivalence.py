"""One process, several processes, DataParallel and accumulated batches train the same network.

The network computes in float64, so that only targets and loss are rounded to float32. The tolerance is the float32
rounding error of 6e-8, times sixteen for what accumulates over the steps. With a float32 network no two modes would
agree to more than two digits: BatchNorm over the few cells of a tiny network doubles rounding errors in every layer,
and even the order of a sum changes the result. Sums also depend on the number of threads, which is fixed in
``tests/conftest.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.training.model_with_loss import ModelWithLoss
from tests.helpers.process_groups import FakeDataParallelRuntime, run_in_processes, single_process_group
from tests.helpers.tiny_training import CPU, copy_weights, tiny_trainer, train_tiny_network

STEPS = 10
TOLERANCE = 1e-6
BATCH_NORM = ("*.norm.*",)
NON_SQUARE = "train.input_size=[64, 128]"
"""An input size with enough cells for batches of one image."""


class RunResult(NamedTuple):
    losses: list[float | None]
    weights: dict[str, Tensor]


Train = Callable[..., RunResult]
Weights = dict[str, Tensor]


def weight_difference(weights: Weights, reference: Weights) -> float:
    """The largest difference between two state dicts, relative to the largest value of each tensor."""
    assert weights.keys() == reference.keys()
    differences = []
    for name, tensor in reference.items():
        largest = tensor.abs().max().clamp(min=1e-3)
        differences.append(((weights[name] - tensor).abs().max() / largest).item())
    return max(differences)


def run_difference(run: RunResult, reference: RunResult) -> float:
    """The largest relative difference between the losses and weights of two runs."""
    assert len(run.losses) == len(reference.losses)
    losses = [abs(loss - expected) / abs(expected) for loss, expected in zip(run.losses, reference.losses)]
    return max([*losses, weight_difference(run.weights, reference.weights)])


@pytest.fixture(autouse=True)
def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    from_config = PoseNet.from_config
    monkeypatch.setattr(PoseNet, "from_config", lambda config: from_config(config).double())
    monkeypatch.setattr(
        "posenet.training.model_with_loss.images_to_input",
        lambda images, channels_last: images.permute(0, 3, 1, 2).double().div_(255),
    )


@pytest.fixture
def initial_weights(stores: dict[str, Path], tmp_path: Path) -> Weights:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "initial") as trainer:
        return copy_weights(trainer)


@pytest.fixture
def train_here(stores: dict[str, Path], tmp_path: Path) -> Train:
    """A function that trains in this process; its arguments are a folder name, settings, and those of tiny_trainer."""

    def train(name: str, *overrides: str, runtime: Runtime = Runtime(CPU), **options: Any) -> RunResult:
        return RunResult(*train_tiny_network(runtime, stores, tmp_path / name, *overrides, **options))

    return train


@pytest.fixture
def train_in_two_processes(stores: dict[str, Path], tmp_path: Path) -> Train:
    """The same function for two processes; it checks that both have the same losses and weights."""

    def train(name: str, *overrides: str, **options: Any) -> RunResult:
        def train_rank(runtime: Runtime) -> tuple[list[float | None], Weights]:
            return train_tiny_network(runtime, stores, tmp_path / name, *overrides, **options)

        results = run_in_processes(2, tmp_path / f"{name}.results", train_rank)
        first, second = (RunResult(*result) for result in results)
        assert first.losses == second.losses
        assert run_difference(first, second) == 0
        return first

    return train


def test_two_processes_with_synchronized_batch_norm_are_one_process_with_twice_the_batch(
    train_here: Train, train_in_two_processes: Train, initial_weights: Weights
) -> None:
    reference = train_here("one", "train.batch_size=4", steps=STEPS)
    assert len(reference.losses) == STEPS
    assert weight_difference(reference.weights, initial_weights) > 100 * TOLERANCE
    two = train_in_two_processes("two", "train.batch_size=2", "parallel.sync_bn=true", steps=STEPS)
    assert run_difference(two, reference) < TOLERANCE


def test_with_frozen_batch_norm_all_modes_agree(
    train_here: Train, train_in_two_processes: Train, initial_weights: Weights
) -> None:
    options: dict[str, Any] = {"frozen": BATCH_NORM, "steps": STEPS}
    accumulate = "optim.accumulate=2"
    reference = train_here("one", NON_SQUARE, "train.batch_size=4", **options)
    assert weight_difference(reference.weights, initial_weights) > 100 * TOLERANCE
    data_parallel = FakeDataParallelRuntime(CPU)
    runs = {
        "DataParallel": train_here("dp", NON_SQUARE, "train.batch_size=4", runtime=data_parallel, **options),
        "accumulated": train_here("accumulated", NON_SQUARE, "train.batch_size=2", accumulate, **options),
        "two processes": train_in_two_processes("two", NON_SQUARE, "train.batch_size=2", **options),
        "two, accumulated": train_in_two_processes("both", NON_SQUARE, "train.batch_size=1", accumulate, **options),
    }
    for name, run in runs.items():
        assert run_difference(run, reference) < TOLERANCE, name


def test_a_process_group_of_one_process_trains_bit_for_bit_like_no_group(train_here: Train) -> None:
    settings = ("train.batch_size=2", "optim.accumulate=2")
    plain = train_here("plain", *settings, steps=4)
    with single_process_group() as runtime:
        distributed = train_here("group", *settings, runtime=runtime, steps=4)
    assert run_difference(distributed, plain) == 0


MODES = ("plain", "DataParallel", "compiled", "two processes")
STEPS_BEFORE = 2
STEPS_IN_ALL = 4


def continue_from_each(
    runtime: Runtime, checkpoints: list[Path | None], *args: Any, **options: Any
) -> list[tuple[list[float | None], Weights]]:
    """Losses and weights of runs that continue from the checkpoints; None starts a run.

    One trainer makes all of these runs, so that it is compiled once.
    """
    results = []
    with tiny_trainer(runtime, *args, **options) as trainer:
        trainer.validation_loader = None  # validation would be compiled too
        for path in checkpoints:
            if path is not None:
                trainer.load_state_dict(read_checkpoint(path), str(path))
            trainer.losses.clear()
            trainer.run()
            results.append((list(trainer.losses), copy_weights(trainer)))
    return results


def test_every_mode_continues_from_the_checkpoints_of_every_other_mode(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with_eager = functools.partialmethod(ModelWithLoss.compile, backend="eager")  # needs no C++ compiler
    monkeypatch.setattr(ModelWithLoss, "compile", compile_with_eager)

    def train(mode: str, name: str, steps: int, checkpoints: list[Path | None]) -> list[RunResult]:
        def train_rank(runtime: Runtime) -> list[tuple[list[float | None], Weights]]:
            settings = (
                f"train.batch_size={4 // runtime.world_size}",
                f"parallel.compile={'true' if mode == 'compiled' else 'false'}",
            )
            folder = tmp_path / name
            return continue_from_each(runtime, checkpoints, stores, folder, *settings, frozen=BATCH_NORM, steps=steps)

        if mode == "two processes":
            results = run_in_processes(2, tmp_path / f"{name}.results", train_rank)[0]
        elif mode == "DataParallel":
            results = train_rank(FakeDataParallelRuntime(CPU))
        else:
            results = train_rank(Runtime(CPU))
        return [RunResult(*result) for result in results]

    (uninterrupted,) = train("plain", "uninterrupted", STEPS_IN_ALL, [None])
    interrupted = {mode: train(mode, mode, STEPS_BEFORE, [None])[0] for mode in MODES}
    checkpoints = [tmp_path / mode / "last.pth" for mode in MODES]
    for mode in MODES:
        continued = train(mode, f"continued {mode}", STEPS_IN_ALL, checkpoints)
        for first_mode, rest in zip(MODES, continued, strict=True):
            whole = RunResult(interrupted[first_mode].losses + rest.losses, rest.weights)
            assert len(whole.losses) == STEPS_IN_ALL
            assert run_difference(whole, uninterrupted) < TOLERANCE, f"{first_mode}, then {mode}"

"""One process, several, DataParallel's halves and accumulated batches train the same network.

The network runs in float64, and what remains is the float32 of targets and loss: its rounding of 6e-8, times sixteen
for what the steps add, is the tolerance. In float32 throughout, BatchNorm over the few cells of a tiny network doubles
rounding errors from layer to layer, and no mode agrees with another, nor with itself in another order of summation, to
more than two digits. Threads are pinned, since sums also differ with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from tests.helpers.process_groups import FakeDataParallelRuntime, run_in_processes, single_process_group
from tests.helpers.tiny_training import CPU, tiny_trainer, train_tiny_network

STEPS = 10
TOLERANCE = 1e-6
NORMS = ("*.norm.*",)
Curve = tuple[list[float | None], dict[str, torch.Tensor]]


def difference(a: Curve, b: Curve) -> float:
    """The largest relative difference of losses and of weights, each tensor by its own largest value."""
    assert len(a[0]) == len(b[0]) and a[1].keys() == b[1].keys()
    losses = [abs(x - y) / abs(y) for x, y in zip(a[0], b[0])]
    weights = [((a[1][n] - t).abs().max() / t.abs().max().clamp(min=1e-3)).item() for n, t in b[1].items()]
    return max(losses + weights)


def moved(curve: Curve, start: Curve) -> bool:
    return difference(([], curve[1]), ([], start[1])) > 100 * TOLERANCE


@pytest.fixture(autouse=True)
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    build = PoseNet.from_config
    monkeypatch.setattr(PoseNet, "from_config", lambda config: build(config).double())
    monkeypatch.setattr(
        "posenet.training.model_with_loss.images_to_input",
        lambda images, _: images.permute(0, 3, 1, 2).double().div_(255),
    )


@pytest.fixture
def start(stores: dict[str, Path], tmp_path: Path) -> Curve:
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "start") as trainer:
        return [], {n: t.clone() for n, t in trainer.model.network.state_dict().items()}


@pytest.fixture
def one(stores: dict[str, Path], tmp_path: Path) -> Callable[..., Curve]:
    """A run in this process: name of its folder, overrides, and other arguments of ``tiny_trainer``."""

    def call(name: str, *overrides: str, runtime: Runtime = Runtime(CPU), **options: Any) -> Curve:
        return train_tiny_network(runtime, stores, tmp_path / name, *overrides, **options)

    return call


@pytest.fixture
def two(stores: dict[str, Path], tmp_path: Path) -> Callable[..., Curve]:
    """The same in two processes, which must agree bit for bit."""

    def call(name: str, *overrides: str, **options: Any) -> Curve:
        first, second = run_in_processes(
            2,
            tmp_path / f"{name}.results",
            lambda runtime: train_tiny_network(runtime, stores, tmp_path / name, *overrides, **options),
        )
        assert first[0] == second[0] and difference(first, second) == 0
        return first

    return call


def test_two_processes_with_shared_statistics_are_one_with_twice_the_batch(one, two, start):
    reference = one("one", "train.batch_size=4", steps=STEPS)
    assert len(reference[0]) == STEPS and moved(reference, start)
    found = two("two", "train.batch_size=2", "parallel.sync_bn=true", steps=STEPS)
    assert difference(found, reference) < TOLERANCE


def test_with_frozen_statistics_all_modes_agree(one, two, start):
    frozen, wide = {"frozen": NORMS, "steps": STEPS}, "train.input_size=[64, 128]"  # which lets a batch be 1
    reference = one("one", wide, "train.batch_size=4", **frozen)
    assert moved(reference, start)
    for found in (
        one("in two", wide, "train.batch_size=4", runtime=FakeDataParallelRuntime(CPU), **frozen),
        one("accumulated", wide, "train.batch_size=2", "optim.accumulate=2", **frozen),
        two("two", wide, "train.batch_size=2", **frozen),
        two("two accumulated", wide, "train.batch_size=1", "optim.accumulate=2", **frozen),
    ):
        assert difference(found, reference) < TOLERANCE


def test_a_single_distributed_process_is_the_plain_tool_bit_for_bit(one):
    plain = one("plain", "train.batch_size=2", "optim.accumulate=2", steps=4)
    with single_process_group() as runtime:
        found = one("world", "train.batch_size=2", "optim.accumulate=2", runtime=runtime, steps=4)
    assert difference(found, plain) == 0


MODES = ("plain", "in two", "compiled", "two processes")


def go_on(runtime: Runtime, checkpoints: list[Path | None], *args: Any, **options: Any) -> list[Curve]:
    """The curves of one run that goes on from each of the checkpoints; None is its start."""
    curves = []
    with tiny_trainer(runtime, *args, **options) as trainer:
        trainer.validation_loader = None  # which would be compiled once more
        for path in checkpoints:
            if path is not None:
                trainer.load_state_dict(read_checkpoint(path), str(path))
            trainer.losses.clear()
            trainer.run()
            curves.append((trainer.losses[:], {n: t.clone() for n, t in trainer.model.network.state_dict().items()}))
    return curves


def test_every_mode_goes_on_from_every_other_s_checkpoint(stores, tmp_path, monkeypatch):
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_(module, backend="eager"))

    def phase(mode: str, name: str, steps: int, *checkpoints: Path | None) -> list[Curve]:
        def go(runtime: Runtime) -> list[Curve]:
            return go_on(
                runtime,
                list(checkpoints),
                stores,
                tmp_path / name,
                f"train.batch_size={4 // runtime.world_size}",
                f"parallel.compile={str(mode == 'compiled').lower()}",
                frozen=NORMS,
                steps=steps,
            )

        if mode == "two processes":
            return run_in_processes(2, tmp_path / f"{name}.results", go)[0]
        return go(FakeDataParallelRuntime(CPU) if mode == "in two" else Runtime(CPU))

    (whole,), begun = phase("plain", "whole", 4, None), [phase(mode, mode, 2, None)[0] for mode in MODES]
    for second in MODES:
        curves = phase(second, f"on {second}", 4, *(tmp_path / first / "last.pth" for first in MODES))
        for (losses, _), (rest, weights) in zip(begun, curves, strict=True):
            assert len(losses + rest) == 4 and difference((losses + rest, weights), whole) < TOLERANCE

"""A run that is interrupted and resumed again and again gives, to the bit, the one that never stopped."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.synthetic.dataset import write_dataset
from tests.helpers.drawn_data import build_both
from tests.helpers.process_groups import run_in_processes
from tests.helpers.process_runs import (
    Interruption,
    assert_same_run,
    random_interruptions,
    read_final_checkpoints,
    run_in_fork,
    skipped_steps,
    start_or_resume,
)
from tests.helpers.tiny_training import CPU

SHORT = ("train.epochs=2", "train.patience=0", "guard.threshold=25")


@pytest.fixture(scope="session")
def more_stores(tmp_path_factory) -> dict[str, Path]:
    """Stores that give an epoch some ten steps."""
    folder = tmp_path_factory.mktemp("more")
    write_dataset(folder, train=16, val=3, seed=7, workers=1)
    return build_both(folder)


def steps_of(folder: Path) -> int:
    return read_final_checkpoints(folder)["last"]["progress"]["total_steps"]


def run_with_interruptions(stores, folder: Path, interruptions: list[Interruption], *overrides: str) -> None:
    for interruption in interruptions:
        assert run_in_fork(stores, folder, *overrides, interruption=interruption) == (
            -9 if interruption.kind == "SIGKILL" else 0
        ), interruption
    assert run_in_fork(stores, folder, *overrides) == 0


def run_two_processes(stores, folder: Path, *overrides: str, interruption: Interruption | None = None) -> None:
    run_in_processes(
        2,
        folder.with_suffix(".world"),
        lambda runtime: start_or_resume(runtime, stores, folder, *overrides, interruption=interruption),
    )


def run_two_processes_with_interruptions(
    stores, folder: Path, interruptions: list[Interruption], *overrides: str
) -> None:
    for interruption in interruptions:
        if interruption.kind == "SIGKILL":
            with pytest.raises(TrainingError, match=f"rank {interruption.rank} of 2 was killed by SIGKILL"):
                run_two_processes(stores, folder, *overrides, interruption=interruption)
        else:
            run_two_processes(stores, folder, *overrides, interruption=interruption)
    run_two_processes(stores, folder, *overrides)


def test_interrupted_in_every_way_it_is_the_uninterrupted_run(stores, tmp_path):
    assert run_in_fork(stores, tmp_path / "whole", *SHORT) == 0
    interruptions = [
        Interruption("SIGKILL", 2),
        Interruption("SIGINT", 3),
        Interruption("max-steps", 4),
        Interruption("SIGTERM", 5),
    ]
    run_with_interruptions(stores, tmp_path / "interrupted", interruptions, *SHORT)
    assert_same_run(tmp_path / "interrupted", tmp_path / "whole")
    assert skipped_steps(tmp_path / "whole")


def test_two_processes_interrupted_are_the_uninterrupted_ones(stores, tmp_path):
    overrides = (*SHORT, "optim.accumulate=1", "checkpoint.every_steps=2")
    run_two_processes(stores, tmp_path / "whole", *overrides)
    run_two_processes_with_interruptions(
        stores, tmp_path / "interrupted", [Interruption("SIGKILL", 5, rank=1)], *overrides
    )
    assert_same_run(tmp_path / "interrupted", tmp_path / "whole")


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_random_interruptions(more_stores, tmp_path, workers):
    overrides = (f"data.workers={workers}",)
    assert run_in_fork(more_stores, tmp_path / "whole", *overrides) == 0
    rng = random.Random(workers)
    for chain in range(8):
        folder = tmp_path / str(chain)
        run_with_interruptions(
            more_stores, folder, random_interruptions(rng, steps_of(tmp_path / "whole"), count=6), *overrides
        )
        assert_same_run(folder, tmp_path / "whole")


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_random_interruptions_of_two_processes(more_stores, tmp_path, workers):
    overrides = (f"data.workers={workers}",)
    run_two_processes(more_stores, tmp_path / "whole", *overrides)
    rng = random.Random(workers)
    for chain in range(4):
        folder = tmp_path / str(chain)
        interruptions = random_interruptions(rng, steps_of(tmp_path / "whole"), count=4, ranks=2)
        run_two_processes_with_interruptions(more_stores, folder, interruptions, *overrides)
        assert_same_run(folder, tmp_path / "whole")


def test_another_number_of_processes_and_another_batch_are_said(stores, tmp_path, caplog):
    folder, overrides = tmp_path / "run", ("train.epochs=2", "train.patience=0")
    run_two_processes(stores, folder, *overrides, "optim.accumulate=1", interruption=Interruption("max-steps", 2))
    begun = CheckpointFolder(folder).newest_intact()[1]
    assert len(begun["random"]) == 2
    with caplog.at_level("INFO"):
        start_or_resume(
            Runtime(CPU), stores, folder, *overrides, "train.batch_size=3", interruption=Interruption("max-steps", 3)
        )
    assert "had 2 processes and continues with 1" in caplog.text
    assert "An epoch had 3 steps and now has 2: step 2 of it becomes step 1" in caplog.text
    assert read_final_checkpoints(folder)["last"]["progress"]["total_steps"] == 3

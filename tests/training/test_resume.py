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
from tests.helpers.process_groups import CPU, in_world
from tests.helpers.process_runs import Cut, alone, assert_same_run, cuts_of, live, result, skipped

SHORT = ("train.epochs=2", "train.patience=0", "guard.threshold=25")


@pytest.fixture(scope="session")
def more_stores(tmp_path_factory) -> dict[str, Path]:
    """Stores that give an epoch some ten steps."""
    folder = tmp_path_factory.mktemp("more")
    write_dataset(folder, train=16, val=3, seed=7, workers=1)
    return build_both(folder)


def steps_of(folder: Path) -> int:
    return result(folder)["last"]["progress"]["total_steps"]


def live_to_the_end(stores, folder: Path, cuts: list[Cut], *overrides: str) -> None:
    for cut in cuts:
        assert alone(stores, folder, *overrides, cut=cut) == (-9 if cut.how == "SIGKILL" else 0), cut
    assert alone(stores, folder, *overrides) == 0


def in_two(stores, folder: Path, *overrides: str, cut: Cut | None = None) -> None:
    in_world(2, folder.with_suffix(".world"), lambda runtime: live(runtime, stores, folder, *overrides, cut=cut))


def live_to_the_end_in_two(stores, folder: Path, cuts: list[Cut], *overrides: str) -> None:
    for cut in cuts:
        if cut.how == "SIGKILL":
            with pytest.raises(TrainingError, match=f"rank {cut.rank} of 2 was ended by SIGKILL"):
                in_two(stores, folder, *overrides, cut=cut)
        else:
            in_two(stores, folder, *overrides, cut=cut)
    in_two(stores, folder, *overrides)


def test_interrupted_in_every_way_it_is_the_uninterrupted_run(stores, tmp_path):
    assert alone(stores, tmp_path / "whole", *SHORT) == 0
    cuts = [Cut("SIGKILL", 2), Cut("SIGINT", 3), Cut("max-steps", 4), Cut("SIGTERM", 5)]
    live_to_the_end(stores, tmp_path / "cut", cuts, *SHORT)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    assert skipped(tmp_path / "whole")


def test_two_processes_interrupted_are_the_uninterrupted_ones(stores, tmp_path):
    overrides = (*SHORT, "optim.accumulate=1", "checkpoint.every_steps=2")
    in_two(stores, tmp_path / "whole", *overrides)
    live_to_the_end_in_two(stores, tmp_path / "cut", [Cut("SIGKILL", 5, rank=1)], *overrides)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_any_cuts(more_stores, tmp_path, workers):
    overrides = (f"data.workers={workers}",)
    assert alone(more_stores, tmp_path / "whole", *overrides) == 0
    rng = random.Random(workers)
    for chain in range(8):
        folder = tmp_path / str(chain)
        live_to_the_end(more_stores, folder, cuts_of(rng, steps_of(tmp_path / "whole"), count=6), *overrides)
        assert_same_run(folder, tmp_path / "whole")


@pytest.mark.torture
@pytest.mark.parametrize("workers", [0, 2])
def test_any_cuts_of_two_processes(more_stores, tmp_path, workers):
    overrides = (f"data.workers={workers}",)
    in_two(more_stores, tmp_path / "whole", *overrides)
    rng = random.Random(workers)
    for chain in range(4):
        folder = tmp_path / str(chain)
        cuts = cuts_of(rng, steps_of(tmp_path / "whole"), count=4, ranks=2)
        live_to_the_end_in_two(more_stores, folder, cuts, *overrides)
        assert_same_run(folder, tmp_path / "whole")


def test_another_number_of_processes_and_another_batch_are_said(stores, tmp_path, caplog):
    folder, overrides = tmp_path / "run", ("train.epochs=2", "train.patience=0")
    in_two(stores, folder, *overrides, "optim.accumulate=1", cut=Cut("max-steps", 2))
    begun = CheckpointFolder(folder).newest_intact()[1]
    assert len(begun["random"]) == 2
    with caplog.at_level("INFO"):
        live(Runtime(CPU), stores, folder, *overrides, "train.batch_size=3", cut=Cut("max-steps", 3))
    assert "had 2 processes and continues with 1" in caplog.text
    assert "An epoch had 3 steps and now has 2: step 2 of it becomes step 1" in caplog.text
    assert result(folder)["last"]["progress"]["total_steps"] == 3

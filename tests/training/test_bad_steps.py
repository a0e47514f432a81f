"""Exploding losses: which are bad, skipped steps, returns to a checkpoint, and the end of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.devices.parallel import Runtime
from posenet.errors import TrainingError
from posenet.settings import GuardConfig
from posenet.training.bad_steps import BadStepPolicy
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.process_runs import find_differences
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import (
    ChangingRuntime,
    Stores,
    last,
    multiply,
    spoil_gradient,
    train_tiny,
    weights,
)

EVERY_STEP = ("checkpoint.every_steps=1", "checkpoint.keep=99")
LETTERS = {"continue": ".", "skip": "s", "roll back": "R", "fail": "F"}


def actions(policy: BadStepPolicy, steps: str) -> str:
    """The actions after good (.) and bad (x) steps, as ``LETTERS``."""
    return "".join(LETTERS[policy.next_action(bad=step == "x")] for step in steps)


@pytest.mark.parametrize("loss, bad", [(math.nan, 1), (-math.inf, 1), (100.1, 1), (100.0, 0), (0.0, 0), (-5.0, 0)])
def test_a_loss_that_is_not_finite_or_exceeds_the_threshold_is_bad(loss: float, bad: int) -> None:
    policy = BadStepPolicy(GuardConfig(threshold=100))
    assert policy.is_bad(loss) == bool(bad)
    for dtype in (torch.float32, torch.float64):
        vote = policy.bad_losses(torch.tensor(loss, dtype=dtype))
        assert vote.dtype == dtype and vote.item() == bad
    assert BadStepPolicy(GuardConfig()).is_bad(2.1e5) and not BadStepPolicy(GuardConfig()).is_bad(1.9e5)


@pytest.mark.parametrize(
    "max_skips, steps, expected",
    [
        (3, "xx.xx.xxx", "ss.ss.ssR"),
        (3, "xxxxxx", "ssRssF"),
        (2, "xx....xx", "sR....sF"),  # too few good steps after the return
        (2, "xx..x...xx", "sR..s...sR"),  # they need not be in a row
        (1, ".x.x", ".R.F"),
    ],
)
def test_the_last_allowed_skip_returns_and_too_early_a_second_time_fails(
    max_skips: int, steps: str, expected: str
) -> None:
    assert actions(BadStepPolicy(GuardConfig(max_skips=max_skips), recovery_steps=5), steps) == expected


def test_a_bad_step_of_a_run_is_skipped_and_the_log_names_its_images(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path / "one", *EVERY_STEP, max_steps=1)
    for name, change in {"loss": multiply({2: math.nan}), "gradient": spoil_gradient({2}, math.inf)}.items():
        folder = tmp_path / name
        train_tiny(stores, folder, *EVERY_STEP, runtime=ChangingRuntime(change), max_steps=2)
        (skip,) = read_log(folder, "skip")
        assert (skip["step"], skip["value"]) == (2, {"loss": "nan", "gradient": "nan"}[name])
        assert len(skip["image_ids"]) == 2
        log = (folder / "log.txt").read_text()
        assert f"Step 2 skipped: loss or gradient norm nan; image ids {skip['image_ids']}" in log
        assert find_differences(weights(folder), weights(tmp_path / "one")) == []
        states = [last(path)["optimizer"]["state"] for path in (folder, tmp_path / "one")]
        assert find_differences(*states) == []
        assert last(folder)["progress"]["loss_steps"] == 1


def test_the_images_of_a_skipped_step_are_those_of_the_ranks_whose_loss_is_bad(stores: Stores, tmp_path: Path) -> None:
    """Where the loss of all is good, as that of a bad gradient, they are those of all."""

    class OtherRank(Runtime):
        """Pretends that another process has a bad loss in the first step, and a good one in the second."""

        losses = iter([1e9, 5.0])

        def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
            return values + torch.tensor([[0.0], [1.0]])

        def gather_objects(self, value: Any) -> list[Any]:
            is_report = isinstance(value, tuple)  # of a skipped step: its loss and its images
            return [value, (next(self.losses), [77, 78])] if is_report else [value]

    train_tiny({"train": stores["train"]}, tmp_path, runtime=OtherRank(), max_steps=2)
    first, second = read_log(tmp_path, "skip")
    assert (first["value"], first["image_ids"]) == ("1000000000.0", [77, 78])
    assert len(second["image_ids"]) == 4 and second["image_ids"][2:] == [77, 78]


def test_after_too_many_skips_the_run_returns_to_the_checkpoint_before_them(stores: Stores, tmp_path: Path) -> None:
    """It goes on with the next batches; no checkpoint is saved between bad steps. The average goes back with them. One
    that was skipped earlier does not count."""
    exploding = ChangingRuntime(multiply({2: 1e9, 4: 1e9, 5: 1e9, 6: math.nan}))
    settings = (*EVERY_STEP, "guard.max_skips=3", "train.epochs=1", "average.kind=ema")
    result = train_tiny(stores, tmp_path, *settings, runtime=exploding)
    assert result.finished and result.steps == 7
    assert [entry["step"] for entry in read_log(tmp_path, "skip")] == [2, 4, 5, 6]
    saved = {int(path.stem.removeprefix("step-")) for path in tmp_path.glob("step-*.pth")}
    assert not saved & {4, 5} and {3, 7} <= saved
    assert f"3 steps skipped in a row: returning to {tmp_path}" in (tmp_path / "log.txt").read_text()
    after_return = read_checkpoint(tmp_path / "step-00000006.pth")
    before = read_checkpoint(tmp_path / "step-00000003.pth")
    for name in ("model", "average"):
        assert find_differences(after_return[name], before[name]) == []
    assert find_differences(after_return["optimizer"]["state"], before["optimizer"]["state"]) == []


def test_the_return_is_to_the_newest_checkpoint_from_before_the_bad_steps_also_after_resuming(
    stores: Stores, tmp_path: Path
) -> None:
    settings = (*EVERY_STEP, "guard.max_skips=2")
    train_tiny(stores, tmp_path, *settings, runtime=ChangingRuntime(multiply({3: 1e9})), max_steps=3)
    assert last(tmp_path)["guard"]["bad_in_a_row"] == 1  # saved at the end of the run, after a bad step
    train_tiny(stores, tmp_path, *settings, runtime=ChangingRuntime(multiply({1: 1e9})), resume=True, max_steps=4)
    assert f"returning to {tmp_path / 'step-00000002.pth'}" in (tmp_path / "log.txt").read_text()
    before = read_checkpoint(tmp_path / "step-00000002.pth")
    assert find_differences(weights(tmp_path), before["model"]) == []


@pytest.mark.parametrize(
    "bad, skipped, message", [(3, [3, 4, 5, 6], "explodes again after a return"), (1, [1, 2], "before the first")]
)
def test_a_run_that_keeps_exploding_ends(
    stores: Stores, tmp_path: Path, bad: int, skipped: list[int], message: str
) -> None:
    exploding = ChangingRuntime(multiply(dict.fromkeys(range(bad, 99), 1e9)))
    with pytest.raises(TrainingError, match=message):
        train_tiny(stores, tmp_path, "checkpoint.every_steps=1", "guard.max_skips=2", runtime=exploding)
    assert [entry["step"] for entry in read_log(tmp_path, "skip")] == skipped


def test_an_explosion_is_the_same_error_on_all_ranks(stores: Stores, tmp_path: Path) -> None:
    """Rank 0 reports it, and the others do not wait for it in order to save."""

    settings = ("guard.threshold=1e-6", "guard.max_skips=2", "checkpoint.every_steps=1")
    folder = tmp_path / "run"
    errors = errors_in_processes(
        2, tmp_path / "results", lambda runtime: train_tiny(stores, folder, *settings, runtime=runtime)
    )
    assert errors[0].startswith("TrainingError: 2 steps in a row were skipped before the first checkpoint")
    assert errors[1] == "OtherRankError: rank 0 has failed and reports why"
    assert not (folder / "last.pth").exists()

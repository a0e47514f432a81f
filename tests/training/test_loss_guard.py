"""The loss guard: bad losses, and when a run skips a step, returns to a checkpoint or fails."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posenet.settings import GuardConfig
from posenet.training.loss_guard import GuardAction, LossGuard

CONTINUE = GuardAction.CONTINUE
SKIP = GuardAction.SKIP
ROLL_BACK = GuardAction.ROLL_BACK
FAIL = GuardAction.FAIL


def record_steps(guard: LossGuard, steps: str) -> list[GuardAction]:
    """The actions after good (.) and bad (x) steps."""
    return [guard.record_outcome(bad=step == "x") for step in steps]


@pytest.mark.parametrize("loss", [math.nan, -math.nan, math.inf, -math.inf, 100.1, 1e30])
def test_a_loss_that_is_not_finite_or_exceeds_the_threshold_is_bad(loss: float) -> None:
    guard = LossGuard(GuardConfig(threshold=100))
    assert guard.is_bad(loss)
    assert guard.is_bad_loss(torch.tensor(loss)).item() == 1


@pytest.mark.parametrize("loss", [0.0, 1e-30, 99.9, 100.0, -5.0])
def test_a_loss_up_to_the_threshold_is_good(loss: float) -> None:
    guard = LossGuard(GuardConfig(threshold=100))
    assert not guard.is_bad(loss)
    assert guard.is_bad_loss(torch.tensor(loss)).item() == 0


def test_the_default_threshold_is_two_hundred_thousand() -> None:
    guard = LossGuard(GuardConfig())
    assert guard.is_bad(2.1e5)
    assert not guard.is_bad(1.9e5)


def test_the_last_allowed_skip_in_a_row_rolls_back() -> None:
    assert record_steps(LossGuard(GuardConfig(max_skips=3)), "xxx") == [SKIP, SKIP, ROLL_BACK]


def test_a_good_step_resets_the_count_of_skips() -> None:
    actions = record_steps(LossGuard(GuardConfig(max_skips=3)), "xx.xx.xxx")
    assert actions == [SKIP, SKIP, CONTINUE, SKIP, SKIP, CONTINUE, SKIP, SKIP, ROLL_BACK]


def test_a_roll_back_resets_the_count_of_skips_and_a_second_one_is_a_failure() -> None:
    guard = LossGuard(GuardConfig(max_skips=3))
    assert record_steps(guard, "xxxxxx") == [SKIP, SKIP, ROLL_BACK, SKIP, SKIP, FAIL]


def test_too_few_good_steps_after_a_roll_back_do_not_allow_another() -> None:
    guard = LossGuard(GuardConfig(max_skips=2), recovery_steps=5)
    assert record_steps(guard, "xx....xx")[-1] is FAIL


def test_enough_good_steps_after_a_roll_back_allow_another() -> None:
    """They need not be in a row."""
    guard = LossGuard(GuardConfig(max_skips=2), recovery_steps=5)
    assert record_steps(guard, "xx..x...xx")[-1] is ROLL_BACK


def test_if_one_skip_is_allowed_the_first_bad_step_rolls_back() -> None:
    assert record_steps(LossGuard(GuardConfig(max_skips=1)), ".x.x") == [CONTINUE, ROLL_BACK, CONTINUE, FAIL]


@pytest.mark.parametrize("cut", range(1, 9))
@pytest.mark.parametrize("steps, last_action", [("xx.xxx..xxx", ROLL_BACK), ("xx.xxx.xxx", FAIL)])
def test_a_restored_guard_acts_as_if_the_run_had_not_been_interrupted(
    steps: str, last_action: GuardAction, cut: int
) -> None:
    settings = GuardConfig(max_skips=3)
    expected = record_steps(LossGuard(settings, recovery_steps=2), steps)
    assert expected[-1] is last_action
    interrupted = LossGuard(settings, recovery_steps=2)
    record_steps(interrupted, steps[:cut])
    restored = LossGuard(settings, recovery_steps=2)
    restored.load_state_dict(interrupted.state_dict())
    assert record_steps(restored, steps[cut:]) == expected[cut:]


@pytest.mark.parametrize("max_skips, expected", [(3, [False, False, False, False, True]), (1, [True] * 5)])
def test_the_guard_knows_when_one_more_bad_step_is_too_many(max_skips: int, expected: list[bool]) -> None:
    guard = LossGuard(GuardConfig(max_skips=max_skips))
    answers = []
    for step in "x.xxx":
        answers.append(guard.may_act_on_next_outcome())
        record_steps(guard, step)
    assert answers == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 100.1, 100.0, 99.9, 0.0, -5.0])
def test_a_loss_on_the_device_is_judged_as_one_on_the_host(loss: float, dtype: torch.dtype) -> None:
    guard = LossGuard(GuardConfig(threshold=100))
    bad = guard.is_bad_loss(torch.tensor(loss, dtype=dtype))
    assert bad.dtype == dtype
    assert bad.item() == float(guard.is_bad(loss))


@pytest.mark.parametrize("good_steps, action", [(99, FAIL), (100, ROLL_BACK)])
def test_a_run_may_return_to_a_checkpoint_again_after_100_good_steps(good_steps: int, action: GuardAction) -> None:
    guard = LossGuard(GuardConfig(max_skips=1))
    assert record_steps(guard, "x" + "." * good_steps + "x")[-1] is action


@pytest.mark.parametrize(
    "state",
    [
        {"bad_in_a_row": "2", "good_since_roll_back": None},
        {"bad_in_a_row": 1.5, "good_since_roll_back": 3},
        {"bad_in_a_row": None, "good_since_roll_back": None},
        {"bad_in_a_row": 2, "good_since_roll_back": "3"},
    ],
)
def test_counts_that_are_not_numbers_are_refused_and_change_nothing(state: dict[str, Any]) -> None:
    guard = LossGuard(GuardConfig())
    before = guard.state_dict()
    with pytest.raises(ValueError, match="not numbers"):
        guard.load_state_dict(state)
    assert guard.state_dict() == before

"""The loss guard: what is bad, when a run rolls back, when it fails and when all is forgiven."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posenet.settings import GuardConfig
from posenet.training.loss_guard import GuardAction, LossGuard

CONTINUE, SKIP, ROLL_BACK, FAIL = GuardAction.CONTINUE, GuardAction.SKIP, GuardAction.ROLL_BACK, GuardAction.FAIL


def actions(guard: LossGuard, story: str) -> list[GuardAction]:
    """The actions on a story of good (.) and bad (x) steps."""
    return [guard.record_outcome(bad=step == "x") for step in story]


@pytest.mark.parametrize("loss", [math.nan, -math.nan, math.inf, -math.inf, 100.1, 1e30])
def test_what_is_not_finite_or_above_the_threshold_is_bad(loss: float) -> None:
    assert LossGuard(GuardConfig(threshold=100)).is_bad(loss)


@pytest.mark.parametrize("loss", [0.0, 1e-30, 99.9, 100.0, -5.0])
def test_what_is_up_to_the_threshold_is_good(loss: float) -> None:
    assert not LossGuard(GuardConfig(threshold=100)).is_bad(loss)


def test_the_default_threshold_is_that_of_the_recipe() -> None:
    assert LossGuard(GuardConfig()).is_bad(2.1e5) and not LossGuard(GuardConfig()).is_bad(1.9e5)


def test_as_many_skips_in_a_row_as_allowed_roll_back() -> None:
    assert actions(LossGuard(GuardConfig(max_skips=3)), "xxx") == [SKIP, SKIP, ROLL_BACK]


def test_a_good_step_starts_the_count_anew() -> None:
    skips = [SKIP, SKIP, CONTINUE]
    assert actions(LossGuard(GuardConfig(max_skips=3)), "xx.xx.xxx") == skips + skips + [SKIP, SKIP, ROLL_BACK]


def test_the_count_starts_anew_after_the_roll_back_and_then_the_run_fails() -> None:
    guard = LossGuard(GuardConfig(max_skips=3))
    actions(guard, "xxx")
    assert actions(guard, "xxx") == [SKIP, SKIP, FAIL]


def test_a_few_good_steps_do_not_make_up_for_a_roll_back() -> None:
    guard = LossGuard(GuardConfig(max_skips=2), recovery_steps=5)
    actions(guard, "xx")
    assert actions(guard, "....xx")[-1] is FAIL


def test_enough_good_steps_do() -> None:
    guard = LossGuard(GuardConfig(max_skips=2), recovery_steps=5)
    actions(guard, "xx")
    assert actions(guard, "..x...xx")[-1] is ROLL_BACK


def test_with_one_skip_allowed_the_first_bad_step_rolls_back() -> None:
    assert actions(LossGuard(GuardConfig(max_skips=1)), ".x.x") == [CONTINUE, ROLL_BACK, CONTINUE, FAIL]


@pytest.mark.parametrize("cut", range(1, 9))
@pytest.mark.parametrize("story, end", [("xx.xxx..xxx", ROLL_BACK), ("xx.xxx.xxx", FAIL)])
def test_a_restored_guard_judges_as_if_nothing_had_happened(story: str, end: GuardAction, cut: int) -> None:
    expected = actions(LossGuard(GuardConfig(max_skips=3), recovery_steps=2), story)
    guard, restored = (
        LossGuard(GuardConfig(max_skips=3), recovery_steps=2),
        LossGuard(GuardConfig(max_skips=3), recovery_steps=2),
    )
    actions(guard, story[:cut])
    restored.load_state_dict(guard.state_dict())
    assert actions(restored, story[cut:]) == expected[cut:] and expected[-1] is end


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
    assert actions(guard, "x" + "." * good_steps + "x")[-1] is action


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

"""The loss guard: what is bad, when a run rolls back, when it fails and when all is forgiven."""

from __future__ import annotations

import math

import pytest

from posenet.training.loss_guard import GuardAction, LossGuard

TRAIN, SKIP, ROLL_BACK, FAIL = GuardAction.TRAIN, GuardAction.SKIP, GuardAction.ROLL_BACK, GuardAction.FAIL


def verdicts(guard: LossGuard, story: str) -> list[GuardAction]:
    """The verdicts on a story of good (.) and bad (x) steps."""
    return [guard.judge(bad=step == "x") for step in story]


@pytest.mark.parametrize("loss", [math.nan, -math.nan, math.inf, -math.inf, 100.1, 1e30])
def test_what_is_not_finite_or_above_the_threshold_is_bad(loss: float) -> None:
    assert LossGuard(threshold=100).is_bad(loss)


@pytest.mark.parametrize("loss", [0.0, 1e-30, 99.9, 100.0, -5.0])
def test_what_is_up_to_the_threshold_is_good(loss: float) -> None:
    assert not LossGuard(threshold=100).is_bad(loss)


def test_the_default_threshold_is_that_of_the_recipe() -> None:
    assert LossGuard().is_bad(2.1e5) and not LossGuard().is_bad(1.9e5)


def test_as_many_skips_in_a_row_as_allowed_roll_back() -> None:
    assert verdicts(LossGuard(max_skips=3), "xxx") == [SKIP, SKIP, ROLL_BACK]


def test_a_good_step_starts_the_count_anew() -> None:
    skips = [SKIP, SKIP, TRAIN]
    assert verdicts(LossGuard(max_skips=3), "xx.xx.xxx") == skips + skips + [SKIP, SKIP, ROLL_BACK]


def test_the_count_starts_anew_after_the_roll_back_and_then_the_run_fails() -> None:
    guard = LossGuard(max_skips=3)
    verdicts(guard, "xxx")
    assert verdicts(guard, "xxx") == [SKIP, SKIP, FAIL]


def test_a_few_good_steps_do_not_make_up_for_a_roll_back() -> None:
    guard = LossGuard(max_skips=2, recovery=5)
    verdicts(guard, "xx")
    assert verdicts(guard, "....xx")[-1] is FAIL


def test_enough_good_steps_do() -> None:
    guard = LossGuard(max_skips=2, recovery=5)
    verdicts(guard, "xx")
    assert verdicts(guard, "..x...xx")[-1] is ROLL_BACK


def test_with_one_skip_allowed_the_first_bad_step_rolls_back() -> None:
    assert verdicts(LossGuard(max_skips=1), ".x.x") == [TRAIN, ROLL_BACK, TRAIN, FAIL]


@pytest.mark.parametrize("cut", range(1, 9))
@pytest.mark.parametrize("story, end", [("xx.xxx..xxx", ROLL_BACK), ("xx.xxx.xxx", FAIL)])
def test_a_restored_guard_judges_as_if_nothing_had_happened(story: str, end: GuardAction, cut: int) -> None:
    expected = verdicts(LossGuard(max_skips=3, recovery=2), story)
    guard, restored = LossGuard(max_skips=3, recovery=2), LossGuard(max_skips=3, recovery=2)
    verdicts(guard, story[:cut])
    restored.load_state_dict(guard.state_dict())
    assert verdicts(restored, story[cut:]) == expected[cut:] and expected[-1] is end

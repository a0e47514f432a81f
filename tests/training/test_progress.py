"""How far a run is, and its best score."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posenet.training.progress import Progress


def test_the_mean_loss_leaves_out_skipped_steps_and_starts_again_in_every_epoch() -> None:
    progress = Progress(replaced=7)
    assert progress.mean_loss is None
    for loss in (1.0, None, 4.0):
        progress.count_step(loss)
    assert (progress.mean_loss, progress.step, progress.total_steps, progress.skipped) == (2.5, 3, 3, 1)
    progress.start_next_epoch()
    assert progress == Progress(epoch=1, total_steps=3)


def test_a_greater_ap_and_a_smaller_validation_loss_are_better_and_kinds_are_not_compared() -> None:
    progress = Progress()
    assert [progress.record_score("AP", value) for value in (0.1, 0.4, 0.3, 0.4)] == [True, True, False, False]
    assert (progress.best, progress.stale) == (0.4, 2)
    assert not progress.record_score("AP", None)
    assert (progress.best, progress.stale) == (0.4, 2), "an epoch without a score is neither better nor worse"
    assert [progress.record_score("val_loss", value) for value in (9.0, 8.0, 8.5)] == [True, True, False]
    assert (progress.best, progress.stale, progress.best_kind) == (-8.0, 1, "val_loss")


def test_the_validation_loss_decides_between_equal_scores_also_after_a_restart() -> None:
    epochs = [(0.0, 5.0), (0.0, 6.0), (0.0, 4.0), (0.1, 9.0), (0.1, None), (0.1, 8.0), (0.1, 8.0)]
    progress = Progress()
    decisions = []
    for ap, loss in epochs:
        progress = Progress(**asdict(progress))
        decisions.append(progress.record_score("AP", ap, loss))
    assert decisions == [True, False, True, True, False, True, False]
    assert (progress.best, progress.best_loss, progress.stale) == (0.1, 8.0, 3), "patience counts better scores"
    assert Progress().record_score("AP", 0.1, math.nan)
    unknown = Progress(best_kind="AP", best=0.1)
    assert not unknown.record_score("AP", 0.1, math.nan) and unknown.record_score("AP", 0.1, 7.0)
    earlier = {key: value for key, value in asdict(Progress(best_kind="AP", best=0.1)).items() if key != "best_loss"}
    assert Progress(**earlier).record_score("AP", 0.1, 7.0), "checkpoints of earlier versions have no loss"


@pytest.mark.parametrize("field", ["epoch", "step", "total_steps", "loss_sum", "stale", "best", "best_kind"])
@pytest.mark.parametrize("value", [[1], True, math.nan, None])
def test_a_position_of_wrong_values_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} is "):
        Progress(**{field: value})
    with pytest.raises(ValueError, match="epoch is -5"):
        Progress(epoch=-5)


@given(old_steps=st.integers(1, 1000), new_steps=st.integers(1, 1000), share=st.floats(0, 1))
def test_an_epoch_of_another_length_keeps_the_completed_share(old_steps: int, new_steps: int, share: float) -> None:
    step = int(share * old_steps)
    progress = Progress(step=step)
    progress.rescale_epoch(old_steps, new_steps)
    assert 0 <= step / old_steps - progress.step / new_steps < 1 / new_steps
    if old_steps == new_steps:
        assert progress.step == step


@pytest.mark.parametrize("old_steps", [2, 0, -4, 6.0, "6", None])
def test_a_position_outside_its_epoch_is_refused(old_steps: Any) -> None:
    with pytest.raises(ValueError, match="step 3 of an epoch of"):
        Progress(step=3).rescale_epoch(old_steps, new_steps=7)

"""The position of a run, its scores, and its speed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from posenet.training import progress as progress_module
from posenet.training.progress import Progress, SpeedMeter


def test_the_mean_loss_leaves_out_skipped_steps_and_starts_again_in_every_epoch() -> None:
    progress = Progress()
    assert progress.mean_loss is None
    for loss in (1.0, None, 4.0):
        progress.count_step()
        if loss is not None:
            progress.record_loss(loss)
    assert progress.mean_loss == 2.5
    assert (progress.step, progress.total_steps) == (3, 3)
    progress.replaced = 7
    progress.start_next_epoch()
    assert progress == Progress(epoch=1, total_steps=3)


def test_a_greater_ap_and_a_smaller_validation_loss_are_better() -> None:
    progress = Progress()
    assert [progress.record_score("AP", value) for value in (0.1, 0.4, 0.3, 0.4)] == [True, True, False, False]
    assert (progress.best, progress.stale) == (0.4, 2)
    progress = Progress()
    assert [progress.record_score("val_loss", value) for value in (9.0, 8.0, 8.5)] == [True, True, False]
    assert (progress.best, progress.stale) == (-8.0, 1)


def test_scores_of_different_kinds_are_not_compared() -> None:
    progress = Progress()
    progress.record_score("AP", 0.5)
    progress.record_score("AP", 0.4)
    assert progress.record_score("val_loss", 9.0)
    assert (progress.best_kind, progress.best, progress.stale) == ("val_loss", -9.0, 0)


def test_an_epoch_without_a_score_is_neither_better_nor_worse() -> None:
    progress = Progress(best=0.5, best_kind="AP", stale=1)
    assert not progress.record_score("AP", None)
    assert (progress.best, progress.stale) == (0.5, 1)


def test_an_epoch_of_another_length_keeps_the_completed_share(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(step=3)
    with caplog.at_level("INFO"):
        progress.rescale_epoch(old_steps=6, new_steps=6)
    assert progress.step == 3
    assert caplog.text == ""
    with caplog.at_level("INFO"):
        progress.rescale_epoch(old_steps=6, new_steps=5)
    assert progress.step == 2
    assert "An epoch had 6 steps and now has 5: step 3 of it becomes step 2" in caplog.text


@pytest.mark.parametrize("old_steps", [2, 0, -4, 6.0, "6", None])
def test_a_position_outside_its_epoch_is_refused(old_steps: Any) -> None:
    with pytest.raises(ValueError, match="step 3 of an epoch of"):
        Progress(step=3).rescale_epoch(old_steps, new_steps=7)


def test_progress_survives_a_checkpoint() -> None:
    progress = Progress(2, 3, 45, 6.5, 3, 1, -0.25, 4, "val_loss")
    assert Progress.from_state(asdict(progress)) == progress


@pytest.mark.parametrize("changes", [{"epoch": -1}, {"step": 1.5}, {"loss_sum": "1"}, {"stale": True}, {"best": None}])
def test_a_checkpoint_with_a_value_that_is_no_progress_is_refused(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(ValueError, match=f"{key} is "):
        Progress.from_state(asdict(Progress()) | changes)


def test_speed_is_measured_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    meter = SpeedMeter()
    meter.samples = 8
    meter.seconds_waited = 0.5
    now = 102.0
    assert meter.read() == {"samples_per_s": 4.0, "data_wait": 0.25}
    meter.samples = 3
    now = 103.0
    assert meter.read() == {"samples_per_s": 3.0, "data_wait": 0.0}

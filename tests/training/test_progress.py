"""How far a run is: steps, the mean loss and the best score."""

import pytest

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
    assert [progress.record_score("AP", value) for value in (0.1, 0.4, 0.3, 0.4)] == [True, True, False, True]
    assert not progress.record_score("AP", None)
    assert (progress.best, progress.stale) == (0.4, 2), "an epoch without a score is neither better nor worse"
    assert [progress.record_score("val_loss", value) for value in (9.0, 8.0, 8.5)] == [True, True, False]
    assert (progress.best, progress.stale, progress.best_kind) == (-8.0, 1, "val_loss")


def test_a_position_of_wrong_values_is_refused() -> None:
    for field, value in {"epoch": [1], "step": -5, "loss_sum": None, "best_kind": 3}.items():
        with pytest.raises(ValueError, match=f"^{field} is "):
            Progress(**{field: value})

"""Exploding losses: which are bad, skipped steps, returns to a checkpoint, and the end of a run."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import TrainingError
from posenet.settings import GuardConfig
from posenet.training import bad_steps
from posenet.training.bad_steps import BadStepPolicy, Watched
from tests.helpers.process_groups import errors_in_processes, fork_ranks
from tests.helpers.process_runs import find_differences, wait_for_exit
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import (
    LEARNING,
    Change,
    ChangingRuntime,
    Stores,
    changing_distributed_runtime,
    last,
    multiply,
    spoil_gradient,
    train_tiny,
    weights,
)

EVERY_STEP = ("checkpoint.every_steps=1", "checkpoint.keep=99")
LETTERS = {None: ".", "skip": "s", "roll back": "R", "fail": "F"}


def actions(policy: BadStepPolicy, steps: str) -> str:
    """The actions after good (.) and bad (x) steps, as ``LETTERS``."""
    return "".join(LETTERS[policy.record_bad() if step == "x" else policy.record_good(0, 0)] for step in steps)


@pytest.fixture
def two_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run returns to a checkpoint after two skipped steps."""
    monkeypatch.setattr(bad_steps, "MAX_SKIPS", 2)


@pytest.mark.parametrize(
    "values, factor, limit",
    [
        ([], 10.0, 200_000.0),  # the threshold alone
        ([4.0, 3.0], 12.0, 360.0),  # wide at first, of the lower of two
        ([900.0] * 29, 10.0, 90_000.0),
        ([3000.0] * 29, 10.0, 200_000.0),
        ([3.0] * 30, 10.0, 30.0),
        ([7.0] * 50 + [2.0] * 26, 10.0, 20.0),  # of the last 50
        ([3.0] * 30, 4.0, 12.0),
        ([3.0] * 30, 0.0, 200_000.0),
    ],
)
def test_the_limit_of_a_loss_is_a_multiple_of_the_median_of_the_last_good_steps(
    values: list[float], factor: float, limit: float
) -> None:
    policy = BadStepPolicy(GuardConfig(factor=factor))
    for value in values:
        policy.loss.add(value)
    assert policy.loss.limit == limit
    assert policy.relative_gradient.limit == math.inf


def test_the_limit_of_the_gradient_is_relative_to_the_loss() -> None:
    policy = BadStepPolicy(GuardConfig(factor=10))
    for number in range(60):
        policy.record_good(loss=1.0 + number, gradient_norm=3.0 * (1.0 + number))
    policy.record_good(loss=0.0, gradient_norm=0.0)
    assert policy.relative_gradient.limit == pytest.approx(30.0)
    # A loss of the user, or a fixed loss scale of fp16, may have no gradient for most batches.
    policy = BadStepPolicy(GuardConfig(factor=10))
    for _ in range(60):
        policy.record_good(loss=2.0, gradient_norm=0.0)
    assert policy.relative_gradient.limit == math.inf
    policy.record_good(loss=2.0, gradient_norm=6.0)
    assert policy.relative_gradient.limit == pytest.approx(300.0)


def test_people_are_no_explosion_where_most_batches_show_nobody() -> None:
    policy = BadStepPolicy(GuardConfig())
    for number in range(200):
        loss = 30.0 if number % 20 == 0 else 0.1
        assert loss <= policy.loss.limit
        policy.record_good(loss, 100 * loss)
    assert policy.loss.limit < 100


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
    monkeypatch: pytest.MonkeyPatch, max_skips: int, steps: str, expected: str
) -> None:
    monkeypatch.setattr(bad_steps, "MAX_SKIPS", max_skips)
    monkeypatch.setattr(bad_steps, "RECOVERY_STEPS", 5)
    assert actions(BadStepPolicy(GuardConfig()), steps) == expected


def test_a_restored_policy_has_the_counts_and_the_history() -> None:
    policy, restored = BadStepPolicy(GuardConfig()), BadStepPolicy(GuardConfig())
    actions(policy, 10 * "x")
    policy.record_good(loss=3.0, gradient_norm=6.0)
    policy.record_bad()
    restored.restore_counts(policy.state())
    restored.restore_history(policy.state())
    expected = {"bad_in_a_row": 1, "good_since_roll_back": 1, "losses": [3.0], "relative_gradients": [2.0]}
    assert restored.state() == policy.state() == expected


def test_a_bad_step_of_a_run_is_skipped_and_the_log_names_its_images(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path / "one", *EVERY_STEP, max_steps=1)
    for name, change in {"loss": multiply({2: math.nan}), "gradient": spoil_gradient({2}, math.inf)}.items():
        folder = tmp_path / name
        train_tiny(stores, folder, *EVERY_STEP, runtime=ChangingRuntime(change), max_steps=2)
        (skip,) = read_log(folder, "skip")
        assert (skip["step"], skip["value"]) == (2, "nan")
        assert skip["name"].startswith(name)
        assert len(skip["image_ids"]) == 2
        assert f"Step 2 skipped: {skip['name']} nan" in (folder / "log.txt").read_text()
        assert find_differences(weights(folder), weights(tmp_path / "one")) == []
        states = [last(path)["optimizer"]["state"] for path in (folder, tmp_path / "one")]
        assert find_differences(*states) == []
        assert last(folder)["progress"]["loss_steps"] == 1


LONG = (*LEARNING, "train.epochs=6", "guard.factor=40")
"""Steps in which the loss falls. With the default factor, the gradients of this very small network come close to the
limit, and the rounding of a processor would decide."""
EXPLOSIONS = {3: 1e5, 5: 1e6, 34: 300, 37: 1e4, 40: 300}


def mixed(changes: Mapping[int, float], kind: str) -> Change:
    """Explosions of the loss, or of the gradient alone."""
    if kind == "loss":
        return multiply(changes)

    def change(number: int, terms: torch.Tensor) -> torch.Tensor:
        return spoil_gradient({number}, changes.get(number, 1.0))(number, terms)

    return change


def test_an_explosion_leaves_the_weights_of_a_run_without_its_batch(stores: Stores, tmp_path: Path) -> None:
    """One of the loss, or of the gradient alone. And no other step is refused."""
    without = ChangingRuntime(multiply(dict.fromkeys(EXPLOSIONS, math.nan)))
    train_tiny(stores, tmp_path / "without", *LONG, runtime=without)
    expected = last(tmp_path / "without")
    for kind in ("loss", "gradient"):
        train_tiny(stores, tmp_path / kind, *LONG, runtime=ChangingRuntime(mixed(EXPLOSIONS, kind)))
        skips = read_log(tmp_path / kind, "skip")
        assert [skip["step"] for skip in skips] == list(EXPLOSIONS)
        assert all(skip["name"].startswith(kind) and float(skip["value"]) > skip["limit"] for skip in skips)
        for name in ("model", "optimizer", "progress", "guard"):
            assert find_differences(last(tmp_path / kind)[name], expected[name]) == [], (kind, name)


def test_a_resumed_run_knows_the_limits_and_other_inputs_begin_without(stores: Stores, tmp_path: Path) -> None:
    """Other inputs have other losses. Neither has a checkpoint of version 0.6 a history."""
    train_tiny(stores, tmp_path / "run", max_steps=3)
    old = last(tmp_path / "run")
    old["guard"] = {name: old["guard"][name] for name in ("bad_in_a_row", "good_since_roll_back")}
    (tmp_path / "old").mkdir()
    write_checkpoint(tmp_path / "old" / "last.pth", old)
    cases = {
        "same": ("run", ["data.workers=1"], [4]),
        "longer": ("run", ["train.epochs=9", "log.every_steps=1"], [4]),
        "loss": ("run", ["loss.gamma=0"], []),
        "batch": ("run", ["train.batch_size=3"], []),
        "old": ("old", [], []),
    }
    for name, (source, settings, expected) in cases.items():
        folder = tmp_path / f"resumed-{name}"
        checkpoint = tmp_path / source / "last.pth"
        settings = [*settings, f"checkpoint.path={folder}"]
        runtime = ChangingRuntime(multiply({1: 1e3}) if name != "loss" else multiply({}))
        train_tiny(stores, folder, *settings, resume=checkpoint, runtime=runtime, max_steps=4)
        assert [skip["step"] for skip in read_log(folder, "skip")] == expected, name
        assert len(last(folder)["guard"]["losses"]) == (3 if name in ("same", "longer") else 1), name


def train_rank(stores: Stores, folder: Path) -> None:
    """Train in one of two processes, of which the second has an exploding loss and the first an exploding gradient.

    Each saves the history of its guard.
    """
    runtime = changing_distributed_runtime()
    runtime.change = multiply({3: 1e3}) if runtime.rank else mixed({5: 1e6}, "gradient")
    histories: list[list[float]] = []
    watched = Watched.add

    def add(self: Watched, value: float) -> None:
        watched(self, value)
        histories.append(self.values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "add", add)
        train_tiny(stores, folder, runtime=runtime, max_steps=6)
    torch.save(histories[-2:], folder.with_name(f"{runtime.rank}.pt"))
    runtime.close()


def test_the_ranks_skip_together_whichever_of_them_explodes(stores: Stores, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    pids = fork_ranks(2, lambda _: train_rank(stores, folder), tmp_path / "outputs")
    assert [wait_for_exit(pid) for pid in pids] == [0, 0]
    skips = read_log(folder, "skip")
    assert [(skip["step"], skip["name"]) for skip in skips] == [(3, "loss"), (5, "gradient norm")]
    assert len(skips[0]["image_ids"]) == 2 and len(skips[1]["image_ids"]) == 4
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert ranks[0] == ranks[1] and [len(values) for values in ranks[0]] == [4, 4]


def test_after_too_many_skips_the_run_returns_to_the_checkpoint_before_them(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with the next batches; no checkpoint is saved between bad steps. The average goes back with them. One
    that was skipped earlier does not count."""
    monkeypatch.setattr(bad_steps, "MAX_SKIPS", 3)
    exploding = ChangingRuntime(multiply({2: 1e9, 4: 1e9, 5: 1e9, 6: math.nan}))
    settings = (*EVERY_STEP, "train.epochs=1", "average.kind=ema")
    result = train_tiny(stores, tmp_path, *settings, runtime=exploding)
    assert result.finished and result.steps == 7
    assert [entry["step"] for entry in read_log(tmp_path, "skip")] == [2, 4, 5, 6]
    saved = {int(path.stem.removeprefix("step-")) for path in tmp_path.glob("step-*.pth")}
    assert not saved & {4, 5} and {3, 7} <= saved
    assert f"steps skipped in a row: returning to {tmp_path}" in (tmp_path / "log.txt").read_text()
    after_return = read_checkpoint(tmp_path / "step-00000006.pth")
    before = read_checkpoint(tmp_path / "step-00000003.pth")
    for name in ("model", "average"):
        assert find_differences(after_return[name], before[name]) == []
    assert find_differences(after_return["optimizer"]["state"], before["optimizer"]["state"]) == []


@pytest.mark.usefixtures("two_skips")
def test_the_return_is_to_the_newest_checkpoint_from_before_the_bad_steps_also_after_resuming(
    stores: Stores, tmp_path: Path
) -> None:
    settings = EVERY_STEP
    train_tiny(stores, tmp_path, *settings, runtime=ChangingRuntime(multiply({3: 1e9})), max_steps=3)
    assert last(tmp_path)["guard"]["bad_in_a_row"] == 1  # saved at the end of the run, after a bad step
    train_tiny(stores, tmp_path, *settings, runtime=ChangingRuntime(multiply({1: 1e9})), resume=True, max_steps=4)
    assert f"returning to {tmp_path / 'step-00000002.pth'}" in (tmp_path / "log.txt").read_text()
    before = read_checkpoint(tmp_path / "step-00000002.pth")
    assert find_differences(weights(tmp_path), before["model"]) == []


@pytest.mark.usefixtures("two_skips")
@pytest.mark.parametrize(
    "bad, skipped, message", [(3, [3, 4, 5, 6], "explodes again after a return"), (1, [1, 2], "no checkpoint.*lower")]
)
def test_a_run_that_keeps_exploding_ends(
    stores: Stores, tmp_path: Path, bad: int, skipped: list[int], message: str
) -> None:
    exploding = ChangingRuntime(multiply(dict.fromkeys(range(bad, 99), 1e9)))
    with pytest.raises(TrainingError, match=message):
        train_tiny(stores, tmp_path, "checkpoint.every_steps=1", runtime=exploding)
    assert [entry["step"] for entry in read_log(tmp_path, "skip")] == skipped


@pytest.mark.usefixtures("two_skips")
def test_an_explosion_is_the_same_error_on_all_ranks(stores: Stores, tmp_path: Path) -> None:
    """Rank 0 reports it, and the others do not wait for it in order to save."""

    settings = ("guard.threshold=1e-6", "checkpoint.every_steps=1")
    folder = tmp_path / "run"
    errors = errors_in_processes(
        2, tmp_path / "results", lambda runtime: train_tiny(stores, folder, *settings, runtime=runtime)
    )
    assert errors[0].startswith(
        "TrainingError: 10 steps in a row were skipped, and there is no checkpoint to return to; lower"
    )
    assert errors[1] == "OtherRankError: rank 0 has failed and reports why"
    assert not (folder / "last.pth").exists()

"""A run that is interrupted and resumed ends, to the bit, like an uninterrupted one; what a resumed run keeps."""

import logging
import math
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import posenet
from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.errors import CheckpointError, ConfigError
from posenet.settings import Config, load_config
from posenet.training.inputs import folder_of_run
from posenet.training.resume import config_of_run, find_checkpoint
from tests.helpers.process_groups import fork_ranks, run_in_processes
from tests.helpers.process_runs import assert_same_run, find_differences, fork_process, wait_for_exit
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import (
    AfterStep,
    ChangingRuntime,
    Stores,
    changing_distributed_runtime,
    data_settings,
    last,
    train_tiny,
)

STATEFUL = (
    "optim.accumulate=2",
    "optim.name=adamw",
    "optim.lr=1e-3",
    "optim.max_grad_norm=0",
    "train.epochs=3",
    "train.patience=9",
    "guard.threshold=29",
    "average.kind=ema",
    "average.decay=0.9",
    "checkpoint.every_steps=2",
)
"""Settings that use every kind of state but a loss scale; the guard skips some steps."""


def train_until(kind: str, step: int, stores: Stores, folder: Path, *settings: str) -> None:
    """Start or resume a run in this process; "max-steps" or the signal ``kind`` ends it at a step, and "" does not."""
    options: dict[str, Any] = {}
    if kind == "max-steps":
        options["max_steps"] = step
    elif kind:
        options["callbacks"] = [AfterStep(step, lambda: os.kill(os.getpid(), signal.Signals[kind]))]
    train_tiny(stores, folder, *STATEFUL, *settings, resume=folder.exists(), **options)


def test_a_run_that_is_interrupted_in_every_way_ends_like_an_uninterrupted_one(stores: Stores, tmp_path: Path) -> None:
    train_until("", 0, stores, tmp_path / "whole")
    for kind, step in {"max-steps": 1, "SIGKILL": 5, "SIGTERM": 8, "": 0}.items():
        status = wait_for_exit(fork_process(partial(train_until, kind, step, stores, tmp_path / "parts")))
        assert status == (-9 if kind == "SIGKILL" else 0), kind
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert read_log(tmp_path / "whole", "skip"), "the guard is not tested"
    assert 3 < last(tmp_path / "whole")["average"]["count"] < 9


def train_in_processes(stores: Stores, folder: Path, killed_at: int = 0) -> list[int]:
    """Start or resume a run of two processes, of which SIGKILL ends the second in a forward pass; the exit statuses."""
    resume = folder.exists()

    def train(own: int) -> None:
        def interrupt(forward_pass: int, terms: torch.Tensor) -> torch.Tensor:
            if forward_pass == killed_at and own == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return terms

        runtime = changing_distributed_runtime()
        runtime.change = interrupt
        train_tiny(stores, folder, *STATEFUL, "optim.accumulate=1", resume=resume, runtime=runtime)
        runtime.close()

    return [wait_for_exit(pid) for pid in fork_ranks(2, train, folder.with_name(f"{folder.name}-outputs"))]


@pytest.mark.slow
def test_a_run_of_two_processes_of_which_one_is_killed_ends_like_an_uninterrupted_one(
    stores: Stores, tmp_path: Path
) -> None:
    assert train_in_processes(stores, tmp_path / "whole") == [0, 0]
    assert train_in_processes(stores, tmp_path / "parts", killed_at=4) == [1, -9]
    assert "lost the other processes" in (tmp_path / "parts-outputs" / "0.txt").read_text()
    assert last(tmp_path / "parts")["progress"]["total_steps"] >= 2
    assert train_in_processes(stores, tmp_path / "parts") == [0, 0]
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def kill_at_random_moments(
    stores: Stores, folder: Path, rng: random.Random, kills: int, longest: float, *settings: str
) -> int:
    """Kill a run again and again after up to ``longest`` seconds until it has ended; return the number of kills.

    After ``kills`` kills it may go on.
    """
    for number in range(kills + 1):
        pid = fork_process(partial(train_until, "", 0, stores, folder, *settings))
        if number < kills:
            time.sleep(rng.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
        status = wait_for_exit(pid)
        for path in folder.glob("*.pth"):
            read_checkpoint(path)
        if status == 0:
            return number
    raise AssertionError("a run that nobody has killed has not ended")


@pytest.mark.parametrize(
    "workers, total, kills_of_a_run",
    [
        pytest.param(0, 1, 3, marks=pytest.mark.slow),
        pytest.param(0, 100, 30, marks=pytest.mark.torture),
        pytest.param(2, 100, 30, marks=pytest.mark.torture),
    ],
)
def test_a_run_that_is_killed_at_random_moments_ends_like_an_undisturbed_one(
    stores: Stores, tmp_path: Path, workers: int, total: int, kills_of_a_run: int
) -> None:
    settings = ("checkpoint.every_steps=1", f"data.workers={workers}", "train.epochs=5")
    started = time.monotonic()
    assert wait_for_exit(fork_process(partial(train_until, "", 0, stores, tmp_path / "whole", *settings))) == 0
    longest = (time.monotonic() - started) / 3
    rng = random.Random(workers)
    while total > 0:
        folder = tmp_path / str(total)
        kills = kill_at_random_moments(stores, folder, rng, kills_of_a_run, longest, *settings)
        assert kills > 0
        assert_same_run(folder, tmp_path / "whole")
        total -= kills


@pytest.mark.slow
def test_all_processes_know_the_best_score_though_only_the_first_has_its_file(stores: Stores, tmp_path: Path) -> None:
    best = train_tiny(stores, tmp_path / "0", "train.epochs=1").best
    assert best

    def resume(runtime: Any) -> dict[str, float]:
        folder = tmp_path / str(runtime.rank)
        return train_tiny(stores, folder, "train.epochs=2", resume=True, runtime=runtime, max_steps=7).best

    assert run_in_processes(2, tmp_path, resume) == [best, best]


def test_a_run_continues_with_another_number_of_processes_and_batch_size(stores: Stores, tmp_path: Path) -> None:
    """After two of three steps of an epoch, which has two steps then, the second one is next."""
    folder = tmp_path / "run"
    run_in_processes(2, tmp_path / "results", lambda runtime: train_tiny(stores, folder, runtime=runtime, max_steps=2))
    assert last(folder)["world_size"] == 2
    train_tiny(stores, folder, "train.batch_size=7", resume=True, max_steps=3)
    progress = last(folder)["progress"]
    assert (progress["epoch"], progress["step"], progress["total_steps"]) == (1, 0, 3)


def test_a_run_that_continues_another_checkpoint_is_saved_before_its_first_step(stores: Stores, tmp_path: Path) -> None:
    """In another folder, and where it returns to an older checkpoint of its own. Then --resume alone continues it."""
    every = "checkpoint.every_steps=2"
    train_tiny(stores, tmp_path / "a", every, max_steps=6)
    for folder, source, step in (("b", "last.pth", 6), ("a", "step-00000004.pth", 4)):
        kept = read_checkpoint(tmp_path / "a" / source)

        def fail(number: int, terms: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train_tiny(stores, tmp_path / folder, resume=tmp_path / "a" / source, runtime=ChangingRuntime(fail))
        saved = last(tmp_path / folder)
        assert saved["progress"]["total_steps"] == step
        assert find_differences(saved["model"], kept["model"]) == []
        assert find_differences(saved["optimizer"]["state"], kept["optimizer"]["state"]) == []


def test_a_restarted_run_continues_what_it_has_saved_and_else_starts_as_before(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    train_tiny(stores, folder, "checkpoint.every_steps=2", max_steps=6)
    older = folder / "step-00000002.pth"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train_tiny(stores, other, resume=older, max_steps=3).steps == 3
    assert train_tiny(stores, other, resume=older, max_steps=4).steps == 4
    # Without a folder in the settings, it is that of the checkpoint.
    assert posenet.train(None, resume=older, max_steps=3, progress=False).steps == 3
    assert posenet.train(None, resume=older, max_steps=4, progress=False).steps == 4
    assert train_tiny(stores, tmp_path / "new", max_steps=1).steps == 1


def test_other_frozen_parameters_of_equal_shapes_are_refused(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path, "train.freeze=['*.norm.weight']", max_steps=1)
    with pytest.raises(CheckpointError, match=r"other frozen parameters; keep its train\.freeze"):
        train_tiny(stores, tmp_path, "train.freeze=['*.norm.bias']", resume=True)
    assert last(tmp_path)["progress"]["total_steps"] == 1
    # Other patterns may mean the same.
    same = "train.freeze=['stem.*.norm.weight', '*.norm.weight']"
    assert train_tiny(stores, tmp_path, same, resume=True, max_steps=2).steps == 2


def test_a_resumed_run_keeps_its_settings_except_new_ones(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train_tiny(stores, tmp_path / "run", max_steps=1)
    Path("file.toml").write_text("[optim]\nweight_decay = 0.5\n")
    whole = load_config(None, [*data_settings(stores), "model.stacks=1", "model.width=16", "model.growth=2"])
    caplog.set_level(logging.INFO)

    def resumed(resume: bool | str, experiment: Config | str | None, *overrides: str) -> Config:
        folder = folder_of_run(experiment, overrides, resume)
        assert folder.resolve() == tmp_path / "run"
        config = config_of_run(experiment, overrides, folder, find_checkpoint(folder, resume))
        assert config.checkpoint.path == str(folder)
        return config

    kept = resumed("run", None, "optim.lr=0.5")
    assert (kept.optim.lr, kept.train.batch_size, kept.optim.warmup_epochs) == (0.5, 2, 1)
    assert "optim.lr: 1e-05 -> 0.5" in caplog.text
    assert resumed("run/last.pth", "file.toml").optim.weight_decay == 0.5
    kept = resumed(True, None, "checkpoint.path=run", "train.weights=other.pth")
    assert (kept.train.batch_size, kept.train.weights) == (2, "") and "changed: train.weights" not in caplog.text
    assert "train.weights is only for new runs; this one continues with the weights in run/last.pth" in caplog.text
    replaced = resumed("run", whole)
    assert replaced.train.batch_size == 4 and replaced.optim.lr == 1e-3  # a Config replaces all
    assert posenet.train(None, resume="run", max_steps=2, progress=False).steps == 2


def test_a_run_with_another_value_of_what_is_a_constant_now_is_not_resumed(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path, max_steps=1)
    state = last(tmp_path)
    state["config"]["optim"]["momentum"] = 0.9
    state["config"]["log"]["pictures"] = 7
    write_checkpoint(tmp_path / "last.pth", state)
    train_tiny(stores, tmp_path, resume=True, max_steps=2)
    state["config"]["optim"]["momentum"] = 0.95
    write_checkpoint(tmp_path / "last.pth", state)
    with pytest.raises(ConfigError, match=r"optim\.momentum \(now 0\.9\)"):
        train_tiny(stores, tmp_path, resume=True)
    state["config"] |= {"optim": {}, "loss": {"part_weight": torch.ones(2)}}
    write_checkpoint(tmp_path / "last.pth", state)
    with pytest.raises(ConfigError, match=r"loss\.part_weight \(now 1\.0\)"):
        train_tiny(stores, tmp_path, resume=True)


def test_a_run_resumes_where_its_checkpoint_is_and_in_another_folder_without_the_best_score(
    stores: Stores, tmp_path: Path
) -> None:
    best = train_tiny(stores, tmp_path / "run", "train.epochs=1").best
    assert best
    shutil.move(tmp_path / "run", tmp_path / "moved")
    for source, steps in (("moved", 7), ("moved/last.pth", 8)):
        overrides = ["train.epochs=2"] if steps > 7 else []
        result = posenet.train(None, overrides, resume=tmp_path / source, max_steps=steps, progress=False)
        assert (result.folder, result.steps, result.best) == (tmp_path / "moved", steps, best)
    assert not (tmp_path / "run").exists()
    assert train_tiny(stores, tmp_path / "two", resume=tmp_path / "moved" / "last.pth", max_steps=9).best == {}
    (tmp_path / "moved" / "best.pth").unlink()
    assert train_tiny(stores, tmp_path / "moved", resume=True, max_steps=9).best == {}, "its file is gone"


def test_a_return_to_a_step_before_the_best_one_forgets_its_score(stores: Stores, tmp_path: Path) -> None:
    learning = ["optim.lr=1e-3", "optim.name=adamw", "checkpoint.every_steps=7"]
    train_tiny(stores, tmp_path / "run", *learning)
    assert read_checkpoint(tmp_path / "run" / "best.pth")["progress"]["total_steps"] == 14
    for name, keeps in (("best.pth", True), ("step-00000007.pth", False)):
        path = tmp_path / "run" / name
        assert bool(train_tiny(stores, tmp_path / "run", *learning, resume=path, max_steps=8).best) == keeps


def test_scores_on_other_validation_data_count_no_more(stores: Stores, tmp_path: Path) -> None:
    assert train_tiny(stores, tmp_path, "train.epochs=1").best
    state = last(tmp_path)
    write_checkpoint(tmp_path / "last.pth", {key: value for key, value in state.items() if key != "contents"})
    assert posenet.train(None, ["train.epochs=2"], resume=tmp_path, max_steps=7, progress=False).best, "of 0.6"
    write_checkpoint(tmp_path / "last.pth", state)
    other = [f"data.val={stores['train']}", "data.allow_overlap=true", "train.epochs=2"]
    result = posenet.train(None, other, resume=tmp_path, max_steps=7, progress=False)
    assert result.best == {}
    assert "Changed since the checkpoint was saved: data.val" in (tmp_path / "log.txt").read_text()
    assert posenet.train(None, (), resume=tmp_path, progress=False).best


def test_two_threads_do_not_train_at_once_and_a_callback_may(stores: Stores, tmp_path: Path) -> None:
    inner: list[Any] = []

    def train_twice() -> None:
        inner.append(train_tiny(stores, tmp_path / "inner", max_steps=1).steps)
        with ThreadPoolExecutor(1) as pool:
            inner.append(pool.submit(train_tiny, stores, tmp_path / "thread", max_steps=1).exception())

    train_tiny(stores, tmp_path / "outer", max_steps=1, callbacks=[AfterStep(1, train_twice)])
    steps, error = inner
    assert steps == 1 and isinstance(error, ConfigError) and "another thread of this process trains" in str(error)


def test_there_may_be_nothing_to_resume(stores: Stores, tmp_path: Path) -> None:
    assert train_tiny(stores, tmp_path / "run", resume=True, max_steps=1).steps == 1
    for missing in (tmp_path / "missing.pth", tmp_path):
        with pytest.raises(CheckpointError, match=f"{missing}.*"):
            train_tiny(stores, tmp_path / "other", resume=missing)


def test_settings_of_another_network_or_optimizer_are_refused(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.toml").write_text('keypoints = ["nose", "neck"]\nparts = [["nose", "neck"]]\n')
    train_tiny(stores, tmp_path / "run", "optim.name=adamw", max_steps=1)
    files = [path for path in (tmp_path / "run").iterdir() if path.is_file() and path.name != "log.txt"]
    before = {path.name: path.read_bytes() for path in files}
    for override, message in {
        "model.width=32": "another architecture",
        "optim.name=sgd": "another optimizer",
        "model.skeleton=other.toml": r"another skeleton than model.skeleton \(other keypoints, parts, left_right",
    }.items():
        with pytest.raises((CheckpointError, ConfigError), match=message):
            train_tiny(stores, tmp_path / "run", "optim.name=adamw", override, resume=True)
    assert {path.name: path.read_bytes() for path in files} == before
    assert before["run.status"] == b"finished\n"


def test_hyperparameters_that_another_pytorch_saves_are_no_other_optimizer(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path, max_steps=1)
    state = last(tmp_path)
    state["optimizer"]["param_groups"][0]["added_later"] = True
    write_checkpoint(tmp_path / "last.pth", state)
    assert train_tiny(stores, tmp_path, resume=True, max_steps=2).steps == 2


def test_checkpoints_without_a_run_or_with_a_wrong_one_are_refused(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path / "run", max_steps=1)
    state = last(tmp_path / "run")
    name = "stem.entry.conv.weight"
    no_numbers = {name: torch.full_like(state["model"][name], math.nan)}
    wrong: dict[str, dict[str, Any]] = {
        "no run to resume": {"model": state["model"], "config": state["config"]},
        "no run to resume;": state | {"config": "text"},
        "contains no valid run": state | {"guard": state["guard"] | {"bad_in_a_row": "many"}},
        "step 1 of an epoch of 0 steps": state | {"steps_per_epoch": 0},
        "step 1 of an epoch of '6' steps": state | {"steps_per_epoch": "6"},
        "stem.entry.conv.weight contains NaN": state | {"average": {"count": 1, "epochs": 0, "trained": no_numbers}},
    }
    for message, content in wrong.items():
        write_checkpoint(tmp_path / "wrong" / "last.pth", content)
        with pytest.raises((CheckpointError, ConfigError), match=message):
            posenet.train(None, resume=tmp_path / "wrong", progress=False)


def test_a_dynamic_loss_scale_is_restored_and_starts_again_after_a_fixed_one(stores: Stores, tmp_path: Path) -> None:
    """A dynamic scale starts at 2^16; this network needs less."""
    for fixed in (0, 64):
        folder = tmp_path / str(fixed)
        train_tiny(stores, folder, "train.amp=fp16", f"train.loss_scale={fixed}", max_steps=3)
        before = last(folder)["scaler"]["scale"]
        train_tiny(stores, folder, "train.amp=fp16", "train.loss_scale=0", resume=True, max_steps=4)
        expected = 2**16 if fixed else before
        assert last(folder)["scaler"]["scale"] in (expected, expected / 2) and before < 2**16

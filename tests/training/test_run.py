"""Training runs from Python: settings, results, callbacks, stopping and resuming."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import posenet
from posenet.checkpoints.file import read_checkpoint
from posenet.errors import CheckpointError, ConfigError
from posenet.settings import Config, load_config
from posenet.training.callbacks import TrainingCallback
from posenet.training.run import TrainingResult
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import TINY_OVERRIDES


@pytest.fixture
def overrides(stores: dict[str, Path], tmp_path: Path) -> list[str]:
    """Settings of two short epochs in ``tmp_path / "run"``."""
    paths = {"data.train": stores["train"], "data.val": stores["val"], "checkpoint.path": tmp_path / "run"}
    return [*TINY_OVERRIDES, "train.epochs=2", *(f"{key}={str(path)!r}" for key, path in paths.items())]


def test_a_run_returns_where_it_ended(overrides: list[str], tmp_path: Path) -> None:
    result = posenet.train(None, overrides)
    last = read_checkpoint(tmp_path / "run" / "last.pth")
    val_losses = [entry["val_loss"] for entry in read_log(tmp_path / "run", "epoch")]
    assert result == TrainingResult(
        folder=tmp_path / "run",
        finished=True,
        epochs=2,
        steps=last["progress"]["total_steps"],
        best={"val_loss": min(val_losses)},
    )


def test_settings_may_be_an_object_or_a_file(overrides: list[str], tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text("[train]\nepochs = 1\n")
    without_epochs = [pair for pair in overrides if not pair.startswith("train.epochs")]
    sources = {
        "object": (load_config(None, [*overrides, "train.epochs=1"]), []),
        "file": (tmp_path / "short.toml", without_epochs),
    }
    weights = []
    for name, (source, more) in sources.items():
        assert posenet.train(source, [*more, f"checkpoint.path={str(tmp_path / name)!r}"]).epochs == 1
        weights.append(read_checkpoint(tmp_path / name / "last.pth")["model"])
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_the_folder_is_named_after_the_experiment_file(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("")
    no_folder = [*overrides, "checkpoint.path=''"]
    assert posenet.train("mine.toml", no_folder, max_steps=1).folder == Path("checkpoints/mine")
    assert posenet.train(load_config(None, no_folder), max_steps=1).folder == Path("checkpoints/run")


class StopAfterFirstStep(TrainingCallback):
    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_returns_and_the_run_can_be_resumed(overrides: list[str], tmp_path: Path) -> None:
    """Resumed after every step, a run ends with the weights of a run that was not stopped."""
    for resume in (False, True):
        result = posenet.train(None, overrides, resume=resume, callbacks=[StopAfterFirstStep()])
        assert not result.finished
    assert result.steps == 2
    assert posenet.train(None, [], resume=tmp_path / "run").finished
    posenet.train(None, [*overrides, f"checkpoint.path={str(tmp_path / 'whole')!r}"])
    stopped, whole = (read_checkpoint(tmp_path / run / "last.pth")["model"] for run in ("run", "whole"))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in stopped.items())


@pytest.mark.parametrize(
    ("resume", "make_source"),
    [
        (True, lambda overrides: (load_config(None, [*overrides, "optim.lr=0.5"]), [])),
        ("run", lambda overrides: (load_config(None, [*overrides, "checkpoint.path=''"]), ["optim.lr=0.5"])),
        ("run/last.pth", lambda overrides: (None, ["optim.lr=0.5"])),
    ],
    ids=["a config and its folder", "a config without a folder", "a checkpoint"],
)
def test_a_resumed_run_gets_new_settings(
    overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resume: bool | str,
    make_source: Callable[[list[str]], tuple[Config | None, list[str]]],
) -> None:
    monkeypatch.chdir(tmp_path)
    posenet.train(None, overrides, max_steps=1)
    source, more = make_source(overrides)
    result = posenet.train(source, more, resume=resume, max_steps=2)
    assert result.steps == 2
    assert result.folder.resolve() == tmp_path / "run"
    config = read_checkpoint("run/last.pth")["config"]
    assert config["optim"]["lr"] == 0.5
    assert config["model"]["stacks"] == 1


def test_a_warmup_is_added_only_where_there_is_none(overrides: list[str], tmp_path: Path) -> None:
    for given, expected in ((0, 3), (2, 2)):
        folder = tmp_path / f"warmup {given}"
        more = [f"optim.warmup_epochs={given}", f"checkpoint.path={str(folder)!r}"]
        posenet.train(None, [*overrides, *more], warmup=True, max_steps=1)
        assert read_checkpoint(folder / "last.pth")["config"]["optim"]["warmup_epochs"] == expected


def test_errors_are_exceptions(overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.epoch"):
        posenet.train(None, ["train.epoch=1"])
    with pytest.raises(CheckpointError, match="missing.pth"):
        posenet.train(None, overrides, resume=tmp_path / "missing.pth")
    posenet.train(None, overrides, max_steps=1)
    with pytest.raises(CheckpointError, match="already contains a run"):
        posenet.train(None, overrides)


def test_without_progress_bars_nothing_is_printed_and_the_log_is_complete(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = logging.getLogger("posenet")
    before = package.level, package.handlers[:]
    posenet.train(None, [*overrides, "train.freeze=['stem.*']"], progress=False, max_steps=1)
    assert capfd.readouterr() == ("", "")
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "Device cpu: precision float32 (auto), channels_last off (auto)" in text
    assert "Frozen: " in text
    assert "Learning rate" in text
    assert (package.level, package.handlers) == before


def test_a_checkpoint_contains_the_precision_that_was_chosen(overrides: list[str], tmp_path: Path) -> None:
    run = posenet.train(None, overrides, max_steps=1, progress=False)
    saved = read_checkpoint(run.folder / "last.pth")["config"]["train"]
    assert (saved["amp"], saved["channels_last"]) == ("off", False)


def test_convolutions_are_chosen_by_speed_during_a_run_only(overrides: list[str]) -> None:
    seen: list[tuple[bool, bool]] = []

    class Watch(TrainingCallback):
        def on_step(self, step: int, values: Mapping[str, Any]) -> None:
            seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32))

    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    posenet.train(None, [*overrides, "train.tf32=false"], callbacks=[Watch()], max_steps=1, progress=False)
    assert seen == [(True, False)]
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == before


def test_a_callback_that_cannot_start_leaves_a_folder_for_the_next_try(overrides: list[str], tmp_path: Path) -> None:
    class Offline(TrainingCallback):
        def on_start(self, config: Config, folder: Path) -> None:
            raise ConnectionError(f"no login for {folder.name}")

    with pytest.raises(ConnectionError, match="no login for run"):
        posenet.train(None, overrides, callbacks=[Offline()])
    assert posenet.train(None, overrides, max_steps=1).steps == 1

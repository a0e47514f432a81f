"""tools/train.py as a user runs it: flags, resuming, fine-tuning, and errors of one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from posenet.training.train_step import TrainStep

from posenet.checkpoints.file import read_checkpoint
from posenet.cli.main import run_tool
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import DataError
from posenet.settings import Config, config_from_dict
from posenet.training import run as training_run
from tests.helpers.locks import locked_by_another_process
from tests.helpers.run_logs import read_log

Train = Callable[..., tuple[int, str]]

TINY = [
    "model.stacks=1",
    "model.width=16",
    "model.growth=2",
    "train.input_size=64",
    "train.batch_size=2",
    "train.epochs=1",
    "optim.name=adamw",
    "data.workers=0",
    "log.tensorboard=false",
    "log.curves=false",
]


@pytest.fixture
def train(
    stores: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Train:
    """A function that runs the tool on a tiny network in ``tmp_path``; returns exit status and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> tuple[int, str]:
        paths = [f"data.train={stores['train']}", f"data.val={stores['val']}"]
        status = run_tool("train", ["--set", *TINY, *paths, *flags])
        return status, capsys.readouterr().err

    return run


def read_config(checkpoint: str) -> Config:
    """The settings of the run that wrote a checkpoint."""
    return config_from_dict(read_checkpoint(checkpoint)["config"])


def total_steps(checkpoint: str) -> int:
    return read_checkpoint(checkpoint)["progress"]["total_steps"]


def test_a_new_run_is_refused_in_the_folder_of_another(train: Train) -> None:
    assert train()[0] == 0
    last = Path("checkpoints/run/last.pth")
    before = last.read_bytes()
    status, error = train()
    assert status == 2
    assert "--resume" in error
    assert error.count("\n") == 1
    assert last.read_bytes() == before


def test_the_logged_terms_of_the_loss_add_up_to_the_loss_of_the_epoch(train: Train) -> None:
    assert train("-p", "run")[0] == 0
    (terms_of_the_only_stack,) = read_log(Path("run"), "train")[0]["terms"]
    (epoch,) = read_log(Path("run"), "epoch")
    assert sum(terms_of_the_only_stack) == pytest.approx(epoch["train_loss"], rel=1e-3)


def test_the_run_folder_is_named_after_the_experiment_file(train: Train) -> None:
    Path("mine.toml").write_text("[train]\nseed = 3\n")
    assert train("--config", "mine.toml")[0] == 0
    assert read_config("checkpoints/mine/last.pth").train.seed == 3


def test_flags_change_their_settings(train: Train) -> None:
    flags = "--epochs 1 --batch-size=3 --lr 0.01 --max_grad_norm 5 --print-freq 7 --no-warmup --device cpu --amp bf16"
    assert train("-p", "run", *flags.split(), "--freeze", "stem.*", "--max-steps", "1")[0] == 0
    config = read_config("run/last.pth")
    assert config.train.batch_size == 3
    assert config.train.amp == "bf16"
    assert config.train.freeze == ("stem.*",)
    assert config.optim.lr == 0.01
    assert config.optim.max_grad_norm == 5
    assert config.optim.warmup_epochs == 0
    assert config.log.every_steps == 7


def test_every_pattern_of_freeze_must_match(train: Train) -> None:
    status, error = train("-p", "run", "--freeze", "stem.*", "merges*")
    assert status == 2
    assert "'merges*' matches no parameter" in error


def test_options_of_apex_are_translated_with_a_message(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--opt-level", "O0", "--loss-scale", "dynamic", "--warmup")[0] == 0
    config = read_config("run/last.pth")
    assert config.train.amp == "off"
    assert config.train.loss_scale == 0
    assert config.optim.warmup_epochs == 3
    assert "--opt-level O0" in caplog.text
    _, error = train("-p", "other", "--loss-scale", "large")
    assert "--loss-scale" in error


def test_max_steps_counts_from_the_start_of_the_run(train: Train) -> None:
    assert train("-p", "run", "--epochs", "3", "--max-steps", "1")[0] == 0
    assert total_steps("run/last.pth") == 1
    assert train("-p", "run", "--resume", "--max-steps", "2")[0] == 0
    assert total_steps("run/last.pth") == 2


def test_resuming_an_empty_folder_starts_a_run_with_a_message(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--resume", "--max-steps", "1")[0] == 0
    assert "starting a new run" in caplog.text
    assert total_steps("run/last.pth") == 1


@pytest.mark.parametrize("source", ["moved/last.pth", "moved"], ids=["file", "folder"])
def test_a_run_resumes_where_its_checkpoint_is(train: Train, source: str) -> None:
    train("-p", "run", "--epochs", "2", "--max-steps", "1")
    shutil.copytree("run", "moved")
    assert run_tool("train", ["--resume", source, "--max-steps", "2"]) == 0
    assert read_config("moved/last.pth").checkpoint.path == "moved"
    assert total_steps("moved/last.pth") == 2
    assert total_steps("run/last.pth") == 1


def test_resuming_a_missing_checkpoint_is_an_error(train: Train) -> None:
    status, error = train("--resume", "nowhere.pth")
    assert status == 2
    assert "nowhere.pth" in error


def test_a_run_is_not_resumed_into_the_folder_of_another(train: Train) -> None:
    train("-p", "one", "--max-steps", "1")
    train("-p", "two", "--max-steps", "2")
    status, error = train("--resume", "one/last.pth", "-p", "two")
    assert status == 2
    assert "two already contains a run" in error
    assert train("--resume", "one/last.pth", "-p", "three", "--max-steps", "2")[0] == 0
    assert total_steps("three/last.pth") == 2


def test_resuming_with_an_experiment_file_keeps_the_settings_of_flags(train: Train) -> None:
    Path("mine.toml").write_text("[train]\nseed = 3\n")
    assert train("--config", "mine.toml", "--max-steps", "1")[0] == 0
    assert run_tool("train", ["--config", "mine.toml", "--resume", "--max-steps", "2"]) == 0
    config = read_config("checkpoints/mine/last.pth")
    assert config.model.width == 16
    assert config.train.seed == 3


def test_warmup_turns_a_run_s_disabled_warmup_on_again(train: Train) -> None:
    train("-p", "run", "--no-warmup", "--max-steps", "1")
    assert run_tool("train", ["--resume", "run", "--warmup", "--max-steps", "1"]) == 0
    assert read_config("run/last.pth").optim.warmup_epochs == 3


def test_resuming_logs_the_settings_that_changed(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    train("-p", "run", "--max-steps", "1")
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--resume", "--lr", "0.5", "--max-steps", "1")[0] == 0
    assert "optim.lr: 0.00025 -> 0.5" in caplog.text


def test_a_run_with_a_damaged_last_checkpoint_resumes_from_an_older_one(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    train("-p", "run", "--set", "checkpoint.every_steps=1")
    with open("run/last.pth", "r+b") as file:
        file.truncate(1000)
    assert train("-p", "run", "--resume", "--max-steps", "1")[0] == 0
    assert "last.pth" in caplog.text
    assert "using " in caplog.text


def test_fine_tuning_starts_from_the_weights_and_keeps_frozen_ones(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    train("-p", "first")
    with caplog.at_level("INFO"):
        assert train("-p", "second", "--weights", "first/best.pth", "--freeze", "all-but-heads")[0] == 0
    assert "Fine-tuning" in caplog.text
    assert "Frozen" in caplog.text
    first = read_checkpoint("first/best.pth")["model"]
    second = read_checkpoint("second/last.pth")["model"]
    stem = [name for name in first if name.startswith("stem.")]
    assert stem
    assert all(torch.equal(first[name], second[name]) for name in stem)


def test_messages_from_before_the_run_are_in_its_log_once(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train("-p", "first", "--max-steps", "1")
    train("-p", "second", "--weights", "first/last.pth", "--max-steps", "1", "--set", "log.tensorboard=true")
    text = Path("second/log.txt").read_text()
    assert text.count("Fine-tuning") == 1
    assert text.count("TensorBoard is not installed") == 1


def test_stores_that_share_images_are_refused_unless_allowed(train: Train, stores: dict[str, Path]) -> None:
    same_store = f"data.val={stores['train']}"
    status, error = train("-p", "run", "--set", same_store)
    assert status == 2
    assert "data.allow_overlap" in error
    assert train("-p", "run", "--max-steps", "1", "--set", same_store, "data.allow_overlap=true")[0] == 0


@pytest.mark.parametrize(
    "flags, named",
    [
        (["--set", "data.train=missing.h5"], "missing.h5"),
        (["--set", "data.train="], "build_hdf5"),
        (["--set", "model.stack=2"], "model.stack"),
        (["--set", "train.batch_size=0"], "train.batch_size"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--weights", "missing.pth"], "missing.pth"),
        (["--device", "toaster"], "toaster"),
        (["--freeze", "nothing*"], "nothing*"),
        (["--set", "train.batch_size=1"], "train.batch_size"),
        (["--set", "data.val_images=nowhere", "data.val_annotations=nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_reported_in_one_line_and_no_checkpoint_is_written(
    train: Train, tmp_path: Path, flags: list[str], named: str
) -> None:
    status, error = train("-p", "run", *flags)
    last_line = error.splitlines()[-1]
    assert status == 2
    assert named in last_line
    assert "error:" in last_line
    assert "Traceback" not in error
    assert not list(tmp_path.glob("run/*.pth"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_store_with_damaged_images_is_named_in_one_short_line(
    train: Train, stores: dict[str, Path], tmp_path: Path, workers: int
) -> None:
    damaged = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], damaged)
    with h5py.File(damaged, "r+") as file:
        file["jpeg"][:] = 0
    status, error = train("-p", "run", "--set", f"data.train={damaged}", f"data.workers={workers}")
    last_line = error.splitlines()[-1]
    assert status == 2
    assert "damaged.h5" in last_line
    assert "Traceback" not in last_line
    assert len(last_line) < 300


def test_a_folder_that_another_process_uses_is_refused(train: Train, tmp_path: Path) -> None:
    with locked_by_another_process(tmp_path / "run"):
        status, error = train("-p", "run", "--max-steps", "1")
        assert status == 2
        assert "in use by process" in error
        assert error.splitlines()[-1].count("error:") == 1
        assert os.listdir("run") == ["run.lock"]
    assert train("-p", "run", "--max-steps", "1")[0] == 0


def test_a_run_that_another_process_wrote_before_the_lock_was_taken_is_not_overwritten(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def lock_after_another_run(folder: Path) -> Iterator[None]:
        folder.mkdir()
        (folder / "last.pth").write_bytes(b"of another process")
        yield

    monkeypatch.setattr(training_run, "run_lock", lock_after_another_run)
    status, error = train("-p", "run", "--max-steps", "1")
    assert status == 2
    assert "already contains a run" in error
    assert os.listdir("run") == ["last.pth"]


def run_status() -> str:
    return Path("run/run.status").read_text().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_scripts_can_tell_a_run_that_a_signal_stopped_from_a_finished_one(
    train: Train, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    train_step = TrainStep.__call__

    def train_step_and_signal(self: TrainStep, batches: Any) -> Any:
        assert run_status() == "running"
        os.kill(os.getpid(), number)
        return train_step(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", train_step_and_signal)
        assert train("-p", "run")[0] == STOPPED_STATUS == 75
    assert run_status() == "stopped"
    assert train("-p", "run", "--resume")[0] == 0
    assert run_status() == "finished"


def test_a_run_that_has_done_the_steps_asked_for_is_finished(train: Train) -> None:
    assert train("-p", "run", "--max-steps", "1")[0] == 0
    assert run_status() == "finished"


def test_a_run_that_ends_with_an_error_has_failed(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TrainStep, batches: Any) -> Any:
        raise DataError("the disk is gone")

    monkeypatch.setattr(TrainStep, "__call__", fail)
    assert train("-p", "run")[0] == 2
    assert run_status() == "failed"


@pytest.mark.parametrize("tool", ["train", "train-parallel"])
@pytest.mark.parametrize(
    "launcher",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "a",
        },
    ],
)
def test_several_processes_of_a_tool_for_one_are_refused(
    tool: str, launcher: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert run_tool(tool, ["-p", "run"]) == 2
    error = capsys.readouterr().err
    assert "a launcher has started 2 processes of this tool" in error
    assert "tools/train_distributed.py" in error

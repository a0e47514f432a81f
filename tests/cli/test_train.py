"""tools/train.py as a user runs it: flags, refusals, resuming, fine-tuning and clean errors."""

import contextlib
import json
import os
import shutil
import sys

import h5py
import pytest
import torch

from posenet.checkpoints.file import read_checkpoint
from posenet.cli import training
from posenet.cli.main import run_tool
from posenet.settings import config_from_dict
from tests.helpers.run_locks import locked_by_another_process

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
def train(stores, tmp_path, capsys, monkeypatch):
    """Runs the tool on a tiny network in ``tmp_path``; gives status and what was printed to standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> tuple[int, str]:
        paths = [f"data.train={stores['train']}", f"data.val={stores['val']}"]
        status = run_tool("train", ["--set", *TINY, *paths, *flags])
        return status, capsys.readouterr().err

    return run


def config_in(path):
    return config_from_dict(read_checkpoint(path)["config"])


def test_trains_into_the_default_folder_and_refuses_to_train_over_it(train, tmp_path):
    assert train()[0] == 0
    last = tmp_path / "checkpoints" / "run" / "last.pth"
    before = last.read_bytes()
    lines = [json.loads(line) for line in (last.parent / "log.jsonl").read_text().splitlines()]
    [terms] = next(line["terms"] for line in lines if line["kind"] == "train")
    assert sum(terms) == pytest.approx(lines[-1]["train_loss"], rel=1e-3), "of one stack and five scales"
    status, error = train()
    assert status == 2 and "--resume" in error and error.count("\n") == 1
    assert last.read_bytes() == before


def test_the_run_folder_is_named_after_the_experiment_file(train, tmp_path):
    (tmp_path / "mine.toml").write_text("[train]\nseed = 3\n")
    assert train("--config", "mine.toml")[0] == 0
    assert config_in(tmp_path / "checkpoints" / "mine" / "last.pth").train.seed == 3


def test_flags_set_their_keys(train):
    flags = [
        "-p",
        "run",
        "--epochs",
        "1",
        "--batch-size=3",
        "--lr",
        "0.01",
        "--max_grad_norm",
        "5",
        "--print-freq",
        "7",
        "--no-warmup",
        "--device",
        "cpu",
        "--amp",
        "bf16",
        "--freeze",
        "stem.*",
        "merges*",
        "--max-steps",
        "1",
    ]
    status, error = train(*flags)
    assert status == 2 and "'merges*' matches no parameter" in error
    assert train(*[f for f in flags if f != "merges*"])[0] == 0
    config = config_in("run/last.pth")
    assert (config.train.batch_size, config.optim.lr, config.optim.max_grad_norm) == (3, 0.01, 5)
    assert (config.log.every_steps, config.optim.warmup_epochs) == (7, 0)
    assert config.train.amp == "bf16" and config.train.freeze == ("stem.*",)


def test_apex_names_are_mapped_with_a_word(train, caplog):
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--opt-level", "O0", "--loss-scale", "dynamic", "--warmup")[0] == 0
    config = config_in("run/last.pth")
    assert config.train.amp == "off" and config.train.loss_scale == 0 and config.optim.warmup_epochs == 3
    assert "--opt-level O0" in caplog.text
    assert "--loss-scale" in train("-p", "other", "--loss-scale", "large")[1]


def test_max_steps_counts_from_the_very_start(train):
    assert train("-p", "run", "--epochs", "3", "--max-steps", "1")[0] == 0
    assert read_checkpoint("run/last.pth")["progress"]["total_steps"] == 1
    assert train("-p", "run", "--resume", "--max-steps", "2")[0] == 0
    assert read_checkpoint("run/last.pth")["progress"]["total_steps"] == 2


def test_resume_by_file_by_folder_and_with_nothing_to_resume(train, caplog):
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--resume")[0] == 0
    assert "starting a new run" in caplog.text
    steps = read_checkpoint("run/last.pth")["progress"]["total_steps"]
    shutil.copytree("run", "moved")
    for where in ("moved/last.pth", "moved"):
        status = run_tool("train", ["--resume", where, "--epochs", "2", "--max-steps", str(steps + 2)])
        assert status == 0
        assert config_in("moved/last.pth").checkpoint.path == "moved"
    assert read_checkpoint("moved/last.pth")["progress"]["total_steps"] == steps + 2
    assert read_checkpoint("run/last.pth")["progress"]["total_steps"] == steps
    status, error = train("--resume", "nowhere.pth")
    assert status == 2 and "nowhere.pth" in error


def test_another_run_is_not_overwritten_by_resuming_into_it(train):
    train("-p", "one", "--max-steps", "1")
    train("-p", "two", "--max-steps", "2")
    status, error = train("--resume", "one/last.pth", "-p", "two")
    assert status == 2 and "two already contains a run" in error
    assert train("--resume", "one/last.pth", "-p", "three", "--max-steps", "2")[0] == 0
    assert read_checkpoint("three/last.pth")["progress"]["total_steps"] == 2


def test_an_experiment_file_keeps_what_the_checkpoint_was_given_besides(train, tmp_path, stores):
    (tmp_path / "mine.toml").write_text("[train]\nseed = 3\n")
    assert train("--config", "mine.toml", "--max-steps", "1")[0] == 0
    assert run_tool("train", ["--config", "mine.toml", "--resume", "--max-steps", "2"]) == 0
    config = config_in("checkpoints/mine/last.pth")
    assert config.model.width == 16 and config.train.seed == 3


def test_warmup_on_resuming_looks_at_the_runs_own_length(train):
    train("-p", "run", "--no-warmup", "--max-steps", "1")
    assert run_tool("train", ["--resume", "run", "--warmup", "--max-steps", "1"]) == 0
    assert config_in("run/last.pth").optim.warmup_epochs == 3


def test_resuming_says_what_changed(train, caplog):
    train("-p", "run", "--max-steps", "1")
    with caplog.at_level("INFO"):
        assert train("-p", "run", "--resume", "--lr", "0.5", "--max-steps", "1")[0] == 0
    assert "optim.lr: 0.00025 -> 0.5" in caplog.text


def test_damaged_last_checkpoint_is_passed_over(train, caplog):
    train("-p", "run", "--set", "checkpoint.every_steps=1")
    with open("run/last.pth", "r+b") as file:
        file.truncate(1000)
    assert train("-p", "run", "--resume", "--max-steps", "1")[0] == 0
    assert "last.pth" in caplog.text and "using " in caplog.text


def test_fine_tuning_loads_the_weights_and_reports(train, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train("-p", "first")
    with caplog.at_level("INFO"):
        assert (
            train(
                "-p",
                "second",
                "--weights",
                "first/best.pth",
                "--freeze",
                "all-but-heads",
                "--set",
                "log.tensorboard=true",
            )[0]
            == 0
        )
    assert "Fine-tuning" in caplog.text and "Frozen" in caplog.text
    log = open("second/log.txt").read()
    assert "Fine-tuning" in log and log.count("TensorBoard is not installed") == 1
    first, second = read_checkpoint("first/best.pth")["model"], read_checkpoint("second/last.pth")["model"]
    stem = [n for n in first if n.startswith("stem.")]
    assert stem and all(torch.equal(first[n], second[n]) for n in stem)


def test_shared_images_are_refused_unless_wanted(train, stores):
    same = f"data.val={stores['train']}"
    status, error = train("-p", "run", "--set", same)
    assert status == 2 and "data.allow_overlap" in error
    assert train("-p", "run", "--max-steps", "1", "--set", same, "data.allow_overlap=true")[0] == 0


@pytest.mark.parametrize(
    "flags, words",
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
def test_bad_input_is_one_line_and_leaves_nothing_behind(train, tmp_path, flags, words):
    status, error = train("-p", "run", *flags)
    last = error.splitlines()[-1]
    assert status == 2 and words in last and "error:" in last and "Traceback" not in error
    assert not list(tmp_path.glob("run/*.pth"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_picture_in_the_store_is_named(train, stores, tmp_path, workers):
    damaged = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], damaged)
    with h5py.File(damaged, "r+") as file:
        file["jpeg"][:] = 0
    status, error = train("-p", "run", "--set", f"data.train={damaged}", f"data.workers={workers}")
    last = error.splitlines()[-1]
    assert status == 2 and "damaged.h5" in last and "Traceback" not in last and len(last) < 300


def test_a_folder_in_use_is_refused(train, tmp_path):
    with locked_by_another_process(tmp_path / "run"):
        status, error = train("-p", "run", "--max-steps", "1")
        assert status == 2 and "in use by process" in error and error.splitlines()[-1].count("error:") == 1
        assert os.listdir("run") == ["run.lock"]
    assert train("-p", "run", "--max-steps", "1")[0] == 0


def test_a_run_that_came_and_went_meanwhile_is_not_overwritten(train, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def late(folder):
        folder.mkdir()
        (folder / "last.pth").write_bytes(b"another's")
        yield

    monkeypatch.setattr(training, "run_lock", late)
    status, error = train("-p", "run", "--max-steps", "1")
    assert status == 2 and "already contains a run" in error
    assert os.listdir("run") == ["last.pth"]

"""tools/train.py as a user runs it: what the flags set, the exit status and run.status, and errors of one line."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from posenet.checkpoints.file import read_checkpoint
from posenet.cli.main import run_tool
from posenet.devices.signals import STOPPED_STATUS
from posenet.settings import Config, config_from_dict, load_config
from tests.helpers.process_groups import need_processes
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import TINY, Stores, data_settings

Train = Callable[..., tuple[int, str]]


@pytest.fixture
def train(stores: Stores, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Train:
    """A function that runs the tool on a tiny network in ``tmp_path``; returns exit status and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> tuple[int, str]:
        status = run_tool("train", ["--set", *TINY, "train.epochs=1", *data_settings(stores), *flags])
        return status, capsys.readouterr().err

    return run


def config_of(checkpoint: str) -> Config:
    """The settings of the run that wrote a checkpoint."""
    return config_from_dict(read_checkpoint(checkpoint)["config"])


def run_status() -> str:
    return Path("run/run.status").read_text().strip()


def test_flags_are_settings_and_arguments_of_train(
    train: Train, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def record(config: object, overrides: list[str], **options: Any) -> SimpleNamespace:
        given.update(options, config=config, overrides=overrides)
        return SimpleNamespace(stopped=options["resume"])

    monkeypatch.setattr("posenet.training.train.train", record)
    Path("w.pth").touch()
    others = {**dict.fromkeys(("experiment", "images", "val", "val_images")), "runtime": ANY, "prepare": False}
    assert train("--config", "tiny")[0] == 0
    overrides = given.pop("overrides")
    assert given == {"config": "tiny", "resume": False, "warmup": False, "max_steps": 0, **others}
    flags = """--epochs 1 --lr 0.01 --max_grad_norm 5 --print-freq 7 --device cpu --amp bf16 --sync-bn
        --freeze stem.* --loss-scale 64 --weights w.pth --warmup --max-steps 9 --resume -p é/𠮷"""
    assert train(*flags.split())[0] == STOPPED_STATUS
    settings = given.pop("overrides")
    assert given == {"config": None, "resume": True, "warmup": True, "max_steps": 9, **others}
    assert settings[: len(overrides)] == overrides
    expected = """train.epochs=1 optim.lr=0.01 optim.max_grad_norm=5 log.every_steps=7
        train.device='cpu' train.amp='bf16' parallel.sync_bn=true train.freeze=['stem.*']
        train.loss_scale=64 train.weights='w.pth' checkpoint.path='é/𠮷'"""
    assert load_config(None, settings) == load_config(None, [*overrides, *expected.split()])
    with caplog.at_level("INFO"):
        assert train("--no-warmup", "--opt-level", "O1")[0] == 0
    config = load_config(None, given["overrides"])
    assert (config.optim.warmup_epochs, given["warmup"]) == (0, False)
    assert config.train.amp == "fp16"
    assert caplog.messages == ["--opt-level O1 is an option of Apex; using --amp fp16"]
    assert train("--freeze", "--amp", "-f", "3", "-w")[0] == 0  # as typed in recipes for Apex
    config = load_config(None, given["overrides"])
    assert (config.train.freeze, config.train.amp) == (("all-but-heads",), "auto")
    assert (config.log.every_steps, given["warmup"]) == (3, True)
    for refused in (("--loss-scale", "large"), ("--opt-level", "O4"), ("--amp", "bf16", "--opt-level", "O0")):
        with pytest.raises(SystemExit, match="2"):
            train("-p", "other", *refused)


def test_train_parallel_takes_the_numbers_of_its_devices(
    stores: Stores, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_processes()
    monkeypatch.chdir(tmp_path)
    words = ["-p", "run", "--max-steps", "1", "--set", *TINY, *data_settings(stores)]
    assert run_tool("train-parallel", words) == 0
    assert "DataParallel: cpu is the only device" in capsys.readouterr().err
    assert read_checkpoint("run/last.pth")["progress"]["total_steps"] == 1
    for devices in ("0", "0,0,7"):
        refused = ["-p", "other", "--device", "cpu", *words[2:], "--devices", devices]
        assert run_tool("train-parallel", refused) == 2
        assert f"--devices {devices}" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run_tool("train-parallel", [*words, "--devices", "0,x"])
    assert "'0,x' is not a list of device numbers such as 0,1" in capsys.readouterr().err


def test_the_run_folder_is_named_after_the_experiment_file_and_resumes_with_it(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text("[train]\nseed = 3\n")
    status, shown = train("--config", "mine.toml", "--max-steps", "1")
    start = next(line for line in shown.splitlines() if line.startswith("Training 1 stack"))
    assert status == 0 and "width 16" in start and "on 14 samples of " in start and len(start) < 160
    assert "The run is in checkpoints/mine; " in shown and "--resume with more --max-steps, or without, cont" in shown
    status, error = train("--config", "mine.toml")
    assert status == 2 and "--resume" in error and error.count("\n") == 1
    assert run_tool("train", ["--config", "mine.toml", "--resume", "--warmup", "--lr", "0.5", "--max-steps", "2"]) == 0
    config = config_of("checkpoints/mine/last.pth")
    assert (config.train.seed, config.model.width) == (3, 16)
    assert (config.optim.warmup_epochs, config.optim.lr) == (1, 0.5)
    assert read_checkpoint("checkpoints/mine/last.pth")["progress"]["total_steps"] == 2
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    status, shown = train("--config", "mine.toml", "--max-steps", "3")
    assert status == 0 and "The launcher has started the run again: resuming from its newest checkpoint" in shown
    assert read_checkpoint("checkpoints/mine/last.pth")["progress"]["total_steps"] == 3


def test_a_rate_that_is_much_too_high_ends_with_advice_and_a_complete_log(train: Train) -> None:
    """Numbers that are not finite are null in the log, which used to end the run."""
    status, error = train("-p", "run", "--lr", "1e9", "--epochs", "4")
    last_line = error.splitlines()[-1]
    assert status == 2 and "lower optim.lr" in last_line and "Traceback" not in error
    assert read_log(Path("run"), "skip") and run_status() == "failed"


@pytest.mark.parametrize(
    "words, remedy",
    [
        ("train -p run", "posenet train-distributed (tools/train_distributed.py)"),
        ("train-parallel -p run", "train-distributed"),
        ("predict a.jpg", "a part of the list from standard input, see posenet docs scale"),
    ],
)
def test_several_processes_of_a_tool_for_one_are_refused(
    words: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    tool, *arguments = words.split()
    if tool == "train-parallel":
        need_processes()
    assert run_tool(tool, arguments) == 2
    error = capsys.readouterr().err
    assert "has started 2 processes of this tool" in error and remedy in error

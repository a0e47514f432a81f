"""The log of a run: text, JSON lines, TensorBoard, drawings and curves."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.cli.logging_setup import log_to_stderr
from posenet.settings import Config, LogConfig
from posenet.training import run_log
from posenet.training.callbacks import TrainingCallback
from posenet.training.run_log import JsonLines, RunLog, TextLog
from tests.helpers.run_logs import read_log

FULL_DISK = "/dev/full"


def open_log(
    folder: Path, tensorboard: bool = False, curves: bool = True, callbacks: Sequence[TrainingCallback] = ()
) -> RunLog:
    log = RunLog(folder, Config(log=LogConfig(tensorboard=tensorboard, curves=curves)), callbacks)
    log.start()
    return log


def log_epoch(log: RunLog, epoch: int, **scores: float) -> None:
    """Log one step and the end of an epoch."""
    step = 10 * epoch
    log.step(step, {"epoch": epoch - 1, "loss": 1.5, "lr": 1e-3, "samples_per_s": 9.0})
    log.epoch(epoch, step, {"train_loss": 1.25, "val_loss": None, **scores})


def test_a_log_holds_messages_values_and_drawings_and_a_resumed_run_appends_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for epoch in (1, 2):
        log = open_log(folder, curves=False)
        logging.getLogger("posenet.anything").info("a message of the package")
        log_epoch(log, epoch, AP=0.5)
        log.drawing(f"epoch_{epoch:04d}", np.full((4, 6, 3), 200, np.uint8), 10)
        log.close()
    text = (folder / "log.txt").read_text()
    assert text.count("a message of the package") == 2
    assert "Epoch 2  train_loss 1.2500  AP 0.5000" in text
    assert "val_loss" not in text
    entries = read_log(folder)
    assert [entry["kind"] for entry in entries] == ["train", "epoch", "train", "epoch"]
    assert [entry["step"] for entry in entries] == [10, 10, 20, 20]
    assert entries[0]["loss"] == 1.5
    assert entries[3]["AP"] == 0.5
    assert entries[3]["val_loss"] is None
    assert cv2.imread(str(folder / "pictures" / "epoch_0002.jpg")).shape == (4, 6, 3)


def test_a_closed_log_receives_no_messages(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    logging.getLogger("posenet").warning("too late")
    assert "too late" not in (tmp_path / "log.txt").read_text()


def test_the_progress_bar_starts_at_the_steps_that_are_done(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with log.progress_bar("epoch 1/1", 10, done=4) as bar:
        bar.update()
        assert bar.n == 5
        assert bar.total == 10
    log.close()


def test_on_a_full_disk_the_run_continues_after_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log = open_log(tmp_path)
    (text_log,) = [part for part in log._logs if isinstance(part, TextLog)]
    (json_lines,) = [part for part in log._logs if isinstance(part, JsonLines)]
    text_log.handler.close()
    json_lines.file.close()
    text_log.handler.stream = open(FULL_DISK, "a", encoding="utf-8")
    json_lines.file = open(FULL_DISK, "a", encoding="utf-8")
    for step in range(3):
        log.step(step, {"loss": 1.0})
        logging.getLogger("posenet").info("a line")
    log.close()
    assert caplog.text.count("cannot log into") == 1
    assert "No space left on device" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_tensorboard_receives_values_and_drawings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = open_log(tmp_path, tensorboard=True)
    log.step(7, {"loss": 0.25})
    log.drawing("epoch_0001", np.zeros((4, 4, 3), np.uint8), 7)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(7, 0.25)]
    assert events.Tags()["images"] == ["predictions"]


def test_without_tensorboard_the_log_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    open_log(tmp_path, tensorboard=True).close()
    assert "pip install tensorboard" in (tmp_path / "log.txt").read_text()


def test_json_messages_on_standard_error_hold_the_values_of_every_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to_stderr("json"):
        log = open_log(tmp_path)
        log.step(10, {"loss": 1.5})
        log.epoch(1, 10, {"train_loss": 1.25})
        log.close()
    messages = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [message["message"] for message in messages] == ["train", "Epoch 1  train_loss 1.2500", "epoch"]
    assert messages[0]["loss"] == 1.5
    assert messages[2]["train_loss"] == 1.25
    assert messages[2]["step"] == 10
    assert "train\n" not in (tmp_path / "log.txt").read_text()


@pytest.fixture
def drawn_folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose curves were drawn; no curves are really drawn."""
    folders: list[Path] = []
    monkeypatch.setattr(run_log, "write_curves", folders.append)
    return folders


def test_curves_are_drawn_after_a_validation_but_not_again_at_the_end(
    tmp_path: Path, drawn_folders: list[Path]
) -> None:
    log = open_log(tmp_path)
    log_epoch(log, 1)
    assert drawn_folders == []
    log_epoch(log, 2, AP=0.5)
    assert drawn_folders == [tmp_path]
    log.close()
    assert drawn_folders == [tmp_path]


def test_curves_are_drawn_at_the_end_if_the_last_epoch_had_no_validation(
    tmp_path: Path, drawn_folders: list[Path]
) -> None:
    log = open_log(tmp_path)
    log_epoch(log, 1)
    log.close()
    assert drawn_folders == [tmp_path]


def test_no_curves_are_drawn_if_they_are_turned_off(tmp_path: Path, drawn_folders: list[Path]) -> None:
    log = open_log(tmp_path, curves=False)
    log_epoch(log, 1, AP=0.5)
    log.close()
    assert drawn_folders == []


def test_a_run_continues_if_its_curves_cannot_be_drawn(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    (tmp_path / "curves.png").mkdir()
    log_epoch(log, 1, AP=0.5)
    log.close()
    assert "curves.png was not drawn" in (tmp_path / "log.txt").read_text()


def test_without_matplotlib_the_log_names_the_package_to_install_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = open_log(tmp_path)
    for epoch in (1, 2):
        log_epoch(log, epoch, AP=0.5)
    log.close()
    assert (tmp_path / "log.txt").read_text().count("pip install 'posenet[plot]'") == 1
    assert not (tmp_path / "curves.png").exists()


class Recorder(TrainingCallback):
    """Records the calls of all methods; raises an error in one of them."""

    def __init__(self, fails_in: str = "") -> None:
        self.calls: list[str] = []
        self.fails_in = fails_in

    def _record(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_in:
            raise ValueError("no network")

    def on_start(self, config: Config, folder: Path) -> None:
        self._record(f"start {config.train.epochs} {folder.name}")

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self._record(f"step {step} {values['loss']}")

    def on_skip(self, step: int, values: Mapping[str, Any]) -> None:
        self._record(f"skip {step} {values['value']}")

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        self._record(f"epoch {values['epoch']} {step} {values['AP']}")

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        self._record(f"drawing {name} {step} {image.shape}")

    def on_end(self) -> None:
        self._record("end")


def log_everything(log: RunLog) -> None:
    log.step(1, {"loss": 2.0})
    log.skip(2, {"value": "nan", "image_ids": [3]})
    log.drawing("epoch_0001", np.zeros((4, 6, 3), np.uint8), 2)
    log.epoch(1, 2, {"AP": 0.5})
    log.close()


def test_a_callback_receives_all_that_the_logs_receive(tmp_path: Path) -> None:
    recorder = Recorder()
    log_everything(open_log(tmp_path, callbacks=[recorder]))
    assert recorder.calls == [
        f"start 100 {tmp_path.name}",
        "step 1 2.0",
        "skip 2 nan",
        "drawing epoch_0001 2 (4, 6, 3)",
        "epoch 1 2 0.5",
        "end",
    ]


def test_a_callback_that_fails_is_named_once_and_not_called_any_more(tmp_path: Path) -> None:
    failing = Recorder(fails_in="skip 2 nan")
    other = Recorder()
    log_everything(open_log(tmp_path, callbacks=[failing, other]))
    assert failing.calls[-1] == "skip 2 nan"
    assert other.calls[-1] == "end"
    assert len(read_log(tmp_path)) == 3
    text = (tmp_path / "log.txt").read_text()
    assert text.count("the callback Recorder failed and is not called any more: ValueError: no network") == 1


def test_a_callback_that_fails_at_the_start_ends_the_run(tmp_path: Path) -> None:
    first = Recorder()
    failing = Recorder(fails_in=f"start 100 {tmp_path.name}")
    log = RunLog(tmp_path, Config(), [first, failing])
    with pytest.raises(ValueError, match="no network"):
        log.start()
    log.close()
    assert first.calls[-1] == "end"
    assert "end" not in failing.calls


def test_progress_bars_can_be_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path, Config(), progress=False)
    with log.progress_bar("epoch 1/1", 10) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_a_closed_log_restores_the_level_of_the_package(tmp_path: Path) -> None:
    package = logging.getLogger("posenet")
    before = package.level
    open_log(tmp_path).close()
    assert package.level == before

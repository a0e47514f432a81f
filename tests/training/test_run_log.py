"""What a run tells: text, JSON lines, images."""

import json
import logging
import sys

import cv2
import numpy as np
import pytest

from posenet.cli.logging_setup import log_to_stderr
from posenet.settings import LogConfig
from posenet.training import run_log as runlog
from posenet.training.run_log import RunLog


def test_everything_lands_in_the_folder_and_resuming_appends(tmp_path):
    for epoch in (1, 2):
        log = RunLog(tmp_path / "run", LogConfig(tensorboard=False, curves=False))
        logging.getLogger("posenet.anything").info("a message of the package")
        log.record("train", 10 * epoch, {"loss": 1.5})
        log.epoch(epoch, 10 * epoch, {"train_loss": 1.25, "val_loss": None, "AP": 0.5})
        log.drawing(f"epoch_{epoch:04d}", np.full((4, 6, 3), 200, np.uint8), 10)
        log.close()
    text = (tmp_path / "run" / "log.txt").read_text()
    assert text.count("a message of the package") == 2
    assert "Epoch 2  train_loss 1.2500  AP 0.5000" in text and "val_loss" not in text
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["train", "epoch"] * 2
    assert [line["step"] for line in lines] == [10, 10, 20, 20]
    assert lines[0]["loss"] == 1.5 and lines[3]["AP"] == 0.5 and lines[3]["val_loss"] is None
    assert cv2.imread(str(tmp_path / "run" / "pictures" / "epoch_0002.jpg")).shape == (4, 6, 3)


def test_a_closed_log_writes_no_more(tmp_path):
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    log.close()
    logging.getLogger("posenet").warning("too late")
    assert "too late" not in (tmp_path / "log.txt").read_text()


def test_messages_do_not_tear_the_bar(tmp_path):
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    with log.progress_bar("epoch 1/1", 10, done=4) as bar:
        bar.update()
        assert bar.n == 5 and bar.total == 10
    log.close()


def test_a_full_disk_costs_the_log_its_lines_and_not_the_run(tmp_path, caplog, capfd):
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    log._json_file.close()
    log._text_handler.close()
    log._json_file = open("/dev/full", "a", encoding="utf-8")
    log._text_handler.stream = open("/dev/full", "a", encoding="utf-8")
    for step in range(3):
        log.record("train", step, {"loss": 1.0})
        logging.getLogger("posenet").info("a line")
    log.close()
    assert caplog.text.count("cannot log into") == 1 and "No space left on device" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_tensorboard_gets_the_numbers_and_the_pictures(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(tmp_path, LogConfig(tensorboard=True))
    log.record("train", 7, {"loss": 0.25})
    log.drawing("epoch_0001", np.zeros((4, 4, 3), np.uint8), 7)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(7, 0.25)]
    assert events.Tags()["images"] == ["predictions"]


def test_without_tensorboard_the_log_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    RunLog(tmp_path, LogConfig(tensorboard=True)).close()
    assert "pip install tensorboard" in (tmp_path / "log.txt").read_text()


def test_programs_can_follow_what_people_see_in_the_bar(tmp_path, capsys):
    with log_to_stderr("json"):
        log = RunLog(tmp_path, LogConfig(tensorboard=False))
        log.record("train", 10, {"loss": 1.5})
        log.epoch(1, 10, {"train_loss": 1.25})
        log.close()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["train", "Epoch 1  train_loss 1.2500", "epoch"]
    assert lines[0]["loss"] == 1.5 and lines[2]["train_loss"] == 1.25 and lines[2]["step"] == 10
    assert "train\n" not in (tmp_path / "log.txt").read_text()


def full_epoch(log, epoch, **scores):
    log.record("train", 10 * epoch, {"epoch": epoch - 1, "loss": 1.5, "lr": 1e-3, "samples_per_s": 9.0})
    log.epoch(epoch, 10 * epoch, {"train_loss": 1.25, "val_loss": None, **scores})


def test_curves_are_drawn_at_validations_and_at_the_end(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(runlog, "write_curves", drawn.append)
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    full_epoch(log, 1)
    assert drawn == []
    full_epoch(log, 2, AP=0.5)
    assert drawn == [tmp_path]
    log.close()
    assert drawn == [tmp_path]
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    full_epoch(log, 3)
    log.close()
    assert drawn == [tmp_path] * 2
    log = RunLog(tmp_path, LogConfig(tensorboard=False, curves=False))
    full_epoch(log, 4, AP=0.5)
    log.close()
    assert drawn == [tmp_path] * 2


def test_a_run_goes_on_where_its_curves_cannot_be_drawn(tmp_path, monkeypatch):
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    (tmp_path / "curves.png").mkdir()
    full_epoch(log, 1, AP=0.5)
    log.close()
    assert "curves.png was not drawn" in (tmp_path / "log.txt").read_text()


def test_without_matplotlib_a_run_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = RunLog(tmp_path, LogConfig(tensorboard=False))
    for epoch in (1, 2):
        full_epoch(log, epoch, AP=0.5)
    log.close()
    assert (tmp_path / "log.txt").read_text().count("pip install 'posenet[plot]'") == 1
    assert not (tmp_path / "curves.png").exists()

"""What a run tells: text, JSON lines, pictures."""

import json
import logging

import cv2
import numpy as np

from posenet.runlog import RunLog


def test_everything_lands_in_the_folder_and_resuming_appends(tmp_path):
    for epoch in (1, 2):
        log = RunLog(tmp_path / "run", tensorboard=False)
        logging.getLogger("posenet.anything").info("a message of the package")
        log.record("train", 10 * epoch, {"loss": 1.5})
        log.epoch(epoch, 10 * epoch, {"train_loss": 1.25, "val_loss": None, "AP": 0.5})
        log.picture(f"epoch_{epoch:04d}", np.full((4, 6, 3), 200, np.uint8), 10)
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
    log = RunLog(tmp_path, tensorboard=False)
    log.close()
    logging.getLogger("posenet").warning("too late")
    assert "too late" not in (tmp_path / "log.txt").read_text()


def test_messages_do_not_tear_the_bar(tmp_path):
    log = RunLog(tmp_path, tensorboard=False)
    with log.progress("epoch 1/1", 10, done=4) as bar:
        bar.update()
        assert bar.n == 5 and bar.total == 10
    log.close()


def test_a_full_disk_costs_the_log_its_lines_and_not_the_run(tmp_path, caplog, capfd):
    log = RunLog(tmp_path, tensorboard=False)
    log._json.close()
    log._text.close()
    log._json = open("/dev/full", "a", encoding="utf-8")
    log._text.stream = open("/dev/full", "a", encoding="utf-8")
    for step in range(3):
        log.record("train", step, {"loss": 1.0})
        logging.getLogger("posenet").info("a line")
    log.close()
    assert caplog.text.count("cannot log into") == 1 and "No space left on device" in caplog.text
    assert "Traceback" not in capfd.readouterr().err

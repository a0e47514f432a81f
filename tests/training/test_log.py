"""What a run reports: callbacks, log.txt, log.jsonl, TensorBoard, drawings and curves."""

import json
import logging
import math
import threading
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from posenet import TrainingCallback
from posenet.errors import DataError
from posenet.settings import Config
from posenet.training.log import RunFiles, text_log
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import ChangingRuntime, Recorder, Stores, coco_settings, multiply, train_tiny

STEPS = 7


def test_a_callback_receives_in_order_what_the_logs_receive(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    callback = Mock(spec=TrainingCallback)
    settings = (*coco_settings(tiny_coco), "train.epochs=1")
    train_tiny(stores, tmp_path, *settings, callbacks=[callback], runtime=ChangingRuntime(multiply({2: math.nan})))
    steps = ["on_step"] * (STEPS - 1)
    names = [name for name, _, _ in callback.method_calls]
    assert names == ["on_start", "on_step", "on_skip", *steps, "on_drawing", "on_epoch", "on_end"]
    config, folder = callback.on_start.call_args.args
    assert (config.train.epochs, folder) == (1, tmp_path)
    train, skip, epoch = (getattr(callback, f"on_{name}").call_args.args[1] for name in ("step", "skip", "epoch"))
    assert set(train) == {"epoch", "loss", "lr", "samples_per_s", "data_wait", "gradient_norm"}
    assert {"epoch", "train_loss", "val_loss", "AP"} <= set(epoch)
    for kind, values in {"train": train, "skip": skip, "epoch": epoch}.items():
        assert values.items() <= read_log(tmp_path, kind)[-1].items()
    step, name, sheet = callback.on_drawing.call_args.args
    assert (step, name) == (STEPS, "epoch_0001")
    assert sheet.shape[1] > 2 * 426 and sheet.std() > 5  # two images and their maps
    assert cv2.imread(str(tmp_path / "pictures" / "epoch_0001.jpg")).shape == sheet.shape
    line = f"Epoch 1 of 1  train_loss {epoch['train_loss']:.4f}  val_loss {epoch['val_loss']:.4f}  AP {epoch['AP']:.4f}"
    assert line in (tmp_path / "log.txt").read_text()


def test_the_memory_of_the_device_is_logged_where_it_tells(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.training.log.peak_memory", lambda device: 3 * 2**30)
    train_tiny({"train": stores["train"]}, tmp_path, "train.epochs=1", "train.batch_size=14")
    entry = read_log(tmp_path, "train")[0]
    assert entry["memory_gib"] == 3


def test_a_callback_that_fails_is_named_once_and_ends_no_run(stores: Stores, tmp_path: Path) -> None:
    errors = ValueError("no network"), OSError(28, "No space left on device")
    callbacks = [Mock(spec=TrainingCallback, **{"on_step.side_effect": error}) for error in errors]
    assert train_tiny(stores, tmp_path, "train.epochs=1", callbacks=callbacks).finished
    text = (tmp_path / "log.txt").read_text()
    for callback, reason in zip(callbacks, ("ValueError: no network", "OSError: [Errno 28] No space left on device")):
        assert callback.on_step.call_count == STEPS and callback.on_end.called
        assert text.count(f"the callback Mock.on_step failed, and training continues: {reason}") == 1


def test_a_callback_that_fails_at_the_start_ends_the_run_and_the_last_started_ends_first(
    stores: Stores, tmp_path: Path
) -> None:
    all_calls = Mock()
    all_calls.third.on_start.side_effect = ValueError("no network")
    with pytest.raises(ValueError, match="no network"):
        train_tiny(stores, tmp_path, callbacks=[all_calls.first, all_calls.second, all_calls.third])
    names = [name for name, _, _ in all_calls.method_calls]
    assert names == ["first.on_start", "second.on_start", "third.on_start", "second.on_end", "first.on_end"]
    assert "ERROR: ValueError('no network')" in (tmp_path / "log.txt").read_text()
    assert not (tmp_path / "last.pth").exists()


def test_a_resumed_run_appends_to_its_logs_and_a_closed_one_receives_nothing(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = logging.getLogger("posenet")
    caplog.set_level(logging.NOTSET, "posenet")
    before = package.level, list(package.handlers)
    for steps in (2, 4):
        train_tiny(stores, tmp_path, resume=True, max_steps=steps)
        package.warning("too late")
    assert [entry["step"] for entry in read_log(tmp_path, "train")] == [1, 2, 3, 4]
    assert "too late" not in (tmp_path / "log.txt").read_text()
    assert (package.level, package.handlers) == before


def test_the_text_log_has_no_details_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "posenet")
    with text_log(tmp_path):
        logging.getLogger("posenet.training").debug("a detail")
        logging.getLogger("posenet.training").info("a step")
    text = (tmp_path / "log.txt").read_text()
    assert "a step" in text and "a detail" not in text


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    log = RunFiles()
    log.on_start(Config(), tmp_path)
    log.on_step(3, {"loss": math.nan, "terms": [[1.0, math.inf]]})
    log.on_end()
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    values = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert (values["loss"], values["terms"]) == (None, [[1.0, None]])
    assert (values["kind"], values["step"]) == ("train", 3)


def test_tensorboard_receives_values_and_drawings(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = (*coco_settings(tiny_coco), "log.tensorboard=true", "train.epochs=1")
    threads = set(threading.enumerate())
    recorder = Recorder()
    train_tiny(stores, tmp_path, *settings, callbacks=[recorder])
    assert set(threading.enumerate()) <= threads  # that of TensorBoard has ended
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    written = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert written == [(entry["step"], pytest.approx(entry["loss"])) for entry in read_log(tmp_path, "train")]
    assert events.Tags()["images"] == ["predictions"]
    [drawing] = events.Images("predictions")
    pixels = cv2.imdecode(np.frombuffer(drawing.encoded_image_string, np.uint8), cv2.IMREAD_COLOR)
    assert drawing.step == STEPS and np.array_equal(pixels, recorder.drawings["epoch_0001"])
    assert {"train/lr", "epoch/AP", "epoch/val_loss"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("name", ["log.txt", "log.jsonl", "curves.png", "settings.toml"])
def test_a_file_of_others_under_a_name_of_a_run_is_kept(stores: Stores, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(DataError, match=name):
        train_tiny(stores, tmp_path, max_steps=1)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_curves_are_drawn_also_without_a_validation(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("posenet.training.log.has_matplotlib", lambda: True)
    settings = {"train": stores["train"]}, "train.epochs=1", "train.batch_size=14"
    train_tiny(settings[0], tmp_path / "run", *settings[1:])
    assert cv2.imread(str(tmp_path / "run" / "curves.png")) is not None
    (tmp_path / "blocked" / "curves.png").mkdir(parents=True)
    assert train_tiny(settings[0], tmp_path / "blocked", *settings[1:]).finished
    assert "the callback RunFiles.on_epoch failed" in (tmp_path / "blocked" / "log.txt").read_text()

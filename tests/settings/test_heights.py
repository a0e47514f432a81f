"""Heights of images that agree in training and in prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.inference.predictor import Predictor
from posenet.settings import load_config
from posenet.settings.reading import experiment_names
from posenet.settings.sections import advise_on_height
from tests.helpers.networks import write_checkpoint


def test_a_height_for_prediction_that_does_not_go_with_training_is_named_with_its_remedy() -> None:
    for name in experiment_names():
        assert advise_on_height(load_config(name)) == ""
    for framing in ("image", "person"):
        advice = advise_on_height(load_config("tiny", ["train.input_size=128", f"data.framing={framing}"]))
        assert "height 128 (train.input_size)" in advice and "use 384 (inference.height)" in advice
        assert "--set inference.height=128 makes" in advice
    large = ["train.input_size=[512, 256]", "inference.height=256"]
    assert "--set inference.height=512" in advise_on_height(load_config("tiny", large))
    for train, scale, nearest in ((64, 4, 64), (2**16, 0.5, 2**16)):
        extreme = [f"train.input_size={train}", "inference.height=1024", f"inference.scales=[{scale}]"]
        assert f"--set inference.height={nearest} makes" in advise_on_height(load_config("tiny", extreme))
    assert advise_on_height(load_config("tiny", [*large, "inference.scales=[0.5, 2]"])) != ""
    assert advise_on_height(load_config("tiny", [*large, "inference.scales=[1.8, 0.2]"])) == ""


def test_a_predictor_warns_of_another_height_than_that_of_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("train.input_size=128", "inference.height=128")
    caplog.set_level("WARNING", "posenet")
    trained = write_checkpoint(tmp_path / "a.pth", "data.train=a.h5", *settings)
    for options in ({}, {"height": 192}, {"height": 64, "scales": (2,)}):
        Predictor(trained, backend="torch", **options)
    # Of weights from elsewhere, it is not known how they were trained.
    Predictor(write_checkpoint(tmp_path / "b.pth", *settings), backend="torch", height=512)
    assert not caplog.messages
    Predictor(trained, backend="torch", height=512)
    [message] = caplog.messages
    assert message.startswith(f"{trained}: training has images of height 128") and "height=128 makes" in message

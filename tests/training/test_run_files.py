"""What a run shows of itself in its folder: all its settings, and a picture of its samples."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.cli import main as cli
from posenet.settings import Config, ModelConfig, config_from_dict, config_to_dict, config_to_toml, load_config
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.faceless_people import FACELESS
from tests.helpers.networks import write_checkpoint
from tests.helpers.tiny_training import Stores, last, train_tiny


def test_the_settings_of_a_run_are_an_experiment_and_follow_a_resume(stores: Stores, tmp_path: Path) -> None:
    for options in (["train.epochs=1"], ["train.epochs=2", "optim.lr=3e-5"]):
        train_tiny(stores, tmp_path, *options, resume=True)
        config = load_config(tmp_path / "settings.toml")
        assert config_to_dict(config) == config_to_dict(config_from_dict(last(tmp_path)["config"]))
        assert {f"{name}." for name in config_to_dict(Config())} <= {
            f"{line[1:-1]}." for line in (tmp_path / "settings.toml").read_text().splitlines() if line.startswith("[")
        }
    assert config.train.epochs == 2


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [r"data.train=C:\new\t.h5", "data.val='a \"b\" é 𠮷.h5'", "optim.lr=1e-30", "train.seed=9223372036854775807"],
        ["data.train=[{path='a-*.h5', weight=0.5}, {path=['b.h5', 'c.h5'], name='x'}]", "train.freeze=['*.norm.*']"],
        ["train.input_size=[256, 192]", "inference.scales=[0.5, 1]", "train.channels_last=false"],
    ],
)
def test_all_settings_are_read_as_they_were_written(overrides: list[str], tmp_path: Path) -> None:
    config = load_config(None, overrides)
    (tmp_path / "a.toml").write_text(config_to_toml(config), encoding="utf-8")
    assert load_config(tmp_path / "a.toml") == config


def test_a_skeleton_is_written_with_the_settings(tmp_path: Path) -> None:
    names = [f"point {number}.é" for number in range(40)]
    table = {
        "keypoints": names,
        "parts": [[names[0], name] for name in names[1:]],
        "sigmas": {name: 0.05 + number / 1000 for number, name in enumerate(names)},
        "colours": {names[0]: "#ff0000"},
    }
    for skeleton in (FACELESS, skeleton_from_table(table)):
        config = Config(model=ModelConfig(skeleton=skeleton))
        (tmp_path / "a.toml").write_text(config_to_toml(config), encoding="utf-8")
        assert load_config(tmp_path / "a.toml") == config


class TestSamples:
    def test_they_are_drawn_before_the_first_step(self, stores: Stores, tmp_path: Path) -> None:
        train_tiny(stores, tmp_path, max_steps=1)
        picture = cv2.imread(str(tmp_path / "samples.jpg"))
        assert picture is not None and len(np.unique(picture)) > 50

    def test_a_picture_that_fails_ends_no_run(
        self, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError("no picture")

        monkeypatch.setattr("posenet.training.train.sheet_of_samples", fail)
        assert train_tiny(stores, tmp_path, max_steps=1).steps == 1
        assert "no picture" in (tmp_path / "log.txt").read_text()


class TestConfigTool:
    @pytest.fixture
    def run(self, stores: Stores, tmp_path: Path) -> Path:
        train_tiny(stores, tmp_path / "run", max_steps=1)
        return tmp_path / "run"

    def printed(self, capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
        assert cli.main(["config", *map(str, words)]) == 0
        return capsys.readouterr().out

    def test_it_prints_the_settings_of_a_run_and_of_a_checkpoint(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        for source in (run, run / "last.pth", run / "settings.toml"):
            (tmp_path / "printed.toml").write_text(self.printed(capsys, source))
            assert load_config(tmp_path / "printed.toml") == load_config(run / "settings.toml")
        (run / "settings.toml").unlink()  # as in the folder of an earlier version
        (tmp_path / "older.toml").write_text(self.printed(capsys, run))
        assert load_config(tmp_path / "older.toml") == load_config(tmp_path / "printed.toml")

    def test_with_two_it_prints_what_differs(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        other = write_checkpoint(tmp_path / "a.pth", "optim.lr=0.25")
        assert "optim.lr: 1e-05 -> 0.25" in self.printed(capsys, run, other).splitlines()
        assert self.printed(capsys, run, run / "last.pth") == ""
        assert "model.width: 128 -> 64" in self.printed(capsys, "small", "tiny").splitlines()

    def test_what_has_no_settings_is_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "bad.toml").write_text(json.dumps("text"))
        for source in (tmp_path / "empty", tmp_path / "bad.toml", tmp_path / "missing.pth"):
            assert cli.main(["config", str(source)]) == 2
            error = capsys.readouterr().err
            assert str(source) in error and error.count("\n") == 1

"""posenet config: what is printed and compared."""

import json
from pathlib import Path

import pytest

from posenet.cli import main as cli
from posenet.settings import config_from_dict, config_to_dict, load_config
from tests.helpers.networks import write_checkpoint
from tests.helpers.tiny_training import Stores, last, train_tiny


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capsys.readouterr()
    assert cli.main(["config", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_settings_of_a_run_are_an_experiment_and_are_printed_and_compared(
    stores: Stores, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for steps in (["optim.lr=2e-5"], ["optim.lr=3e-5"]):
        train_tiny(stores, run, *steps, resume=True, max_steps=1)
    config = load_config(run / "settings.toml")
    assert config.optim.lr == 3e-5 and (run / "settings.toml").read_text().count("\n[") == len(config_to_dict(config))
    assert config_to_dict(config) == config_to_dict(config_from_dict(last(run)["config"]))
    for source in (run, run / "last.pth", run / "settings.toml"):
        (tmp_path / "printed.toml").write_text(printed(capsys, source))
        assert load_config(tmp_path / "printed.toml") == config
    other = write_checkpoint(tmp_path / "a.pth", "optim.lr=0.25")
    assert "optim.lr: 3e-05 -> 0.25" in printed(capsys, run, other).splitlines()
    assert printed(capsys, run, run / "last.pth") == ""
    (run / "settings.toml").unlink()  # as in the folder of an earlier version
    (tmp_path / "older.toml").write_text(printed(capsys, run))
    assert load_config(tmp_path / "older.toml") == config


def test_what_has_no_settings_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.toml").write_text(json.dumps("text"))
    for source in (tmp_path / "empty", tmp_path / "bad.toml", tmp_path / "missing.pth"):
        for words in ([str(source)], ["small", str(source)]):
            assert cli.main(["config", *words]) == 2
            error = capsys.readouterr().err
            assert str(source) in error and error.count("\n") == 1

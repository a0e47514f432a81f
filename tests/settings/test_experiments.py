"""The experiments that posenet brings along, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.cli import main as cli
from posenet.errors import ConfigError
from posenet.settings import DataConfig, config_to_dict, load_config
from posenet.settings.experiments import EXPERIMENTS_FOLDER, experiment_names
from tests.helpers.source_files import ROOT

NAMES = {"demo", "overfit", "photographs", "simplepose_384", "simplepose_512", "simplepose_swa", "small", "tiny"}


def test_the_experiments_are_the_files_of_the_folder_config() -> None:
    assert NAMES == set(experiment_names()) == {path.stem for path in (ROOT / "config").glob("*.toml")}
    for name in NAMES:
        assert (EXPERIMENTS_FOLDER / f"{name}.toml").samefile(ROOT / "config" / f"{name}.toml")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_stands_for_its_file_and_is_printed_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()  # a folder of this name is in nobody's way
    file = ROOT / "config" / f"{name}.toml"
    assert config_to_dict(load_config(name)) == config_to_dict(load_config(file))
    assert cli.main(["config", name]) == 0
    printed = capsys.readouterr().out
    assert printed == file.read_text(encoding="utf-8")
    assert cli.main(["config"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == NAMES
    assert f"# {lines[name]}\n" == printed.splitlines(keepends=True)[0]


def test_a_file_comes_before_the_name_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_text("train.epochs = 3")
    assert load_config("tiny").train.epochs == 3


def test_own_data_replace_all_data_of_an_experiment_by_name() -> None:
    own = DataConfig(train="mine.h5", workers=4)
    for name in ("tiny", "small", "simplepose_384", "simplepose_512", "simplepose_swa"):
        assert load_config(name, ["data.train=mine.h5"]).data == own
    config = load_config("simplepose_384", ["data.val=v.h5", " data.train = mine.h5"])
    assert (config.data.train, config.data.val, config.data.val_images) == ("mine.h5", "v.h5", "")


def test_the_data_of_an_experiment_stay_without_others() -> None:
    config = load_config("simplepose_384", ["data.workers=0"])
    assert config.data.val_images == "data/coco/val2017"
    by_path = load_config(ROOT / "config" / "simplepose_384.toml", ["data.train=mine.h5"])
    assert (by_path.data.train, by_path.data.val) == ("mine.h5", "data/val2017.h5")


@pytest.mark.parametrize(
    "path, message",
    [
        ("tinny", r"there is no experiment tinny; did you mean tiny\? give a name \(demo, overfit, .*, tiny\) or the"),
        (
            "config/tiny2.toml",
            r"cannot read configuration config/tiny2.toml: .*; give a name \(demo, .*, tiny\) or the",
        ),
    ],
)
def test_an_unknown_experiment_is_an_error_that_names_all(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_the_tool_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "tiny.toml"]) == 2
    assert "there is no experiment tiny.toml; did you mean tiny?" in capsys.readouterr().err

"""The experiments that posenet brings along, by name, and heights that agree in training and in prediction."""

from pathlib import Path
from typing import Any

import pytest

from posenet.cli import main as cli
from posenet.errors import ConfigError
from posenet.inference.predictor import Predictor
from posenet.settings import DataConfig, config_to_dict, load_config
from posenet.settings.reading import EXPERIMENTS_FOLDER, experiment_names
from posenet.settings.sections import advise_on_height
from tests.helpers.networks import write_checkpoint
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


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


class TestBase:
    @pytest.mark.parametrize("base", ["small", "../a/mine.toml"])
    def test_a_file_changes_its_base(self, base: str, tmp_path: Path) -> None:
        write(tmp_path / "a" / "mine.toml", 'base = "tiny"\n[optim]\nlr = 3.0\n')
        path = write(tmp_path / "b" / "other.toml", f'base = "{base}"\n[train]\nepochs = 7\n')
        expected = ["train.epochs=7"] if base == "small" else ["train.epochs=7", "optim.lr=3.0"]
        assert load_config(path) == load_config("small" if base == "small" else "tiny", expected)

    def test_own_data_replace_all_data_of_a_base_by_name(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.toml", 'base = "simplepose_512"\n[data]\ntrain = "mine.h5"\n')
        assert load_config(path).data == DataConfig(train="mine.h5", workers=4)
        path = write(tmp_path / "b.toml", 'base = "simplepose_512"\n[data]\nval = "mine.h5"\n')
        assert (load_config(path).data.train, load_config(path).data.val) == ("data/train2017.h5", "mine.h5")
        assert load_config(path, ["data.train=t.h5"]).data == DataConfig(train="t.h5", val="mine.h5", workers=4)

    @pytest.mark.parametrize(
        "texts, named",
        [
            ({"a": 'base = "b.toml"', "b": 'base = "a.toml"'}, "a.toml"),
            ({"a": 'base = "tinny"'}, "tinny"),
            ({"a": 'base = "b.toml"'}, "b.toml"),
            ({"a": "base = 3"}, "a.toml: base"),
            ({"a": 'base = "b.toml"\n[train]\nepochs = 3', "b": "[train]\nepochs = 0"}, "b.toml, the base of"),
            ({"a": 'base = "b.toml"\n[train]\nepochs = 0', "b": "[train]\nepochs = 3"}, "a.toml: train.epochs"),
        ],
    )
    def test_the_error_of_a_wrong_base_names_it(self, texts: dict[str, Any], named: str, tmp_path: Path) -> None:
        for name, text in texts.items():
            write(tmp_path / f"{name}.toml", text)
        with pytest.raises(ConfigError) as caught:
            load_config(tmp_path / "a.toml")
        assert named in str(caught.value) and "\n" not in str(caught.value)


def test_own_data_replace_all_data_of_an_experiment_by_name() -> None:
    own = DataConfig(train="mine.h5", workers=4)
    for name in ("tiny", "small", "simplepose_384", "simplepose_512", "simplepose_swa"):
        assert load_config(name, ["data.train=mine.h5"]).data == own
    config = load_config("simplepose_384", ["data.val=v.h5", " data.train = mine.h5"])
    assert (config.data.train, config.data.val, config.data.val_images) == ("mine.h5", "v.h5", "")


def test_an_unknown_experiment_is_an_error_that_names_all() -> None:
    with pytest.raises(ConfigError, match=r"did you mean tiny\? give a name \(demo, overfit, .*, tiny\) or the path"):
        load_config("tinny")


def test_a_height_for_prediction_that_does_not_go_with_training_is_named_with_its_remedy() -> None:
    for name in experiment_names():
        assert advise_on_height(load_config(name)) == ""
    advice = advise_on_height(load_config("tiny", ["train.input_size=128"]))
    assert "height 128 (train.input_size)" in advice and "--set inference.height=128 makes" in advice
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

"""Reading a configuration: types, ranges, overrides, round trips and error messages."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from posenet.errors import ConfigError
from posenet.settings import Config, DataSetConfig, config_differences, config_from_dict, config_to_dict, load_config

EXPERIMENTS = sorted((Path(__file__).parents[2] / "config").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def error_of(*overrides: str, path: Path | None = None) -> str:
    """The one-line error message of a configuration that cannot be used."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_a_file_and_overrides_all_values_are_defaults() -> None:
    assert load_config() == Config()


def test_the_defaults_are_the_published_recipe() -> None:
    loss, optim, model = Config().loss, Config().optim, Config().model
    assert (model.stacks, model.width, model.growth) == (4, 256, 128)
    assert (loss.gamma, loss.positive_threshold, optim.name, optim.lr) == (2.0, 0.01, "sgd", 2.5e-4)
    assert (optim.momentum, optim.weight_decay, optim.step_epochs, optim.step_factor) == (0.9, 5e-4, 15, 0.2)


def test_every_default_is_valid_and_replaces_another_value() -> None:
    config = load_config(EXPERIMENTS[0])
    assert config != Config()
    for name, defaults in config_to_dict(Config()).items():
        config = dataclasses.replace(config, **{name: getattr(config_from_dict({name: defaults}), name)})
    assert config == Config()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_file_of_the_project_sets_what_it_contains(path: Path) -> None:
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    tables = json.loads(json.dumps(config_to_dict(load_config(path))))  # tuples become lists
    assert written == {name: {key: tables[name][key] for key in table} for name, table in written.items()}


def test_keys_that_a_file_leaves_out_keep_their_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "[model]\nstacks = 2\n[loss]\nstack_weights = [1, 2]\n"))
    assert config == Config(
        model=dataclasses.replace(Config().model, stacks=2),
        loss=dataclasses.replace(Config().loss, stack_weights=(1.0, 2.0)),
    )


def test_overrides_replace_values_of_the_file_and_of_earlier_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nstacks = 2\nwidth = 64\n")
    config = load_config(path, ["model.stacks=3", "model.stacks=1"])
    assert (config.model.stacks, config.model.width) == (1, 64)


@pytest.mark.parametrize(
    "pair, value",
    [
        ("model.stacks=2", 2),
        (" model.stacks = 2 ", 2),
        ("optim.lr=1e-3", 1e-3),
        ("optim.lr=1", 1.0),
        ("loss.gamma=0", 0.0),
        ("optim.scale_lr=false", False),
        ("loss.scale_weights=[1, 1, 1, 1, 0]", (1.0, 1.0, 1.0, 1.0, 0.0)),
        ("augment.scale=[0.5, 2]", (0.5, 2.0)),
        ("train.input_size=384", 384),
        ("train.input_size=[256, 192]", (256, 192)),
        ("train.freeze=['stem.*', 'all-but-heads']", ("stem.*", "all-but-heads")),
        ("train.freeze=[]", ()),
        ("train.amp=bf16", "bf16"),
        ("train.amp='bf16'", "bf16"),
        ("train.channels_last=auto", "auto"),
        ("train.channels_last=true", True),
        ("data.train=data/coco/train2017.h5", "data/coco/train2017.h5"),
        ("data.train = data/train.h5", "data/train.h5"),
        ("data.train=/with a blank/and=sign.h5", "/with a blank/and=sign.h5"),
        (r"data.train=C:\new\train.h5", r"C:\new\train.h5"),
        ("data.train=", ""),
        ("data.train=data/train-*.h5", "data/train-*.h5"),
        ("data.train=['a.h5', 'b-*.h5']", ("a.h5", "b-*.h5")),
        ("data.train=[{path='a.h5'}]", (DataSetConfig("a.h5"),)),
        (
            "data.train=[{path='a.h5', weight=2, name='coco'}, {path=['b.h5', 'c.h5']}]",
            (DataSetConfig("a.h5", "coco", 2.0), DataSetConfig(("b.h5", "c.h5"))),
        ),
    ],
)
def test_an_override_value_is_read_as_toml_or_else_as_plain_text(pair: str, value: Any) -> None:
    section, key = pair.partition("=")[0].strip().split(".")
    result = getattr(getattr(load_config(None, [pair]), section), key)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize("pair", ["model.stacks", "stacks=2", "model=2", "=2", ""])
def test_an_override_needs_a_section_a_key_and_a_value(pair: str) -> None:
    assert repr(pair) in error_of(pair) and "section.key=value" in error_of(pair)


@pytest.mark.parametrize("pair", ["data.train=[{path=a.h5}]", "data.train = [a.h5, b.h5] ", "data.train={path=a.h5}"])
def test_a_list_or_table_that_is_not_toml_is_no_file_name(pair: str) -> None:
    assert "is not valid TOML; write texts in quotes" in error_of(pair)


def test_one_data_set_needs_a_list_too() -> None:
    assert "data.train must be a list, not {'path': 'a.h5'}" in error_of("data.train={path='a.h5'}")


def test_overrides_change_the_base() -> None:
    base = load_config(None, ["model.stacks=2", "train.freeze=['stem.*']"])
    assert load_config(None, ["model.width=64"], base=base) == dataclasses.replace(
        base, model=dataclasses.replace(base.model, width=64)
    )
    assert load_config(base=base) == base


def test_keys_that_a_file_leaves_out_keep_the_values_of_the_base(tmp_path: Path) -> None:
    base = load_config(None, ["model.stacks=2"])
    model = load_config(write(tmp_path, "[model]\nwidth = 64\n"), base=base).model
    assert (model.stacks, model.width) == (2, 64)


def test_a_round_trip_through_tables_changes_nothing() -> None:
    config = load_config(
        None,
        [
            "train.input_size=[256, 192]",
            "train.freeze=['stem.*']",
            "augment.scale=[0.5, 2]",
            "data.train=a.h5",
            "inference.scales=[0.5, 1, 1.5]",
        ],
    )
    tables = config_to_dict(config)
    assert config_from_dict(tables) == config
    assert tables["train"]["input_size"] == (256, 192)


def test_data_sets_survive_a_round_trip_through_tables() -> None:
    config = load_config(None, ["data.train=[{path='a-*.h5', weight=0.5}, {path=['b.h5', 'c.h5'], name='x'}]"])
    assert config_from_dict(config_to_dict(config)) == config
    assert load_config(None, ["data.train=d.h5"], base=config).data.train == "d.h5"


def test_data_sets_can_be_tables_of_a_file(tmp_path: Path) -> None:
    text = '[[data.train]]\npath = "a.h5"\n\n[[data.train]]\npath = "b.h5"\nweight = 2\n'
    data = load_config(write(tmp_path, text)).data
    assert data.train == (DataSetConfig("a.h5"), DataSetConfig("b.h5", weight=2.0))


@pytest.mark.parametrize(
    "path, label",
    [
        ("data/coco.h5", "coco"),
    ],
)
def test_a_data_set_without_a_name_has_that_of_its_file(path: str | tuple[str, ...], label: str) -> None:
    assert DataSetConfig(path).label == label
    assert DataSetConfig(path, name="own").label == "own"


@pytest.mark.parametrize(
    "value, message",
    [
        ("[]", "data.train must be a path, or a list that is not empty"),
        ("[{weight=2.0}]", "a table of data.train or data.val needs a path"),
        ("[{path='a.h5', weight=0}]", "the weight of a data set must be positive, not 0"),
        ("[{path='a.h5', weight=-1.5}]", "the weight of a data set must be positive, not -1.5"),
        ("[{path='a.h5', wieght=2}]", "unknown key data.train.wieght (did you mean data.train.weight?"),
        ("['a.h5', 'a.h5']", "data.train has the path a.h5 twice"),
        ("[{path='a.h5', name='x'}, {path='a.h5', name='y'}]", "data.train has the path a.h5 twice"),
        ("[{path='u/a.h5'}, {path='v/a.h5'}]", "data.train has the name a twice"),
    ],
)
def test_wrong_data_sets_are_errors(value: str, message: str) -> None:
    assert message in error_of(f"data.train={value}")
    assert "\n" not in error_of(f"data.train={value}")


def test_settings_that_no_longer_exist_are_named_in_one_line_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    tables = {"model": {"stacks": 2, "colour": "red"}, "train": {"epochs": 3}, "removed": {"key": 1}}
    with caplog.at_level("INFO"):
        config = config_from_dict(tables, "old.pth", ignore_unknown=True)
    assert (config.model.stacks, config.train.epochs) == (2, 3)
    assert caplog.messages == ["old.pth: settings that do not exist any more are ignored: model.colour, removed"]
    with pytest.raises(ConfigError, match="old.pth: unknown key model.colour"):
        config_from_dict(tables, "old.pth")
    with pytest.raises(ConfigError, match="old.pth: model.stacks must be"):
        config_from_dict({"model": {"stacks": 0}}, "old.pth", ignore_unknown=True)


def test_arguments_of_a_wrong_type_in_python_are_errors_of_one_line() -> None:
    for overrides in ([3], [("train.epochs", 3)], [None]):
        with pytest.raises(ConfigError, match=r"an override is a text such as 'train.epochs=3', not "):
            load_config(None, overrides)
    with pytest.raises(ConfigError, match="an experiment file is given by its path, not by 7"):
        load_config(7)
    assert load_config(None, "train.epochs=3").train.epochs == 3


def test_differences_list_each_changed_key_once() -> None:
    new = load_config(None, ["model.stacks=2", "data.train=a.h5"])
    assert config_differences(Config(), new) == ["model.stacks: 4 -> 2", "data.train: '' -> 'a.h5'"]
    assert config_differences(new, new) == []


def test_a_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().model.stacks = 2


def test_the_input_size_is_height_and_width() -> None:
    assert load_config(None, ["train.input_size=384"]).train.size == (384, 384)
    assert load_config(None, ["train.input_size=[256, 192]"]).train.size == (256, 192)
    teacher_sizes = {"0": None, "384": (384, 384), "[256, 192]": (256, 192)}
    for value, size in teacher_sizes.items():
        assert load_config(None, [f"distill.input_size={value}"]).distill.size == size


@pytest.mark.parametrize(
    "pair, named",
    [
        ("model.stack=2", "model.stack "),
        ("models.stacks=2", "models "),
        ("model.stacks.x=2", "model.stacks.x "),
        ("optim.learning_rate=1", "optim.learning_rate "),
    ],
)
def test_the_error_of_an_unknown_key_lists_the_known_keys(pair: str, named: str) -> None:
    message = error_of(pair)
    assert f"unknown key {named}" in message and "known: " in message


def test_the_error_of_a_misspelled_key_suggests_the_right_one() -> None:
    assert "unknown key data.trian (did you mean data.train? known: " in error_of("data.trian=a.h5")
    assert "unknown key model.colour (known: " in error_of("model.colour=red")


def test_the_error_names_the_file_or_the_override_that_is_wrong(tmp_path: Path) -> None:
    good, bad = write(tmp_path, "[train]\nepochs = 2\n"), tmp_path / "bad.toml"
    bad.write_text("[train]\nepochs = 0\n", encoding="utf-8")
    assert error_of("train.epochs=0", path=good).startswith("--set or a flag: train.epochs must be")
    assert error_of("optim.lr=1", path=bad).startswith(f"{bad}: train.epochs must be")
    assert load_config(bad, ["train.epochs=3"]).train.epochs == 3


def test_the_error_of_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nbatchsize = 2\n")
    assert error_of(path=path).startswith(f"{path}: unknown key train.batchsize")


@pytest.mark.parametrize(
    "pair",
    [
        "model.stacks=2.0",
        "model.stacks=true",
        "model.stacks=two",
        "model.stacks=[2]",
        "optim.lr=fast",
        "optim.lr=true",
        "optim.scale_lr=1",
        "data.train=1",
        "data.train=[]",
        "train.freeze=stem.*",
        "train.freeze=[1]",
        "train.input_size=512.0",
        "train.input_size=[512]",
        "train.input_size=[512, 512, 3]",
        "augment.scale=1",
        "augment.scale=[1, 2, 3]",
        "loss.scale_weights=['a']",
        "train.amp=fp32",
        "train.amp=1",
        "train.channels_last=on",
        "train.channels_last=[]",
        "train.channels_last=1",
        "optim.name=lamb",
        "data.framing=[]",
        "optim.lr=nan",
        "guard.threshold=inf",
        pytest.param("optim.lr=" + "9" * 400, id="optim.lr=9...9"),
        "model.skeleton=3",
        "data.workers=2024-01-01",
    ],
)
def test_the_error_of_a_wrong_type_names_the_key(pair: str) -> None:
    assert re.search(rf"\b{re.escape(pair.partition('=')[0])} must be ", error_of(pair))


def test_the_error_of_a_switch_with_named_choices_names_all_values() -> None:
    assert "train.channels_last must be true, false or 'auto', not 'on'" in error_of("train.channels_last=on")


OUT_OF_RANGE = [
    "model.stacks=0",
    "model.width=0",
    "model.width=100",
    "model.growth=-2",
    "model.growth=3",
    "model.conv_std=0",
    "model.linear_std=-1",
    "data.workers=-1",
    "augment.jitter_probability=1.1",
    "augment.scale_probability=-0.1",
    "augment.flip_probability=2",
    "augment.jitter_hue=[1, -1]",
    "augment.jitter_saturation=[1, -1]",
    "augment.jitter_value=[1, -1]",
    "augment.scale=[1.3, 0.7]",
    "augment.scale=[0, 1]",
    "augment.degrees=-1",
    "augment.shift=-1",
    "augment.person_height=0",
    "targets.keypoint_sigma=0",
    "targets.part_sigma=-1",
    "targets.part_margin=-1",
    "targets.threshold=0",
    "targets.threshold=1",
    "targets.part_floor=-0.1",
    "targets.part_floor=1.1",
    "loss.gamma=-1",
    "loss.gamma=0.5",
    "loss.scale_weights=[1, 1]",
    "loss.scale_weights=[1, 1, 1, 1, -1]",
    "loss.scale_weights=[0, 0, 0, 0, 0]",
    "loss.stack_weights=[1, 1, 1, -1]",
    "loss.stack_weights=[0, 0, 0, 0]",
    "loss.stack_weights=[1, 1]",
    "loss.part_weight=-1",
    "loss.keypoint_weight=-1",
    "loss.mask_weight=-1",
    "loss.foreground_weight=-1",
    "optim.lr=0",
    "optim.momentum=-0.1",
    "optim.weight_decay=-1",
    "optim.warmup_epochs=-1",
    "optim.step_epochs=-1",
    "optim.step_factor=0",
    "optim.step_factor=1.5",
    "optim.restart_epoch=-1",
    "optim.restart_lr=-1",
    "optim.restart_step_epochs=-1",
    "optim.accumulate=0",
    "optim.max_grad_norm=-1",
    "train.batch_size=0",
    "train.epochs=0",
    "train.seed=-1",
    "train.input_size=0",
    "train.input_size=500",
    "train.input_size=[512, 500]",
    "train.input_size=-64",
    "train.loss_scale=-1",
    "train.threads=-1",
    "train.evaluate_every=-1",
    "average.kind=swa",
    "average.decay=1",
    "average.cycle_epochs=-1",
    "average.cycle_lr=[0, 1e-5]",
    "guard.threshold=0",
    "guard.max_skips=0",
    "checkpoint.every_steps=-1",
    "checkpoint.every_minutes=-1",
    "checkpoint.keep=0",
    "log.every_steps=0",
    "log.pictures=-1",
    "inference.height=32",
    "inference.scales=[]",
    "inference.scales=[1, 0]",
    "inference.max_height=1",
    "inference.max_width=1",
    "inference.batch_size=0",
    "inference.keypoint_threshold=0",
    "inference.part_threshold=1",
]


@pytest.mark.parametrize("pair", OUT_OF_RANGE)
def test_the_error_of_a_value_out_of_range_names_the_key(pair: str) -> None:
    section, _, key = pair.partition("=")[0].partition(".")
    named = re.findall(rf"\b{section}\.([\w*]+)", error_of(pair))
    assert any(re.fullmatch(name.replace("*", ".*"), key) for name in named)


def test_every_number_must_be_finite() -> None:
    for name, table in config_to_dict(Config()).items():
        for key, value in table.items():
            if type(value) is float:
                assert math.isfinite(value)
                assert "finite" in error_of(f"{name}.{key}=nan")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[model\nstacks = 2", "not valid TOML"),
        ("stacks", "not valid TOML"),
        ("[model]\nstacks = 1\nstacks = 2", "not valid TOML"),
        ("model = 2", "model must be a table"),
    ],
)
def test_the_error_of_an_invalid_file_names_the_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    message = error_of(path=path)
    assert message.startswith(str(path)) and expected in message


def test_an_override_of_a_key_in_a_wrong_section_names_the_section(tmp_path: Path) -> None:
    assert "model is not a section" in error_of("model.stacks=2", path=write(tmp_path, "model = 2"))


def test_the_error_of_a_file_that_is_not_utf_8_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes("[data]\ntrain = 'é.h5'\n".encode("latin-1"))
    assert error_of(path=path).startswith(str(path))


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_the_error_of_an_unreadable_file_names_the_file(tmp_path: Path, name: str) -> None:
    assert str(tmp_path / name) in error_of(path=tmp_path / name)


def test_the_error_of_a_wrong_skeleton_shows_only_a_part_of_it() -> None:
    with pytest.raises(ConfigError, match="model.skeleton must be") as caught:
        config_from_dict({"model": {"skeleton": ["nose"] * 10_000}})
    assert len(str(caught.value)) < 300

"""Reading a configuration: types, ranges, overrides, round trips and error messages."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from posenet.errors import ConfigError
from posenet.settings import (
    Config,
    DataSetConfig,
    ModelConfig,
    config_differences,
    config_from_dict,
    config_to_dict,
    config_to_toml,
    load_config,
)
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.faceless_people import FACELESS


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


def test_overrides_replace_values_of_the_file_and_of_earlier_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nstacks = 2\nwidth = 64\n")
    config = load_config(path, ["model.stacks=3", "model.stacks=1"])
    assert (config.model.stacks, config.model.width) == (1, 64)
    assert load_config(path, "model.stacks=3").model.stacks == 3  # one text


@pytest.mark.parametrize(
    "pair, value",
    [
        ("model.stacks=2", 2),
        (" model.stacks = 2 ", 2),
        ("optim.lr=1e-3", 1e-3),
        ("optim.lr=1", 1.0),
        ("optim.scale_lr=false", False),
        ("augment.scale=[0.5, 2]", (0.5, 2.0)),
        ("train.input_size=384", 384),
        ("train.input_size=[256, 192]", (256, 192)),
        ("train.freeze=['stem.*', 'all-but-heads']", ("stem.*", "all-but-heads")),
        ("train.amp=bf16", "bf16"),
        ("train.channels_last=auto", "auto"),
        ("train.channels_last=true", True),
        ("data.train = data/train.h5", "data/train.h5"),
        ("data.train=/with a blank/and=sign.h5", "/with a blank/and=sign.h5"),
        (r"data.train=C:\new\train.h5", r"C:\new\train.h5"),
        ("data.train=", ""),
        *((f"{key}={text}", text) for text in ("2024-05-01", "7", "true") for key in ("checkpoint.path", "data.val")),
        ("data.train=['a.h5', 'b-*.h5']", ("a.h5", "b-*.h5")),
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


@pytest.mark.parametrize(
    "pair, message",
    [
        *((pair, f"{pair!r} is not of the form section.key=value") for pair in ("model.stacks", "stacks=2", "=2", "")),
        *((f"data.train={value}", "is not valid TOML") for value in ("[{path=a.h5}]", " [a.h5, b.h5] ", "{path=a.h5}")),
        ('data.train="C:\\Users"', r"in double quotes, write every \ as \\, or put the text in single quotes"),
        ('data.train="C:\\temp"', r"data.train contains a control character: 'C:\temp'; in double quotes, write"),
        ("model.skeleton=3", "cannot read skeleton 3"),
        ("data.train={path='a.h5'}", "data.train must be a list, not {'path': 'a.h5'}"),
        ("model.stack=2", "unknown key model.stack (did you mean stacks? known: conv_std, growth,"),
        ("model.colour=red", "unknown key model.colour (known: conv_std, growth,"),
        ("models.stacks=2", "unknown key models (did you mean model? known: "),
        ("model.stacks.x=2", "unknown key model.stacks.x ("),
        ("train.channels_last=on", "train.channels_last must be one of true, false, \"auto\", not 'on'"),
        ("optim.name=lamb", 'an override: optim.name must be one of "sgd", "adamw", not \'lamb\''),
    ],
)
def test_the_error_of_a_wrong_override_tells_what_to_change(pair: str, message: str) -> None:
    assert message in error_of(pair)


def test_overrides_and_files_change_the_base(tmp_path: Path) -> None:
    base = load_config(None, ["model.stacks=2", "train.freeze=['stem.*']"])
    wider = dataclasses.replace(base, model=dataclasses.replace(base.model, width=64))
    assert load_config(None, ["model.width=64"], base=base) == wider
    assert load_config(write(tmp_path, "[model]\nwidth = 64\n"), base=base) == wider
    assert load_config(base=base) == base


def test_data_sets_can_be_tables_of_a_file_and_are_named_after_their_files(tmp_path: Path) -> None:
    text = '[[data.train]]\npath = "data/a.h5"\n\n[[data.train]]\npath = "b.h5"\nweight = 2\nname = "own"\n'
    sets = load_config(write(tmp_path, text)).data.train
    assert sets == (DataSetConfig("data/a.h5"), DataSetConfig("b.h5", "own", 2.0))
    assert [data_set.label for data_set in sets] == ["a", "own"]


@pytest.mark.parametrize(
    "value, message",
    [
        ("[{path=''}]", "of a data set, path must be a path"),
        ("[{weight=2.0}]", "of a data set, path must be a path"),
        ("[{path='a.h5', weight=0}]", "of a data set, weight must be positive"),
        ("[{path='a.h5', wieght=2}]", "unknown key data.train.wieght (did you mean weight?"),
    ],
)
def test_wrong_data_sets_are_errors(value: str, message: str) -> None:
    assert message in error_of(f"data.train={value}")


def test_differences_list_each_changed_key_once() -> None:
    new = load_config(None, ["model.stacks=2", "data.train=a.h5"])
    assert config_differences(Config(), new) == ["model.stacks: 4 -> 2", "data.train: '' -> 'a.h5'"]
    assert config_differences(new, new) == []


def test_the_input_size_is_height_and_width() -> None:
    assert load_config(None, ["train.input_size=384"]).train.size == (384, 384)
    assert load_config(None, ["train.input_size=[256, 192]"]).train.size == (256, 192)


def pairs(table: dict[str, list[str]]) -> list[str]:
    """The overrides of a table of sections."""
    return [f"{section}.{text}" for section, texts in table.items() for text in texts]


WRONG_TYPES = {
    "model": ["stacks=2.0", "stacks=true", "stacks=two", "stacks=[2]"],
    "optim": ["lr=fast", "lr=true", "lr=nan", "scale_lr=1", "name=lamb"],
    "data": ["framing=[]", "workers=2024-01-01"],
    "train": ["freeze=stem.*", "freeze=[1]", "input_size=512.0", "input_size=[512]", "input_size=[512, 512, 3]"]
    + ["amp=fp32", "amp=1", "channels_last=on", "channels_last=[]", "channels_last=1"],
    "augment": ["scale=1", "scale=[1, 2, 3]"],
    "loss": ["stack_weights=['a']"],
    "guard": ["threshold=inf", "threshold=" + "9" * 400],
}


@pytest.mark.parametrize("pair", pairs(WRONG_TYPES), ids=lambda pair: pair[:40])
def test_the_error_of_a_wrong_type_names_the_key(pair: str) -> None:
    assert re.search(rf"\b{re.escape(pair.partition('=')[0])} must be ", error_of(pair))


OUT_OF_RANGE = {
    "model": ["stacks=0", "stacks=17", "width=100", "growth=3", "conv_std=0"],
    "data": ["workers=1025", "background=1"],
    "augment": ["flip_probability=2", "scale=[1.3, 0.7]", "scale=[0, 1]", "degrees=-1", "person_height=0"],
    "targets": ["keypoint_sigma=0", "part_sigma=-1"],
    "loss": ["gamma=0.5", "stack_weights=[1, 1]", "stack_weights=[1, 1, 1, -1]", "stack_weights=[0, 0, 0, 0]"],
    "optim": ["lr=0", "weight_decay=-1", "step_factor=0", "step_factor=1.5", "accumulate=0"],
    "train": ["batch_size=65537", "epochs=0", "input_size=500", "input_size=[512, 500]", "input_size=65600"],
    "distill": ["weight=1.1"],
    "average": ["kind=swa", "decay=1", "cycle_lr=[0, 1e-5]"],
    "guard": ["threshold=0", "factor=1"],
    "checkpoint": ["every_minutes=-1", "keep=0"],
    "inference": ["height=63", "scales=[1, 0]", "max_height=65537", "keypoint_threshold=0"],
    "tracking": ["confirm_frames=0"],
}


@pytest.mark.parametrize("pair", pairs(OUT_OF_RANGE))
def test_the_error_of_a_value_out_of_range_names_the_key(pair: str) -> None:
    section, _, key = pair.partition("=")[0].partition(".")
    named = re.findall(rf"\b{section}\.([\w*]+)", error_of(pair))
    assert any(re.fullmatch(name.replace("*", ".*"), key) for name in named)


@pytest.mark.parametrize("number", ["nan", "1e400"])
def test_every_number_must_be_finite(number: str) -> None:
    for name, table in config_to_dict(Config()).items():
        for key, value in table.items():
            if type(value) in (int, float):
                message = error_of(f"{name}.{key}={number}")
                assert f"{name}.{key} must be " in message
                assert "finite" in message or isinstance(value, int)
            elif isinstance(value, tuple) and value and type(value[0]) is float:
                numbers = ", ".join([number] * len(value))
                assert f"{name}.{key} must be finite" in error_of(f"{name}.{key}=[{numbers}]")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[model\nstacks = 2", "not valid TOML"),
        ("[train]\nbatchsize = 2", "unknown key train.batchsize (did you mean batch_size?"),
        ("model = 2", "model must be a table"),
        ("[train]\nepochs = 0", "train.epochs must be"),
        (
            '[data]\ntrain = "C:\\Users\\me.h5"',
            r"in double quotes, write every \ as \\, or put the text in single quot",
        ),
    ],
)
def test_the_error_of_an_invalid_file_names_the_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    message = error_of(path=path)
    assert message.startswith(str(path)) and expected in message


def test_a_file_may_begin_with_a_byte_order_mark_and_have_paths_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf[data]\r\ntrain = 'C:\\new\\a.h5'\r\nval = \"D:\\\\b.h5\"\r\n")
    data = load_config(path, [r"data.val_images=C:\new"]).data
    assert (data.train, data.val, data.val_images) == (r"C:\new\a.h5", r"D:\b.h5", r"C:\new")


def test_the_error_of_an_unreadable_file_names_the_file(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes("[data]\ntrain = 'é.h5'\n".encode("latin-1"))
    for path in (latin, tmp_path / "missing.toml", tmp_path):
        assert str(path) in error_of(path=path)


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
    names = [f"point {number}.é" for number in range(40)]
    table = {
        "keypoints": names,
        "parts": [[names[0], name] for name in names[1:]],
        "sigmas": {name: 0.05 + number / 1000 for number, name in enumerate(names)},
        "colours": {names[0]: "#ff0000"},
    }
    config = load_config(None, overrides)
    for skeleton in (COCO, FACELESS, skeleton_from_table(table)):
        written = dataclasses.replace(config, model=ModelConfig(skeleton=skeleton))
        assert load_config(write(tmp_path, config_to_toml(written))) == written
        assert config_from_dict(config_to_dict(written)) == written

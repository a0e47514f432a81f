"""Settings of earlier versions: in checkpoints, and in the experiments of version 0.6."""

import json

import pytest

from posenet.data import augment, targets
from posenet.errors import ConfigError
from posenet.inference import averaging
from posenet.inference.decoder import decode
from posenet.model import posenet
from posenet.settings import Config, config_from_dict, config_to_dict, load_config
from posenet.settings.earlier import CONSTANTS
from posenet.training import bad_steps, batches, loss, optimizer, validation
from tests.helpers.source_files import ROOT

RECORDED = json.loads((ROOT / "tests" / "fixtures" / "experiments.json").read_text())
"""The settings of every experiment in version 0.6."""


@pytest.mark.parametrize("name", sorted(RECORDED.keys() - {"demo"}))  # which goes with the drawn people of this version
def test_an_experiment_means_what_it_meant_in_version_0_6(name: str) -> None:
    """Settings of version 0.6 that no longer exist are constants with the values that they had in all experiments."""
    config = json.loads(json.dumps(config_to_dict(load_config(name))))
    before = {f"{section}.{key}": value for section, table in RECORDED[name].items() for key, value in table.items()}
    now = {f"{section}.{key}": value for section, table in config.items() for key, value in table.items()}
    assert {key: (now | CONSTANTS)[key] for key in before} == before
    assert not CONSTANTS.keys() & now.keys()


def test_the_constants_of_earlier_settings_are_those_of_the_formulas() -> None:
    formulas = {
        "model.linear_std": posenet.LINEAR_STD,
        "augment.jitter_hue": augment.JITTER[0],
        "augment.jitter_saturation": augment.JITTER[1],
        "augment.jitter_value": augment.JITTER[2],
        "augment.cutout": augment.CUTOUT,
        "targets.part_margin": targets.PART_MARGIN,
        "targets.threshold": targets.THRESHOLD,
        "targets.part_floor": targets.PART_FLOOR,
        "loss.scale_weights": loss.SCALE_WEIGHTS,
        "loss.part_weight": loss.PART_WEIGHT,
        "loss.keypoint_weight": loss.KEYPOINT_WEIGHT,
        "loss.mask_weight": loss.MASK_WEIGHT,
        "loss.foreground_weight": loss.FOREGROUND_WEIGHT,
        "loss.positive_threshold": loss.POSITIVE_THRESHOLD,
        "optim.momentum": optimizer.MOMENTUM,
        "data.max_unreadable": batches.MAX_UNREADABLE_SAMPLES,
        "guard.max_skips": bad_steps.MAX_SKIPS,
        "log.pictures": validation.NUM_DRAWN,
        "inference.max_width": averaging.MAX_WIDTH,
        "inference.part_threshold": decode.PART_THRESHOLD,
    }
    assert {key: CONSTANTS[key] for key in formulas} == json.loads(json.dumps(formulas))


def test_settings_that_no_longer_exist_are_named_in_one_line_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    tables = {"model": {"stacks": 2, "colour": "red"}, "train": {"epochs": 3}, "removed": {"key": 1}}
    config = config_from_dict(tables, "old.pth", from_checkpoint=True)
    assert (config.model.stacks, config.train.epochs) == (2, 3)
    assert caplog.messages == ["old.pth: settings that do not exist any more are ignored: model.colour, removed"]
    with pytest.raises(ConfigError, match="old.pth: unknown key model.colour"):
        config_from_dict(tables, "old.pth")
    with pytest.raises(ConfigError, match="old.pth: model.stacks must be"):
        config_from_dict({"model": {"stacks": 0}}, "old.pth", from_checkpoint=True)
    with pytest.raises(ConfigError, match="old.pth: model must be a table"):
        config_from_dict({"model": 3}, "old.pth", from_checkpoint=True)


def test_a_setting_that_is_a_constant_now_is_named_if_it_had_another_value(caplog: pytest.LogCaptureFixture) -> None:
    config_from_dict({"augment": {"cutout": (0.1, 0.3)}, "loss": {"part_weight": 1}}, "old.pth", from_checkpoint=True)
    assert caplog.messages == []
    config_from_dict({"inference": {"part_threshold": 0.3}}, "old.pth", from_checkpoint=True)
    assert caplog.messages[0].endswith("ignored: inference.part_threshold")


def test_settings_that_a_checkpoint_lacks_have_the_defaults_of_its_version() -> None:
    config = config_from_dict({"optim": {"lr": 1e-3}, "model": {"stacks": 2}}, "old.pth", from_checkpoint=True)
    assert (config.model.conv_std, config.loss.gamma, config.optim.name, config.optim.lr) == (0.001, 2.0, "sgd", 1e-3)
    optim = config.optim
    assert (optim.weight_decay, optim.warmup_epochs, optim.schedule, optim.max_grad_norm) == (5e-4, 3.0, "step", 0.0)
    assert config_from_dict(config_to_dict(Config()), from_checkpoint=True) == Config()

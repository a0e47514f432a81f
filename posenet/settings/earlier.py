"""Settings in checkpoints of earlier versions: their defaults, and those that are constants now."""

import copy
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError
from posenet.settings.sections import Config

DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"conv_std": 0.001},
    "loss": {"gamma": 2.0},
    "optim": {"name": "sgd", "lr": 2.5e-4, "weight_decay": 5e-4, "warmup_epochs": 3.0}
    | {"schedule": "step", "max_grad_norm": 0.0},
}
"""Defaults of the versions before 0.7, which hold for settings that are missing in checkpoints of them."""
CONSTANTS: dict[str, Any] = {
    "augment.jitter_hue": [-10.0, 10.0],
    "augment.jitter_saturation": [-20.0, 60.0],
    "augment.jitter_value": [-20.0, 40.0],
    "augment.cutout": [0.1, 0.3],
    "targets.part_margin": 4.0,
    "targets.threshold": 0.015,
    "targets.part_floor": 0.01,
    "loss.scale_weights": [0.1, 0.2, 0.4, 1.6, 6.4],
    "loss.part_weight": 1.0,
    "loss.keypoint_weight": 3.0,
    "loss.mask_weight": 0.1,
    "loss.foreground_weight": 1.0,
    "loss.positive_threshold": 0.01,
    "optim.momentum": 0.9,
    "optim.betas": [0.9, 0.999],
    "optim.decay_norms_and_biases": True,
    "optim.restart_epoch": 0,
    "optim.restart_lr": 0.0,
    "optim.restart_step_epochs": 0,
    "distill.threshold": 0.2,
    "distill.input_size": 0,
    "model.linear_std": 0.01,
    "data.max_unreadable": 0.01,
    "train.threads": 0,
    "guard.max_skips": 10,
    "log.curves": "auto",
    "log.pictures": 4,
    "inference.max_width": 3800,
    "inference.part_threshold": 0.1,
    "tracking.min_agreement": 0.02,
    "tracking.keep_seconds": 2.0,
    "tracking.smooth_cutoff": 0.5,
    "tracking.smooth_speed": 2.5,
}
"""Settings before 0.7 that are constants now, with the values that they have."""

_log = logging.getLogger(__name__)


def upgrade(tables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The tables of a checkpoint with the settings that exist now, and the defaults of its version.

    A warning names the settings that are left out, unless they have the value of today's constant.
    """
    upgraded: dict[str, Any] = copy.deepcopy(DEFAULTS)
    ignored = []
    for section, known in dataclasses.asdict(Config()).items():
        table = tables.get(section, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"{source}: {section} must be a table")
        upgraded.setdefault(section, {}).update({key: table[key] for key in table if key in known})
        ignored += [f"{section}.{key}" for key in table if key not in known]
    ignored = [name for name in ignored if name not in CONSTANTS or _differs(tables, name)]
    ignored += [str(section) for section in tables if section not in upgraded]
    if ignored:
        _log.warning("%s: settings that do not exist any more are ignored: %s", source, ", ".join(ignored))
    return upgraded


def require_same_constants(tables: Mapping[str, Any], path: Path) -> None:
    """``ConfigError`` if a step of the run of a checkpoint computed something else than it would now."""
    sections = ("augment.", "targets.", "loss.", "optim.", "distill.")
    names = [name for name in CONSTANTS if name.startswith(sections) and _differs(tables, name)]
    if names:
        changed = ", ".join(f"{name} (now {CONSTANTS[name]})" for name in names)
        raise ConfigError(
            f"{path} cannot be resumed: it was trained with other values of {changed}, which cannot be set any more; "
            "start a new run with --set train.weights=FILE, or use the version that has saved it"
        )


def _differs(tables: Mapping[str, Any], name: str) -> bool:
    """Whether tables have another value of a setting than today's constant."""
    section, _, key = name.partition(".")
    value = tables.get(section, {}).get(key, CONSTANTS[name])
    try:
        return bool((list(value) if isinstance(value, tuple) else value) != CONSTANTS[name])
    except RuntimeError:  # a tensor of several values
        return True

"""What an exported ONNX file says about itself: one property, JSON with the settings and the meaning of the arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from posenet.errors import CheckpointError, ConfigError
from posenet.inference.networks import is_installed
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, PADDING, Config, config_from_dict, config_to_dict
from posenet.skeleton.skeleton_file import skeleton_to_table

INPUT = "images"
"""Name of the input of a file: (N, H, W, 3) uint8 BGR, H and W multiples of ``INPUT_MULTIPLE``."""
OUTPUT = "maps"
"""Name of the output: (N, C, H/4, W/4) float32."""
PROPERTY = "posenet"
"""Key of the property in the file."""

_CONSTANTS = {"format": 2, "multiple": INPUT_MULTIPLE, "stride": MAP_STRIDE}
"""Entries that are the same in all files of this version. Files of format 1 computed candidates instead of maps."""


def require_packages(*packages: str) -> None:
    """``ConfigError`` if a package that exporting needs is not installed."""
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise ConfigError(f"exporting needs the package {' and '.join(missing)}; pip install 'simplepose[export]'")


def describe_config(config: Config, precision: str) -> dict[str, str]:
    """The properties of a file with convolutions in float32 or int8: what prediction needs of the configuration.

    ``read_config`` does not need the entries from ``colours`` to ``channels``: they are for other programs.
    """
    tables = config_to_dict(config)
    stored: dict[str, Any] = {
        "precision": precision,
        "colours": "BGR",
        "padding": PADDING,
        "padded_sides": ["right", "bottom"],
        "first_cell": (MAP_STRIDE - 1) / 2,
        "channels": config.model.skeleton.describe_channels(),
        "inference": tables["inference"],
        "tracking": tables["tracking"],
        "model": {"skeleton": skeleton_to_table(config.model.skeleton)},
    }
    return {PROPERTY: json.dumps(_CONSTANTS | stored)}


def read_config(properties: Mapping[str, str], source: str) -> Config:
    """The configuration of a file that this version of posenet has written, or ``CheckpointError``."""
    try:
        stored = json.loads(properties[PROPERTY])
        constants = {name: stored[name] for name in _CONSTANTS}
        stored["model"]["skeleton"]["keypoints"]  # it is a table: a text would be the name of any file
        sections = {name: stored[name] for name in ("inference", "model")}
        sections["tracking"] = stored.get("tracking", {})  # files of version 0.5 lack it
        config = config_from_dict(sections, source, from_checkpoint=True)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, ConfigError) as error:
        raise CheckpointError(
            f"{source} is not a file that this version of posenet export-onnx has written: its metadata lack the "
            "settings, or have one that is not valid; export the network again"
        ) from error
    if constants != _CONSTANTS:
        raise CheckpointError(f"{source} is from another version of posenet; export the network again")
    return config

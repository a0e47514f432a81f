"""Loading weights into a given network, or together with the network that the checkpoint describes.

A checkpoint is a file, or the name of registered weights, which are downloaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from posenet.checkpoints.contents import (
    LoadReport,
    compare_tensors,
    config_of_checkpoint,
    extract_weights,
    require_fitting_weights,
)
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.named_weights import find_weights
from posenet.errors import CheckpointError
from posenet.model.posenet import PoseNet
from posenet.settings import Config

MIN_LOADED_SHARE = 0.5
"""Smallest share of a network's tensors that fine-tuning must load from a checkpoint."""


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    state: Mapping[str, Any] | None = None,
    min_loaded_share: float = MIN_LOADED_SHARE,
) -> LoadReport:
    """Copy all tensors of a checkpoint that fit into a model, and report the others.

    Args:
        path: our checkpoint, a published one or a bare state dict, whose names may have prefixes of wrappers; or the
            name of registered weights.
        state: content of the file, if it has been read already.
        min_loaded_share: smallest share of the model's tensors that must fit.

    Raises:
        CheckpointError: the file is unreadable, or fewer tensors fit; the model is unchanged.
    """
    if state is None:
        path = find_weights(path).path
        state = read_checkpoint(path)
    file_tensors = extract_weights(state, path)
    model_tensors = model.state_dict()
    report = compare_tensors(model_tensors, file_tensors, path)
    if len(report.loaded) < min_loaded_share * len(model_tensors):
        raise CheckpointError(
            f"{path}: only {len(report.loaded)} of {len(model_tensors)} "
            "tensors fit this network; it is of another architecture"
        )
    model.load_state_dict(model_tensors | {name: file_tensors[name] for name in report.loaded})
    return report


def load_model(path: str | Path, config: Config | None = None) -> tuple[PoseNet, Config]:
    """Build the network of a checkpoint, on the CPU and in evaluation mode; return it and its configuration.

    Args:
        path: a checkpoint, or the name of registered weights.
        config: overrides the configuration in the checkpoint. A file without one, such as a published file, means the
            default network.

    Raises:
        CheckpointError: the file is unreadable, or its weights do not all fit.
    """
    weights = find_weights(path)
    state = read_checkpoint(weights.path)
    config = config or config_of_checkpoint(state, weights.path) or weights.config or Config()
    require_fitting_weights(config, state, weights.path)
    model = PoseNet.from_config(config)
    model.load_state_dict(extract_weights(state, weights.path))
    return model.eval(), config


def stored_config(path: str | Path) -> Config | None:
    """The configuration of a checkpoint or of registered weights; None for a file without one."""
    weights = find_weights(path)
    return config_of_checkpoint(read_checkpoint(weights.path), weights.path) or weights.config

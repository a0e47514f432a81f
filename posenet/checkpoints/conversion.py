"""Weights between the authors' published files and our checkpoints, both ways and without loss."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from posenet.checkpoints.file import FORMAT, read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, extract_weights, load_model, load_weights
from posenet.errors import CheckpointError
from posenet.model import published_names as published
from posenet.model.posenet import PoseNet
from posenet.settings import Config, config_to_dict
from posenet.skeleton import COCO


def import_weights(source: str | Path, output: str | Path, config: Config | None = None) -> Config:
    """Write a published file's weights as a checkpoint of ours, with the configuration of their network.

    Args:
        source: a published file, or any other whose weights a ``PoseNet`` has, such as a bare state dict.
        config: what the checkpoint is to say of inference and the like; the network's size is read off the weights.
            None: what ``source`` itself says, where it is a checkpoint of ours, else the defaults.

    Returns:
        The configuration written.

    Raises:
        CheckpointError: unreadable, not the weights of a ``PoseNet``, or a file that cannot be written.
    """
    state = read_checkpoint(source)
    weights = extract_weights(state, source)
    config = _sized(config or config_of_checkpoint(state, source) or Config(), weights, source)
    network = PoseNet.from_config(config)
    load_weights(network, source, state=weights, least=0).require_all()
    state = {"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)}
    _write(Path(output), state)
    return config


def export_weights(source: str | Path, output: str | Path) -> None:
    """Write a checkpoint's weights under the published names, in the dictionary that the authors' code reads.

    Only weights: ``optimizer_weight`` is empty and ``train_loss``, the best so far, infinite.

    Raises:
        CheckpointError: unreadable, whose maps are not the published ones', or a file that cannot be written.
    """
    state = read_checkpoint(source)
    network, config = load_model(source)
    if not config.model.skeleton.predicts_like(COCO):
        raise CheckpointError(
            f"{source} is a network of other keypoints or parts than COCO's, which the published "
            "format cannot say; keep it as it is"
        )
    progress = state.get("progress")
    epoch = progress.get("epoch") if isinstance(progress, dict) else None
    _write(
        Path(output),
        {
            "weights": published.rename_to_published(network.state_dict()),
            "optimizer_weight": {},
            "train_loss": math.inf,
            "epoch": epoch if isinstance(epoch, int) else 0,
        },
    )


def _sized(config: Config, weights: dict[str, Tensor], source: str | Path) -> Config:
    """``config`` with the size of the network that the weights are of."""
    try:
        width = 4 * len(weights["stem.entry.conv.weight"])
        second = weights["stacks.0.heads.1.features.0.conv.weight"].shape[1]
        channels = len(weights["stacks.0.heads.0.output.weight"])
        stacks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("stacks."))
        model = dataclasses.replace(config.model, stacks=stacks, width=width, growth=second - width)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source} does not hold the weights of a PoseNet ({error}); give a published file or a "
            "checkpoint of this program"
        ) from error
    if channels != model.skeleton.num_channels:
        raise CheckpointError(
            f"{source} predicts {channels} maps, the skeleton has {model.skeleton.num_channels}; "
            "name its skeleton by --set model.skeleton=FILE.toml"
        )
    return dataclasses.replace(config, model=model)


def _write(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, state)

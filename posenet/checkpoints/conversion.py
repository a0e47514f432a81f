"""Conversion between the authors' published files and our checkpoints; the weights stay bit-identical."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from torch import Tensor

from posenet.checkpoints.contents import config_of_checkpoint, extract_weights
from posenet.checkpoints.file import FORMAT, read_checkpoint, write_checkpoint
from posenet.checkpoints.named_weights import find_weights
from posenet.checkpoints.weights import load_model, load_weights
from posenet.errors import CheckpointError
from posenet.files import resolve_link
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_published
from posenet.settings import Config, ModelConfig, config_to_dict
from posenet.skeleton import COCO


def import_weights(source: str | Path, output: str | Path, config: Config | None = None) -> Config:
    """Write the weights of a published file as our checkpoint, and return the configuration in it.

    Args:
        source: a published file, or another file with the weights of a ``PoseNet``, such as a bare state dict; or the
            name of registered weights.
        config: configuration to store in the checkpoint, with the size of the network replaced by that of the weights.
            None uses the configuration in ``source``, if it has one, or else the defaults.

    Raises:
        CheckpointError: the source is unreadable or has no weights of a ``PoseNet``, or the output cannot be written.
    """
    found = find_weights(source)
    source = found.path
    state = read_checkpoint(source)
    weights = extract_weights(state, source)
    config = config or config_of_checkpoint(state, source) or found.config or Config()
    config = dataclasses.replace(config, model=_infer_network_size(config.model, weights, source))
    network = PoseNet.from_config(config)
    load_weights(network, source, state=weights, min_loaded_share=0).require_all()
    write_checkpoint(
        resolve_link(Path(output)), {"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)}
    )
    return config


def export_weights(source: str | Path, output: str | Path) -> None:
    """Write the weights of a checkpoint with the published names, in the dictionary that the authors' code reads.

    Only weights are exported: ``optimizer_weight`` is empty, and ``train_loss``, the best loss so far, is infinite.

    Raises:
        CheckpointError: the source is unreadable, its network does not predict the published maps, or the output
            cannot be written.
    """
    source = find_weights(source).path
    state = read_checkpoint(source)
    network, config = load_model(source)
    if not config.model.skeleton.predicts_like(COCO):
        raise CheckpointError(
            f"{source} is a network for other keypoints or body parts than COCO's, which the published format cannot "
            "describe; use the checkpoint itself"
        )
    progress = state.get("progress")
    epoch = progress.get("epoch") if isinstance(progress, dict) else None
    published = {
        "weights": rename_to_published(network.state_dict()),
        "optimizer_weight": {},
        "train_loss": math.inf,
        "epoch": epoch if isinstance(epoch, int) else 0,
    }
    write_checkpoint(resolve_link(Path(output)), published)


def _infer_network_size(settings: ModelConfig, weights: dict[str, Tensor], source: str | Path) -> ModelConfig:
    """``settings`` with the number of stacks and channels that the weights have."""
    try:
        width = 4 * len(weights["stem.entry.conv.weight"])  # the first convolution has a quarter of the width
        second_scale = weights["stacks.0.heads.1.features.0.conv.weight"].shape[1]  # width + growth
        num_channels = len(weights["stacks.0.heads.0.output.weight"])
        stacks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("stacks."))
        settings = dataclasses.replace(settings, stacks=stacks, width=width, growth=second_scale - width)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source} does not contain the weights of a PoseNet ({error}); give a published file or a checkpoint of "
            "this program"
        ) from error
    if num_channels != settings.skeleton.num_channels:
        raise CheckpointError(
            f"{source} predicts {num_channels} maps, the skeleton has {settings.skeleton.num_channels}; "
            "give its skeleton with --set model.skeleton=FILE.toml"
        )
    return settings

"""Conversion of weights: from any file to our checkpoint, and to a file that the authors' code reads."""

import math
from pathlib import Path

from posenet.checkpoints.file import FORMAT, find_weights, write_checkpoint
from posenet.checkpoints.published.names import rename_to_published
from posenet.checkpoints.weights import load_model
from posenet.errors import CheckpointError
from posenet.files import check_outputs
from posenet.settings import Config, config_to_dict
from posenet.skeleton import COCO


def import_weights(
    source: str | Path, output: str | Path, config: Config | None = None, *, overwrite: bool = False
) -> Config:
    """Write the weights of any file, or published weights by name, as our checkpoint; return the configuration in it.

    See ``load_model`` for the meaning of ``config``. ``CheckpointError`` if the source has no weights that fit, or the
    output cannot be written; ``DataError`` if it is the source, or exists without ``overwrite``.
    """
    source = find_weights(source)
    check_outputs([output], [source], overwrite=overwrite)
    network, config = load_model(source, config)
    write_checkpoint(Path(output), {"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)})
    return config


def export_weights(source: str | Path, output: str | Path, *, overwrite: bool = False) -> None:
    """Write the weights of a checkpoint with the published names, in the dictionary that the authors' code reads.

    Only weights are exported: ``optimizer_weight`` is empty, ``train_loss``, the best loss so far, is infinite, and
    ``epoch`` is 0. ``CheckpointError`` if the network does not predict the published maps, or a file cannot be read or
    written; ``DataError`` if the output is the source, or exists without ``overwrite``.
    """
    source = find_weights(source)
    check_outputs([output], [source], overwrite=overwrite)
    network, config = load_model(source)
    if config.model.network or config.model.skeleton.changes_of_network(COCO):
        raise CheckpointError(
            f"{source} is no PoseNet for COCO's keypoints and body parts, as published files are; use the checkpoint"
        )
    weights = rename_to_published(network.state_dict())
    write_checkpoint(Path(output), {"weights": weights, "optimizer_weight": {}, "train_loss": math.inf, "epoch": 0})

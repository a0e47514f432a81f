"""Loading the weights of a checkpoint, into a given network or together with the network that the file describes.

A checkpoint is one of ours, a published one or a bare state dict. ``extract_weights`` returns its tensors under our
names; ``posenet.model.published_names`` has the table of the published names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenet.checkpoints.file import read_checkpoint
from posenet.errors import CheckpointError
from posenet.messages import truncate_for_message
from posenet.model.posenet import PoseNet
from posenet.model.published_names import is_published, rename_to_ours
from posenet.settings import Config, config_from_dict
from posenet.skeleton.skeleton_file import BUILT_IN

WEIGHT_KEYS = ("model", "weights", "state_dict")
"""Keys of the weights in our checkpoints, in those of the authors and in those of many other programs."""
MIN_LOADED_SHARE = 0.5
"""Smallest share of a network's tensors that fine-tuning must load from a checkpoint."""
MAX_LISTED_NAMES = 5
"""Number of names of each kind that a report lists."""


@dataclass(frozen=True)
class LoadReport:
    """Names of the tensors that were loaded from a file, and of those that were not."""

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # in the model only; these tensors kept their values
    unexpected: list[str] = field(default_factory=list)  # in the file only
    reshaped: list[str] = field(default_factory=list)  # in both, with other shapes; these tensors kept their values

    def __str__(self) -> str:
        lines = [f"{self.path}: loaded {len(self.loaded)} tensors"]
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "other shape": self.reshaped}
        for kind, names in kinds.items():
            if names:
                listed = ", ".join(names[:MAX_LISTED_NAMES])
                num_more = len(names) - MAX_LISTED_NAMES
                lines.append(f"  {kind} {len(names)}: {listed}" + (f" ... (+{num_more} more)" if num_more > 0 else ""))
        return "\n".join(lines)

    def require_all(self) -> None:
        """Raise ``CheckpointError`` unless file and model have the same names and shapes."""
        mismatched = self.missing + self.reshaped + self.unexpected
        if mismatched:
            raise CheckpointError(
                f"{self.path} is of another architecture ({len(mismatched)} tensors do not fit, "
                f"first {truncate_for_message(mismatched[0])[1:-1]}); give the configuration it was trained with by "
                "--config or --set"
            )


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    state: Mapping[str, Any] | None = None,
    min_loaded_share: float = MIN_LOADED_SHARE,
) -> LoadReport:
    """Copy all tensors of a checkpoint that fit into a model, and report the others.

    Args:
        path: our checkpoint, a published one or a bare state dict; names may have prefixes of wrappers.
        state: content of the file, if it has been read already.
        min_loaded_share: smallest share of the model's tensors that must fit.

    Raises:
        CheckpointError: the file is unreadable, or fewer tensors fit; the model is unchanged.
    """
    file_tensors = extract_weights(read_checkpoint(path) if state is None else state, path)
    model_tensors = model.state_dict()
    report = _compare(model_tensors, file_tensors, path)
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
        config: overrides the configuration in the checkpoint. A file without one, such as a published file, means the
            default network.

    Raises:
        CheckpointError: the file is unreadable, or its weights do not all fit.
    """
    state = read_checkpoint(path)
    config = config or config_of_checkpoint(state, path) or Config()
    require_fitting_weights(config, state, path)
    model = PoseNet.from_config(config)
    model.load_state_dict(extract_weights(state, path))
    return model.eval(), config


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> None:
    """Raise ``CheckpointError`` unless the weights are those of ``config``'s network.

    The network is built without memory for its weights, so that no checkpoint can make the program allocate too much.
    """
    with torch.device("meta"):
        model_tensors = PoseNet.from_config(config).state_dict()
    _compare(model_tensors, extract_weights(state, path), path).require_all()


def _compare(model_tensors: Mapping[str, Tensor], file_tensors: Mapping[str, Tensor], path: str | Path) -> LoadReport:
    """Report which tensors of a model can be loaded from those of a file."""
    report = LoadReport(str(path), unexpected=[name for name in file_tensors if name not in model_tensors])
    for name, tensor in model_tensors.items():
        if name not in file_tensors:
            report.missing.append(name)
        else:
            fits = file_tensors[name].shape == tensor.shape
            (report.loaded if fits else report.reshaped).append(name)
    return report


def extract_weights(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The weights in the content of a checkpoint, under our parameter names; ``CheckpointError`` if there are none."""
    table = next((state[key] for key in WEIGHT_KEYS if isinstance(state.get(key), Mapping)), state)
    weights = {
        strip_wrapper_prefixes(name): tensor
        for name, tensor in table.items()
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    if not weights:
        raise CheckpointError(f"{path} contains no weights; use another file")
    if is_published(weights):
        return rename_to_ours(weights)
    return {name.removeprefix("posenet."): tensor for name, tensor in weights.items()}


def strip_wrapper_prefixes(name: str) -> str:
    """A parameter's name without the prefixes of DataParallel, DistributedDataParallel and torch.compile."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def config_of_checkpoint(state: Mapping[str, Any], path: str | Path) -> Config | None:
    """The configuration in the content of our checkpoint; None for other files."""
    tables = state.get("config")
    if not isinstance(tables, dict):
        return None
    model = tables.get("model")
    skeleton = model.get("skeleton") if isinstance(model, dict) else None
    if isinstance(skeleton, str) and skeleton != BUILT_IN:
        raise CheckpointError(
            f"{path} has a file name as its skeleton, which no checkpoint of a run has; use another checkpoint"
        )
    return config_from_dict(tables, source=str(path))

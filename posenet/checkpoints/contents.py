"""The weights and the configuration in the content of a checkpoint: ours, a published one or a bare state dict.

``extract_weights`` returns the tensors under our names; ``posenet.model.published_names`` has the table of the
published names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenet.errors import CheckpointError
from posenet.messages import truncate_for_message
from posenet.model.posenet import PoseNet
from posenet.model.published_names import is_published, rename_to_ours
from posenet.settings import Config, config_from_dict
from posenet.skeleton.skeleton_file import BUILT_IN

WEIGHT_KEYS = ("model", "weights", "state_dict")
"""Keys of the weights in our checkpoints, in those of the authors and in those of many other programs."""
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


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> None:
    """Raise ``CheckpointError`` unless the weights are those of ``config``'s network.

    The network is built without memory for its weights, so that no checkpoint can make the program allocate too much.
    """
    with torch.device("meta"):
        model_tensors = PoseNet.from_config(config).state_dict()
    compare_tensors(model_tensors, extract_weights(state, path), path).require_all()


def compare_tensors(
    model_tensors: Mapping[str, Tensor], file_tensors: Mapping[str, Tensor], path: str | Path
) -> LoadReport:
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

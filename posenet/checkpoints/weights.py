"""Loading the weights of a checkpoint: into a given network, or with the network that they belong to.

A checkpoint is one of ours, a published one or a bare state dict. ``extract_weights`` finds the tensors in it and gives
them our names; ``posenet.model.published_names`` has the table of the published names.
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
"""Where a checkpoint may hold its weights: ours, the authors' and many other programs'."""
MIN_LOADED_SHARE = 0.5
"""Share of a network's tensors that fine-tuning must find in a checkpoint."""
MAX_LISTED_NAMES = 5
"""Names that a report lists of each kind."""


@dataclass(frozen=True)
class LoadReport:
    """Which tensors were loaded from a file, and which were not.

    Attributes:
        loaded: Names that were copied into the model.
        missing: Names of the model that the file lacks; these tensors kept their values.
        unexpected: Names of the file that the model lacks.
        reshaped: Names that both have with different shapes; these tensors kept their values.
    """

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.path}: loaded {len(self.loaded)} tensors"]
        for kind in ("missing", "unexpected", "reshaped"):
            names = getattr(self, kind)
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
    """Copy the tensors that fit from a checkpoint into a model, and report the others.

    Args:
        path: Our checkpoint, a published one or a bare state dict; names may have prefixes of wrappers.
        state: Content of the file, if it has been read already.
        min_loaded_share: Smallest share of the model's tensors that must fit.

    Raises:
        CheckpointError: The file is unreadable, or fewer tensors fit; the model is unchanged.
    """
    given = extract_weights(read_checkpoint(path) if state is None else state, path)
    own = model.state_dict()
    report = _compare(own, given, path)
    if len(report.loaded) < min_loaded_share * len(own):
        raise CheckpointError(
            f"{path}: only {len(report.loaded)} of {len(own)} tensors fit this network; it is of another architecture"
        )
    model.load_state_dict(own | {name: given[name] for name in report.loaded})
    return report


def load_model(path: str | Path, config: Config | None = None) -> tuple[PoseNet, Config]:
    """Build the network of a checkpoint and load all its weights.

    Args:
        config: Overrides the configuration in the checkpoint. A published file has none; it means the default network.

    Returns:
        The network on the CPU in evaluation mode, and its configuration.

    Raises:
        CheckpointError: The file is unreadable, or its weights do not all fit.
    """
    state = read_checkpoint(path)
    config = config or config_of_checkpoint(state, path) or Config()
    require_fitting_weights(config, state, path)
    model = PoseNet.from_config(config)
    model.load_state_dict(extract_weights(state, path))
    return model.eval(), config


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> None:
    """Raise ``CheckpointError`` unless the weights are those of ``config``'s network.

    The network is built without memory for its weights, so that a checkpoint cannot make us allocate a huge one.
    """
    with torch.device("meta"):
        own = PoseNet.from_config(config).state_dict()
    _compare(own, extract_weights(state, path), path).require_all()


def _compare(own: Mapping[str, Tensor], given: Mapping[str, Tensor], path: str | Path) -> LoadReport:
    """Report which of a model's ``own`` tensors can be loaded from the ``given`` ones."""
    common = [name for name in own if name in given]
    return LoadReport(
        path=str(path),
        loaded=[name for name in common if given[name].shape == own[name].shape],
        missing=[name for name in own if name not in given],
        unexpected=[name for name in given if name not in own],
        reshaped=[name for name in common if given[name].shape != own[name].shape],
    )


def extract_weights(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The weights in the content of a checkpoint, under our parameter names.

    Raises:
        CheckpointError: The file contains no weights.
    """
    tables = [state[key] for key in WEIGHT_KEYS if isinstance(state.get(key), Mapping)]
    table = tables[0] if tables else state
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
    """The configuration in the content of a checkpoint of ours; None for other files."""
    tables = state.get("config")
    if not isinstance(tables, dict):
        return None
    model = tables.get("model")
    skeleton = model.get("skeleton") if isinstance(model, dict) else None
    if isinstance(skeleton, str) and skeleton != BUILT_IN:
        raise CheckpointError(f"{path} names a file as its skeleton, which checkpoints never do; use another one")
    return config_from_dict(tables, source=str(path))

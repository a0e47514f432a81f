"""Loading weights: names without wrappers' prefixes, what fits, and the network a checkpoint belongs to."""

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
from posenet.model import published_names as published
from posenet.model.posenet import PoseNet
from posenet.settings import Config, config_from_dict
from posenet.skeleton.skeleton_file import BUILT_IN


@dataclass(frozen=True)
class LoadReport:
    """What became of every name when weights were loaded.

    Attributes:
        loaded: names copied into the model.
        missing: names of the model that the file lacks; these kept their values.
        unexpected: names of the file that the model lacks.
        reshaped: names on both sides whose shapes differ; these kept their values.
    """

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.path}: loaded {len(self.loaded)} tensors"]
        for kind in ("missing", "unexpected", "reshaped"):
            if names := getattr(self, kind):
                more = f" ... (+{len(names) - 5} more)" if len(names) > 5 else ""
                lines.append(f"  {kind} {len(names)}: {', '.join(names[:5])}{more}")
        return "\n".join(lines)

    def require_all(self) -> None:
        """Raise ``CheckpointError`` unless file and model agree on every name and shape."""
        if wrong := self.missing + self.reshaped + self.unexpected:
            raise CheckpointError(
                f"{self.path} is of another architecture ({len(wrong)} tensors do not fit, "
                f"first {truncate_for_message(wrong[0])[1:-1]}); give the configuration it was trained with by "
                "--config or --set"
            )


def extract_weights(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The model's tensors in a checkpoint of ours, a published one or a bare state dict, under our names.

    Raises:
        CheckpointError: there are no weights in it.
    """
    keys = ("model", "weights", "state_dict")
    weights = next((state[key] for key in keys if isinstance(state.get(key), Mapping)), state)
    weights = {unwrapped_name(k): v for k, v in weights.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not weights:
        raise CheckpointError(f"{path} holds no weights; use another file")
    if published.is_published(weights):
        return published.rename_to_ours(weights)
    return {name.removeprefix("posenet."): tensor for name, tensor in weights.items()}


def unwrapped_name(name: str) -> str:
    """A parameter's name without what DataParallel, DistributedDataParallel and torch.compile add."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def load_weights(
    model: nn.Module, path: str | Path, *, state: Mapping[str, Any] | None = None, least: float = 0.5
) -> LoadReport:
    """Copy what fits from a checkpoint into a model and report the rest.

    Args:
        path: our own checkpoint, a published one or a bare state dict, with any wrapper's prefixes.
        state: the file's content where it has been read already.
        least: smallest share of the model's tensors that must load.

    Raises:
        CheckpointError: unreadable, or less than ``least`` of the model fits.
    """
    given = extract_weights(read_checkpoint(path) if state is None else state, path)
    own = model.state_dict()
    report = _compare(own, given, path)
    if len(report.loaded) < least * len(own):
        raise CheckpointError(
            f"{path}: only {len(report.loaded)} of {len(own)} tensors fit this network; it is of another architecture"
        )
    model.load_state_dict(own | {n: given[n] for n in report.loaded})
    return report


def _compare(own: Mapping[str, Tensor], given: Mapping[str, Tensor], path: str | Path) -> LoadReport:
    return LoadReport(
        path=str(path),
        loaded=[n for n in own if n in given and given[n].shape == own[n].shape],
        missing=[n for n in own if n not in given],
        unexpected=[n for n in given if n not in own],
        reshaped=[n for n in own if n in given and given[n].shape != own[n].shape],
    )


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> None:
    """``CheckpointError`` unless the weights are of ``config``'s network; no memory is taken for one of any size."""
    with torch.device("meta"):
        own = PoseNet.from_config(config).state_dict()
    _compare(own, extract_weights(state, path), path).require_all()


def load_model(path: str | Path, config: Config | None = None) -> tuple[PoseNet, Config]:
    """Build the network a checkpoint belongs to and load it whole.

    Args:
        config: overrules the configuration that the checkpoint carries; a published file carries none
            and means the default network.

    Returns:
        The network on the CPU in eval mode, and its configuration.

    Raises:
        CheckpointError: unreadable, or weights that do not all fit.
    """
    state = read_checkpoint(path)
    config = config or config_of_checkpoint(state, path) or Config()
    require_fitting_weights(config, state, path)
    model = PoseNet.from_config(config)
    load_weights(model, path, state=state, least=0).require_all()
    return model.eval(), config


def config_of_checkpoint(state: Mapping[str, Any], path: str | Path) -> Config | None:
    """The configuration a checkpoint of ours carries, else None."""
    tables = state.get("config")
    model = tables.get("model") if isinstance(tables, dict) else None
    if isinstance(model, dict) and isinstance(name := model.get("skeleton"), str) and name != BUILT_IN:
        raise CheckpointError(f"{path} names a file as its skeleton, which no checkpoint does; use another one")
    return config_from_dict(tables, source=str(path)) if isinstance(tables, dict) else None

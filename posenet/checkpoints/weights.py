"""The weights in checkpoints, given by path or name: ours, the authors' published ones and bare state dicts."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenet.checkpoints.file import find_weights, read_checkpoint
from posenet.errors import CheckpointError
from posenet.messages import truncate_for_message
from posenet.model.build import build_network
from posenet.model.posenet import PoseNet
from posenet.settings import Config, ModelConfig, config_from_dict
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import BUILT_IN

MIN_LOADED_SHARE = 0.5
"""Smallest share of a network's tensors that fine-tuning must load from a checkpoint."""
WEIGHT_KEYS = ("model", "weights", "state_dict")
"""Keys of the weights in our checkpoints, in those of the authors and in those of many other programs."""
MAP_LAYERS = re.compile(r"\.heads\.\d+\.output\.|\.maps\.conv\.weight$")
"""Names of the weights of a ``PoseNet`` with one row or column for each map."""


@dataclass(frozen=True)
class LoadReport:
    """Names of the tensors that were loaded from a file, and of those that were not and kept their values."""

    path: str | Path
    loaded: list[str]
    missing: list[str]  # in the model only
    unexpected: list[str]  # in the file only
    reshaped: list[str]  # in both, with other shapes, or of the maps of another skeleton

    def __str__(self) -> str:
        lines = [f"{self.path}: loaded {len(self.loaded)} tensors"]
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "other shape": self.reshaped}
        lines += [f"  {kind} {len(names)}: {truncate_for_message(names)}" for kind, names in kinds.items() if names]
        return "\n".join(lines)


def load_weights(model: nn.Module, path: str | Path, skeleton: Skeleton | None = None) -> LoadReport:
    """Copy all tensors of a checkpoint that fit into a model, and report the others.

    Of a checkpoint that states another skeleton, the layers that compute or read maps do not fit.

    Args:
        path: a checkpoint, whose names may have prefixes of wrappers, or the name of published weights.
        skeleton: that of the model; None takes the order of the maps for the same.

    Raises:
        CheckpointError: the file is unreadable, or a smaller share of the tensors than ``MIN_LOADED_SHARE`` fits; the
            model is unchanged. Or a tensor that fits is not usable; see ``require_usable_weights``.
    """
    path = find_weights(path)
    state = read_checkpoint(path)
    file_tensors = extract_weights(state, path)
    model_tensors = model.state_dict()
    stored = config_of_checkpoint(state, path)
    has_same_maps = not (skeleton and stored and skeleton.different_channels(stored.model.skeleton))
    fits = {
        name: file_tensors[name].shape == tensor.shape and (has_same_maps or not MAP_LAYERS.search(name))
        for name, tensor in model_tensors.items()
        if name in file_tensors
    }
    report = LoadReport(
        path,
        loaded=[name for name in fits if fits[name]],
        missing=[name for name in model_tensors if name not in fits],
        unexpected=[name for name in file_tensors if name not in fits],
        reshaped=[name for name in fits if not fits[name]],
    )
    if len(report.loaded) < MIN_LOADED_SHARE * len(model_tensors):
        raise CheckpointError(
            f"{path}: only {len(report.loaded)} of {len(model_tensors)} tensors fit this network; set model.stacks, "
            "model.width and model.growth to those of the file"
        )
    loaded = {name: file_tensors[name] for name in report.loaded}
    require_usable_weights(loaded, path)
    model.load_state_dict(model_tensors | loaded)
    return report


def load_model(path: str | Path, config: Config | None = None) -> tuple[PoseNet, Config]:
    """Build the network of a checkpoint, on the CPU and in evaluation mode; return it and its configuration.

    ``config`` overrides the configuration in the checkpoint. A file without one, such as a published file, means the
    defaults, with the size of network that its weights have.

    Raises:
        CheckpointError: the file is unreadable, its weights do not all fit or are not usable, or it has a skeleton with
            other names or in another order.
    """
    path = find_weights(path)
    state = read_checkpoint(path)
    if config is None:
        config = _config_of(state, path)
    elif (stored := config_of_checkpoint(state, path)) and (
        difference := config.model.skeleton.different_channels(stored.model.skeleton)
    ):  # as many maps under other names would be a wrong answer that nobody notices
        raise CheckpointError(
            f"{path} was trained for another skeleton than the one that is given, which has {difference}; leave "
            "model.skeleton and the experiment out"
        )
    weights = require_fitting_weights(config, state, path)
    model = build_network(config)
    model.load_state_dict(weights)
    return model.eval(), config


def stored_config(path: str | Path) -> Config:
    """The configuration of a checkpoint; see ``load_model`` for a file without one."""
    path = find_weights(path)
    return _config_of(read_checkpoint(path), path)


def _config_of(state: Mapping[str, Any], path: Path) -> Config:
    return config_of_checkpoint(state, path) or Config(model=_network_of(extract_weights(state, path), path))


def config_of_checkpoint(state: Mapping[str, Any], path: str | Path) -> Config | None:
    """The configuration in the content of our checkpoint; None for other files."""
    tables = state.get("config")
    if not isinstance(tables, dict):
        return None
    model = tables.get("model")
    skeleton = model.get("skeleton") if isinstance(model, dict) else None
    if isinstance(skeleton, str) and skeleton != BUILT_IN:
        raise CheckpointError(f"{path} has a file name as its skeleton, as no checkpoint of a run has; use another")
    return config_from_dict(tables, source=str(path), from_checkpoint=True)


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The weights in a checkpoint; ``CheckpointError`` unless they are usable and those of ``config``'s network.

    The network is built without memory for its weights, so that no checkpoint can make the program allocate too much.
    """
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in build_network(config).state_dict().items()}
    weights = extract_weights(state, path)
    found = {name: tensor.shape for name, tensor in weights.items()}
    if mismatched := [name for name in expected | found if expected.get(name) != found.get(name)]:
        raise CheckpointError(
            f"{path} is of another architecture ({len(mismatched)} tensors do not fit, first "
            f"{_to_text(mismatched[0])}); give the configuration it was trained with: --config, or --set "
            "model.skeleton=FILE model.network=module:name of your own"
        )
    require_usable_weights(weights, path)
    return weights


def extract_weights(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The weights in the content of a checkpoint, under our parameter names; all of them are plain dense tensors.

    ``CheckpointError`` if there are none, if one is of another kind, or if two differ only in the prefixes of wrappers.
    """
    tensors = _find_tensors(state, path)
    for name, tensor in tensors.items():
        # Of tensors of other kinds not even the shape can be read in the same way.
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                f"{path}: {_to_text(name)} is sparse, nested, quantized or without values; save plain dense tensors"
            )
    is_ours = isinstance(state.get("config"), Mapping)
    # Strip the prefixes of DataParallel and DistributedDataParallel; of other files also those of Lightning and of the
    # authors.
    prefixes = r"^(module\.)+" if is_ours else r"^((module|model|posenet)\.)+"
    # torch.compile puts its prefix also before names within a network.
    weights = {re.sub(prefixes, "", name.replace("_orig_mod.", "")): tensor for name, tensor in tensors.items()}
    if not is_ours:
        try:
            from posenet.checkpoints.published.names import rename_to_ours
        except ModuleNotFoundError:  # a part of the package that may be left out
            pass
        else:
            weights = rename_to_ours(weights)
    if len(weights) < len(tensors):
        raise CheckpointError(f"{path} contains tensors more than once, under several names; keep one network")
    return weights


def _find_tensors(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The tensors of a network by name: those under a known key, or the only table with tensors."""
    tables = {}
    for key, table in (*state.items(), ("", state)):
        entries = table.items() if isinstance(table, Mapping) else ()
        tensors = {name: value for name, value in entries if isinstance(name, str) and isinstance(value, Tensor)}
        if tensors:
            tables[key] = tensors
    for key in (*WEIGHT_KEYS, ""):
        if key in tables:
            return tables[key]
    if len(tables) == 1:
        return tables.popitem()[1]
    keys = truncate_for_message([str(key) for key in tables or state])
    reason = "several tables of tensors" if tables else "no weights"
    raise CheckpointError(f"{path} contains {reason}: {keys}; save one table with the key state_dict")


def require_usable_weights(weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise ``CheckpointError``, which names the ``source`` and the tensor, unless a network can compute with weights.

    They must be floating-point numbers of at least 16 bits that are finite in float32, and variances must not be
    negative. Otherwise the network would find nobody, and nothing would fail.
    """
    for name, tensor in weights.items():
        kind = name.rpartition(".")[2]
        if kind == "num_batches_tracked":  # no network computes with it
            continue
        fault = ""
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            fault = f"values of {tensor.dtype}, which are no weights"
        elif tensor.numel():
            smallest, largest = torch.stack(tensor.detach().float().aminmax()).tolist()  # NaN if any value is
            if not math.isfinite(largest - smallest):
                fault = "NaN, infinity, or a value that is infinite in float32"
            elif kind == "running_var" and smallest < 0:
                fault = "a negative variance"
        if fault:
            raise CheckpointError(f"{source}: {_to_text(name)} contains {fault}; use an older or another file")


def _to_text(name: str) -> str:
    """A name from a file, for a message."""
    return truncate_for_message(name)[1:-1]


def _network_of(weights: Mapping[str, Tensor], source: str | Path) -> ModelConfig:
    """The default network with the number of stacks and channels that the weights have."""
    try:
        width = 4 * len(weights["stem.entry.conv.weight"])  # the first convolution has a quarter of the width
        second_scale = weights["stacks.0.heads.1.features.0.conv.weight"].shape[1]  # width + growth
        stacks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("stacks."))
        return ModelConfig(stacks=stacks, width=width, growth=second_scale - width)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source} does not contain the weights of a PoseNet ({error}); give a published file or our checkpoint"
        ) from error

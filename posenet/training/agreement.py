"""Checks before the first step of a distributed run: settings, data and the folder must be the same on all ranks."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import posenet
from posenet.data.inspection import describe_content
from posenet.data.store import StoreList
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError
from posenet.messages import truncate_for_message
from posenet.settings import Config, config_to_dict
from posenet.training.distillation import teacher_digest

HOST_SETTINGS = frozenset({"data.workers", "train.device", "train.threads"})
"""Settings that depend on the machine. They may differ between hosts."""
PATH_SETTINGS = frozenset(
    {
        "data.train",
        "data.val",
        "data.val_images",
        "data.val_annotations",
        "train.weights",
        "train.teacher",
        "checkpoint.path",
    }
)
"""Settings that are paths. Hosts may have the same files at different paths, so their contents are compared instead.

The initial weights are not compared, because all ranks start from those of rank 0.
"""
MAX_NAMED_DIFFERENCES = 5
"""Differences that an error names; further ones are only counted."""
SECONDS_UNTIL_VISIBLE = 15.0
"""Time in which a new file must appear on the other hosts; network file systems cache the names in a folder."""


def require_same_run(
    runtime: Runtime, config: Config, train_store: StoreList, val_store: StoreList | None, max_steps: int = 0
) -> None:
    """Compare settings and data sets over all ranks.

    Raises:
        ConfigError: they differ. All ranks raise it, with a message that names the differences and the hosts.
    """
    if runtime.world_size == 1:
        return
    values = _describe_run(config, train_store, val_store) | {"--max-steps": max_steps}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    if len(set(runtime.gather_objects(digest))) == 1:
        return
    reports = runtime.gather_objects((socket.gethostname(), values))
    differences = [_describe_difference(name, reports) for name in _differing_names(reports)]
    further = len(differences) - MAX_NAMED_DIFFERENCES
    listed = "; ".join(differences[:MAX_NAMED_DIFFERENCES]) + (f"; and {further} more" if further > 0 else "")
    raise _on_all_ranks(ConfigError(f"the processes differ in {listed}; start all with the same settings and data"))


def require_shared_folder(runtime: Runtime, folder: Path) -> None:
    """Check that all ranks see the files that rank 0 writes into the folder of the run.

    Raises:
        CheckpointError: some do not. All ranks raise it, with a message that names the hosts.
    """
    if runtime.world_size == 1:
        return
    name = f".shared-{secrets.token_hex(8)}"
    problem = ""
    if runtime.is_main:
        try:
            (folder / name).touch()
        except OSError as error:
            problem = f"cannot write into {folder}: {error.strerror or error}"
    name, problem, writer = runtime.broadcast_object((name, problem, socket.gethostname()))
    try:
        reports = runtime.gather_objects((socket.gethostname(), bool(problem) or _becomes_visible(folder / name)))
    finally:
        if runtime.is_main:
            (folder / name).unlink(missing_ok=True)
    blind_hosts = list(dict.fromkeys(host for host, sees_file in reports if not sees_file))
    if blind_hosts:
        hosts = truncate_for_message(", ".join(blind_hosts))[1:-1]
        problem = (
            f"{folder} is not shared: {hosts} cannot see the files that {writer} writes there; "
            "set --checkpoint-path to a folder that all hosts share"
        )
    if problem:
        raise _on_all_ranks(CheckpointError(problem))


def _on_all_ranks(error: ConfigError | CheckpointError) -> ConfigError | CheckpointError:
    error.on_all_ranks = True
    return error


def _describe_run(config: Config, train_store: StoreList, val_store: StoreList | None) -> dict[str, Any]:
    """Everything that must be the same on all ranks, as plain values by name."""
    values: dict[str, Any] = {"the version of posenet": posenet.__version__}
    for section, table in config_to_dict(config).items():
        for key, value in table.items():
            name = f"{section}.{key}"
            if name in PATH_SETTINGS:
                values[name] = "set" if value else "not set"
            elif name not in HOST_SETTINGS:
                values[name] = value
    values["data.train"] = _describe_data(train_store)
    if val_store is not None:
        values["data.val"] = _describe_data(val_store)
    if config.data.val_annotations:
        values["data.val_annotations"] = _describe_file(config.data.val_annotations)
    if config.train.teacher:
        values["train.teacher"] = f"a file with the digest {teacher_digest(config.train.teacher)[:8]}"
    return values


def _describe_data(store: StoreList) -> str:
    """The content of all stores of a setting, and the weights of several data sets."""
    weights = [data_set.weight for data_set in store.sets]
    return describe_content(store) + (f" and the weights {weights}" if len(weights) > 1 else "")


def _describe_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{os.path.getsize(path)} bytes with the digest {digest[:8]}"
    except OSError as error:
        return f"a file that cannot be read ({error.strerror or error})"


def _differing_names(reports: list[tuple[str, Mapping[str, Any]]]) -> list[str]:
    names = dict.fromkeys(name for _, values in reports for name in values)
    first = reports[0][1]
    return [name for name in names if any(values.get(name) != first.get(name) for _, values in reports)]


def _describe_difference(name: str, reports: list[tuple[str, Mapping[str, Any]]]) -> str:
    """The value of rank 0, and that of the first rank with another one."""
    first = reports[0][1].get(name)
    rank = next(rank for rank, (_, values) in enumerate(reports) if values.get(name) != first)
    other = reports[rank][1].get(name)
    places = f"{reports[0][0]} (rank 0)", f"{reports[rank][0]} (rank {rank})"
    return f"{name}: {_describe_value(first)} on {places[0]}, {_describe_value(other)} on {places[1]}"


def _describe_value(value: Any) -> str:
    if isinstance(value, dict):
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        return f"a skeleton with the digest {digest[:8]}"
    return value if isinstance(value, str) else truncate_for_message(value)


def _becomes_visible(path: Path) -> bool:
    """Whether a file that another host has just created appears here."""
    deadline = time.monotonic() + SECONDS_UNTIL_VISIBLE
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
        # Opening the folders makes NFS ask its server for their current content.
        for folder in (path.parent.parent, path.parent):
            if folder.is_dir():
                os.scandir(folder).close()
    return True

"""A check before the first step of a distributed run: settings, data and code must be the same on all ranks."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import posenet
from posenet.devices.parallel import Runtime
from posenet.errors import ConfigError, OtherRankError
from posenet.files import sha256_of
from posenet.messages import truncate_for_message
from posenet.settings import Config, config_to_dict
from posenet.settings.reading import DATA_KEYS

HOST_SETTINGS = frozenset({"data.workers", "train.device"})
"""Settings that depend on the machine. They may differ between machines."""
PATH_SETTINGS = frozenset({*(f"data.{key}" for key in DATA_KEYS), "train.weights", "train.teacher", "checkpoint.path"})
"""Settings that are paths. Machines may have the same files at different paths, so their contents are compared instead.

The initial weights are not compared, because all ranks start from those of rank 0. Images for the AP are not compared.
"""
MAX_NAMED_DIFFERENCES = 5


def require_same_run(runtime: Runtime, config: Config, contents: Mapping[str, Any]) -> None:
    """Compare the settings, the code and the ``contents`` of the data by name over all ranks.

    Raises:
        ConfigError: they differ. Rank 0 raises it, with a message that names differences, machines and ranks.
        OtherRankError: likewise, on the other ranks.
    """
    if runtime.world_size == 1:
        return
    values = {"the code of posenet": f"{posenet.__version__} with the digest {code_digest()}", **contents}
    for section, table in config_to_dict(config).items():
        for key, value in table.items():
            name = f"{section}.{key}"
            if name in PATH_SETTINGS:
                value = "set" if value else "not set"
            if name not in HOST_SETTINGS:
                values.setdefault(name, value)
    (main_host, main_values), *others = runtime.gather_objects((socket.gethostname(), values))
    for rank, (host, rank_values) in enumerate(others, 1):
        names = [name for name in main_values | rank_values if main_values.get(name) != rank_values.get(name)]
        if not names:
            continue
        if not runtime.is_main:
            raise OtherRankError("the processes differ; rank 0 names the differences")
        differences = [
            f"{name}: {_describe_value(main_values.get(name))} on {main_host} (rank 0), "
            f"{_describe_value(rank_values.get(name))} on {host} (rank {rank})"
            for name in names[:MAX_NAMED_DIFFERENCES]
        ]
        raise ConfigError(
            f"the processes differ in {'; '.join(differences)}; start all with the same settings, data and code"
        )


def code_digest() -> str:
    """Eight hexadecimal digits that differ if any module of this package does."""
    package = Path(posenet.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def describe_file(path: str | Path) -> str:
    """Size and digest of a file, or why it cannot be read."""
    try:
        return f"{os.path.getsize(path)} bytes with the digest {sha256_of(path)[:8]}"
    except OSError as error:
        return f"a file that cannot be read ({error.strerror or error})"


def _describe_value(value: Any) -> str:
    if isinstance(value, dict):
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        return f"a skeleton with the digest {digest[:8]}"
    return value if isinstance(value, str) else truncate_for_message(value)

"""Checkpoints as ONNX files in the user's cache, so that each is converted once.

The name of a file is a checksum of all that its network depends on: the bytes of the checkpoint, the settings of the
network, the versions of the programs, and the code. The file has a checksum of its own at its end. A network of the
user's own code is not kept: its code may change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

import posenet
from posenet.checkpoints.named import cache_folder
from posenet.errors import CheckpointError, PosenetError
from posenet.files import output_lock, remove_leftovers, sha256_of, write_atomically
from posenet.inference.exports.onnx_export import build_onnx
from posenet.inference.exports.runtimes import load_onnx
from posenet.model import fused
from posenet.settings import Config, config_to_dict

if TYPE_CHECKING:
    from torch import nn

    from posenet.devices.precision import Amp
    from posenet.inference.networks import BackendName, MapFunction

MAX_FILES = 8
"""Files in the cache; the one that was used last is the last to go. A network of four stacks takes 500 MB."""
_CODE = ("onnx_export.py", "runtimes.py")
"""Code beside the network's that a file depends on."""
_CHECKSUM_BYTES = hashlib.sha256().digest_size

_log = logging.getLogger(__name__)


def converted_path(checkpoint: Path, config: Config) -> Path | None:
    """The file to which a checkpoint is converted with a configuration; it may not exist. None if it cannot be kept."""
    if config.model.network:
        return None
    try:
        folder = cache_folder() / "converted"
    except CheckpointError:
        return None
    here = Path(__file__)
    code = [*sorted(Path(fused.__file__).parent.glob("*.py")), *map(here.with_name, _CODE)]
    settings = json.dumps(config_to_dict(config)["model"], sort_keys=True)
    key = [sha256_of(checkpoint), settings, posenet.__version__, torch.__version__, *map(sha256_of, code)]
    return folder / hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]


def read_converted(file: Path) -> bytes | None:
    """The ONNX model in a file; None if there is none, or if it is damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # of another user, or on a read-only disk
        os.utime(file)
    model, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    return model if hashlib.sha256(model).digest() == checksum else None


def convert(network: nn.Module, config: Config, checkpoint: Path, file: Path | None) -> bytes:
    """The ONNX model of a checkpoint's network, and a log message; it is kept as ``file`` if that can be written."""
    fate = "not kept" if file is None else f"kept in {file.parent}"
    _log.info("%s is converted, which takes a while, and %s", checkpoint, fate)
    model: bytes = build_onnx(network, config).SerializeToString()
    if file is not None:
        try:
            _keep(model, file)
        except (OSError, PosenetError) as error:
            _log.info("The converted network is not kept: %s", error)
    return model


def _keep(model: bytes, file: Path) -> None:
    """Write a file, and remove those that were used least lately, and what killed processes have left."""
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True)
    with output_lock(folder / folder.name) as is_locked:  # for all files of the folder
        if is_locked:
            remove_leftovers(*(folder / path.name[1:].partition(".")[0] for path in folder.glob(".*.tmp")))
        write_atomically(file, model + hashlib.sha256(model).digest())
        files = [path for path in folder.glob("[!.]*") if path.is_file()]
        for path in sorted(files, key=lambda path: -path.stat().st_mtime)[MAX_FILES:]:
            with contextlib.suppress(OSError):  # another process has it open, on Windows
                path.unlink()


def run_converted(
    model: bytes, backend: BackendName, checkpoint: Path, device: str, amp: Amp | Literal["auto"]
) -> MapFunction:
    """What computes the maps with a converted checkpoint."""
    from posenet.devices.precision import select_amp

    if device.lower() in ("auto", "cpu") and select_amp(torch.device("cpu"), amp) == "off":
        amp = "off"  # "auto" could mean bf16 to the runtime where PyTorch computes in float32: less accurate
    return load_onnx(model, backend, str(checkpoint), device, amp, torch.get_num_threads())

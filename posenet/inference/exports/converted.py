"""Checkpoints as ONNX files in the user's cache, so that each is converted once.

The name of a file is a checksum of all that it depends on: the bytes of the checkpoint, the configuration that replaces
the one in it, the versions of the programs, and the code of the network. The file has a checksum of its own at its end.
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
from posenet.errors import PosenetError
from posenet.files import sha256_of, write_atomically
from posenet.inference.exports.onnx_export import build_onnx
from posenet.inference.exports.runtimes import load_onnx
from posenet.model import fused
from posenet.settings import Config, config_from_dict, config_to_dict

if TYPE_CHECKING:
    from torch import nn

    from posenet.devices.precision import Amp
    from posenet.inference.networks import BackendName, MapFunction

MAX_FILES = 8
"""Files in the cache; the one that was used last is the last to go. A network of four stacks takes 500 MB."""
CONFIG = "posenet.config"
"""Key of the whole configuration in the properties of a file."""
_CHECKSUM_BYTES = hashlib.sha256().digest_size

_log = logging.getLogger(__name__)


def converted_path(checkpoint: Path, config: Config | None) -> Path:
    """The file to which a checkpoint is converted with a configuration, None for its own; it may not exist."""
    settings = "" if config is None else json.dumps(config_to_dict(config), sort_keys=True)
    code = [sha256_of(file) for file in sorted(Path(fused.__file__).parent.glob("*.py"))]
    key = "\n".join([sha256_of(checkpoint), settings, posenet.__version__, torch.__version__, *code])
    return cache_folder() / "converted" / hashlib.sha256(key.encode()).hexdigest()[:32]


def read_converted(file: Path) -> bytes | None:
    """The ONNX model in a file; None if there is none, or if it is damaged."""
    try:
        data = file.read_bytes()
        os.utime(file)
    except OSError:
        return None
    model, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    return model if hashlib.sha256(model).digest() == checksum else None


def convert(network: nn.Module, config: Config, checkpoint: Path, file: Path) -> bytes:
    """The ONNX model of a checkpoint's network, and a log message; it is kept as ``file`` if that can be written."""
    _log.info("%s is converted once, which takes a while, and kept in %s", checkpoint, file.parent)
    onnx_model = build_onnx(network, config)
    onnx_model.metadata_props.add(key=CONFIG, value=json.dumps(config_to_dict(config)))
    model: bytes = onnx_model.SerializeToString()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, model + hashlib.sha256(model).digest())
    except (OSError, PosenetError) as error:
        _log.info("The converted network is not kept: %s", error)
    with contextlib.suppress(OSError):  # another process removes them, too
        for path in sorted(file.parent.iterdir(), key=lambda path: -path.stat().st_mtime)[MAX_FILES:]:
            path.unlink()
    return model


def run_converted(
    model: bytes, config: Config | None, backend: BackendName, checkpoint: Path, device: str, amp: Amp | Literal["auto"]
) -> tuple[MapFunction, Config]:
    """What computes the maps with a converted checkpoint, and its configuration: ``config``, or that in the model."""
    from posenet.devices.precision import select_amp

    if device.lower() in ("auto", "cpu") and select_amp(torch.device("cpu"), amp) == "off":
        amp = "off"  # "auto" could mean bf16 to the runtime where PyTorch computes in float32: less accurate
    threads = torch.get_num_threads()
    compute_maps, properties = load_onnx(model, backend, str(checkpoint), device=device, amp=amp, threads=threads)
    return compute_maps, config or config_from_dict(json.loads(properties[CONFIG]), str(checkpoint))

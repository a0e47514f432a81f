"""What tells runs apart: their settings, code and data, compared over all ranks and with those of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import posenet
from posenet.annotations.people import Split
from posenet.data.store_list import StoreList, describe_content
from posenet.devices.parallel import Runtime
from posenet.errors import ConfigError, OtherRankError
from posenet.extensions import digest_of_code
from posenet.files import sha256_of
from posenet.messages import truncate_for_message
from posenet.settings import Config, config_to_dict
from posenet.settings.reading import DATA_KEYS, TRAINING_CODE_KEYS
from posenet.training.teacher import Teacher

HOST_SETTINGS = frozenset({"data.workers", "train.device"})
"""Settings that depend on the machine. They may differ between machines."""
PATH_SETTINGS = frozenset({*(f"data.{key}" for key in DATA_KEYS), "train.weights", "train.teacher", "checkpoint.path"})
"""Settings that are paths. Machines may have the same files at different paths, so their contents are compared instead.

The initial weights are not compared, because all ranks start from those of rank 0. Images for the AP are not compared.
"""
LOSS_INPUTS = (
    *("model.", "augment.", "targets.", "loss.", "distill.", "the code of "),
    *("data.train", "data.framing", "data.background", "data.transform", "data.exif_frame"),
    *("train.input_size", "train.batch_size", "train.amp", "train.freeze", "train.teacher", "optim.accumulate"),
)
"""Beginnings of the names of inputs on which the size of losses depends: the network, the data, the loss, the step."""

MAX_NAMED_DIFFERENCES = 5


def describe_contents(
    config: Config, train: StoreList, val: StoreList | None, teacher: Teacher | None, has_ap: bool
) -> dict[str, Any]:
    """The contents of the data, the teacher and the user's code by setting: equal texts mean equal contents.

    ``has_ap`` says that an AP is computed, from ``data.val_annotations``. The code is imported already.
    """
    weights = [data_set.weight for data_set in train.sets]
    contents = {"data.train": describe_content(train) + (f" and the weights {weights}" if len(weights) > 1 else "")}
    if val is not None:
        contents["data.val"] = describe_content(val)
    if has_ap:
        contents["data.val_annotations"] = sha256_of(Path(config.data.val_annotations))[:8]
    if teacher is not None:
        contents["train.teacher"] = teacher.digest[:8]
    for section, _, key in (setting.partition(".") for setting in TRAINING_CODE_KEYS):
        if name := getattr(getattr(config, section), key):
            contents[f"the code of {section}.{key}"] = f"{name} with the digest {digest_of_code(name)}"
    return contents


def describe_inputs(config: Config, contents: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by name without those of the machine, with the ``contents`` of files in place of their paths."""
    values = dict(contents)
    for section, table in config_to_dict(config).items():
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in HOST_SETTINGS:
                values.setdefault(name, bool(value) if name in PATH_SETTINGS else value)
    return values


def require_same_run(runtime: Runtime, inputs: Mapping[str, Any]) -> None:
    """Compare the code of this package and the inputs of a run by name over all ranks.

    Raises:
        ConfigError: they differ. Rank 0 raises it, with a message that names differences, machines and ranks.
        OtherRankError: likewise, on the other ranks.
    """
    if runtime.world_size == 1:
        return
    values = {"the code of posenet": f"{posenet.__version__} with the digest {code_digest()}", **inputs}
    (main_host, main_values), *others = runtime.gather_objects((socket.gethostname(), values))
    for rank, (host, rank_values) in enumerate(others, 1):
        names = [name for name in main_values | rank_values if main_values.get(name) != rank_values.get(name)]
        if not names:
            continue
        if not runtime.is_main:
            raise OtherRankError("the processes differ; rank 0 names the differences")
        differences = [
            f"{name}: {truncate_for_message(main_values.get(name))} on {main_host} (rank 0), "
            f"{truncate_for_message(rank_values.get(name))} on {host} (rank {rank})"
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


def digest_of_loss_inputs(inputs: Mapping[str, Any], world_size: int) -> str:
    """Identifies what the size of losses depends on, other than the weights."""
    chosen = {name: value for name, value in inputs.items() if name.startswith(LOSS_INPUTS)}
    return hashlib.sha256(json.dumps(chosen | {"world_size": world_size}, sort_keys=True).encode()).hexdigest()


def digest_of_validation(val: StoreList | None, split: Split | None) -> str:
    """SHA-256, in hexadecimal, of the images and labels of the validation data, which are None if there are none.

    Ids do not count: an import numbers all images anew when one is added.
    """
    digest = hashlib.sha256()
    for data_set in val.sets if val is not None else ():
        store = data_set.store
        rows = np.stack([store.image_keys, store.records["label_crc"].astype(np.uint64)], axis=1)
        digest.update(rows[np.lexsort(rows.T)].tobytes())
    if split is not None:
        names = {image.id: image.file_name for image in split.images}
        labels = ("keypoints", "bbox", "area", "iscrowd")
        people = sorted([names[entry["image_id"]], *(entry[label] for label in labels)] for entry in split.people)
        digest.update(json.dumps([sorted(names.values()), people]).encode())
    return digest.hexdigest()

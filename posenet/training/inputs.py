"""What a run is made from: its settings, folder and data; what of it is refused, and what tells two runs apart.

An *experiment* is what a user gives: the name or path of a TOML file, a ``Config``, or None for the defaults. Importing
this module does not import PyTorch, so that the command line answers a mistyped setting or a missing file at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import posenet
from posenet.annotations.coco import CocoImage
from posenet.annotations.people import Split
from posenet.checkpoints.named import find_weights
from posenet.data.store_list import (
    StoreList,
    count_background,
    describe_content,
    find_shared_images,
    find_stored_files,
    open_data_sets,
    require_store_files,
)
from posenet.devices.ranks import Ranks
from posenet.errors import CheckpointError, ConfigError, DataError, OtherRankError
from posenet.extensions import digest_of_code
from posenet.files import sha256_of
from posenet.messages import truncate_for_message
from posenet.settings import Config, DataSetConfig, DataSets, config_to_dict, load_config
from posenet.settings.reading import DATA_KEYS, TRAINING_CODE_KEYS, named_experiment

RUNS_FOLDER = Path("checkpoints")
"""Parent of the default folder of a run."""
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
VALIDATION_LABELS = "the validation labels"
"""Name of the digest of what scores are computed from."""
MAX_NAMED_DIFFERENCES = 5

Experiment = Config | str | Path | None
"""See above."""

_SEPARATE_SPLITS = (
    "validation images are never trained on: build them from separate splits (posenet annotations split --images keeps "
    "copies together), or set data.allow_overlap=true to overfit on purpose"
)
_log = logging.getLogger(__name__)


def check_before_start(experiment: Experiment, overrides: Sequence[str]) -> None:
    """Refuse, without PyTorch, a new run with wrong settings or missing files; ``train`` itself checks more.

    Raises:
        ConfigError: the settings are not valid, or name no data.
        DataError: a store is missing.
        CheckpointError: weights are missing.
    """
    config = load_config(experiment, overrides)
    try:
        _require_data(config)
    except DataError as error:
        name = named_experiment(experiment)
        if name and load_config(name).data.train == config.data.train:
            how = f"the first lines of posenet config {name} say how"
            raise DataError(f"{error}; {how}, or name your own with data.train=FILE.h5") from error
        raise
    for path in filter(None, (config.train.weights, config.train.teacher)):
        require_weights_to_train(path)


def require_weights_to_train(name: str) -> None:
    """``CheckpointError`` unless a path or a name means weights that a training can begin with or learn from."""
    if Path(name).suffix.lower() == ".onnx":
        raise CheckpointError(
            f"{name} is an exported file, which cannot be trained; give the checkpoint that it was exported from"
        )
    find_weights(name)


def _require_data(config: Config) -> None:
    if not config.data.train:
        raise ConfigError(
            "data.train is not set; give annotations, as in posenet train data.yaml, or set a store that posenet "
            "build-hdf5 has built, in the experiment file or with data.train=FILE.h5"
        )
    require_store_files(config.data.train)
    require_store_files(config.data.val)


def folder_of_run(experiment: Experiment, overrides: Sequence[str], resume: bool | str | Path) -> Path:
    """The folder of a run: where it is set, else that of the checkpoint to resume, else one named after the experiment.

    It is known before the checkpoint is read, so that the folder can be locked first.
    """
    if isinstance(resume, bool):
        return Path(config_of_new_run(experiment, overrides).checkpoint.path)
    # Other overrides may be valid only for the settings in the checkpoint.
    paths = [pair for pair in overrides if pair.partition("=")[0].strip() == "checkpoint.path"]
    if path := load_config(experiment, paths).checkpoint.path:
        return Path(path)
    return Path(resume) if Path(resume).is_dir() else Path(resume).parent


def config_of_new_run(experiment: Experiment, overrides: Sequence[str]) -> Config:
    """The settings, with a folder."""
    config = load_config(experiment, overrides)
    if config.checkpoint.path:
        return config
    name = Path(experiment).stem if isinstance(experiment, (str, Path)) else "run"
    return with_settings(config, "checkpoint", path=str(RUNS_FOLDER / name))


def with_settings(config: Config, section: str, **values: Any) -> Config:
    """A copy with other values in a section."""
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


# The data


def open_train_data(config: Config) -> StoreList:
    """The training data. The caller closes them.

    ``ConfigError`` if none are configured; ``DataError`` if a store is unusable or shows nobody, or if neither labels
    nor a teacher supervise some images or keypoints.
    """
    _require_data(config)
    data, has_teacher = config.data, bool(config.train.teacher)
    teach = "which only a teacher supervises; set train.teacher to a trained network (posenet docs training)"
    stores = _open_stores(config, "train", "" if has_teacher else teach)
    if len(stores.sets) > 1 or stores.sets[0].mapping is not None:
        _check_and_describe(stores, data.framing, has_teacher)
    if num_background := count_background(stores):
        per_epoch = stores.sample_counts(data.framing, data.background)[-1].per_epoch
        text = "Images without %s: %d, %d of them per epoch (data.background)"
        _log.info(text, stores.skeleton.people, num_background, per_epoch)
    return stores


def open_val_data(config: Config, train: StoreList) -> StoreList | None:
    """The validation data, None if none are configured. The caller closes them.

    ``DataError`` if a store is unusable, shows nobody, lacks labels or shares images with the training data.
    """
    data = config.data
    if not data.val:
        return None
    unlabelled = "but validation needs labels; leave out data.val, or build it with annotations"
    stores = _open_stores(config, "val", unlabelled)
    shared = find_shared_images(stores, train)
    if len(shared) and not data.allow_overlap:
        raise DataError(
            f"{describe_paths(data.train)} and {describe_paths(data.val)} share {len(shared)} images (first id in "
            f"data.val {shared[0, 0]}); {_SEPARATE_SPLITS}"
        )
    return stores


def _open_stores(config: Config, key: str, remedy_for_unlabelled: str) -> StoreList:
    """The stores of ``data.train`` or ``data.val``, which show people, and have labels where there is a remedy."""
    paths = getattr(config.data, key)
    stores = open_data_sets(paths, config.model.skeleton)
    if not len(stores):  # background images alone, whose loss would be nearly 0
        contents = stores.skeleton.name_objects("only images without people; name a store with people too")
        raise DataError(f'{describe_paths(paths)} contains {contents}: data.{key} = ["annotated.h5", "background.h5"]')
    if stores.num_unlabelled and remedy_for_unlabelled:
        count = stores.num_unlabelled
        raise DataError(f"{describe_paths(paths)} contains {count} images without annotations, {remedy_for_unlabelled}")
    return stores


def refuse_trained_images(config: Config, train: StoreList, images: Sequence[CocoImage]) -> None:
    """Raise ``DataError`` if an image of data.val_images, from which the AP is computed, is in the training data."""
    if config.data.allow_overlap:
        return
    shared = find_stored_files(train, [Path(config.data.val_images, image.file_name) for image in images])
    if shared:
        raise DataError(
            f"{describe_paths(config.data.train)} contains {len(shared)} of {len(images)} images of data.val_images "
            f"that data.val_annotations lists (first {shared[0]}); {_SEPARATE_SPLITS}"
        )


def _check_and_describe(stores: StoreList, framing: str, has_teacher: bool) -> None:
    """Log what every data set contributes; ``DataError`` if neither a set nor a teacher supervises some keypoint."""
    unsupervised = [] if has_teacher else stores.never_supervised()
    keypoints = [name for name in unsupervised if name in stores.skeleton.keypoints]
    if keypoints:
        raise DataError(
            f"no data set of data.train annotates {', '.join(keypoints)} of model.skeleton; add a set that does, or "
            "train a skeleton without it"
        )
    supervision = "taught by the teacher" if has_teacher else "not supervised"
    for data_set, (size, per_epoch) in zip(stores.sets, stores.sample_counts(framing)):
        facts = f"{size} samples, {per_epoch} of them per epoch"
        if data_set.mapping and data_set.mapping.missing:
            facts += f"; {supervision}: {', '.join(data_set.mapping.missing)}"
        if data_set.mapping and data_set.mapping.ignored:
            facts += f"; ignored, not in model.skeleton: {', '.join(data_set.mapping.ignored)}"
        _log.info("Data set %s: %s", data_set.name, facts)
    if unsupervised:
        parts = ", ".join(unsupervised)
        _log.warning("no data set annotates both ends of %s, so these body parts are not learned", parts)


def describe_paths(setting: DataSets) -> str:
    """The files of ``data.train`` or ``data.val`` in a message."""
    items = [setting] if isinstance(setting, str) else setting
    return ", ".join(str(item.path if isinstance(item, DataSetConfig) else item) for item in items)


# What tells runs apart


def describe_contents(
    config: Config, train: StoreList, val: StoreList | None, split: Split | None, teacher: str | None
) -> dict[str, Any]:
    """What a run is made from besides its settings: data, teacher and the user's code, by setting.

    Equal texts mean equal contents. Checkpoints contain them. The code is imported already.

    Args:
        split: the images and labels of ``data.val_annotations`` if an AP is computed from them, else None.
        teacher: the digest of its file; None without one.
    """
    weights = [data_set.weight for data_set in train.sets]
    contents = {"data.train": describe_content(train)}
    if len(weights) > 1:
        contents["data.train"] += f" and the weights {weights}"
    if val is not None:
        contents["data.val"] = describe_content(val)
    if split is not None:
        contents["data.val_annotations"] = sha256_of(Path(config.data.val_annotations))[:8]
    if teacher is not None:
        contents["train.teacher"] = teacher
    for section, _, key in (setting.partition(".") for setting in TRAINING_CODE_KEYS):
        if name := getattr(getattr(config, section), key):
            contents[f"the code of {section}.{key}"] = f"{name} with the digest {digest_of_code(name)}"
    return contents | {VALIDATION_LABELS: digest_of_validation(val, split)}


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


def describe_inputs(config: Config, contents: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by name without those of the machine, with the ``contents`` of files in place of their paths."""
    values = dict(contents)
    for section, table in config_to_dict(config).items():
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in HOST_SETTINGS:
                values.setdefault(name, bool(value) if name in PATH_SETTINGS else value)
    return values


def loss_inputs(config: Config, contents: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs on which the size of losses depends, other than the weights."""
    inputs = describe_inputs(config, contents)
    return {name: value for name, value in inputs.items() if name.startswith(LOSS_INPUTS)}


def require_same_run(runtime: Ranks, inputs: Mapping[str, Any]) -> None:
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

"""What a run is made from: its settings, folder and data; what of it is refused, and what tells two runs apart.

An *experiment* is what a user gives: the name or path of a TOML file, a ``Config``, or None for the defaults.
"""

import dataclasses
import hashlib
import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import posenet
from posenet.annotations.coco import CocoImage
from posenet.checkpoints.file import find_weights
from posenet.data.store_list import StoreList, describe_content, find_shared_images, find_stored_files, open_data_sets
from posenet.devices.ranks import Ranks
from posenet.errors import ConfigError, DataError
from posenet.extensions import digest_of_code
from posenet.files import sha256_of
from posenet.messages import truncate_for_message
from posenet.settings import Config, config_to_dict, load_config
from posenet.settings.reading import DATA_KEYS, TRAINING_CODE_KEYS

RUNS_FOLDER = Path("checkpoints")  # parent of the default folder of a run
HOST_SETTINGS = frozenset({"data.workers", "train.device"})
"""Settings that depend on the machine. They may differ between machines."""
PATH_SETTINGS = frozenset({*(f"data.{key}" for key in DATA_KEYS), "train.weights", "train.teacher", "checkpoint.path"})
"""Settings that are paths. Machines may have the same files at different paths, so their contents are compared instead.

The initial weights are not compared, because all ranks start from those of rank 0. Images for the AP are not compared.
"""

Experiment = Config | str | Path | None  # see above

_SEPARATE_SPLITS = (
    "validation images are never trained on: build them from separate splits (posenet annotations split --images keeps "
    "copies together), or give --set data.allow_overlap=true to overfit on purpose"
)
_log = logging.getLogger(__name__)


def folder_of_run(experiment: Experiment, overrides: Sequence[str], resume: bool | str | Path) -> Path:
    """The folder of a run: where it is set, else that of the checkpoint to resume, else one named after the experiment.

    It is known before the checkpoint is read, so that the folder can be locked first.
    """
    if not isinstance(resume, bool):  # other overrides may be valid only for the settings in the checkpoint
        overrides = [pair for pair in overrides if pair.partition("=")[0].strip() == "checkpoint.path"]
    if path := load_config(experiment, overrides).checkpoint.path:
        return Path(path)
    if not isinstance(resume, bool):
        return Path(resume) if Path(resume).is_dir() else Path(resume).parent
    return RUNS_FOLDER / (Path(experiment).stem if isinstance(experiment, (str, Path)) else "run")


def with_settings(config: Config, section: str, **values: Any) -> Config:
    """A copy with other values in a section."""
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


# The data


def open_train_data(config: Config) -> StoreList:
    """The training data. The caller closes them.

    ``ConfigError`` if none are configured; ``DataError`` if a store is unusable or shows nobody, or if neither labels
    nor a teacher supervise some images or keypoints.
    """
    data, has_teacher = config.data, bool(config.train.teacher)
    if not data.train:
        raise ConfigError(
            "data.train is not set; give annotations, as in posenet train data.yaml, or set a store that posenet "
            "build-hdf5 has built, in the experiment file or with --set data.train=FILE.h5"
        )
    stores = _open_stores(config, "train", needs_labels=not has_teacher)
    unsupervised = [] if has_teacher else stores.never_supervised()
    if keypoints := [name for name in unsupervised if name in stores.skeleton.keypoints]:
        raise DataError(
            f"no data set of data.train annotates {', '.join(keypoints)} of model.skeleton; add a set that does, or "
            "train a skeleton without it"
        )
    if unsupervised:
        parts = ", ".join(unsupervised)
        _log.warning("no data set annotates both ends of %s, so these body parts are not learned", parts)
    return stores


def open_val_data(config: Config, train: StoreList) -> StoreList | None:
    """The validation data, None if none are configured. The caller closes them.

    ``DataError`` if a store is unusable, shows nobody, lacks labels or shares images with the training data.
    """
    data = config.data
    if not data.val:
        return None
    stores = _open_stores(config, "val", needs_labels=True)
    shared = find_shared_images(stores, train)
    if len(shared) and not data.allow_overlap:
        raise DataError(
            f"{describe_paths(train)} and {describe_paths(stores)} share {len(shared)} images (first id in "
            f"data.val {shared[0, 0]}); {_SEPARATE_SPLITS}"
        )
    return stores


def _open_stores(config: Config, key: str, needs_labels: bool) -> StoreList:
    """The stores of ``data.train`` or ``data.val``, which show people."""
    stores = open_data_sets(getattr(config.data, key), config.model.skeleton)
    if not len(stores):  # background images alone, whose loss would be nearly 0
        raise DataError(f"{describe_paths(stores)} shows no {stores.skeleton.people}; name a store with some too")
    if stores.num_unlabelled and needs_labels:
        raise DataError(
            f"{describe_paths(stores)} contains {stores.num_unlabelled} images without annotations; build it with "
            "some, or let a teacher supervise the training (train.teacher)"
        )
    return stores


def refuse_trained_images(config: Config, train: StoreList, images: Sequence[CocoImage]) -> None:
    """Raise ``DataError`` if an image of data.val_images, from which the AP is computed, is in the training data."""
    if config.data.allow_overlap:
        return
    if shared := find_stored_files(train, [Path(config.data.val_images, image.file_name) for image in images]):
        raise DataError(
            f"{describe_paths(train)} contains {len(shared)} of {len(images)} images of data.val_images "
            f"that data.val_annotations lists (first {shared[0]}); {_SEPARATE_SPLITS}"
        )


def describe_paths(stores: StoreList) -> str:
    """The files of the stores in a message."""
    return ", ".join(str(data_set.store.path) for data_set in stores.sets)


# What tells runs apart


def describe_contents(config: Config, train: StoreList, val: StoreList | None, has_ap: bool) -> dict[str, Any]:
    """The contents of the data, the teacher and the user's code by setting: equal texts mean equal contents.

    The annotations for the AP count if there is one. The user's code is imported already.
    """
    weights = [data_set.weight for data_set in train.sets]
    contents = {"data.train": describe_content(train) + (f" and the weights {weights}" if len(weights) > 1 else "")}
    if val is not None:
        contents["data.val"] = describe_content(val)
    if has_ap:
        contents["data.val_annotations"] = sha256_of(Path(config.data.val_annotations))
    if config.train.teacher:
        contents["train.teacher"] = sha256_of(find_weights(config.train.teacher))
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


def require_same_run(ranks: Ranks, inputs: Mapping[str, Any]) -> None:
    """Compare the code of this package and the inputs of a run by name over all ranks.

    ``ConfigError`` on rank 0 if they differ, which names differences, machines and ranks; ``OtherRankError`` elsewhere.
    """
    if ranks.world_size == 1:
        return
    values = {"the code of posenet": f"{posenet.__version__} with the digest {code_digest()}", **inputs}
    (main_host, expected), *others = ranks.gather_objects((socket.gethostname(), values))
    differences = [
        f"{name}: {truncate_for_message(expected.get(name))} on {main_host} (rank 0), "
        f"{truncate_for_message(found.get(name))} on {host} (rank {rank})"
        for rank, (host, found) in enumerate(others, 1)
        for name in expected | found
        if expected.get(name) != found.get(name)
    ]
    if differences:
        named = "; ".join(differences[:5])
        error = ConfigError(f"the processes differ in {named}; start all with the same settings, data and code")
        ranks.raise_on_all(error if ranks.is_main else None)


def code_digest() -> str:
    """Eight hexadecimal digits that differ if any module of this package does."""
    package = Path(posenet.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]

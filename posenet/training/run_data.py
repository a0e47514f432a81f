"""The data of a run: opening its stores, and refusing those that do not fit it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.people import Split
from posenet.data.inspection import describe_content, find_shared_images, find_stored_files
from posenet.data.store_list import StoreList, count_background, open_data_sets
from posenet.errors import DataError
from posenet.extensions import digest_of_code
from posenet.settings import Config, DataSetConfig, DataSets
from posenet.training.compare_ranks import describe_file
from posenet.training.run_settings import require_data

_SEPARATE_SPLITS = (
    "validation images are never trained on: build them from separate splits (posenet annotations split --images keeps "
    "copies together), or set data.allow_overlap=true to overfit on purpose"
)

_log = logging.getLogger(__name__)


def open_run_data(config: Config, at_end: contextlib.ExitStack) -> tuple[StoreList, StoreList | None]:
    """The training data, and the validation data if they are configured; ``at_end`` closes them.

    ``ConfigError`` if no training store is configured; ``DataError`` if a store is unusable, the two share images, or
    images without annotations have no teacher.
    """
    data = config.data
    require_data(config)
    train_store = at_end.enter_context(open_data_sets(data.train, config.model.skeleton))
    _require_people(train_store, data.train, "data.train")
    num_unlabelled = train_store.num_unlabelled
    if num_unlabelled and not config.train.teacher:
        raise DataError(
            f"{describe_paths(data.train)} contains {num_unlabelled} images without annotations, which only a teacher "
            "supervises; set train.teacher to the checkpoint of a trained network (posenet docs training)"
        )
    if len(train_store.sets) > 1 or train_store.sets[0].mapping is not None:
        _check_and_describe(train_store, data.framing, has_teacher=bool(config.train.teacher))
    if num_background := count_background(train_store):
        per_epoch = train_store.sample_counts(data.framing, data.background)[-1].per_epoch
        text = "Images without %s: %d, %d of them per epoch (data.background)"
        _log.info(text, train_store.skeleton.people, num_background, per_epoch)
    if not data.val:
        return train_store, None
    val_store = at_end.enter_context(open_data_sets(data.val, config.model.skeleton))
    if val_store.num_unlabelled:
        raise DataError(
            f"{describe_paths(data.val)} contains images without annotations, but validation needs labels; leave out "
            "data.val, or build it with annotations"
        )
    _require_people(val_store, data.val, "data.val")  # its loss would be nearly 0
    shared = find_shared_images(val_store, train_store)
    if len(shared) and not data.allow_overlap:
        raise DataError(
            f"{describe_paths(data.train)} and {describe_paths(data.val)} share {len(shared)} images (first id in "
            f"data.val {shared[0, 0]}); {_SEPARATE_SPLITS}"
        )
    return train_store, val_store


def _require_people(stores: StoreList, paths: DataSets, setting: str) -> None:
    """Raise ``DataError`` if the stores that a setting names have background images alone."""
    if not len(stores):
        contents = stores.skeleton.name_objects("only images without people; name a store with people too")
        raise DataError(f'{describe_paths(paths)} contains {contents}: {setting} = ["annotated.h5", "background.h5"]')


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


def describe_contents(config: Config, train: StoreList, val: StoreList | None) -> dict[str, Any]:
    """The contents of the data and of the user's code of a run, by setting: equal texts mean equal contents."""
    contents = {"data.train": _describe_content(train)}
    if val is not None:
        contents["data.val"] = _describe_content(val)
    if config.data.val_annotations:
        contents["data.val_annotations"] = describe_file(config.data.val_annotations)
    own_code = {
        "model.network": config.model.network,
        "loss.function": config.loss.function,
        "data.transform": config.data.transform,
    }
    return contents | {key: f"{name} ({digest_of_code(name)})" for key, name in own_code.items() if name}


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


def _describe_content(stores: StoreList) -> str:
    """The content of all stores of a setting, and the weights of several data sets."""
    weights = [data_set.weight for data_set in stores.sets]
    return describe_content(stores) + (f" and the weights {weights}" if len(weights) > 1 else "")

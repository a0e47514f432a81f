"""The data of a run: opening its stores, and refusing those that do not fit it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from posenet.annotations.coco import CocoImage
from posenet.data.store_list import StoreList, count_background, find_shared_images, find_stored_files, open_data_sets
from posenet.errors import DataError
from posenet.settings import Config, DataSetConfig, DataSets
from posenet.training.run_settings import require_data

_SEPARATE_SPLITS = (
    "validation images are never trained on: build them from separate splits (posenet annotations split --images keeps "
    "copies together), or set data.allow_overlap=true to overfit on purpose"
)

_log = logging.getLogger(__name__)


def open_train_data(config: Config) -> StoreList:
    """The training data. The caller closes them.

    ``ConfigError`` if none are configured; ``DataError`` if a store is unusable or shows nobody, or if neither labels
    nor a teacher supervise some images or keypoints.
    """
    require_data(config)
    data, has_teacher = config.data, bool(config.train.teacher)
    stores = open_data_sets(data.train, config.model.skeleton)
    _require_people(stores, "data.train", data.train)
    if stores.num_unlabelled and not has_teacher:
        raise DataError(
            f"{describe_paths(data.train)} contains {stores.num_unlabelled} images without annotations, which only a "
            "teacher supervises; set train.teacher to the checkpoint of a trained network (posenet docs training)"
        )
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
    stores = open_data_sets(data.val, config.model.skeleton)
    _require_people(stores, "data.val", data.val)  # its loss would be nearly 0
    if stores.num_unlabelled:
        raise DataError(
            f"{describe_paths(data.val)} contains images without annotations, but validation needs labels; leave out "
            "data.val, or build it with annotations"
        )
    shared = find_shared_images(stores, train)
    if len(shared) and not data.allow_overlap:
        raise DataError(
            f"{describe_paths(data.train)} and {describe_paths(data.val)} share {len(shared)} images (first id in "
            f"data.val {shared[0, 0]}); {_SEPARATE_SPLITS}"
        )
    return stores


def _require_people(stores: StoreList, setting: str, paths: DataSets) -> None:
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

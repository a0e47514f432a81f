"""Building a run from its settings: stores, network, loaders and trainer."""

from __future__ import annotations

import contextlib
import logging
from typing import cast

import torch
from torch.utils.data import DataLoader

from posenet.checkpoints.weights import load_weights
from posenet.data.dataset import PoseDataset
from posenet.data.inspection import find_shared_images, overlapping_image_ids
from posenet.data.loader import Batch, make_loader
from posenet.data.sampler import TrainSampler, ValidationSampler
from posenet.data.store import StoreList, open_data_sets
from posenet.devices.capabilities import supports_pinned_memory
from posenet.devices.precision import select_training_mode
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, DataError
from posenet.model.posenet import PoseNet
from posenet.settings import Config, DataSetConfig, DataSets
from posenet.training.coco_validation import CocoValidation
from posenet.training.distillation import Teacher
from posenet.training.freezing import freeze
from posenet.training.input_stream import InputStream, RestartingLoader
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.trainer import Trainer

_log = logging.getLogger(__name__)


def open_stores(config: Config, exit_stack: contextlib.ExitStack) -> tuple[StoreList, StoreList | None]:
    """The training data and, if configured, the validation data; ``exit_stack`` closes them.

    ``ConfigError`` if no training store is configured; ``DataError`` if a store is unusable, the two share images, or
    images without annotations have no teacher.
    """
    data = config.data
    if not data.train:
        raise ConfigError(
            "data.train is not set; build a store with tools/build_hdf5.py and set it in the experiment "
            "file or with --set data.train=FILE.h5"
        )
    train_store = exit_stack.enter_context(open_data_sets(data.train, config.model.skeleton))
    num_unlabelled = train_store.num_unlabelled
    if num_unlabelled and not config.train.teacher:
        raise DataError(
            f"{_paths(data.train)} contains {num_unlabelled} images without annotations, which only a teacher "
            "supervises; set train.teacher to the checkpoint of a trained network (docs/distillation.md)"
        )
    if len(train_store.sets) > 1 or train_store.sets[0].mapping is not None:
        _check_and_describe(train_store, data.framing, has_teacher=bool(config.train.teacher))
    if not data.val:
        _log.info("data.val is not set: no validation loss")
        return train_store, None
    val_store = exit_stack.enter_context(open_data_sets(data.val, config.model.skeleton))
    if val_store.num_unlabelled:
        raise DataError(
            f"{_paths(data.val)} contains images without annotations, but validation needs labels; leave out data.val, "
            "or build it with --annotations"
        )
    shared = overlapping_image_ids(train_store, val_store)
    if num_unlabelled:  # their ids are not those of an annotation file
        shared = find_shared_images(val_store, train_store).contents[:, 0]
    if len(shared) and not data.allow_overlap:
        raise DataError(
            f"{_paths(data.train)} and {_paths(data.val)} share {len(shared)} images (first id {shared[0]}); "
            "validation images are never trained on: build them from separate splits, or set "
            "data.allow_overlap=true to overfit on purpose"
        )
    return train_store, val_store


def _check_and_describe(stores: StoreList, framing: str, has_teacher: bool) -> None:
    """Log what every data set contributes; ``DataError`` if nothing supervises some keypoint of the network.

    A teacher supervises all keypoints.
    """
    unsupervised = [] if has_teacher else stores.never_supervised()
    keypoints = [name for name in unsupervised if name in stores.skeleton.keypoints]
    if keypoints:
        raise DataError(
            f"no data set of data.train annotates {', '.join(keypoints)} of model.skeleton; add a set that does, or "
            "train a skeleton without it"
        )
    for data_set, draws in zip(stores.sets, stores.draws(framing)):
        missing = data_set.mapping.missing if data_set.mapping else ()
        others = data_set.mapping.ignored if data_set.mapping else ()
        supervision = "taught by the teacher" if has_teacher else "not supervised"
        lacks = f"; {supervision}: {', '.join(missing)}" if missing else ""
        ignored = f"; ignored, not in model.skeleton: {', '.join(others)}" if others else ""
        _log.info(
            "Data set %s: %d samples, %d of them per epoch%s%s",
            data_set.name,
            draws.size,
            draws.per_epoch,
            lacks,
            ignored,
        )
    if unsupervised:
        _log.warning(
            "WARNING: no data set annotates both ends of %s, so these body parts are not learned",
            ", ".join(unsupervised),
        )
    if not has_teacher and all(data_set.mapping and data_set.mapping.missing for data_set in stores.sets):
        _log.warning(
            "WARNING: no data set annotates all keypoints of model.skeleton, so the map of the keypoint foreground is "
            "not learned; predictions do not use it"
        )


def _paths(setting: DataSets) -> str:
    """The files of ``data.train`` or ``data.val`` in a message."""
    items = [setting] if isinstance(setting, str) else setting
    return ", ".join(str(item.path if isinstance(item, DataSetConfig) else item) for item in items)


def build_network(config: Config, fine_tune: bool) -> PoseNet:
    """The configured network with its frozen parameters; ``fine_tune`` loads ``train.weights`` if they are set."""
    network = PoseNet.from_config(config)
    if config.train.weights and fine_tune:
        _log.info("Fine-tuning. %s", load_weights(network, config.train.weights))
    if frozen := freeze(network, config.train.freeze):
        _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
    return network


def prepare_network(network: PoseNet, config: Config, runtime: Runtime) -> PoseNet:
    """Move a network to the device in its memory layout and synchronize its BatchNorm, as configured."""
    network.channels_last = select_training_mode(runtime.device, config.train).channels_last
    layout = torch.channels_last if network.channels_last else torch.contiguous_format
    network.to(device=runtime.device, memory_format=layout)  # type: ignore[call-overload]
    if config.parallel.sync_bn:
        network = cast(PoseNet, runtime.convert_sync_batch_norm(network))
    return network


def build_trainer(
    config: Config,
    network: PoseNet,
    runtime: Runtime,
    train_store: StoreList,
    val_store: StoreList | None,
    log: RunLog | SilentLog,
    max_steps: int = 0,
    teacher: Teacher | None = None,
) -> Trainer:
    """A trainer with its loaders. ``network`` is moved to the device; see ``Trainer`` for the other arguments."""
    network = prepare_network(network, config, runtime)
    return Trainer(
        config,
        network,
        runtime,
        _make_input_stream(config, train_store, runtime),
        log,
        validation_loader=None if val_store is None else _make_validation_loader(config, val_store, runtime),
        evaluate=CocoValidation.from_config(config, network, runtime, log),
        max_steps=max_steps,
        set_names=train_store.names if len(train_store.sets) > 1 else (),
        teacher=teacher,
    )


def _make_input_stream(config: Config, store: StoreList, runtime: Runtime) -> InputStream:
    train = config.train
    accumulate = config.optim.accumulate
    dataset = PoseDataset(store, train.size, config.data.framing, config.augment, train.seed)
    sampler = TrainSampler(
        len(dataset),
        train.batch_size,
        train.seed,
        accumulate,
        runtime.rank,
        runtime.world_size,
        draws=store.draws(config.data.framing),
    )
    return InputStream(
        _make_loader(config, dataset, sampler, runtime),
        sampler,
        runtime,
        accumulate=accumulate,
        epochs=train.epochs,
        max_unreadable=config.data.max_unreadable,
    )


def _make_validation_loader(config: Config, store: StoreList, runtime: Runtime) -> RestartingLoader:
    dataset = PoseDataset(store, config.train.size, config.data.framing)
    sampler = ValidationSampler(len(dataset), config.train.batch_size, runtime.rank, runtime.world_size)
    return RestartingLoader(_make_loader(config, dataset, sampler, runtime), sampler)


def _make_loader(
    config: Config, dataset: PoseDataset, sampler: TrainSampler | ValidationSampler, runtime: Runtime
) -> DataLoader[Batch]:
    return make_loader(dataset, sampler, config.data.workers, supports_pinned_memory(runtime.device))

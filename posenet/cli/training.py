"""What the training tools share: the configuration that their flags give, and the trainer built from it."""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.run_lock import run_lock
from posenet.checkpoints.weights import config_of_checkpoint, load_weights, require_fitting_weights
from posenet.cli.training_options import flag_overrides, pair
from posenet.data.dataset import PoseDataset
from posenet.data.loader import make_loader
from posenet.data.sampler import TrainSampler, ValidationSampler
from posenet.data.store.reader import Store, overlap
from posenet.data.targets import TargetRenderer
from posenet.devices.device import select_device
from posenet.devices.precision import grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.messages import pluralize
from posenet.model.posenet import PoseNet
from posenet.settings import Config, OptimConfig, config_differences, config_to_dict, load_config
from posenet.training.freezing import batch_norms, freeze
from posenet.training.loss import FocalL2Loss
from posenet.training.loss_guard import LossGuard
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import make_optimizer
from posenet.training.progress import Limits
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.schedule import Schedule
from posenet.training.trainer import Trainer
from posenet.training.validation import CocoValidation
from posenet.training.weight_averaging import NoAverage, WeightAverage

_log = logging.getLogger(__name__)

EARLY_MESSAGES = 1000
"""How many messages are kept for the run's log until its folder is known and the input is sound."""


def train(args: argparse.Namespace, make_runtime: Callable[[torch.device], Runtime] = Runtime) -> None:
    """Run the training that the flags describe, anew or resumed."""
    early = logging.handlers.MemoryHandler(EARLY_MESSAGES, flushLevel=logging.CRITICAL + 1)
    logging.getLogger("posenet").addHandler(early)
    try:
        _train(args, make_runtime, early)
    finally:
        logging.getLogger("posenet").removeHandler(early)


def _train(
    args: argparse.Namespace, make_runtime: Callable[[torch.device], Runtime], early: logging.handlers.MemoryHandler
) -> None:
    config, resumed = _configure(args)
    folder = CheckpointFolder(Path(config.checkpoint.path), config.checkpoint.keep)
    goes_on = resumed is not None and resumed[0].parent.resolve() == folder.path.resolve()
    _refuse_another_run(folder, goes_on)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    torch.manual_seed(config.train.seed)
    runtime = make_runtime(select_device(config.train.device))
    with contextlib.ExitStack() as stack:
        stack.callback(runtime.close)
        train_store, val_store = _open_stores(config, stack)
        network = _make_network(config, fine_tune=resumed is None)
        if runtime.is_main:
            stack.enter_context(run_lock(folder.path))
            _refuse_another_run(folder, goes_on)  # one may have come and gone since the first look
        logging.getLogger("posenet").removeHandler(early)  # what comes from here on the log writes itself
        log = RunLog(folder.path, config.log.tensorboard, config.log.curves) if runtime.is_main else SilentLog()
        stack.callback(log.close)
        log.take(early)
        trainer = build_trainer(config, network, runtime, train_store, val_store, folder, log, args.max_steps)
        stack.callback(trainer.close)
        if resumed is not None:
            source, state = resumed
            trainer.load_state_dict(state, str(source))
            _log.info(
                "Resuming from %s: epoch %d, step %d of %d",
                source,
                trainer.progress.epoch + 1,
                trainer.progress.step,
                trainer.sampler.steps,
            )
        if len(set(runtime.gather_objects(trainer.progress.total_steps))) > 1:
            raise CheckpointError(
                f"the processes do not all find the same checkpoint in {folder.path}; use a folder "
                "that all machines share"
            )
        if trainer.progress.epoch >= config.train.epochs:
            _log.info(
                "%s has done its %s already; --epochs gives it more",
                folder.path,
                pluralize(config.train.epochs, "epoch"),
            )
            return
        _log.info(_describe_lr(config, runtime.world_size))
        if trainer.fit():
            _log.info("Finished %s; the run is in %s", pluralize(config.train.epochs, "epoch"), folder.path)


def _refuse_another_run(folder: CheckpointFolder, goes_on: bool) -> None:
    if folder.holds_run() and not goes_on:
        raise CheckpointError(
            f"{folder.path} already holds a run; go on with it by --resume, or choose another folder "
            "with --checkpoint-path"
        )


def build_trainer(
    config: Config,
    network: PoseNet,
    runtime: Runtime,
    train_store: Store,
    val_store: Store | None,
    folder: CheckpointFolder,
    log: RunLog | SilentLog,
    max_steps: int = 0,
) -> Trainer:
    """Wire a trainer from a configuration; the network may be partly frozen."""
    t, d = config.train, config.data
    network.to(runtime.device, memory_format=torch.channels_last if t.channels_last else torch.contiguous_format)
    if config.parallel.sync_bn:
        network = runtime.convert_sync_batch_norm(network)
    if config.parallel.compile:
        network.compile()
    pin = runtime.device.type in ("cuda", "npu", "xpu")
    train_set = PoseDataset(train_store, t.size, d.framing, config.augment, t.seed)
    sampler = TrainSampler(
        len(train_set), t.batch_size, t.seed, config.optim.accumulate, runtime.rank, runtime.world_size
    )
    val_loader = None
    if val_store is not None:
        val_set = PoseDataset(val_store, t.size, d.framing)
        val_sampler = ValidationSampler(len(val_set), t.batch_size, runtime.rank, runtime.world_size)
        val_loader = make_loader(val_set, val_sampler, d.workers, pin)
    return Trainer(
        runtime=runtime,
        step=ModelWithLoss(
            network, TargetRenderer.from_config(config), FocalL2Loss.from_config(config), t.amp, t.channels_last
        ),
        optimizer=make_optimizer(network, config.optim),
        schedule=Schedule.from_config(config.optim, runtime.world_size, config.average),
        average=_make_average(config, network),
        scaler=grad_scaler(runtime.device, t.amp, t.loss_scale),
        guard=LossGuard(config.guard.threshold, config.guard.max_skips),
        train_loader=make_loader(train_set, sampler, d.workers, pin),
        val_loader=val_loader,
        folder=folder,
        log=log,
        limits=Limits(
            epochs=t.epochs,
            max_steps=max_steps,
            accumulate=config.optim.accumulate,
            max_grad_norm=config.optim.max_grad_norm,
            checkpoint_steps=config.checkpoint.every_steps,
            checkpoint_minutes=config.checkpoint.every_minutes,
            log_steps=config.log.every_steps,
            evaluate_epochs=t.evaluate_every,
            patience=t.patience,
            max_unreadable=d.max_unreadable,
        ),
        evaluate=CocoValidation.from_config(config, network, runtime, log),
        config=config_to_dict(config),
    )


def _configure(args: argparse.Namespace) -> tuple[Config, tuple[Path, dict[str, Any]] | None]:
    """The configuration of a run, and the checkpoint it resumes from with its content."""
    overrides = args.overrides + flag_overrides(args)
    if args.resume is None:
        return _with_defaults(load_config(args.config, overrides), args), None
    if args.resume:
        resumed = _checkpoint_at(Path(args.resume))
    else:
        wanted = _with_defaults(load_config(args.config, overrides), args)
        resumed = CheckpointFolder(Path(wanted.checkpoint.path)).newest_intact()
        if resumed is None:
            _log.info(
                "%s holds no checkpoint: starting anew; another run is named by --resume FOLDER/last.pth",
                wanted.checkpoint.path,
            )
            return wanted, None
    path, state = resumed
    if missing := [key for key in ("model", "optimizer", "progress", "config") if key not in state]:
        raise CheckpointError(f"{path} holds no run to resume (no {missing[0]}); fine-tune from it with --weights")
    # The folder may have moved since the checkpoint was written.
    base = load_config(None, [pair("checkpoint.path", str(path.parent))], base=config_of_checkpoint(state, path))
    config = _with_defaults(load_config(args.config, overrides, base=base), args)
    if not config.model.skeleton.predicts_like(base.model.skeleton):
        raise ConfigError(
            f"{path} was trained for another skeleton than model.skeleton says; leave that out, or start "
            "anew with --weights in another folder"
        )
    changed = config_differences(base, config)
    _log.info("Settings kept from the checkpoint%s", "; changed: " + "; ".join(changed) if changed else "")
    require_fitting_weights(config, state, path)
    return config, resumed


def _checkpoint_at(path: Path) -> tuple[Path, dict[str, Any]]:
    if not path.is_dir():
        return path, read_checkpoint(path)
    found = CheckpointFolder(path).newest_intact()
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint to resume; leave out --resume to start anew")
    return found


def _with_defaults(config: Config, args: argparse.Namespace) -> Config:
    """Give the run a folder where none is named, and a warmup where one is asked for but has no length."""
    changes = []
    if not config.checkpoint.path:
        folder = Path("checkpoints") / (Path(args.config).stem if args.config else "run")
        changes.append(pair("checkpoint.path", str(folder)))
    if args.warmup and not config.optim.warmup_epochs:
        changes.append(pair("optim.warmup_epochs", OptimConfig.warmup_epochs))
    return load_config(None, changes, base=config)


def _describe_lr(config: Config, world_size: int) -> str:
    """What the rule of ``Schedule.from_config`` makes of the configured rate, in words."""
    batch = config.train.batch_size * world_size * config.optim.accumulate
    lr = Schedule.from_config(config.optim, world_size).lr
    processes = pluralize(world_size, "process", "processes")
    rule = f"optim.lr {config.optim.lr:g} x {processes}" if config.optim.scale_lr else "optim.lr, not scaled"
    return f"Learning rate {lr:g} ({rule}) for steps of {batch} samples"


def _make_average(config: Config, network: PoseNet) -> NoAverage:
    average = config.average
    if average.kind == "off":
        return NoAverage()
    trained = [n for norm in batch_norms(network) for n in norm.parameters(recurse=False) if n.requires_grad]
    if average.kind == "swa" and trained:
        # Statistics gathered along the way fit none of the averaged weights.
        raise ConfigError(
            "average.kind = swa needs frozen BatchNorm: start from a checkpoint with --weights and add "
            "--freeze '*.norm.*'"
        )
    return WeightAverage(network, average.decay if average.kind == "ema" else None, average.cycle_epochs)


def _open_stores(config: Config, stack: contextlib.ExitStack) -> tuple[Store, Store | None]:
    if not config.data.train:
        raise ConfigError(
            "data.train is not set; build a store with tools/build_hdf5.py and name it in the experiment "
            "file or by --set data.train=FILE.h5"
        )
    train_store = stack.enter_context(Store(config.data.train, config.model.skeleton))
    if not config.data.val:
        _log.info("data.val is not set: no validation loss")
        return train_store, None
    val_store = stack.enter_context(Store(config.data.val, config.model.skeleton))
    shared = overlap(train_store, val_store)
    if len(shared) and not config.data.allow_overlap:
        raise DataError(
            f"{config.data.train} and {config.data.val} share {len(shared)} images (first id {shared[0]}); "
            "validation images are never trained on: build them from separate splits, or set "
            "data.allow_overlap=true to overfit on purpose"
        )
    return train_store, val_store


def _make_network(config: Config, fine_tune: bool) -> PoseNet:
    network = PoseNet.from_config(config)
    if config.train.weights and fine_tune:
        _log.info("Fine-tuning. %s", load_weights(network, config.train.weights))
    if frozen := freeze(network, config.train.freeze):
        _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
    return network

"""A run: its parts, which are made from the settings."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import cast

import torch

from posenet.checkpoints.folder import CheckpointFolder, CheckpointWriter
from posenet.checkpoints.weights import load_weights
from posenet.data.store_list import StoreList
from posenet.data.targets import TargetRenderer
from posenet.devices.parallel import Runtime
from posenet.devices.precision import make_grad_scaler, select_training_mode
from posenet.errors import ConfigError
from posenet.model.build import build_network
from posenet.model.posenet import PoseNet
from posenet.settings import INPUT_MULTIPLE, Config
from posenet.training.bad_steps import BadStepPolicy
from posenet.training.batches import make_step_batches, make_validation_loader
from posenet.training.fingerprints import (
    describe_contents,
    describe_inputs,
    digest_of_loss_inputs,
    digest_of_validation,
    require_same_run,
)
from posenet.training.freezing import freeze
from posenet.training.loss import make_loss
from posenet.training.optimizer import make_optimizer
from posenet.training.progress import Progress
from posenet.training.run_data import open_train_data, open_val_data, refuse_trained_images
from posenet.training.step import ModelWithLoss, TrainStep
from posenet.training.teacher import load_teacher
from posenet.training.validation import CocoValidation
from posenet.training.weight_averaging import WeightAverage

_log = logging.getLogger(__name__)


class Run:
    """The parts of a run at its start, on the device of the runtime.

    Args:
        config: the settings, with values in place of "auto".
        folder: of the run.
        is_new: the run does not continue a checkpoint, so it starts from ``train.weights``.
        max_steps: the argument of ``train``, which must be the same on all ranks.

    Raises:
        PosenetError: a setting or a file cannot be used, or differs between the ranks.
        OtherRankError: one of these on another rank.
    """

    def __init__(self, config: Config, runtime: Runtime, folder: Path, is_new: bool, max_steps: int) -> None:
        on_all = runtime.run_on_all  # for what may fail on some ranks only
        self.config = config
        self.runtime = runtime
        self.progress = Progress()
        self.folder = CheckpointFolder(folder, config.checkpoint.keep)
        self.writer = CheckpointWriter(self.folder, config.checkpoint)
        self.train_data = on_all(lambda: open_train_data(config))
        self.val_data = on_all(lambda: open_val_data(config, self.train_data))  # None without data.val
        self.network = on_all(lambda: _make_network(config, runtime, is_new))
        self.model = build_model(config, self.network, runtime.device)
        self.optimizer = on_all(lambda: make_optimizer(self.network, config.optim))
        self.model.teacher = on_all(lambda: load_teacher(config, runtime.device))
        # What computes the AP; None without images for it.
        self.coco_validation = on_all(lambda: _make_coco_validation(config, self.network, runtime, self.train_data))
        self.batches = on_all(lambda: make_step_batches(config, self.train_data, runtime))
        val_data, coco = self.val_data, self.coco_validation
        self.validation_batches = None if val_data is None else make_validation_loader(config, val_data, runtime)

        # The ranks are compared. From here on, all have the weights of rank 0.
        contents = on_all(
            lambda: describe_contents(config, self.train_data, val_data, self.model.teacher, has_ap=coco is not None)
        )
        inputs = describe_inputs(config, contents | {"--max-steps": max_steps})
        require_same_run(runtime, inputs)
        self.validation_digest = digest_of_validation(val_data, coco.split if coco else None)
        self.wrapped_model = runtime.wrap(self.model)
        is_averaged = config.average.kind != "off"
        self.average = on_all(lambda: WeightAverage(self.network, config.average) if is_averaged else None)
        self.scaler = make_grad_scaler(runtime.device, self.model.amp, config.train.loss_scale)
        self.bad_steps = BadStepPolicy(config.guard, digest_of_loss_inputs(inputs, runtime.world_size))
        self.train_step = TrainStep(
            self.wrapped_model, self.optimizer, self.scaler, self.bad_steps, runtime, config.optim.max_grad_norm
        )

    def network_to_validate(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the network has the weights that are validated and saved as ``model``."""
        return contextlib.nullcontext() if self.average is None else self.average.applied()

    def close(self) -> None:
        """End the data workers, and close the data."""
        for part in (self.batches, self.validation_batches, self.train_data, self.val_data):
            if part is not None:
                part.close()


def _make_network(config: Config, runtime: Runtime, is_new: bool) -> PoseNet:
    """The network, with the initial weights and the frozen parameters of the settings."""
    if config.train.batch_size * runtime.world_size < 2 and max(config.train.size) == INPUT_MULTIPLE:
        raise ConfigError("parallel.sync_bn has one sample to compute statistics from; set train.batch_size=2 or more")
    network = build_network(config)
    if config.train.weights and is_new and runtime.is_main:  # ``wrap`` sends them to the other ranks
        _log.info("Fine-tuning. %s", load_weights(network, config.train.weights, config.model.skeleton))
    if frozen := freeze(network, config.train.freeze):
        _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
    return cast(PoseNet, runtime.convert_sync_batch_norm(network)) if config.parallel.sync_bn else network


def _make_coco_validation(
    config: Config, network: PoseNet, runtime: Runtime, train_data: StoreList
) -> CocoValidation | None:
    """What computes the AP; None if the settings name no images for it."""
    data = config.data
    if not (data.val_images and data.val_annotations and config.train.evaluate_every):
        if config.train.patience and not data.val:
            raise ConfigError("train.patience needs a score; set data.val, or data.val_images and data.val_annotations")
        return None
    validation = CocoValidation(config, network, runtime)
    refuse_trained_images(config, train_data, [image for image, _ in validation.share])
    return validation


def build_model(config: Config, network: PoseNet, device: torch.device) -> ModelWithLoss:
    """The network with targets and loss, moved to a device in the configured precision and memory format."""
    mode = select_training_mode(device, config.train)
    network.channels_last = mode.channels_last
    layout = torch.channels_last if mode.channels_last else torch.contiguous_format
    network.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    model = ModelWithLoss(network, TargetRenderer.from_config(config), make_loss(config), mode.amp, mode.channels_last)
    if config.parallel.compile:
        model.compile()
    return model

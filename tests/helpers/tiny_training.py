"""Runs of a tiny network with ``posenet.train``: half a second for fourteen steps and two validations."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenet import TrainingCallback, train
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.training.train import TrainingResult
from tests.helpers.process_groups import TIMEOUT_MINUTES, need_processes

CPU = torch.device("cpu")
TINY = tuple(
    "model.stacks=1 model.width=16 model.growth=2 model.conv_std=0.05 train.input_size=64 train.batch_size=2 "
    "train.epochs=2 data.workers=0 log.every_steps=1 log.tensorboard=false loss.gamma=2.0 optim.name=sgd optim.lr=1e-5 "
    "optim.weight_decay=5e-4 optim.schedule=step optim.scale_lr=false optim.warmup_epochs=1 optim.max_grad_norm=50 "
    "checkpoint.every_minutes=0".split()
)
"""Settings of two epochs of seven steps on ``stores``, which change the weights but hardly the loss."""
LEARNING = ("model.conv_std=0.001", "optim.name='adamw'", "optim.lr=1e-3", "optim.max_grad_norm=0")
"""Settings with which the loss falls in two epochs."""

Stores = Mapping[str, Path]


def data_settings(stores: Stores) -> list[str]:
    """The settings that name the stores ``train`` and, if there is one, ``val``."""
    return [f"data.{split}={stores[split]}" for split in ("train", "val") if split in stores]


def coco_settings(coco: Path) -> list[str]:
    """Settings that compute COCO's scores on the small validation images of ``coco``, a folder in COCO's layout."""
    return [
        f"data.val_images={coco / 'val2017'}",
        f"data.val_annotations={coco / 'annotations' / 'person_keypoints_val2017.json'}",
        "inference.height=64",
    ]


def train_tiny(stores: Stores, folder: Path, *overrides: str, **options: Any) -> TrainingResult:
    """Train with ``TINY``, or resume, in ``folder``; ``options`` are arguments of ``posenet.train``."""
    settings = [*TINY, *data_settings(stores), f"checkpoint.path={folder}", *overrides]
    return train(None, settings, **{"progress": False} | options)


def last(folder: Path) -> dict[str, Any]:
    """The content of the last checkpoint of a run."""
    return read_checkpoint(folder / "last.pth")


def weights(folder: Path) -> dict[str, Tensor]:
    """The weights in the last checkpoint of a run."""
    model: dict[str, Tensor] = last(folder)["model"]
    return model


class Recorder(TrainingCallback):
    """Collects what a run reports."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.epochs: list[dict[str, Any]] = []
        self.drawings: dict[str, np.ndarray] = {}

    @property
    def losses(self) -> list[float]:
        """For each step the mean loss of the epoch so far."""
        return [values["loss"] for values in self.steps.values()]

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        self.steps[step] = dict(values)

    def on_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        self.epochs.append({"step": step, **values})

    def on_drawing(self, step: int, name: str, image: np.ndarray) -> None:
        self.drawings[name] = image


class AfterStep(TrainingCallback):
    """Calls ``action`` after the run's optimizer step number ``step``, counted from 1; after every step if it is 0."""

    def __init__(self, step: int, action: Callable[[], Any]) -> None:
        self.step = step
        self.action = action

    def on_step(self, step: int, values: Mapping[str, Any]) -> None:
        if step == self.step or not self.step:
            self.action()


class WatchedRuntime(Runtime):
    """Calls ``watch`` with the module of network and loss, to which it can add hooks, before the first step."""

    def __init__(self, watch: Callable[[nn.Module], Any]) -> None:
        self.watch = watch

    def wrap(self, module: nn.Module) -> nn.Module:
        self.watch(module)
        return super().wrap(module)


Change = Callable[[int, Tensor], Tensor]
"""Given the number of a training forward pass, counted from 1, and its loss terms: the terms to use instead."""


class ChangesTerms:
    """Mixin for a runtime: ``change`` may alter what the model returns in training, for bad losses and gradients."""

    change: Change

    def wrap(self, module: nn.Module) -> nn.Module:
        passes = 0

        def hook(module: nn.Module, _: Any, terms: Tensor) -> Tensor:
            nonlocal passes
            passes += module.training
            return self.change(passes, terms) if module.training else terms

        module.register_forward_hook(hook)
        wrapped: nn.Module = super().wrap(module)  # type: ignore[misc]  # of the runtime
        return wrapped


class ChangingRuntime(ChangesTerms, Runtime):
    """One process whose model returns changed terms."""

    def __init__(self, change: Change) -> None:
        self.change = change


def changing_distributed_runtime() -> Any:
    """One of several processes whose models return changed terms; ``change`` is set before training."""
    runtime = type("ChangingDistributedRuntime", (ChangesTerms, need_processes().DistributedRuntime), {})
    return runtime(TIMEOUT_MINUTES)


def multiply(factors: Mapping[int, float]) -> Change:
    """Multiply the terms of some forward passes by a factor, such as NaN."""
    return lambda number, terms: terms * factors[number] if number in factors else terms


def spoil_gradient(numbers: set[int], factor: float) -> Change:
    """Multiply the gradient, and not the loss, of some forward passes."""

    def change(number: int, terms: Tensor) -> Tensor:
        changed = terms * 1
        if number in numbers:
            changed.register_hook(lambda gradient: gradient * factor)
        return changed

    return change

"""Training runs of a tiny network, small enough for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it when they are created: import it here once, not in every forked process
from torch import Tensor

from posenet.checkpoints.file import read_checkpoint
from posenet.data.store import open_data_sets
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.settings import load_config
from posenet.training.distillation import load_teacher
from posenet.training.freezing import freeze
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.setup import build_trainer
from posenet.training.train_step import PendingResult, StepResult
from posenet.training.trainer import Trainer

CPU = torch.device("cpu")
TINY_OVERRIDES = [
    "model.stacks=1",
    "model.width=16",
    "model.growth=2",
    "model.conv_std=0.05",
    "train.input_size=64",
    "train.epochs=99",
    "data.workers=0",
    "log.every_steps=1",
    "log.tensorboard=false",
    "log.curves=false",
    "optim.lr=1e-5",
    "optim.scale_lr=false",
    "optim.warmup_epochs=1",
    "optim.max_grad_norm=50",
    "checkpoint.every_minutes=0",
]

SHORT_RUN = (
    "model.stacks=1",
    "model.width=16",
    "model.growth=2",
    "train.input_size=64",
    "train.batch_size=2",
    "train.epochs=2",
    "train.threads=1",
    "data.workers=0",
    "log.tensorboard=false",
    "log.curves=false",
    "checkpoint.every_steps=1",
)
"""Settings with which a command trains for a few steps."""


def coco_overrides(coco: Path) -> list[str]:
    """Settings that compute COCO's scores on the small validation images of ``coco``, a folder in COCO's layout."""
    annotations = coco / "annotations" / "person_keypoints_val2017.json"
    return [
        f"data.val_images={str(coco / 'val2017')!r}",
        f"data.val_annotations={str(annotations)!r}",
        "inference.height=64",
        "log.pictures=0",
    ]


@contextlib.contextmanager
def tiny_trainer(
    runtime: Runtime,
    stores: Mapping[str, Path],
    folder: Path,
    *overrides: str,
    steps: int = 0,
    frozen: tuple[str, ...] = (),
    resume: Path | None = None,
) -> Iterator[Trainer]:
    """Yield a trainer of a tiny network; ``trainer.losses`` collects the loss of every step.

    Args:
        stores: paths of the stores ``train`` and ``val``.
        folder: folder of the run.
        overrides: settings that differ from ``TINY_OVERRIDES``.
        steps: optimizer step after which the run stops; 0 runs to the end.
        frozen: glob patterns of the parameters to freeze.
        resume: checkpoint to resume from.
    """
    paths = [f"data.{split}={str(stores[split])!r}" for split in ("train", "val")]
    config = load_config(None, [*TINY_OVERRIDES, *paths, f"checkpoint.path={str(folder)!r}", *overrides])
    torch.manual_seed(config.train.seed)
    network = PoseNet.from_config(config)
    freeze(network, frozen)
    with contextlib.ExitStack() as stack:
        train_store = stack.enter_context(open_data_sets(config.data.train, config.model.skeleton))
        val_store = stack.enter_context(open_data_sets(config.data.val, config.model.skeleton))
        log = RunLog(folder, config) if runtime.is_main else SilentLog()
        stack.callback(log.close)
        log.start()
        teacher = load_teacher(config, runtime.device)
        trainer = build_trainer(config, network, runtime, train_store, val_store, log, steps, teacher)
        stack.callback(trainer.close)
        if resume is not None:
            trainer.load_state_dict(read_checkpoint(resume), str(resume))
        _record_losses(trainer)
        yield trainer


class _RecordedResult:
    """A pending result that appends its loss to a list when it is read."""

    def __init__(self, pending: PendingResult, losses: list[float | None]) -> None:
        self.pending = pending
        self.losses = losses

    def read(self) -> StepResult:
        result = self.pending.read()
        self.losses.append(result.loss)
        return result


def _record_losses(trainer: Trainer) -> None:
    train_step = trainer.train_step
    trainer.losses = []
    trainer.train_step = lambda batches: _RecordedResult(train_step(batches), trainer.losses)


def train_tiny_network(runtime: Runtime, *args: Any, **options: Any) -> tuple[list[float | None], dict[str, Tensor]]:
    """Train with a ``tiny_trainer``; return the losses of all steps and a copy of the final weights."""
    with tiny_trainer(runtime, *args, **options) as trainer:
        trainer.run()
        return trainer.losses, copy_weights(trainer)


def copy_weights(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the trained network's state dict."""
    return {name: tensor.clone() for name, tensor in trainer.model.network.state_dict().items()}


def before_step(trainer: Trainer, step: int, action: Callable[[], None]) -> None:
    """Call ``action`` before the run's optimizer step number ``step``, counted from 1."""
    train_step = trainer.train_step

    def act_and_train(batches: Any) -> Any:
        if trainer.progress.total_steps + 1 == step:
            action()
        return train_step(batches)

    trainer.train_step = act_and_train

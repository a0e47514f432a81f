"""Worlds of several processes on this machine, and runs of a tiny network in them."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenet.checkpoints.file import read_checkpoint
from posenet.data.store.reader import Store
from posenet.devices.distributed import DistributedRuntime
from posenet.devices.launch import launch
from posenet.devices.rank_info import SINGLE_PROCESS_INIT_METHOD, RankInfo, rank_info_from_environment
from posenet.devices.runtime import Runtime
from posenet.model.posenet import PoseNet
from posenet.settings import LogConfig, load_config
from posenet.training.freezing import freeze
from posenet.training.run_log import RunLog, SilentLog
from posenet.training.setup import build_trainer
from posenet.training.trainer import Trainer

CPU = torch.device("cpu")
TINY = [
    "model.stacks=1",
    "model.width=16",
    "model.growth=2",
    "model.conv_std=0.05",
    "train.input_size=64",
    "train.epochs=99",
    "data.workers=0",
    "log.every_steps=1",
    "optim.lr=1e-5",
    "optim.scale_lr=false",
    "optim.warmup_epochs=1",
    "optim.max_grad_norm=50",
    "checkpoint.every_minutes=0",
]


def in_world(size: int, folder: Path, task: Callable[[DistributedRuntime], Any]) -> list[Any]:
    """``task(runtime)`` in every process of a world; what it returned, by rank.

    Processes are forked, which spares each of them PyTorch's import.
    """
    folder.mkdir(exist_ok=True)
    launch(size, _member, task, folder, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _member(task: Callable[[DistributedRuntime], Any], folder: Path) -> None:
    gc.freeze()  # a store left over from another launch waits, when collected, for a thread that was not forked
    runtime = DistributedRuntime(CPU, rank_info_from_environment(os.environ), timeout_minutes=0.5)
    result = task(runtime)
    torch.save(result, folder / f"{runtime.rank}.pt")
    runtime.close()


@contextlib.contextmanager
def world_of_one() -> Iterator[DistributedRuntime]:
    """A distributed world that has this process only."""
    runtime = DistributedRuntime(CPU, RankInfo(0, 1, 0, SINGLE_PROCESS_INIT_METHOD))
    try:
        yield runtime
    finally:
        runtime.close()


class InTwo(nn.Module):
    """What DataParallel does on two devices: halves of the batch, each through the module by itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: Tensor) -> Tensor:
        return torch.cat([self.module(*half) for half in zip(*(part.chunk(2) for part in batch))])


class InTwoRuntime(Runtime):
    def wrap(self, module: nn.Module) -> nn.Module:
        return InTwo(super().wrap(module))


@contextlib.contextmanager
def run(
    runtime: Runtime,
    stores: dict[str, Path],
    folder: Path,
    *overrides: str,
    steps: int = 0,
    frozen: tuple[str, ...] = (),
    resume: Path | None = None,
) -> Iterator[Trainer]:
    """A run of a tiny network; ``trainer.losses`` collects the loss of every step."""
    config = load_config(
        None,
        [
            *TINY,
            f"data.train={str(stores['train'])!r}",
            f"data.val={str(stores['val'])!r}",
            f"checkpoint.path={str(folder)!r}",
            *overrides,
        ],
    )
    torch.manual_seed(config.train.seed)
    network = PoseNet.from_config(config)
    freeze(network, frozen)
    with contextlib.ExitStack() as stack:
        train, val = (stack.enter_context(Store(path)) for path in (config.data.train, config.data.val))
        log = RunLog(folder, LogConfig(tensorboard=False, curves=False)) if runtime.is_main else SilentLog()
        stack.callback(log.close)
        trainer = build_trainer(config, network, runtime, train, val, log, steps)
        stack.callback(trainer.close)
        if resume is not None:
            trainer.load_state_dict(read_checkpoint(resume), str(resume))
        trainer.losses, update = [], trainer.train_step

        def recorded(batches: Any) -> Any:
            outcome = update(batches)
            trainer.losses.append(outcome.loss)
            return outcome

        trainer.train_step = recorded
        yield trainer


def train(runtime: Runtime, *args: Any, **options: Any) -> tuple[list[float | None], dict[str, Tensor]]:
    """Losses of all steps and the final weights of a ``run``."""
    with run(runtime, *args, **options) as trainer:
        trainer.run()
        return trainer.losses, {n: t.clone() for n, t in trainer.model.network.state_dict().items()}

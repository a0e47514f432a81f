"""A run lived in pieces: interrupted in every way there is, resumed, and compared with the one that never stopped."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # which optimizers import when they are made: once here, not in every forked process
from torch import Tensor
from tqdm import tqdm

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.training.trainer import Trainer
from tests.helpers.process_groups import CPU, run

LONG = (
    "train.batch_size=2",
    "optim.accumulate=2",
    "optim.name='adamw'",
    "optim.lr=1e-3",
    "train.epochs=12",
    "train.patience=4",
    "guard.threshold=35",
    "guard.max_skips=99",
    "average.kind='ema'",
    "average.decay=0.9",
    "checkpoint.every_steps=3",
)
"""Everything in play that a checkpoint must bring back."""
STOPS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
LIMIT = 120
"""Seconds after which a life counts as hanging, says where, and ends; most take one or two."""
KINDS = ("max-steps", *STOPS)


class Cut(NamedTuple):
    """The end of a life in the run's step ``at``: "max-steps" or the name of a signal, which process ``rank`` gets."""

    how: str
    at: int
    rank: int = 0


def cuts_of(rng: random.Random, steps: int, count: int, ranks: int = 1) -> list[Cut]:
    """As many random cuts, in order, through a run of ``steps``; each kind comes before one comes again."""
    kinds = [kind for _ in range(count) for kind in rng.sample(KINDS, len(KINDS))]
    places = sorted(rng.sample(range(1, steps + 1), count))
    return [Cut(kind, at, rng.randrange(ranks)) for kind, at in zip(kinds, places)]


def live(
    runtime: Runtime,
    stores: Mapping[str, Path],
    folder: Path,
    *overrides: str,
    cut: Cut | None = None,
    watch: Callable[[Trainer], None] = lambda trainer: None,
) -> None:
    """Go on from what the folder holds, or begin; train to the end or to the cut."""
    newest = CheckpointFolder(folder).newest_intact()
    last_step = cut.at if cut and cut.how == "max-steps" else 0
    with run(runtime, stores, folder, *LONG, *overrides, steps=last_step, resume=newest and newest[0]) as trainer:
        trainer.evaluate = lambda *_: {"AP": _score(trainer)}
        if cut and cut.how in STOPS and runtime.rank == cut.rank:
            _send_itself(trainer, STOPS[cut.how], cut.at)
        watch(trainer)
        trainer.run()


def _score(trainer: Trainer) -> float:
    """Anything but smooth: another bit in any weight is another score, and another best epoch."""
    return sum(p.detach().double().abs().sum().item() for p in trainer.model.network.parameters()) * 1e4 % 1


def _send_itself(trainer: Trainer, number: int, step: int) -> None:
    update = trainer.train_step

    def interrupted(batches: Any) -> Any:
        if trainer.progress.total_steps + 1 == step:
            os.kill(os.getpid(), number)
        return update(batches)

    trainer.train_step = interrupted


def forked(task: Callable[[], Any]) -> int:
    """The number of a process that runs ``task``; forked, so that it need not import anything again."""
    if pid := os.fork():
        return pid
    gc.freeze()  # what the tests have left over is not this process's to clean up
    try:
        # tqdm's own lock is shared with every process forked from this one, and a killed one may never give it back.
        tqdm.set_lock(threading.RLock())
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
        task()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    """Wait for a process; its exit status, or the number of the signal that ended it, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alone(*args: Any, **options: Any) -> int:
    """A life in one process, forked; how it ended."""
    return ended(forked(lambda: live(Runtime(CPU), *args, **options)))


def result(folder: Path) -> dict[str, Any]:
    """The contents of ``last`` and ``best`` of a finished run, without the run's folder."""
    contents = {name: read_checkpoint(folder / f"{name}.pth") for name in ("last", "best")}
    for content in contents.values():
        del content["config"]["checkpoint"]["path"]
    return contents


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two checkpoints' contents are not the same to the bit; random states of the processes among them."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted(a.keys() | b.keys(), key=str)
        return [d for key in keys for d in differences(a.get(key), b.get(key), f"{path}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, pair in enumerate(zip(a, b)) for d in differences(*pair, f"{path}[{i}]")]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a} != {b}"]


def losses(folder: Path) -> dict[tuple[str, int], set[Any]]:
    """The losses and scores that a run's lives have logged, by step: one each where repeated steps were the same."""
    found: dict[tuple[str, int], set[Any]] = {}
    for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        for name in ("loss", "train_loss", "val_loss", "AP"):
            if name in line:
                found.setdefault((name, line["step"]), set()).add(line[name])
    return found


def skipped(folder: Path) -> set[int]:
    """The steps that the guard has dropped."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {line["step"] for line in lines if line["kind"] == "skip"}


def assert_same_run(folder: Path, whole: Path) -> None:
    """Two finished runs: the same losses, scores and skips on the way, and the same checkpoints to the bit."""
    assert all(len(found) == 1 for found in losses(whole).values())
    assert losses(folder) == losses(whole) and skipped(folder) == skipped(whole)
    for name, state in result(whole).items():
        assert differences(result(folder)[name], state) == [], name

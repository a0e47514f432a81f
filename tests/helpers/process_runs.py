"""Runs that are interrupted, resumed, and compared with a run that was never interrupted; forked processes."""

from __future__ import annotations

import faulthandler
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
from torch import Tensor
from tqdm import tqdm

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.training.trainer import Trainer
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import CPU, before_step, tiny_trainer

STATEFUL_OVERRIDES = (
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
"""Settings that use every kind of state a checkpoint must restore."""
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
INTERRUPTION_KINDS = ("max-steps", *SIGNALS)
TIMEOUT_SECONDS = 120
"""After this time a forked process prints its stack and ends; most processes need one or two seconds."""


class Interruption(NamedTuple):
    """What ends a process of a run in optimizer step ``step``: "max-steps", or a signal to the process ``rank``."""

    kind: str
    step: int
    rank: int = 0


def random_interruptions(rng: random.Random, steps: int, count: int, ranks: int = 1) -> list[Interruption]:
    """``count`` interruptions in order of their steps, in a run of ``steps``; kinds repeat only after all were used."""
    kinds = [kind for _ in range(count) for kind in rng.sample(INTERRUPTION_KINDS, len(INTERRUPTION_KINDS))]
    interrupted_steps = sorted(rng.sample(range(1, steps + 1), count))
    return [Interruption(kind, step, rng.randrange(ranks)) for kind, step in zip(kinds, interrupted_steps)]


def start_or_resume(
    runtime: Runtime,
    stores: Mapping[str, Path],
    folder: Path,
    *overrides: str,
    interruption: Interruption | None = None,
    on_start: Callable[[Trainer], None] = lambda trainer: None,
) -> None:
    """Resume from the newest checkpoint in ``folder``, or start; train until the interruption or to the end.

    Args:
        on_start: called with the trainer before the training.
    """
    newest = CheckpointFolder(folder).newest_intact()
    resume = newest[0] if newest else None
    last_step = interruption.step if interruption and interruption.kind == "max-steps" else 0
    settings = (*STATEFUL_OVERRIDES, *overrides)
    with tiny_trainer(runtime, stores, folder, *settings, steps=last_step, resume=resume) as trainer:
        trainer.evaluate = lambda *_: {"AP": _weight_dependent_score(trainer)}
        if interruption and interruption.kind in SIGNALS and runtime.rank == interruption.rank:
            number = SIGNALS[interruption.kind]
            before_step(trainer, interruption.step, lambda: os.kill(os.getpid(), number))
        on_start(trainer)
        trainer.run()


def _weight_dependent_score(trainer: Trainer) -> float:
    """A score that any changed bit of a weight changes, so that another epoch becomes the best one."""
    return sum(p.detach().double().abs().sum().item() for p in trainer.model.network.parameters()) * 1e4 % 1


def fork_process(task: Callable[[], Any]) -> int:
    """Run ``task`` in a forked process, which need not import anything again; return the process id."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        # All forked processes share tqdm's lock, and a killed one may never release it.
        tqdm.set_lock(threading.RLock())
        faulthandler.dump_traceback_later(TIMEOUT_SECONDS, exit=True, file=sys.__stderr__)
        task()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def wait_for_exit(pid: int) -> int:
    """Wait for a process; return its exit status, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_in_fork(*args: Any, **options: Any) -> int:
    """Call ``start_or_resume`` in one forked process; return its exit status."""
    return wait_for_exit(fork_process(lambda: start_or_resume(Runtime(CPU), *args, **options)))


def read_final_checkpoints(folder: Path) -> dict[str, Any]:
    """The contents of ``last`` and ``best`` of a finished run, without the path of its folder."""
    contents = {name: read_checkpoint(folder / f"{name}.pth") for name in ("last", "best")}
    for content in contents.values():
        del content["config"]["checkpoint"]["path"]
    return contents


def find_differences(a: Any, b: Any, path: str = "") -> list[str]:
    """The paths at which the contents of two checkpoints are not bit-identical, random states included."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted(a.keys() | b.keys(), key=str)
        return [found for key in keys for found in find_differences(a.get(key), b.get(key), f"{path}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b))
        return [found for i, (one, other) in pairs for found in find_differences(one, other, f"{path}[{i}]")]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a} != {b}"]


def logged_losses(folder: Path) -> dict[tuple[str, int], set[Any]]:
    """All values that a run has logged for each (loss or score, step).

    A step that was repeated after an interruption has one value if the repetition gave the same result.
    """
    values: dict[tuple[str, int], set[Any]] = {}
    for line in read_log(folder):
        for name in ("loss", "train_loss", "val_loss", "AP"):
            if name in line:
                values.setdefault((name, line["step"]), set()).add(line[name])
    return values


def skipped_steps(folder: Path) -> set[int]:
    """The steps that the loss guard skipped."""
    return {line["step"] for line in read_log(folder, "skip")}


def assert_same_run(folder: Path, reference: Path) -> None:
    """Two finished runs have the same losses, scores and skipped steps, and bit-identical checkpoints."""
    assert all(len(values) == 1 for values in logged_losses(reference).values())
    assert logged_losses(folder) == logged_losses(reference)
    assert skipped_steps(folder) == skipped_steps(reference)
    checkpoints = read_final_checkpoints(folder)
    for name, state in read_final_checkpoints(reference).items():
        assert find_differences(checkpoints[name], state) == [], name

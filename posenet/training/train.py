"""``train``: a training run from its settings to its last checkpoint.

It reads the settings and the checkpoint (``run_settings.py``, ``resume.py``), builds the run (``run.py``), and goes
through its epochs and steps (``loop.py``); ``step.py`` is one step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from posenet.checkpoints.folder import LOCK_FILE, CheckpointFolder, RunStatusFile, own_run_files, run_lock
from posenet.devices.current import run_in_all_processes
from posenet.devices.device import cudnn_flags, deterministic_algorithms, select_device
from posenet.devices.parallel import Runtime
from posenet.devices.precision import describe_training_mode, select_training_mode
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError
from posenet.files import check_outputs
from posenet.progress_bar import hide_progress
from posenet.settings import Config, TrainConfig
from posenet.settings.heights import advise_on_height
from posenet.training.find_annotations import are_annotations
from posenet.training.from_annotations import PreparedData, choose_experiment, conclude, prepare
from posenet.training.log import CallbackList, TextLog, TrainingCallback, logs_of_run, own_logs
from posenet.training.loop import TrainingLoop, TrainingResult
from posenet.training.profiling import profiled_steps
from posenet.training.report import Report, advise_on_devices, advise_on_network, describe_lr, describe_run
from posenet.training.resume import FoundCheckpoint, config_of_run, find_checkpoint, restore_run
from posenet.training.run import build_run
from posenet.training.run_settings import RESUMED_ANNOTATIONS, folder_of_run

_log = logging.getLogger(__name__)
_training_thread = threading.RLock()


def _renew_lock() -> None:
    """In a forked process, which has its own random numbers and logs, no thread trains."""
    global _training_thread
    _training_thread = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_lock)


@run_in_all_processes("runtime")
def train(
    config: Config | str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    images: str | Path | None = None,
    val: str | Path | None = None,
    val_images: str | Path | None = None,
    experiment: Config | str | Path | None = None,
    resume: bool | str | Path = False,
    warmup: bool = False,
    max_steps: int = 0,
    profile: int = 0,
    callbacks: Sequence[TrainingCallback] = (),
    progress: bool = True,
    runtime: Runtime | None = None,
    restarted: bool = False,
) -> TrainingResult:
    """Train a network, as ``posenet train`` does, and save it in the folder ``checkpoint.path``.

    Ctrl-C, SIGTERM and SIGUSR1 finish the step, save and return; a second Ctrl-C raises ``KeyboardInterrupt``. This
    works only in the main thread. With workers for data (``data.workers``), a script calls this function below
    ``if __name__ == "__main__":``.

    Annotations in the place of an experiment are imported, checked, split and built into the folder of the run before
    the training, and the best checkpoint is evaluated after it (see ``from_annotations``). The same call continues the
    run.

    Args:
        config: an experiment, as the path of its file or the name of one that posenet brings along, such as ``"tiny"``;
            or all settings of the run. None means the defaults. Or annotations: the ``data.yaml`` of a YOLO-pose data
            set, a COCO keypoint file or JSON export of Label Studio, or a folder with one of them.
        overrides: ``"section.key=value"`` pairs that override settings.
        images: folder of the images of a COCO file or of Label Studio; None looks for them beside the file.
        val: annotations for validation; None takes those of the data set, or splits off some images.
        val_images: folder of their images; None means ``images``.
        experiment: with annotations, the experiment in one of the forms above; None chooses one for the device.
        resume: True continues from the newest intact checkpoint of the run's folder, or starts a new run if there is
            none. A path is a checkpoint or the folder of a run. The settings in the checkpoint are kept, except those
            in an experiment file and in ``overrides``; a ``Config`` replaces them all.
        warmup: if ``optim.warmup_epochs`` is 0, use its default.
        max_steps: stop after this many optimizer steps since the start of the run; 0 does not stop.
        profile: number of steps to profile, after a few others; see ``profiling.profiled_steps``. 0 profiles none.
        callbacks: receive the measurements, in addition to the logs in the run's folder.
        progress: whether to show progress bars.
        runtime: how to use devices and processes; None means all processes of the process group that exists, or that
            a launcher such as torchrun has started, with one device each, and without them this process alone.
        restarted: a launcher has started the run again. It continues from the newest checkpoint that it has saved, and
            without one it starts as ``resume`` says.

    Raises:
        PosenetError: a setting, a file or the data cannot be used, or the training cannot continue.
    """
    if max_steps < 0:
        raise ConfigError(f"max_steps is {max_steps}; give the number of the last step, or 0 for none")
    if profile < 0:
        raise ConfigError(f"profile is {profile}; give the number of steps to profile, or 0 for none")
    if resume is None or resume == "":
        raise ConfigError(f"resume is {resume!r}; give True, False, or the path of a checkpoint or of a run's folder")
    runtime = runtime or Runtime()
    pairs = [overrides] if isinstance(overrides, str) else list(overrides)
    data = None
    sources = {"images": images, "val": val, "val_images": val_images}
    prepare_data = functools.partial(_prepare_data, config, pairs, experiment, resume, **sources)
    with runtime.explain_errors():
        prepared = runtime.broadcast_object(runtime.run_on_main(prepare_data))
    if prepared:
        data, config, pairs, resume = prepared
    elif any(value is not None for value in (*sources.values(), experiment)):
        raise ConfigError(
            "images, val, val_images and experiment belong to annotations; give these as the first argument"
        )
    with _only_one_thread(), catch_stop_signals() as stop_requested, contextlib.ExitStack() as at_end:
        text_log = TextLog()
        if runtime.is_main:
            at_end.enter_context(text_log)
        at_end.enter_context(runtime.explain_errors())
        if not (progress and runtime.is_main):
            at_end.enter_context(hide_progress())

        # The checkpoint, which rank 0 looks for, and the settings. Nobody else writes into the folder from here on.
        path = runtime.run_on_all(lambda: folder_of_run(config, pairs, resume))
        runtime.run_on_main(lambda: at_end.enter_context(_own_folder(path)))
        checkpoint: FoundCheckpoint | None = runtime.broadcast_object(
            runtime.run_on_main(lambda: find_checkpoint(path, resume, restarted))
        )
        settings = runtime.run_on_all(lambda: config_of_run(config, pairs, warmup, path, checkpoint))

        # The device. The settings of the run have values in place of "auto", so that a resumed run keeps them.
        runtime.select_device(settings.train.device)
        at_end.enter_context(_configured_pytorch(settings.train))
        device_line = describe_training_mode(runtime.device, settings.train)
        _log.info("%s; %s", device_line, describe_lr(settings, runtime))
        if advice := advise_on_devices(runtime, settings.train.device):
            _log.info(advice)
        mode = select_training_mode(runtime.device, settings.train)
        settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, **mode._asdict()))

        # The run, and on rank 0 the files in its folder, which a run that is refused does not touch.
        folder = CheckpointFolder(path, settings.checkpoint.keep)
        run = build_run(settings, runtime, folder, checkpoint is None, max_steps, at_end)
        logs = CallbackList([*logs_of_run(settings.log), *callbacks] if runtime.is_main else [])
        at_end.enter_context(logs)

        def open_files() -> RunStatusFile:
            status = at_end.enter_context(RunStatusFile(path))
            text_log.open(path)
            logs.start(settings, path)
            return status

        at_end.callback(run.close)
        _log.info(describe_run(run))
        if checkpoint is None and (advice := advise_on_network(run, has_experiment=config is not None)):
            _log.warning(advice)
        if advice := advise_on_height(settings):
            _log.warning(advice)
        if checkpoint is not None:
            runtime.run_on_all(functools.partial(restore_run, run, checkpoint))
        status = runtime.run_on_main(open_files)

        # The loops over epochs and steps.
        num_profiled = profile if runtime.is_main else 0
        after_step = at_end.enter_context(profiled_steps(path, num_profiled, runtime.device))
        report = Report(run, logs, says_next=data is None)
        loop = TrainingLoop(run, report, stop_requested, max_steps, after_step)
        if checkpoint is not None and not checkpoint.is_last:
            loop.save()  # from now on, --resume continues this run, not another one of the folder
        checkpoint = None  # free the memory
        result = loop.train()
        if status is not None and result.stopped:
            status.final = "stopped"
    if data is not None and runtime.is_main and (result.finished or result.stopped_early):
        conclude(data, progress)
    return result


def _prepare_data(
    config: Config | str | Path | None,
    pairs: list[str],
    experiment: Config | str | Path | None,
    resume: bool | str | Path,
    **sources: str | Path | None,
) -> tuple[PreparedData, Config | str | Path | None, list[str], bool] | None:
    """Prepare the data; return them, the experiment and the overrides of the run, and whether it continues.

    None without annotations.
    """
    if not are_annotations(config):
        return None
    if not isinstance(resume, bool):
        raise ConfigError(RESUMED_ANNOTATIONS)
    data = prepare(config, pairs, experiment=experiment, **sources)
    has_accelerator = select_device(data.settings.train.device).type != "cpu"
    return data, *choose_experiment(data, pairs, experiment, has_accelerator), data.is_started


@contextlib.contextmanager
def _only_one_thread() -> Iterator[None]:
    """``ConfigError`` if another thread trains: PyTorch's random numbers and the logs of the package are shared by all.

    A run may be started within a run, for example by a callback.
    """
    if not _training_thread.acquire(blocking=False):
        raise ConfigError("another thread of this process trains; train in another process, or afterwards")
    try:
        yield
    finally:
        _training_thread.release()


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Lock the folder of a run. A run that leaves nothing in it leaves no folder either.

    An error if it is in use, or has files of another program under the names of ours.
    """
    if folder.is_dir():
        check_outputs([], side_files=own_run_files(folder) | own_logs(folder))
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with run_lock(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if made and [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                    (folder / LOCK_FILE).unlink()
                    for path in made:
                        path.rmdir()


@contextlib.contextmanager
def _configured_pytorch(settings: TrainConfig) -> Iterator[None]:
    """Within this context, PyTorch has the threads, the seed and the flags of the settings.

    All training batches have the same shape. The initial weights are drawn on the CPU, and nothing else draws from
    PyTorch's generators.
    """
    num_threads = torch.get_num_threads()
    with (
        torch.random.fork_rng(devices=[]),
        deterministic_algorithms(settings.deterministic),
        cudnn_flags(benchmark=True, tf32=settings.tf32),
    ):
        torch.default_generator.manual_seed(settings.seed)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)

"""``train``: a training run from its settings to its last checkpoint.

It prepares the stores of annotations (``from_annotations.py``), reads the settings and the checkpoint (``inputs.py``,
``resume.py``), and builds the run and goes through its epochs and steps (``run.py``); ``step.py`` is one step.
"""

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from posenet.annotations.find_annotations import are_annotations
from posenet.checkpoints.folder import RunStatus, run_lock, write_status
from posenet.devices.device import cudnn_flags, deterministic_algorithms, select_device
from posenet.devices.precision import describe_training_mode, select_training_mode
from posenet.devices.ranks import is_restarted, run_in_all_processes
from posenet.devices.runtime import Runtime
from posenet.devices.signals import catch_stop_signals
from posenet.errors import ConfigError
from posenet.progress_bar import hide_progress
from posenet.settings import OptimConfig
from posenet.training.inputs import Experiment, folder_of_run, with_settings
from posenet.training.log import Report, TrainingCallback, callbacks_of_run, refuse_files_of_others, text_log
from posenet.training.resume import config_of_run, find_checkpoint, has_best_weights, is_last, restore_run
from posenet.training.run import Run, TrainingResult

if TYPE_CHECKING:
    from posenet.training.from_annotations import PreparedData

_log = logging.getLogger(__name__)
_training_thread = threading.RLock()
"""Held while a thread trains, which may start a run within a run, for example in a callback."""


@run_in_all_processes("runtime")
def train(
    config: Experiment = None,
    overrides: Iterable[str] = (),
    *,
    images: str | Path | None = None,
    val: str | Path | None = None,
    val_images: str | Path | None = None,
    experiment: Experiment = None,
    prepare: bool = False,
    resume: bool | str | Path = False,
    warmup: bool = False,
    max_steps: int = 0,
    callbacks: Sequence[TrainingCallback] = (),
    progress: bool = True,
    runtime: Runtime | None = None,
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
            set, a COCO keypoint file, another format of ``posenet docs formats``, or a folder with one of them.
        overrides: ``"section.key=value"`` pairs that override settings.
        images: folder of the images of a COCO file or of Label Studio; None looks for them beside the file.
        val: annotations for validation; None takes those of the data set, or splits off some images.
        val_images: folder of their images; None means ``images``.
        experiment: with annotations, the experiment in one of the forms above; None chooses one for the device.
        prepare: with annotations, stop before the training, and draw the labels for a look at them.
        resume: True continues from the newest intact checkpoint of the run's folder, or starts a new run if there is
            none. A path is a checkpoint or the folder of a run. The settings in the checkpoint are kept, except those
            in an experiment file and in ``overrides``; a ``Config`` replaces them all.
        warmup: if ``optim.warmup_epochs`` is 0, use its default.
        max_steps: stop after this many optimizer steps since the start of the run; 0 does not stop.
        callbacks: receive the measurements, in addition to the logs in the run's folder and to ``log.callbacks``.
        progress: whether to show progress bars.
        runtime: how to use devices and processes; None means all processes of the process group that exists, or that
            a launcher such as torchrun has started, with one device each, and without them this process alone.

    If a launcher has started the process again (torchrun, SLURM), the run continues from the newest checkpoint that it
    has saved, and without one it starts as ``resume`` says.

    Raises:
        PosenetError: a setting, a file or the data cannot be used, or the training cannot continue.
    """
    if max_steps < 0:
        raise ConfigError(f"max_steps is {max_steps}; give the number of the last step, or 0 for none")
    runtime = runtime or Runtime()
    pairs = [overrides] if isinstance(overrides, str) else list(overrides)

    sources = {"images": images, "val": val, "val_images": val_images}
    chosen, data = config, None
    if are_annotations(config):
        import posenet.training.from_annotations as from_annotations  # a part of the package that may be left out

        def prepare_data() -> "tuple[PreparedData, Experiment, list[str]]":
            """The stores of the annotations, the experiment of a run on them and its overrides."""
            data = from_annotations.prepare(config, pairs, experiment=experiment, resume=resume, **sources)
            if prepare:
                from_annotations.show_labels(data)
                return data, None, []
            has_accelerator = select_device(data.settings.train.device).type != "cpu"
            return data, *from_annotations.choose_experiment(data, pairs, experiment, has_accelerator)

        with runtime.explain_errors():
            data, chosen, pairs = runtime.broadcast_object(runtime.run_on_main(prepare_data))
        if prepare:
            return TrainingResult(data.folder, finished=False, epochs=0, steps=0, best={})
        resume = data.is_started
    elif prepare or any(value is not None for value in (*sources.values(), experiment)):
        raise ConfigError(
            "images, val, val_images, experiment and prepare belong to annotations; give these as first argument"
        )
    result = _train(chosen, pairs, resume, warmup, max_steps, callbacks, progress, runtime)
    if data is not None and runtime.is_main and (result.finished or result.stopped_early):
        from_annotations.conclude(data, progress)
    return result


def _train(
    experiment: Experiment,
    overrides: Sequence[str],
    resume: bool | str | Path,
    warmup: bool,
    max_steps: int,
    callbacks: Sequence[TrainingCallback],
    progress: bool,
    runtime: Runtime,
) -> TrainingResult:
    """Train on stores; for the arguments see ``train``."""
    result: TrainingResult | None = None
    with contextlib.ExitStack() as at_end:
        # What the run changes in its process: all threads share PyTorch's random numbers and the logs of the package.
        if not _training_thread.acquire(blocking=False):
            raise ConfigError("another thread of this process trains; train in another process, or afterwards")
        at_end.callback(_training_thread.release)
        stop_requested = at_end.enter_context(catch_stop_signals())
        at_end.enter_context(runtime.explain_errors())
        if not (progress and runtime.is_main):
            at_end.enter_context(hide_progress())

        # The settings, with those of the checkpoint, which rank 0 looks for. Nobody else writes into the folder from
        # here on.
        folder = runtime.run_on_all(lambda: folder_of_run(experiment, overrides, resume))
        runtime.run_on_main(lambda: _enter_folder(folder, at_end))
        at_end.enter_context(runtime.explain_errors())  # again, so that the log has the explanations
        find = functools.partial(find_checkpoint, folder, resume, is_restarted(os.environ))
        checkpoint = runtime.broadcast_object(runtime.run_on_main(find))
        settings = runtime.run_on_all(lambda: config_of_run(experiment, overrides, folder, checkpoint))
        if warmup and not settings.optim.warmup_epochs:
            settings = with_settings(settings, "optim", warmup_epochs=OptimConfig.warmup_epochs)
        runtime.select_device(settings.train.device)
        # All training batches have the same shape. The initial weights are drawn on the CPU, and nothing else draws
        # from PyTorch's generators.
        at_end.enter_context(torch.random.fork_rng(devices=[]))
        if settings.train.deterministic:
            at_end.enter_context(deterministic_algorithms())
        at_end.enter_context(cudnn_flags(benchmark=True, tf32=settings.train.tf32))
        torch.default_generator.manual_seed(settings.train.seed)
        _log.info("%s", describe_training_mode(runtime.device, settings.train))
        # Values in place of "auto", so that a resumed run keeps them.
        amp, channels_last = select_training_mode(runtime.device, settings.train)
        settings = with_settings(settings, "train", amp=amp, channels_last=channels_last)

        # The parts, and what a checkpoint contains of them.
        run = Run(settings, runtime, checkpoint is None, max_steps, stop_requested)
        at_end.callback(run.close)
        own_logs = runtime.run_on_main(lambda: callbacks_of_run(settings.log)) or []
        report = Report(run, [*own_logs, *callbacks] if runtime.is_main else [])
        report.describe_run()
        if checkpoint is not None:
            runtime.run_on_all(functools.partial(restore_run, run, checkpoint))
            has_best = runtime.run_on_main(functools.partial(has_best_weights, run, checkpoint))
            if not runtime.broadcast_object(has_best):  # as in another folder
                run.progress.forget_scores()
        run.progress.resumed = "" if isinstance(resume, bool) else str(resume)

        # The files in the folder. A run that is refused writes its log alone.
        if runtime.is_main:
            write_status(folder, "running")
            at_end.push(lambda kind, *_: write_status(folder, _final_status(kind, result)))
        at_end.callback(report.close)
        runtime.run_on_main(report.start)

        # The loops over epochs and steps.
        if checkpoint is not None and not is_last(run, checkpoint[0]):
            run.save()  # from now on, --resume continues this run, not another one of the folder
        checkpoint = None  # free the memory
        result = run.train(report)
    return result


def _final_status(error: type[BaseException] | None, result: TrainingResult | None) -> RunStatus:
    """The status of a run that has ended with an error or a result."""
    if result is None:
        return "stopped" if error is not None and issubclass(error, KeyboardInterrupt) else "failed"
    return "stopped" if result.stopped else "finished"


def _enter_folder(folder: Path, at_end: contextlib.ExitStack) -> None:
    """Lock the folder of a run and begin its log, both up to the end."""
    refuse_files_of_others(folder)
    at_end.enter_context(run_lock(folder))
    at_end.enter_context(text_log(folder))

"""A training run: how it is built, its loops over epochs and steps, and how it saves and stops.

``Trainer`` builds the run; ``Trainer.run`` is the loop over the epochs, ``Trainer.train_one_epoch`` the loop over the
steps; ``step.TrainStep`` is one step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from posenet.checkpoints.folder import CheckpointFolder, RunStatusFile, own_run_files, run_lock
from posenet.checkpoints.weights import load_weights
from posenet.checkpoints.writer import CheckpointWriter
from posenet.data.loader import Batch
from posenet.devices.device import cudnn_flags, deterministic_algorithms, peak_memory, select_device, total_memory
from posenet.devices.precision import describe_training_mode, make_grad_scaler, select_training_mode
from posenet.devices.runtime import Runtime
from posenet.devices.signals import StopRequested, catch_stop_signals
from posenet.errors import ConfigError, DataError, OtherRankError, TrainingError
from posenet.files import check_outputs
from posenet.messages import pluralize
from posenet.model.posenet import PoseNet
from posenet.progress_bar import progress_bar
from posenet.settings import Config, ModelConfig, config_to_dict
from posenet.training.agreement import require_same_run
from posenet.training.averaging import WeightAverage
from posenet.training.batch_norm import BatchNormStatistics
from posenet.training.freezing import freeze, set_train_mode
from posenet.training.guard import LossGuard
from posenet.training.input import (
    as_data_error,
    blank_batch,
    log_unreadable,
    make_input_stream,
    make_validation_loader,
    too_many_unreadable,
)
from posenet.training.log import CallbackList, TextLog, TrainingCallback, logs_of_run, own_logs
from posenet.training.meters import DataSetLosses, format_losses
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.optimizer import learning_rate, lr_factor, make_optimizer, set_lr
from posenet.training.profiling import profiled_steps
from posenet.training.progress import Progress
from posenet.training.resume import FoundCheckpoint, RunState, configure_run
from posenet.training.run_settings import another_run_error, folder_of_run
from posenet.training.short_form import PreparedData, choose_experiment, conclude, is_data, prepare
from posenet.training.step import StepResult, TrainStep
from posenet.training.stores import describe_contents, describe_paths, open_stores, refuse_trained_images
from posenet.training.teacher import load_teacher, require_same_teacher
from posenet.training.validation import CocoValidation, image_losses, validation_loss

EPOCH_LINE_SCORES = ("train_loss", "val_loss", "AP", "AR")
"""Scores in the text log's line of an epoch. ``log.jsonl`` has all scores."""

LARGE_ON_CPU = 5_000_000
"""From this number of parameters on, a run on a CPU names a smaller network."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """Where a run is when ``train`` returns."""

    folder: Path
    """Folder of the run: ``last.pth``, ``best.pth``, ``log.txt``, ``log.jsonl`` and so on."""
    finished: bool
    """Whether all epochs were completed. False after a stop signal, ``max_steps`` or early stopping."""
    epochs: int
    """Completed epochs."""
    steps: int
    """Optimizer steps since the start of the run, skipped ones included."""
    best: dict[str, float]
    """The score of ``best.pth`` by name, "AP" or "val_loss"; empty if there is none."""
    stopped: bool = False
    """Whether a stop signal has ended the run early; ``resume`` continues it."""


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
    the training, and the best checkpoint is evaluated after it (see ``short_form``). The same call continues the run.

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
        runtime: how to use devices and processes; None means one process on the configured device.
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
    if is_data(config):
        if runtime.world_size > 1:
            raise ConfigError(
                "annotations are prepared by one process; build stores with posenet build-hdf5, and name them with "
                "--set data.train=FILE.h5"
            )
        if not isinstance(resume, bool):
            raise ConfigError("with annotations, a run continues in its folder; leave out resume")
        data = prepare(config, pairs, images=images, val=val, val_images=val_images, experiment=experiment)
        options = {"warmup": warmup, "max_steps": max_steps, "profile": profile, "callbacks": callbacks}
        return train_prepared(data, pairs, experiment, **options, progress=progress, runtime=runtime)
    if any(value is not None for value in (images, val, val_images, experiment)):
        raise ConfigError(
            "images, val, val_images and experiment belong to annotations; give these as the first argument"
        )
    with runtime.explain_errors(), catch_stop_signals() as stop_requested, contextlib.ExitStack() as stack:
        text_log = TextLog()
        if runtime.is_main:
            stack.enter_context(text_log)

        # The settings, and the checkpoint if the run is resumed. Nobody else writes into the folder from here on.
        is_locked = runtime.run_on_main(lambda: _lock_if_exists(folder_of_run(config, pairs, resume), stack))
        settings, checkpoint = configure_run(config, pairs, resume, warmup, runtime, restarted)
        folder = CheckpointFolder(Path(settings.checkpoint.path), settings.checkpoint.keep)
        continues_run, is_last = _compare_folders(checkpoint, folder, runtime)
        resumed = None if checkpoint is None else checkpoint.path

        def refuse_another_run() -> None:
            if not continues_run and folder.has_checkpoints():
                raise another_run_error(folder.path, resumed)

        runtime.run_on_main(refuse_another_run)

        # The device, and the state of PyTorch that the caller gets back. All training batches have the same shape.
        runtime.select_device(settings.train.device)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if settings.train.threads:
            torch.set_num_threads(settings.train.threads)
        # The initial weights are drawn on the CPU, and nothing else draws from PyTorch's generators.
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(settings.train.seed)
        stack.enter_context(deterministic_algorithms(settings.train.deterministic))
        stack.enter_context(cudnn_flags(benchmark=True, tf32=settings.train.tf32))
        mode_and_lr = describe_training_mode(runtime.device, settings.train), _describe_lr(settings, runtime)
        _log.info("%s; %s", *mode_and_lr)
        # Checkpoints contain the values that "auto" stands for, so that a resumed run keeps them on any device.
        mode = select_training_mode(runtime.device, settings.train)
        settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, **mode._asdict()))

        # The run, and on rank 0 its folder with the logs.
        log = stack.enter_context(CallbackList([*logs_of_run(settings.log), *callbacks] if runtime.is_main else []))
        shows_progress = progress and runtime.is_main
        is_new = checkpoint is None
        trainer = Trainer(settings, runtime, folder, log, is_new, max_steps, stop_requested, shows_progress, stack)

        def open_folder() -> RunStatusFile:
            if not is_locked:
                stack.enter_context(run_lock(folder.path))
                refuse_another_run()  # one that has begun since the folder did not exist
            status = stack.enter_context(RunStatusFile(folder.path))
            text_log.open(folder.path)
            log.start(settings, folder.path)
            return status

        status = runtime.run_on_main(open_folder)
        stack.callback(trainer.close)
        _log.info(trainer.describe())
        if is_new and (advice := _advise_on_network(config, trainer)):
            _log.warning(advice)
        if checkpoint is not None:
            runtime.run_on_all(functools.partial(trainer.resume, checkpoint, continues_run))
            checkpoint = None  # free the memory; partial, because a lambda would keep it
            if not is_last:  # from now on, --resume continues this run, not another one of the folder
                trainer.save()
        if profile and runtime.is_main:
            trainer.after_step = stack.enter_context(profiled_steps(folder.path, profile, runtime.device))
        result = trainer.run()
        if status is not None and result.stopped:
            status.final = "stopped"
        return result


def train_prepared(
    data: PreparedData,
    overrides: Sequence[str] = (),
    experiment: Config | str | Path | None = None,
    **options: Any,
) -> TrainingResult:
    """Train on prepared annotations, or continue the run in their folder, and evaluate the best checkpoint.

    ``options`` are arguments of ``train``. Without an experiment, a run that continues keeps its own.
    """
    device = data.settings.train.device
    config, pairs = experiment, [*data.overrides, *overrides]
    if not data.is_started:
        has_accelerator = select_device(device).type != "cpu"
        config, pairs = choose_experiment(data, overrides, experiment, has_accelerator)
    result = train(config, pairs, resume=data.is_started, **options)
    if result.finished or not (result.stopped or options.get("max_steps")):
        conclude(data, options.get("progress", True))
    return result


def _lock_if_exists(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Lock the folder of a run within ``stack``, and return True; a folder that does not exist is not made yet.

    An error if it is in use, or has files of another program under the names of ours.
    """
    if not folder.is_dir():
        return False
    check_outputs([], side_files=own_run_files(folder) | own_logs(folder))
    stack.enter_context(run_lock(folder))
    return True


def _compare_folders(
    checkpoint: FoundCheckpoint | None, folder: CheckpointFolder, runtime: Runtime
) -> tuple[bool, bool]:
    """Whether a checkpoint is in the folder of the run, and whether it is the last one there.

    Rank 0 decides for all, because machines may have the folder at different paths.
    """
    is_there = checkpoint is not None and checkpoint.path.parent.resolve() == folder.path.resolve()
    is_last = checkpoint is not None and is_there and checkpoint.path.name == folder.last.name
    both: tuple[bool, bool] = runtime.broadcast_object((is_there, is_last))
    return both


def _describe_lr(config: Config, runtime: Runtime) -> str:
    optim, average, world_size = config.optim, config.average, runtime.world_size
    samples = config.train.batch_size * world_size * optim.accumulate
    key = "average.cycle_lr" if average.cycle_epochs else "optim.lr"
    rates = average.cycle_lr if average.cycle_epochs else (optim.lr,)
    lr = " to ".join(f"{rate * lr_factor(optim, world_size):g}" for rate in rates)
    processes = pluralize(world_size, "process", "processes")
    rule = f" x {processes}" if optim.scale_lr else ", not scaled"
    return f"learning rate {lr} ({key}{rule}) for steps of {samples} samples"


def _advise_on_network(config: Config | str | Path | None, trainer: Trainer) -> str:
    """What to say about a network that is large for the device, or that is the default; empty for others."""
    network, default = trainer.config.model, ModelConfig()
    is_default = (network.stacks, network.width, network.growth) == (default.stacks, default.width, default.growth)
    if trainer.runtime.device.type == "cpu" and trainer.num_parameters > LARGE_ON_CPU:
        reason = f"{trainer.num_parameters / 1e6:.1f} M parameters are many for a CPU: a step may take minutes"
    elif config is None and is_default:
        reason = "without --config, the network is the published one for COCO"
    else:
        return ""
    return f"{reason}; --config tiny is a small network, and posenet config lists all experiments"


class Trainer:
    """Trains one network over epochs that can be interrupted at any step.

    A run that ``is_new`` starts from ``train.weights``, not from a checkpoint. ``stack`` closes the data. Raises a
    ``PosenetError`` if a setting or a file cannot be used, or differs between the processes.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        folder: CheckpointFolder,
        log: CallbackList,
        is_new: bool,
        max_steps: int,
        stop_requested: Callable[[], bool],
        shows_progress: bool,
        stack: contextlib.ExitStack,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.folder = folder
        self.log = log
        self.max_steps = max_steps
        self.stop_requested = stop_requested
        self.shows_progress = shows_progress
        self.after_step: Callable[[], None] = lambda: None
        """Called after every optimizer step."""
        self.returned_to = ""
        """Name of the checkpoint of the folder to which the run has returned last; see ``resume.find_checkpoint``."""
        runtime.run_on_all(lambda: self._build(stack, is_new))
        contents = describe_contents(config, self.stores) | {"--max-steps": max_steps}
        if self.teacher is not None:
            contents["train.teacher"] = f"a file with the digest {self.teacher.digest[:8]}"
        require_same_run(runtime, config, contents)

        self.model = ModelWithLoss.from_config(self.network, config, self.teacher)
        self.wrapped_model = runtime.wrap(self.model)
        self.batch_norm = BatchNormStatistics(self.model)
        self.average: WeightAverage | None = None
        if config.average.kind != "off":  # of the weights of rank 0, which all ranks have now
            self.average = runtime.run_on_all(lambda: WeightAverage(self.network, config.average))
        scaler = make_grad_scaler(runtime.device, self.model.amp, config.train.loss_scale)
        self.guard = LossGuard(config.guard)
        names = self.stores.train.names
        self.set_losses = DataSetLosses(names, runtime) if len(names) > 1 else None
        max_norm = config.optim.max_grad_norm
        self.train_step = TrainStep(
            self.wrapped_model, self.optimizer, scaler, self.guard, runtime, max_norm, self.set_losses
        )
        self.state = RunState(self.network, self.average, self.optimizer, scaler, self.guard)
        self.input = make_input_stream(config, self.stores.train, runtime)
        step_size = config.train.batch_size * runtime.world_size * config.optim.accumulate
        if step_size > self.input.samples_per_epoch:
            _log.warning(
                "a step takes %d samples, but an epoch has only %d, which are repeated to fill it; "
                "lower train.batch_size",
                step_size,
                self.input.samples_per_epoch,
            )
        self.validation_loader = None
        if self.stores.val is not None:
            self.validation_loader = make_validation_loader(config, self.stores.val, runtime)
        self.writer = CheckpointWriter(folder, config.checkpoint)

    def _build(self, stack: contextlib.ExitStack, is_new: bool) -> None:
        """Open the data and make what the settings define. This may fail on some ranks only."""
        config, device = self.config, self.runtime.device
        self.stores = open_stores(config, stack)
        network = PoseNet.from_config(config)
        if config.train.weights and is_new and self.runtime.is_main:  # ``wrap`` sends them to the other ranks
            _log.info("Fine-tuning. %s", load_weights(network, config.train.weights))
        if frozen := freeze(network, config.train.freeze):
            _log.info("Frozen: %d of %d parameters", len(frozen), sum(1 for _ in network.parameters()))
        network.channels_last = select_training_mode(device, config.train).channels_last
        layout = torch.channels_last if network.channels_last else torch.contiguous_format
        network.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        if config.parallel.sync_bn:
            network = cast(PoseNet, self.runtime.convert_sync_batch_norm(network))
        self.network = network
        self.optimizer = make_optimizer(network, config.optim)
        self.teacher = load_teacher(config, device)
        self.evaluate = None
        if config.data.val_images and config.data.val_annotations and config.train.evaluate_every:
            self.evaluate = CocoValidation(config, network, self.runtime, self.shows_progress)
            own_images = [image for image, _ in self.evaluate.share]
            refuse_trained_images(config, self.stores.train, own_images)
        if config.train.patience and self.evaluate is None and self.stores.val is None:
            raise ConfigError("train.patience needs a score; set data.val, or data.val_images and data.val_annotations")

    def describe(self) -> str:
        """The network, the data and the folder of the run."""
        model = self.config.model
        store = self.stores.train
        samples = store.num_images if self.config.data.framing == "image" else len(store)
        without_loss = "; data.val is not set: no validation loss" if self.stores.val is None else ""
        return (
            f"Training a network of {pluralize(model.stacks, 'stack')}, width {model.width}, growth {model.growth} "
            f"({self.num_parameters / 1e6:.1f} M parameters) on {pluralize(samples, 'sample')} of "
            f"{describe_paths(self.config.data.train)}{without_loss}; the run is in {self.folder.path}"
        )

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def resume(self, checkpoint: FoundCheckpoint, same_folder: bool) -> None:
        """Continue the run of a checkpoint; in another folder, which has no ``best.pth`` yet, forget the best score."""
        require_same_teacher(checkpoint.state, self.teacher, checkpoint.path)
        self.state.load_state_dict(checkpoint, self.input.steps_per_epoch, self.runtime)
        progress = self.progress
        if not same_folder:
            progress.forget_scores()
        self.writer.saved_step = progress.total_steps
        if same_folder:
            name = checkpoint.path.name
            self.returned_to = checkpoint.state.get("returned_to", "") if name == self.folder.last.name else name
        position = f"epoch {progress.epoch + 1}, step {progress.step} of {self.input.steps_per_epoch}"
        _log.info("Resuming from %s: %s", checkpoint.path, position)

    def run(self) -> TrainingResult:
        """Train to the last epoch, to ``max_steps`` or to a stop signal.

        Raises:
            TrainingError: the loss explodes again shortly after a return to a checkpoint.
            CheckpointError: the last checkpoint could not be written.
            DataError: the samples or validation images cannot be read any more; the run has been saved.
            OtherRankError: one of these on another rank.
        """
        progress = self.progress
        epochs = pluralize(self.config.train.epochs, "epoch")
        if progress.epoch >= self.config.train.epochs:
            _log.info("%s has completed its %s already; --epochs adds more", self.folder.path, epochs)
            return self._result(finished=True)
        self._rehearse_validation()
        while progress.epoch < self.config.train.epochs:
            if self._is_stale():
                self.writer.finish()
                scores = pluralize(progress.stale, "score")
                _log.info("Stopped early after %s without a better one. %s", scores, self._describe_end())
                return self._result(finished=False)
            if not (self.train_one_epoch() and self.finish_epoch()):
                self.save()
                self.writer.finish()
                position = f"step {progress.total_steps} (epoch {progress.epoch + 1})"
                _log.info("Stopped after %s, saved in %s; --resume continues", position, self.folder.last)
                return self._result(finished=False, stopped=not self._has_done_max_steps())
        self.writer.finish()
        _log.info("Finished %s. %s", epochs, self._describe_end())
        return self._result(finished=True)

    def _describe_end(self) -> str:
        """The best score, the checkpoint to use, and the next command."""
        scores = [f"{name} {score:.4f}" for name, score in self._best().items()]
        best = f"Best {scores[0]}: {self.folder.best}" if scores else f"The weights: {self.folder.last}"
        return f"{best}; next: posenet predict IMAGES --checkpoint {self.folder.best if scores else self.folder.last}"

    def _rehearse_validation(self) -> None:
        """Validate blank images, so that a lack of memory shows now and not hours later, after an epoch."""
        steps_left = self.input.steps_per_epoch - self.progress.step
        if self.stop_requested() or 0 < self.max_steps < self.progress.total_steps + steps_left:
            return
        self.model.eval()
        with contextlib.nullcontext() if self.average is None else self.average.applied():
            if self.validation_loader is not None:
                image_losses(self.wrapped_model, blank_batch(self.config), self.runtime)
            if self.evaluate is not None:
                self.evaluate.rehearse()

    def train_one_epoch(self) -> bool:
        """Train from the current step to the end of the epoch; return False if the run was stopped before that."""
        progress = self.progress
        steps = self.input.steps_per_epoch
        set_train_mode(self.model)
        self.input.meter.restart()
        with self._progress_bar() as bar:
            while progress.step < steps:
                # Take the batches of this rank; then all ranks agree whether to fail, to save or to stop.
                batches: list[Batch] = []
                error = None
                try:
                    batches = self.input.take_step(progress.epoch, progress.step)
                except (DataError, OSError) as caught:
                    error = as_data_error(caught)
                if self._vote(error, log_unreadable(batches)):
                    return False
                # Step.
                lr = learning_rate(self.config, self.runtime.world_size, progress.epoch, progress.step, steps)
                set_lr(self.optimizer, lr)
                result = self.train_step(batches)
                progress.count_step()
                self.after_step()
                self._react(result, batches)
                # Log.
                bar.update()
                if progress.total_steps % self.config.log.every_steps == 0 or progress.step == steps:
                    self._log_step(bar, lr)
        # A vote after the last step counts its replaced samples and saves if that is due. Its answer is not needed:
        # the validation or the next epoch stops.
        self._vote()
        return True

    def _vote(self, error: DataError | None = None, num_replaced: int = 0) -> bool:
        """Decide with the other ranks whether to fail, to save and to stop; return whether to stop.

        Args:
            error: why this rank cannot continue, if it cannot. The run is saved before all ranks end with an error.
            num_replaced: unreadable samples that were replaced since the last vote.
        """
        progress = self.progress
        # If ``max_steps`` is the end of an epoch, the run stops after the validation.
        steps_done = self._has_done_max_steps() and progress.step < self.input.steps_per_epoch
        stop_due = self.stop_requested() or steps_done
        save_due = self.runtime.is_main and self.writer.is_due(progress.total_steps)
        stop, save, failed, replaced = self.runtime.sum_over_ranks(stop_due, save_due, error is not None, num_replaced)
        num_samples, max_share = self.input.samples_per_epoch, self.config.data.max_unreadable
        too_many = too_many_unreadable(progress.replaced + replaced, num_samples, max_share) if replaced else None
        if failed or too_many:
            self._save_before_failing()
            self.runtime.raise_on_all(error or too_many)
        # Not while steps are bad: a return to a checkpoint must find weights from before them.
        if save and not stop and not self.guard.bad_in_a_row:
            self.save()
        if not stop:  # a stopped run has not done the step; when resumed, it reads and counts these samples again
            progress.replaced += replaced
        return bool(stop)

    def _save_before_failing(self) -> None:
        """Save the run before all ranks end with an error of the data. All ranks call this at the same step."""
        if not self.guard.bad_in_a_row:
            self.save()
        self.writer.wait()
        # The launcher ends all processes when one ends, so no rank may end before rank 0 has written the file.
        self.runtime.sum_over_ranks(0)

    def _react(self, result: StepResult, batches: Sequence[Batch]) -> None:
        """Record the loss of a step and update the average of the weights, or let the guard react to a bad step."""
        if result.loss is not None:
            self.progress.record_loss(result.loss)
            self.guard.next_action(bad=False)
            if self.average is not None:
                self.average.after_step()
            return
        self.progress.skipped += 1
        if result.bad_value is None:
            return
        step = self.progress.total_steps
        value, image_ids = self._find_cause(result.bad_value, batches)
        _log.warning("Step %d skipped: loss or gradient norm %g; image ids %s", step, value, image_ids)
        self.log.call("on_skip", step, {"value": str(value), "image_ids": image_ids})
        action = self.guard.next_action(bad=True)
        if action == "fail":
            self.runtime.raise_on_all(
                TrainingError(
                    f"the loss explodes again after a return to a checkpoint (step {step}, value {value:g}); lower "
                    f"optim.lr or look at images {image_ids}"
                )
            )
        if action == "roll back":
            self._return_to_checkpoint()

    def _find_cause(self, value: float, batches: Sequence[Batch]) -> tuple[float, list[int]]:
        """The bad value and the image ids of the ranks that have one.

        If only some ranks have a bad loss, their images are the cause. A bad gradient norm is the same on all ranks.
        """
        report = value, [image_id for batch in batches for image_id in batch.image_ids.tolist()]
        reports = self.runtime.gather_objects(report)
        # A float32 loss that is bad on the device may round to the threshold itself here.
        bad_reports = [other for other in reports if self.guard.is_bad(other[0])] or reports
        return bad_reports[0][0], [image_id for _, ids in bad_reports for image_id in ids]

    def _return_to_checkpoint(self) -> None:
        """Restore the weights of the last checkpoint, but continue with the next batches."""
        found = None
        if self.runtime.is_main:
            self.writer.wait()
            found = self.folder.newest_intact(lambda state: not state["guard"]["bad_in_a_row"])
        found = self.runtime.broadcast_object(found)
        if found is None:
            self.runtime.raise_on_all(
                TrainingError(
                    f"{self.guard.max_skips} steps in a row were skipped before the first checkpoint; lower optim.lr "
                    "or raise optim.warmup_epochs"
                )
            )
        checkpoint = FoundCheckpoint(*found)
        _log.warning("%d steps skipped in a row: returning to %s", self.guard.max_skips, checkpoint.path)
        self.state.load_weights(checkpoint)

    def finish_epoch(self) -> bool:
        """Validate, log and save; return False, with the epoch still unfinished, after a stop signal."""
        progress = self.progress
        epoch = progress.epoch + 1
        values: dict[str, Any] = {"epoch": epoch, "train_loss": progress.mean_loss}
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read_epoch()
        if self.average is not None:
            self.average.after_epoch(epoch)
        try:
            with contextlib.nullcontext() if self.average is None else self.average.applied():
                values |= self._validate(epoch)
        except StopRequested:
            return False
        except (DataError, OtherRankError):
            self._save_before_failing()
            raise
        self._report_epoch(values)
        score_name = "val_loss" if self.evaluate is None else "AP"
        is_best = progress.record_score(score_name, values.get(score_name))
        progress.start_next_epoch()
        # Not while steps are bad, as in ``_vote``; but a run that ends is always saved.
        if is_best or self._is_over() or not self.guard.bad_in_a_row:
            self.save(is_best)
        return True

    def _is_over(self) -> bool:
        """Whether the run has done all epochs, or has to stop early."""
        return self.progress.epoch >= self.config.train.epochs or self._is_stale()

    def _is_stale(self) -> bool:
        return 0 < self.config.train.patience <= self.progress.stale

    def _validate(self, epoch: int) -> dict[str, Any]:
        """The validation loss, None without validation samples, and every few epochs COCO's scores."""
        # The BatchNorm statistics differ between the ranks. A checkpoint contains those of rank 0, so all ranks
        # validate with them.
        statistics = self.batch_norm.read()
        self.runtime.broadcast_tensors(statistics)
        self.batch_norm.write(statistics)
        self.model.eval()
        values: dict[str, Any] = {"val_loss": None}
        if self.validation_loader is not None:
            values["val_loss"] = validation_loss(
                self.wrapped_model,
                self.validation_loader,
                self.config.data.max_unreadable,
                self.runtime,
                self.stop_requested,
                self.shows_progress,
            )
        settings = self.config.train
        if self.evaluate and (epoch % settings.evaluate_every == 0 or epoch == settings.epochs):
            scores, drawing = self.evaluate(self.stop_requested)
            values |= scores
            if drawing is not None:
                self.log.call("on_drawing", self.progress.total_steps, f"epoch_{epoch:04d}", drawing)
        return values

    def _report_epoch(self, values: dict[str, Any]) -> None:
        progress = self.progress
        epoch = values["epoch"]
        self.log.call("on_epoch", progress.total_steps, values)
        scores = [f"{name} {values[name]:.4f}" for name in EPOCH_LINE_SCORES if values.get(name) is not None]
        if memory := self._memory():
            scores.append(f"memory {memory['memory_gib']:.1f} GiB ({memory['memory_share']:.0%} of the device's)")
        _log.info("Epoch %d  %s", epoch, "  ".join(scores))
        if self.set_losses is not None:
            _log.info("Epoch %d  losses of the data sets: %s", epoch, format_losses(values["sets"]))
        if progress.skipped:
            _log.warning(
                f"epoch {epoch}: {progress.skipped} of {progress.step} steps were skipped: a bad loss or gradient, or "
                "a loss scale of fp16 that was too large"
            )
        if values["val_loss"] is not None and not math.isfinite(values["val_loss"]):
            _log.warning("epoch %d: the validation loss is not finite; lower optim.lr", epoch)

    def save(self, best: bool = False) -> None:
        """Save everything that a resumed run needs. This waits for a copy, not for the disk. All ranks call it."""
        if not self.runtime.is_main:
            return
        state = self.state.state_dict(self.input.steps_per_epoch, config_to_dict(self.config))
        state["world_size"] = self.runtime.world_size
        if self.teacher is not None:
            state["teacher"] = self.teacher.digest
        if self.returned_to:
            state["returned_to"] = self.returned_to
        self.writer.save(state, self.progress.total_steps, best)

    def _result(self, finished: bool, stopped: bool = False) -> TrainingResult:
        progress = self.progress
        return TrainingResult(self.folder.path, finished, progress.epoch, progress.total_steps, self._best(), stopped)

    def _best(self) -> dict[str, float]:
        """See ``TrainingResult.best``."""
        progress = self.progress
        if not math.isfinite(progress.best):
            return {}
        return {progress.best_kind: -progress.best if progress.best_kind == "val_loss" else progress.best}

    def close(self) -> None:
        """End the data workers, and wait for a checkpoint that is being written."""
        self.writer.wait()
        self.input.close()
        if self.validation_loader is not None:
            self.validation_loader.close()

    def _progress_bar(self) -> tqdm[Any]:
        """The bar over the steps of the current epoch."""
        progress = self.progress
        steps = self.input.steps_per_epoch
        epochs = self.config.train.epochs
        steps_after_epoch = (epochs - progress.epoch - 1) * steps
        if self.max_steps:
            steps_after_epoch = min(steps_after_epoch, self.max_steps - progress.total_steps - (steps - progress.step))
        return progress_bar(
            title=f"epoch {progress.epoch + 1}/{epochs}",
            total=steps,
            unit="step",
            done=progress.step,
            following=steps_after_epoch,
            leave=False,
            disable=not self.shows_progress,
        )

    def _log_step(self, bar: tqdm[Any], lr: float) -> None:
        progress = self.progress
        loss = progress.mean_loss
        speed = self.input.meter.read()
        speed["samples_per_s"] *= self.runtime.world_size
        bar.set_postfix_str(
            f"loss {math.nan if loss is None else loss:.2f}, lr {lr:.1e}, "
            f"{speed['samples_per_s']:.1f} samples/s, data wait {speed['data_wait']:.0%}"
        )
        values: dict[str, Any] = {
            "epoch": progress.epoch,
            "loss": loss,
            "lr": lr,
            **speed,
            "terms": self.train_step.terms.read(),
            "gradient_norm": self.train_step.gradient_norm.read(),
            **self._memory(),
        }
        if self.set_losses is not None:
            values["sets"] = self.set_losses.read()
        self.log.call("on_step", progress.total_steps, values)

    def _memory(self) -> dict[str, float]:
        """The most memory of the device that tensors had so far, in GiB, and its share; empty if it does not tell."""
        peak, total = peak_memory(self.runtime.device), total_memory(self.runtime.device)
        if peak is None or total is None:
            return {}
        return {"memory_gib": round(peak / 2**30, 2), "memory_share": round(peak / total, 3)}

    def _has_done_max_steps(self) -> bool:
        return bool(self.max_steps) and self.progress.total_steps >= self.max_steps

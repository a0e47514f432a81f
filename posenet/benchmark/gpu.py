"""Training and prediction on an accelerator: what each option for speed gains, and what a run costs besides its steps.

``measure_gpu`` writes one table of training steps, of all ``VARIANTS`` at several batch sizes, and further tables for
the fastest of them: the stages of a step, the waits of a run, and prediction. Time on a GPU is precious, so an error
becomes a row of its table, and the report is passed on after every measurement.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from posenet.benchmark.data_wait import measure_data_wait, measure_loader, training_batches
from posenet.benchmark.network import matmul_gflop_per_s
from posenet.benchmark.report import Cell, Report, percent
from posenet.benchmark.timing import Task, median_seconds
from posenet.benchmark.train import build_train_step, count_step_gflop, measure_step, synthetic_batch
from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.data.dataset import PoseDataset
from posenet.devices.capabilities import has_tf32, peak_memory, supports_channels_last
from posenet.devices.cudnn import cudnn_flags, uses_cudnn
from posenet.devices.precision import Amp
from posenet.devices.runtime import Runtime
from posenet.errors import PosenetError, TrainingError
from posenet.messages import to_single_line
from posenet.progress import progress_bar
from posenet.settings import Config, config_to_dict
from posenet.training.checkpoint_writer import CheckpointWriter
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.run_state import RunState
from posenet.training.train_step import TrainStep
from posenet.training.weight_averaging import make_weight_average

_log = logging.getLogger(__name__)

OUT_OF_MEMORY = "out of memory"
NOT_AVAILABLE = "not available on this device"
RUN_TITLE = "a run besides its steps"
PREDICTION_TITLE = "prediction"

COMPILING_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})
"""Device types for which ``torch.compile`` generates code."""


@dataclass(frozen=True)
class Variant:
    """How steps are trained. Each of ``VARIANTS`` adds one option to those of the variant before it."""

    name: str
    """The added option."""
    amp: Amp = "off"
    channels_last: bool = False
    tf32: bool = False
    """Let CUDA devices round float32 to TF32 in convolutions."""
    cudnn_benchmark: bool = False
    """Let cuDNN try all algorithms for each shape and keep the fastest."""
    compile_mode: Literal["default", "reduce-overhead"] | None = None
    """Mode of ``torch.compile`` for targets, network and loss; "reduce-overhead" replays them as CUDA graphs."""

    def is_available(self, device: torch.device) -> bool:
        """Whether a device has the options."""
        if self.name == "TF32":
            return has_tf32(device)
        if self.name == "+ channels_last":
            return supports_channels_last(device)
        if self.name in ("+ cudnn.benchmark", "+ CUDA graphs"):
            return uses_cudnn(device)
        return self.compile_mode is None or device.type in COMPILING_DEVICES

    def apply(self, config: Config, batch_size: int) -> Config:
        """The configuration of a run with these options."""
        train = replace(config.train, amp=self.amp, channels_last=self.channels_last, batch_size=batch_size)
        return replace(config, train=train, parallel=replace(config.parallel, compile=False))

    def backend_flags(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the convolutions of CUDA devices have the options; other devices ignore them."""
        return cudnn_flags(benchmark=self.cudnn_benchmark, tf32=self.tf32)


def _make_variants() -> tuple[Variant, ...]:
    float32 = Variant("float32")
    tf32 = replace(float32, name="TF32", tf32=True)
    bf16 = replace(tf32, name="bf16", amp="bf16")
    channels_last = replace(bf16, name="+ channels_last", channels_last=True)
    cudnn_benchmark = replace(channels_last, name="+ cudnn.benchmark", cudnn_benchmark=True)
    compiled = replace(cudnn_benchmark, name="+ compile", compile_mode="default")
    graphs = replace(compiled, name="+ CUDA graphs", compile_mode="reduce-overhead")
    return float32, tf32, bf16, channels_last, cudnn_benchmark, compiled, graphs


VARIANTS = _make_variants()


@dataclass(frozen=True)
class StepTime:
    """The measured training steps of one variant at one batch size."""

    variant: Variant
    batch_size: int
    seconds: float | None = None
    """Per step; None if the steps could not be measured."""
    matmul_share: float | None = None
    """Operations per second of the network, as a share of those of a matrix product with the same options."""
    peak_memory_gib: float | None = None
    status: str = "measured"
    """Why there is no time, or that there is one."""

    @property
    def name(self) -> str:
        return f"{self.variant.name} at batch {self.batch_size}"

    @property
    def images_per_s(self) -> float:
        """0 if the steps could not be measured."""
        return 0.0 if self.seconds is None else self.batch_size / self.seconds

    def as_row(self) -> tuple[Cell, ...]:
        if self.seconds is None:
            return self.variant.name, self.batch_size, self.status, None, None, None
        share = None if self.matmul_share is None else percent(self.matmul_share, 1)
        milliseconds = 1000 * self.seconds
        return self.variant.name, self.batch_size, milliseconds, self.images_per_s, share, self.peak_memory_gib

    def as_numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {
            "variant": self.variant.name,
            "batch_size": self.batch_size,
            "status": self.status,
        }
        if self.seconds is not None:
            numbers |= {
                "step_ms": 1000 * self.seconds,
                "images_per_s": self.images_per_s,
                "share_of_peak": self.matmul_share,
                "peak_memory_gib": self.peak_memory_gib,
            }
        return numbers


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    batch_sizes: Sequence[int]
    compiled_batch_sizes: Sequence[int] | None
    """Batch sizes of the compiled steps, each of which is compiled for minutes. None is the smallest of ``batch_sizes``
    and the one that is fastest without compiling."""
    repeats: int
    """Timed rounds; the median is reported."""
    steps: int
    """Steps in a round. The host waits for the device only at the end of a round, as in a run."""
    matmul_side: int
    """Rows and columns of the matrices whose product is the baseline."""


@dataclass
class Tables:
    """What has been measured so far."""

    config: Config
    effort: Effort
    steps: list[StepTime] = field(default_factory=list)
    sections: list[Report] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers of the sections."""

    def steps_by_speed(self) -> list[StepTime]:
        """The steps that could be measured, fastest first."""
        measured = [step_time for step_time in self.steps if step_time.seconds is not None]
        return sorted(measured, key=lambda step_time: step_time.images_per_s, reverse=True)

    def add_section(self, section: Report, numbers: dict[str, Any]) -> None:
        self.sections.append(section)
        self.numbers |= numbers

    def as_report(self, is_complete: bool = False) -> Report:
        height, width = self.config.train.size
        side = self.effort.matmul_side
        numbers: dict[str, Any] = {
            "complete": is_complete,
            "steps": [step_time.as_numbers() for step_time in self.steps],
            "input_size": [height, width],
        }
        notes = [] if is_complete else ["INCOMPLETE: the benchmark has not reached its end"]
        for fastest in self.steps_by_speed()[:1]:
            numbers["fastest"] = {"variant": fastest.variant.name, "batch_size": fastest.batch_size}
            notes.append(f"fastest: {fastest.name}, {fastest.images_per_s:.3g} images/s")
        notes.append(
            "of a matrix product: operations per second of the network's convolutions, as a share of those of the "
            f"product of two {side} x {side} matrices with the same options"
        )
        return Report(
            title=f"training steps: {self.config.model.stacks} stacks, {height} x {width}; every line adds one option",
            header=("variant", "batch", "ms/step", "images/s", "of a matrix product", "peak GiB"),
            rows=[step_time.as_row() for step_time in self.steps],
            numbers=numbers | self.numbers,
            notes=notes,
            sections=tuple(self.sections),
        )


def measure_gpu(
    config: Config,
    runtime: Runtime,
    dataset: PoseDataset,
    workers: int,
    effort: Effort,
    predict: Callable[[], Report],
) -> Iterator[Report]:
    """Measure all variants, and everything else with the fastest of them; yield the report after each measurement.

    Args:
        dataset: its samples feed the steps that measure waiting for data.
        workers: processes of its loader.
        predict: measures prediction on the same device.

    Raises:
        TrainingError: no training step could be measured.
    """
    tables = Tables(config, effort)
    for step_time in measure_variants(config, runtime, effort):
        tables.steps.append(step_time)
        yield tables.as_report()
    fastest = tables.steps_by_speed()
    if not fastest:
        reasons = ", ".join(dict.fromkeys(step_time.status for step_time in tables.steps))
        raise TrainingError(f"no training step could be measured ({reasons}); try smaller --batch-sizes")

    def measure_stages(step_time: StepTime) -> Report:
        variant = replace(step_time.variant, compile_mode=None)  # a compiled step is one graph, which has no stages
        settings = variant.apply(config, step_time.batch_size)
        with variant.backend_flags():
            train_step, model = _build_step(settings, runtime, variant)
            return measure_step(settings, train_step, model, effort.repeats, effort.matmul_side)

    def measure_waits(step_time: StepTime) -> Report:
        variant = step_time.variant
        settings = variant.apply(config, step_time.batch_size)
        with variant.backend_flags():
            train_step, model = _build_step(settings, runtime, variant)
            return measure_run(settings, train_step, model, dataset, workers, step_time, effort)

    stages = _measure_with_fastest("stages of a training step, not compiled", fastest, measure_stages, runtime.device)
    tables.add_section(stages, {"train": stages.numbers})
    yield tables.as_report()
    run = _measure_with_fastest(RUN_TITLE, fastest, measure_waits, runtime.device)
    tables.add_section(run, run.numbers)
    yield tables.as_report()
    try:
        prediction = predict()
    except Exception as error:
        prediction = _failed_table(PREDICTION_TITLE, _describe_failure(PREDICTION_TITLE, error))
    tables.add_section(prediction, {"predict": prediction.numbers})
    yield tables.as_report(is_complete=True)


def _measure_with_fastest(
    title: str, fastest: Sequence[StepTime], measure: Callable[[StepTime], Report], device: torch.device
) -> Report:
    """Measure a table with the first of the ``fastest`` steps that leave enough memory for it."""
    for step_time in fastest:
        try:
            report = measure(step_time)
            return replace(report, notes=[f"measured with the options of {step_time.name}", *report.notes])
        except torch.OutOfMemoryError:
            continue
        except Exception as error:
            return _failed_table(title, _describe_failure(f"{title}, {step_time.name}", error))
        finally:
            _free_memory(device)
    return _failed_table(title, OUT_OF_MEMORY)


def _failed_table(title: str, status: str) -> Report:
    """A table in place of one that could not be measured."""
    return Report(title, ("part", "status"), [("all", status)], {title: status})


def _describe_failure(measurement: str, error: Exception) -> str:
    """The status of a measurement that has failed; its traceback is logged, unless the message explains the error."""
    _log.warning("%s could not be measured", measurement, exc_info=None if isinstance(error, PosenetError) else error)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"failed: {to_single_line(lines[0])}"


def measure_variants(config: Config, runtime: Runtime, effort: Effort) -> Iterator[StepTime]:
    """Measure the training steps of every variant at its batch sizes."""
    gflop_per_image = count_step_gflop(replace(config, train=replace(config.train, batch_size=2))) / 2
    measured: list[StepTime] = []
    for variant in progress_bar(VARIANTS, "variants", unit="variant", leave=False):
        matmul_speed = _measure_matmul(runtime, variant, effort)
        for batch_size in _batch_sizes(variant, effort, measured):
            step_time = measure_variant(config, runtime, variant, batch_size, effort)
            if step_time.seconds is not None and matmul_speed is not None:
                share = gflop_per_image * step_time.images_per_s / matmul_speed
                step_time = replace(step_time, matmul_share=share)
            measured.append(step_time)
            yield step_time


def _measure_matmul(runtime: Runtime, variant: Variant, effort: Effort) -> float | None:
    """GFLOP/s of a matrix product with the options of a variant; None if it cannot be measured."""
    if not variant.is_available(runtime.device):
        return None
    try:
        with variant.backend_flags():
            return matmul_gflop_per_s(runtime, variant.amp, effort.matmul_side)
    except Exception:
        _log.warning("a matrix product in %s could not be measured", variant.name, exc_info=True)
        return None


def _batch_sizes(variant: Variant, effort: Effort, measured: Sequence[StepTime]) -> list[int]:
    """The batch sizes at which a variant is measured; ``measured`` are the variants before it."""
    if variant.compile_mode is None:
        return list(effort.batch_sizes)
    if effort.compiled_batch_sizes is not None:
        return list(effort.compiled_batch_sizes)
    not_compiled = [step_time for step_time in measured if step_time.variant.compile_mode is None]
    fastest = max(not_compiled, key=lambda step_time: step_time.images_per_s)
    return sorted({min(effort.batch_sizes), fastest.batch_size})


def measure_variant(config: Config, runtime: Runtime, variant: Variant, batch_size: int, effort: Effort) -> StepTime:
    """Measure the steps of a new network; the status says why if they cannot be measured."""
    device = runtime.device
    result = StepTime(variant, batch_size)
    if not variant.is_available(device):
        return replace(result, status=NOT_AVAILABLE)
    from torch._dynamo.exc import TorchDynamoException

    try:
        _reset_peak_memory(device)
        with variant.backend_flags():
            seconds = _time_steps(variant.apply(config, batch_size), runtime, variant, effort)
        return replace(result, seconds=seconds, peak_memory_gib=_peak_memory_gib(device))
    except torch.OutOfMemoryError:
        return replace(result, status=OUT_OF_MEMORY)
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0]
        return replace(result, status=f"does not compile: {reason}")
    except Exception as error:
        return replace(result, status=_describe_failure(result.name, error))
    finally:
        _free_memory(device)


def _time_steps(config: Config, runtime: Runtime, variant: Variant, effort: Effort) -> float:
    """Median seconds of a step, after one round that warms up."""
    train_step, _ = _build_step(config, runtime, variant)
    batch = synthetic_batch(config).to(runtime.device)

    def run_steps() -> None:
        for _ in range(effort.steps):
            train_step([batch])

    seconds = median_seconds({"steps": run_steps}, effort.repeats, runtime.synchronize, progress=False)["steps"]
    return seconds / effort.steps


def _build_step(config: Config, runtime: Runtime, variant: Variant) -> tuple[TrainStep, ModelWithLoss]:
    """The training step of a new network; ``TrainingError`` if the loss guard skips it."""
    torch.manual_seed(0)
    train_step, model = build_train_step(config, runtime)
    if variant.compile_mode is not None:
        model.compile(mode=variant.compile_mode)
    pending = train_step([synthetic_batch(config).to(runtime.device)])
    if pending.read().loss is None:
        raise TrainingError(f"the loss guard skipped a step in {variant.name}; benchmark another configuration")
    return train_step, model


def measure_run(
    config: Config,
    train_step: TrainStep,
    model: ModelWithLoss,
    dataset: PoseDataset,
    workers: int,
    step_time: StepTime,
    effort: Effort,
) -> Report:
    """Measure what a run costs besides its steps: checkpoints, waiting for data, and an idle device."""
    batch_size = config.train.batch_size
    assert step_time.seconds is not None
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = measure_checkpoint(config, train_step, model, Path(folder), effort.repeats)
    wait = measure_data_wait(train_step, dataset, batch_size, workers, effort.repeats)
    batches = training_batches(dataset, 4 * batch_size, batch_size)
    loader_speed, _ = measure_loader(dataset, batches, max(workers, 1), effort.repeats)
    batch = synthetic_batch(config).to(train_step.runtime.device)
    idle = measure_idle_share(lambda: train_step([batch]), train_step.runtime, step_time.seconds)
    speed = step_time.images_per_s
    rows: list[tuple[Cell, ...]] = [
        ("training waits for a checkpoint's copy", f"{1000 * checkpoint['stall_s']:.0f} ms"),
        ("a checkpoint is written in the background", f"{1000 * checkpoint['write_s']:.0f} ms"),
        (f"loader, {max(workers, 1)} workers", f"{loader_speed:.3g} images/s"),
        ("training steps need", f"{speed:.3g} images/s"),
        (f"steps wait for data, {workers} workers", f"{wait['data_wait']:.1%} of the time"),
        ("the device idles within a step", NOT_AVAILABLE if idle is None else f"{idle:.1%} of the time"),
    ]
    numbers = {
        "checkpoint_stall_ms": 1000 * checkpoint["stall_s"],
        "checkpoint_write_ms": 1000 * checkpoint["write_s"],
        "loader_images_per_s": loader_speed,
        "loader_over_steps": loader_speed / speed,
        "idle_share": idle,
        **wait,
    }
    notes = []
    if loader_speed < speed:
        notes.append(f"the loader is slower than the device: raise data.workers by {speed / loader_speed:.1f} times")
    return Report(RUN_TITLE, ("part", "cost"), rows, numbers, notes)


def measure_checkpoint(
    config: Config, train_step: TrainStep, model: ModelWithLoss, folder: Path, repeats: int
) -> dict[str, float]:
    """Median seconds for which saving stops the training (``stall_s``), and of writing in the background."""
    average = make_weight_average(model.network, config.average)
    state = RunState(model.network, average, train_step.optimizer, train_step.scaler, train_step.guard)
    writer = CheckpointWriter(CheckpointFolder(folder, keep=1), config.checkpoint)
    settings = config_to_dict(config)
    stalls = []
    writes = []
    for step in range(1, repeats + 2):
        train_step.runtime.synchronize()
        started = time.perf_counter()
        writer.save(state.state_dict(1, settings), step)
        saved = time.perf_counter()
        writer.finish()
        if step > 1:  # the first one warms up
            stalls.append(saved - started)
            writes.append(time.perf_counter() - saved)
    return {"stall_s": median(stalls), "write_s": median(writes)}


def measure_idle_share(step: Task, runtime: Runtime, seconds: float, steps: int = 5) -> float | None:
    """Share of a step of ``seconds`` in which a CUDA device computes nothing, by its profiler; None on other devices.

    The time of the kernels comes from the profiler, which slows the host down, so the length of the step does not.
    """
    if runtime.device.type != "cuda":
        return None
    runtime.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        runtime.synchronize()
    busy: float = sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6 / steps
    return max(0.0, 1 - busy / seconds)


def _reset_peak_memory(device: torch.device) -> None:
    """Let the next reading of the peak memory start from the present memory, where the device supports it."""
    if device.type != "cpu":
        reset = getattr(torch.get_device_module(device), "reset_peak_memory_stats", None)
        if reset is not None:
            reset(device)


def _peak_memory_gib(device: torch.device) -> float | None:
    peak = peak_memory(device)
    return None if peak is None else peak / 2**30


def _free_memory(device: torch.device) -> None:
    """Free what failed or finished measurements have left, so that the next ones have all memory."""
    torch._dynamo.reset()
    gc.collect()
    if device.type != "cpu":
        empty_cache = getattr(torch.get_device_module(device), "empty_cache", None)
        if empty_cache is not None:
            with contextlib.suppress(RuntimeError):  # a device that has failed repeats its error at every call
                empty_cache()

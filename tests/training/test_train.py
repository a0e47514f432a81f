"""Training runs from Python: results, folders, stopping, precision."""

import logging
import math
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
from torch import nn

import posenet
from posenet.checkpoints import folder as checkpoint_folder
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError, TrainingError
from posenet.training.batches import StepBatches
from posenet.training.train import TrainingResult
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import (
    LEARNING,
    AfterStep,
    ChangingRuntime,
    Recorder,
    Stores,
    WatchedRuntime,
    coco_settings,
    last,
    multiply,
    train_tiny,
    weights,
)

STEPS = 7
"""Steps of an epoch of ``TINY``."""


class ScoredRuntime(Runtime):
    """Gives every evaluation the next of some APs, through the exchange of the scores between the ranks."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = iter(scores)

    def broadcast_object(self, value: Any) -> Any:
        return value | {"AP": next(self.scores)} if isinstance(value, dict) and "AP" in value else value


def test_a_run_learns_writes_its_files_and_returns_where_it_ended(stores: Stores, tmp_path: Path) -> None:
    recorder = Recorder()
    result = train_tiny(stores, tmp_path / "run", *LEARNING, "inference.height=64", callbacks=[recorder])
    first, second = recorder.epochs
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert second["train_loss"] < first["train_loss"]
    assert second["val_loss"] < 0.98 * first["val_loss"]
    best = min(recorder.epochs, key=lambda values: values["val_loss"])
    assert result == TrainingResult(tmp_path / "run", True, 2, 2 * STEPS, {"val_loss": best["val_loss"]})
    assert read_checkpoint(tmp_path / "run" / "best.pth")["progress"]["epoch"] == best["epoch"]
    state = last(tmp_path / "run")
    assert state["progress"]["epoch"] == 2
    train = state["config"]["train"]
    assert (train["amp"], train["channels_last"]) == ("off", False), "what auto has chosen"
    assert {"last.pth", "best.pth", "log.txt", "log.jsonl", "run.status"} <= set(os.listdir(tmp_path / "run"))


def test_wrong_arguments_are_a_config_error() -> None:
    for arguments, message in [
        ({"overrides": {"train.epochs": 3}}, "train.epoch"),
        ({"overrides": "train.epochs"}, "train.epoch"),
        ({"config": 3}, "an experiment is given by its name or path"),
        ({"max_steps": -1}, "max_steps is -1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            posenet.train(**arguments)


def test_a_folder_with_a_run_is_neither_overwritten_nor_mixed_with_another(stores: Stores, tmp_path: Path) -> None:
    for name, steps in (("one", 1), ("two", 2)):
        train_tiny(stores, tmp_path / name, max_steps=steps)
    before = (tmp_path / "two" / "last.pth").read_bytes()
    with pytest.raises(CheckpointError, match="two already contains a run; continue it with --resume"):
        train_tiny(stores, tmp_path / "two")
    with pytest.raises(CheckpointError, match="two already contains another run than .*last.pth; choose another"):
        train_tiny(stores, tmp_path / "two", resume=tmp_path / "one")
    assert (tmp_path / "two" / "last.pth").read_bytes() == before
    train_tiny(stores, tmp_path / "three", resume=tmp_path / "one" / "last.pth", max_steps=2)
    assert last(tmp_path / "three")["progress"]["total_steps"] == 2
    assert last(tmp_path / "one")["progress"]["total_steps"] == 1


def test_a_stop_signal_ends_the_run_after_the_step(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    stop = AfterStep(3, lambda: signal.raise_signal(signal.SIGTERM))
    with caplog.at_level(logging.INFO):
        result = train_tiny(stores, tmp_path, callbacks=[stop])
    assert (result.stopped, result.finished, result.steps) == (True, False, 3)
    assert last(tmp_path)["progress"]["total_steps"] == 3
    assert f"Stopped after step 3 (epoch 1), saved in {tmp_path / 'last.pth'}; --resume continues" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_signal_while_the_run_is_set_up_stops_it_before_the_first_step(stores: Stores, tmp_path: Path) -> None:
    class SignalAtStart(Recorder):
        def on_start(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    recorder = SignalAtStart()
    result = train_tiny(stores, tmp_path, callbacks=[recorder])
    assert (result.stopped, result.steps, recorder.steps) == (True, 0, {})
    assert train_tiny(stores, tmp_path, resume=True, max_steps=1).steps == 1


def test_a_stop_during_the_validation_ends_it_and_the_resumed_run_repeats_it(
    stores: Stores, tiny_coco: Path, tmp_path: Path
) -> None:
    """The signal arrives before the validation loss, or during the evaluation of the AP."""
    settings = ("train.epochs=1", *coco_settings(tiny_coco))
    at_last_step = AfterStep(STEPS, lambda: signal.raise_signal(signal.SIGTERM))

    class SignalAfterTheLoss(Runtime):
        def gather_objects(self, value: Any) -> list[Any]:
            if isinstance(value, tuple):  # with the sum of the validation losses
                signal.raise_signal(signal.SIGTERM)
            return super().gather_objects(value)

    stops = {"loss": ([at_last_step], Runtime()), "AP": ([], SignalAfterTheLoss())}
    for name, (callbacks, runtime) in stops.items():
        folder = tmp_path / name
        result = train_tiny(stores, folder, *settings, callbacks=callbacks, runtime=runtime)
        assert (result.stopped, result.epochs, result.steps) == (True, 0, STEPS), name
        assert read_log(folder, "epoch") == []
        assert train_tiny(stores, folder, *settings, resume=True).finished
        assert len(read_log(folder, "epoch")) == 1
        assert len(read_log(folder, "train")) == STEPS


def test_max_steps_counts_from_the_start_and_an_epoch_that_it_completes_is_validated(
    stores: Stores, tmp_path: Path
) -> None:
    for steps, epochs in ((STEPS - 1, 0), (STEPS, 1)):
        with patch.object(StepBatches, "take_step", autospec=True, side_effect=StepBatches.take_step) as take_step:
            result = train_tiny(stores, tmp_path, resume=steps != STEPS - 1, max_steps=steps)
        assert {call.args[1] for call in take_step.call_args_list} == {0}, "batches of the first epoch alone"
        assert (result.steps, result.epochs, result.finished, result.stopped) == (steps, epochs, False, False)
        assert len(read_log(tmp_path, "epoch")) == epochs
        assert (tmp_path / "run.status").read_text() == "finished\n"


def test_a_completed_run_is_not_trained_again(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path, "train.epochs=1")
    result = train_tiny(stores, tmp_path, "train.epochs=1", resume=True)
    assert result.finished and result.steps == STEPS
    assert train_tiny(stores, tmp_path, "train.epochs=2", resume=True, max_steps=STEPS + 1).steps == STEPS + 1


def test_a_run_stops_early_without_better_scores_and_keeps_the_best_checkpoint(
    stores: Stores, tiny_coco: Path, tmp_path: Path
) -> None:
    scores = [0.1, 0.4, 0.3, 0.4, 0.9]
    settings = [*coco_settings(tiny_coco), "train.patience=2", f"train.epochs={len(scores)}"]
    # One step an epoch.
    settings += ["train.batch_size=14", "optim.warmup_epochs=0"]
    result = train_tiny(stores, tmp_path, *settings, runtime=ScoredRuntime(scores))
    assert (result.epochs, result.finished, result.stopped_early, result.best) == (4, False, True, {"AP": 0.4})
    state = read_checkpoint(tmp_path / "best.pth")
    assert (state["progress"]["epoch"], state["progress"]["best"]) == (4, 0.4)
    assert state["config"]["optim"]["warmup_epochs"] == 0, "as it was set"
    assert "Stopped early after 2 scores" in (tmp_path / "log.txt").read_text()
    # It has stopped, also if it is started again.
    assert train_tiny(stores, tmp_path, *settings, resume=True, runtime=ScoredRuntime([])).epochs == 4


def test_a_best_score_whose_checkpoint_cannot_be_written_does_not_count(
    stores: Stores, tiny_coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint_folder.write_checkpoint

    def write_or_fail(path: Path, state: dict[str, Any]) -> None:
        if state["progress"]["epoch"] == 2:
            raise OSError("the disk is full")
        write(path, state)

    monkeypatch.setattr(checkpoint_folder, "write_checkpoint", write_or_fail)
    settings = (*coco_settings(tiny_coco), "train.epochs=3", "train.batch_size=14")
    result = train_tiny(stores, tmp_path, *settings, runtime=ScoredRuntime([0.1, 0.5, 0.4]))
    assert result.best == {"AP": 0.4}
    assert read_checkpoint(tmp_path / "best.pth")["progress"]["epoch"] == 3


def test_the_ap_is_computed_every_few_epochs_and_after_the_last(
    stores: Stores, tiny_coco: Path, tmp_path: Path
) -> None:
    settings = (*coco_settings(tiny_coco), "train.evaluate_every=2", "train.epochs=3", "train.batch_size=14")
    recorder = Recorder()
    train_tiny(stores, tmp_path, *settings, callbacks=[recorder])
    assert ["AP" in values for values in recorder.epochs] == [False, True, True]
    assert "AP after every 2 epochs and the last" in (tmp_path / "log.txt").read_text()
    assert all(values["val_loss"] is not None for values in recorder.epochs)


def test_every_step_has_the_rate_of_the_schedule_and_the_log_every_nth_step(stores: Stores, tmp_path: Path) -> None:
    recorder = Recorder()
    train_tiny(stores, tmp_path, "log.every_steps=4", "optim.warmup_epochs=2", callbacks=[recorder])
    expected = [step for step in range(1, 2 * STEPS + 1) if step % 4 == 0 or step % STEPS == 0]
    assert list(recorder.steps) == expected
    rates = [values["lr"] for values in recorder.steps.values()]
    assert rates == pytest.approx([1e-5 * step / (2 * STEPS) for step in expected])
    assert [entry["step"] for entry in read_log(tmp_path, "train")] == expected


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_a_run_in_half_precision_keeps_its_weights_finite_and_records_its_precision(
    stores: Stores, tmp_path: Path, amp: str
) -> None:
    """Autocast computes the network, and only the network, in half precision."""
    seen: dict[str, torch.dtype] = {}

    def watch(module: nn.Module) -> None:
        conv = module.network.stacks[0].heads[0].output
        conv.register_forward_hook(lambda *args: seen.update(maps=args[-1].dtype))
        module.register_forward_hook(lambda *args: seen.update(terms=args[-1].dtype))

    train_tiny(stores, tmp_path, f"train.amp={amp}", "train.epochs=1", runtime=WatchedRuntime(watch))
    assert seen == {"maps": {"bf16": torch.bfloat16, "fp16": torch.float16}[amp], "terms": torch.float32}
    assert all(tensor.isfinite().all() and tensor.dtype != torch.half for tensor in weights(tmp_path).values())
    assert last(tmp_path)["config"]["train"]["amp"] == amp
    # The first loss scale of 65536 is too large for this network; every skipped step halves it. How often depends on
    # the rounding of a processor.
    skipped = int(math.log2(65536 / last(tmp_path)["scaler"]["scale"])) if amp == "fp16" else 0
    assert (skipped > 0) == (amp == "fp16")
    assert (" skipped" in (tmp_path / "log.txt").read_text()) == bool(skipped)
    assert read_log(tmp_path, "skip") == []


def test_memory_format_and_flags_of_cudnn_are_those_of_the_settings(stores: Stores, tmp_path: Path) -> None:
    """The flags hold during the run only."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32
    seen: set[tuple[bool, ...]] = set()

    def record(*args: Any) -> None:
        tensors = args[-1], args[0].refine.spatial.conv.weight
        is_channels_last = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
        flags = cudnn.benchmark, cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
        seen.add((is_channels_last, *flags))

    runtime = WatchedRuntime(lambda module: module.network.stem.register_forward_hook(record))
    for flag in (True, False):
        seen.clear()
        value, other = str(flag).lower(), str(not flag).lower()
        settings = (f"train.channels_last={value}", f"train.tf32={value}", f"train.deterministic={other}")
        train_tiny(stores, tmp_path / value, *settings, max_steps=1, runtime=runtime)
        assert seen == {(flag, flag, flag, not flag)}, "deterministic algorithms are not chosen by their speed"
    assert (cudnn.benchmark, cudnn.allow_tf32) == before


def test_too_little_memory_is_one_line_that_names_the_batch_size(stores: Stores, tmp_path: Path) -> None:
    class FullDevice(Runtime):
        def to_device(self, batch: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")

    with pytest.raises(TrainingError, match=r"cpu has too little memory; lower train\.batch_size and raise optim"):
        train_tiny(stores, tmp_path, runtime=FullDevice())
    assert (tmp_path / "run.status").read_text() == "failed\n"
    assert "ERROR: cpu has too little memory; lower train.batch_size" in (tmp_path / "log.txt").read_text()


def state_of_process() -> dict[str, Any]:
    """What a program that trains may have set for itself."""
    loggers = [logging.getLogger(name) for name in (None, "posenet", "posenet.training", "PIL", "matplotlib")]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    return {
        "loggers": [(logger.level, list(logger.handlers), list(logger.filters)) for logger in loggers],
        "filters of handlers": [list(handler.filters) for handler in handlers],
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "threads": (torch.get_num_threads(), cv2.getNumThreads(), threading.enumerate()),
        "flags": [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
        ],
        "generators": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "path": (list(sys.path), os.getcwd(), dict(os.environ), list(warnings.filters)),
    }


def test_a_run_gives_back_what_it_changes_in_its_process(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which train.deterministic leaves behind, as it says
    train_tiny(stores, tmp_path / "warm-up", max_steps=1)  # which imports all packages
    torch.manual_seed(123)
    before = state_of_process()
    train_tiny(stores, tmp_path / "run", "train.deterministic=true", "train.epochs=1")
    with pytest.raises(ConfigError):
        train_tiny(stores, tmp_path / "refused", "train.device=cpu:7x")
    after = state_of_process()
    assert {name: (before[name], after[name]) for name in before if after[name] != before[name]} == {}


def test_a_run_logs_what_its_host_wants_to_see_and_all_in_its_file(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for level, shown in ((logging.WARNING, False), (logging.INFO, True)):
        caplog.clear()
        caplog.set_level(level, "posenet")
        train_tiny(stores, tmp_path / str(level), max_steps=1)
        assert ("Device cpu" in caplog.text) == shown
        assert "Device cpu" in (tmp_path / str(level) / "log.txt").read_text()


def test_an_epoch_that_ends_with_bad_steps_is_saved_only_if_it_is_the_last_or_the_best(
    tmp_path: Path, stores: Stores
) -> None:
    """A return to a checkpoint must find weights from before the bad steps."""
    for data, epochs in (({"train": stores["train"]}, 2), (stores, 1)):
        folder = tmp_path / str(epochs)
        train_tiny(data, folder, f"train.epochs={epochs}", runtime=ChangingRuntime(multiply({STEPS: math.nan})))
        assert [path.name for path in folder.glob("step-*")] == [f"step-{epochs * STEPS:08d}.pth"]
        assert last(folder)["progress"]["epoch"] == epochs


def test_fine_tuning_starts_from_weights_and_leaves_frozen_ones_to_the_bit(stores: Stores, tmp_path: Path) -> None:
    train_tiny(stores, tmp_path / "first", max_steps=3)
    source = tmp_path / "first" / "last.pth"
    flags = (f"train.weights={source}", "train.freeze=['all-but-heads']", *LEARNING)
    train_tiny(stores, tmp_path / "second", *flags, max_steps=3)
    log = (tmp_path / "second" / "log.txt").read_text()
    assert f"Fine-tuning. {source}: loaded {len(weights(source.parent))} tensors" in log
    assert "Frozen: " in log
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    heads = {name for name in before if ".heads." in name}
    assert changed <= heads and len(changed) > len(heads) / 2
    # A resumed run continues from its own weights, and not from these.
    source.unlink()
    train_tiny(stores, tmp_path / "second", *flags, resume=True, max_steps=4)


def test_unusable_settings_are_refused_before_the_first_step(stores: Stores, tmp_path: Path) -> None:
    empty = write_annotations(tmp_path / "empty.json", document([1], []))
    people = write_annotations(tmp_path / "people.json", document([1], [person(1, 1)]))
    for overrides, message in {
        ("data.train=missing.h5",): r"missing\.h5",
        ("data.train=",): "build-hdf5",
        ("train.freeze=['stem.*', 'merges*']",): r"'merges\*' matches no parameter",
        ("train.freeze=['*']",): "leaves nothing to train",
        ("average.kind=swa", "average.cycle_epochs=1"): r"frozen BatchNorm.*train.freeze=",
        ("train.weights=missing.pth",): r"missing\.pth",
        ("train.device=toaster",): "'toaster'",
        ("train.patience=1", "data.val="): "needs a score; set data.val",
        (f"data.val_images={tmp_path}",): r"val_images needs data\.val_annotations",
        (f"data.val_annotations={people}",): r"val_annotations needs data\.val_images",
        ("train.batch_size=1",): "BatchNorm has one cell",
        (f"data.val_images={tmp_path}", f"data.val_annotations={empty}"): "contains no annotated people",
        (f"data.val_images={tmp_path}", f"data.val_annotations={people}"): r"000000000001\.jpg",
    }.items():
        with pytest.raises(posenet.PosenetError, match=message):
            train_tiny(stores, tmp_path / "runs" / "run", *overrides)
        assert not list(tmp_path.glob("runs/run/*.pth")), overrides

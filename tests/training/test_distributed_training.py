"""Training in two processes: gradients, bad batches, stop signals, early stopping and validation."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenet.checkpoints.file import read_checkpoint
from posenet.data.loader import Batch
from posenet.devices.distributed import DistributedRuntime
from posenet.devices.precision import make_grad_scaler
from posenet.devices.runtime import Runtime
from posenet.errors import TrainingError
from posenet.inference.person import Person
from posenet.model.posenet import PoseNet
from posenet.settings import GuardConfig, load_config
from posenet.training.coco_validation import CocoValidation
from posenet.training.loss_guard import LossGuard
from posenet.training.run_log import SilentLog
from posenet.training.train_step import TrainStep
from posenet.training.trainer import UnreadStep
from tests.helpers.process_groups import run_in_processes
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import CPU, TINY_OVERRIDES, before_step, coco_overrides, copy_weights, tiny_trainer

Stores = dict[str, Path]

SMALL = ("train.batch_size=2", "optim.lr=1e-4")


class PerImage(nn.Module):
    """A model with one loss value per image."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, images: Tensor, *_: None) -> Tensor:
        return self.linear(images)[:, 0]


def test_gradients_are_exchanged_once_per_step_with_accumulation(tmp_path: Path) -> None:
    images = torch.arange(24.0).reshape(2, 2, 2, 3)  # rank, batch, image, value

    def train(runtime: DistributedRuntime) -> tuple[list[int], Tensor]:
        exchanges = []

        def average(_, bucket):  # with type hints PyTorch expects another kind of hook
            exchanges.append(bucket)
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(runtime.all_reduce_sum(bucket.buffer()) / runtime.world_size)
            return future

        torch.manual_seed(0)
        linear = nn.Linear(3, 1, bias=False)
        wrapped = runtime.wrap(PerImage(linear))
        wrapped.register_comm_hook(None, average)
        optimizer = torch.optim.SGD(linear.parameters(), 0.1)
        scaler = make_grad_scaler(runtime.device, "off", 0.0)
        train_step = TrainStep(wrapped, optimizer, scaler, LossGuard(GuardConfig()), runtime, max_grad_norm=0.0)
        good = [Batch(batch, None, None, None, None) for batch in images[runtime.rank]]
        bad = [good[0], Batch(torch.full((2, 3), math.nan), None, None, None, None)]
        train_step(good)
        weight = linear.weight.detach().clone()
        counts = [len(exchanges)]
        for batches in (bad, good):  # a skipped step must not leave an exchange for the next one
            train_step(batches)
            counts.append(len(exchanges))
        return counts, weight

    (counts, weight), (_, other_weight) = run_in_processes(2, tmp_path, train)
    torch.manual_seed(0)
    initial_weight = nn.Linear(3, 1, bias=False).weight.detach()
    assert counts == [1, 2, 3]
    assert torch.equal(weight, other_weight)
    torch.testing.assert_close(weight, initial_weight - 0.1 * images.reshape(-1, 3).mean(0, keepdim=True))


def test_nan_on_one_rank_makes_both_skip_the_step_and_the_log_names_its_images(stores: Stores, tmp_path: Path) -> None:
    def train(runtime: DistributedRuntime) -> dict[str, Any]:
        with tiny_trainer(runtime, stores, tmp_path / "run", *SMALL, steps=5) as trainer:
            forward = trainer.model.forward
            react_to_bad_step = trainer._react_to_bad_step
            weights_before_step = []
            bad_images = []

            def forward_with_nan(*batch: Tensor) -> Tensor:
                weights_before_step.append(copy_weights(trainer))
                is_bad = len(weights_before_step) == 2 and runtime.rank == 1
                return forward(*batch) * (math.nan if is_bad else 1)

            def record_bad_images(step: UnreadStep, bad_value: float) -> None:
                bad_images.extend(step.image_ids[0].tolist())
                react_to_bad_step(step, bad_value)

            trainer.model.forward = forward_with_nan
            trainer._react_to_bad_step = record_bad_images
            trainer.run()
            trained = {name for name, _ in trainer.model.network.named_parameters()}
            final = {name: tensor for name, tensor in copy_weights(trainer).items() if name in trained}
            return {"before": weights_before_step, "images": bad_images, "losses": trainer.losses, "final": final}

    first, second = run_in_processes(2, tmp_path / "results", train)
    assert [loss is None for loss in first["losses"]] == [False, True, False, False, False]
    assert first["losses"] == second["losses"]
    for result in (first, second):  # the skipped step changed neither weights nor BatchNorm statistics
        before = result["before"][1]
        after = result["before"][2]
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(first["final"][name], tensor) for name, tensor in second["final"].items())
    (skip,) = read_log(tmp_path / "run", "skip")
    assert skip["image_ids"] == second["images"]
    assert skip["image_ids"] != first["images"]
    assert skip["value"] == "nan"


def test_a_launcher_that_ends_the_other_processes_does_not_hide_the_loss_of_one(stores: Stores, tmp_path: Path) -> None:
    message = tmp_path / "message"

    def train(runtime: DistributedRuntime) -> None:
        def find_culprits() -> str:
            os.kill(os.getpid(), signal.SIGTERM)
            return "rank 1 does not answer"

        runtime.roll_call.find_culprits = find_culprits
        with tiny_trainer(runtime, stores, tmp_path / "run", *SMALL, steps=50) as trainer:
            if runtime.rank == 1:
                before_step(trainer, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
            try:
                trainer.run()
            except TrainingError as error:
                message.write_text(str(error))
                raise

    with pytest.raises(TrainingError, match="rank 1 of 2 was killed"):
        run_in_processes(2, tmp_path / "results", train)
    assert message.read_text().startswith("lost the other processes (")
    assert message.read_text().endswith("): rank 1 does not answer; continue the run with --resume")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_stops_both_with_a_checkpoint(stores: Stores, tmp_path: Path, number: int) -> None:
    def train(runtime: DistributedRuntime) -> tuple[bool, int]:
        with tiny_trainer(runtime, stores, tmp_path / "run", *SMALL, steps=50) as trainer:
            if runtime.rank == 1:
                before_step(trainer, 2, lambda: os.kill(os.getpid(), number))
            return trainer.run(), trainer.progress.total_steps

    assert run_in_processes(2, tmp_path / "results", train) == [(False, 2), (False, 2)]
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["total_steps"] == 2


@pytest.mark.parametrize("stage", ["loss", "AP"])
def test_a_signal_to_one_rank_ends_the_validation_on_both(
    stores: Stores, tiny_coco: Path, tmp_path: Path, stage: str
) -> None:
    overrides = (*SMALL, *coco_overrides(tiny_coco), "train.epochs=1")

    def train(runtime: DistributedRuntime) -> tuple[bool, int, int]:
        with tiny_trainer(runtime, stores, tmp_path / "run", *overrides) as trainer:
            owner, name = {"loss": (trainer.model, "eval"), "AP": (trainer.evaluate.predictor, "stream")}[stage]
            method = getattr(owner, name)

            def signal_and_call(*args: Any) -> Any:
                if runtime.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                return method(*args)

            setattr(owner, name, signal_and_call)
            return trainer.run(), trainer.progress.epoch, trainer.progress.step - trainer.input.steps_per_epoch

    assert run_in_processes(2, tmp_path / "results", train) == [(False, 0, 0), (False, 0, 0)]
    assert read_log(tmp_path / "run", "epoch") == []


def test_an_fp16_overflow_on_one_rank_lowers_the_scale_of_both(stores: Stores, tmp_path: Path) -> None:
    def train(runtime: DistributedRuntime) -> dict[str, Any]:
        with tiny_trainer(runtime, stores, tmp_path / "run", *SMALL, "train.amp=fp16", steps=3) as trainer:
            num_gradients = 0

            def overflow_in_second_step(gradient: Tensor) -> Tensor:
                nonlocal num_gradients
                num_gradients += 1
                return gradient * (math.inf if num_gradients == 2 and runtime.rank == 1 else 1)

            next(trainer.model.network.parameters()).register_hook(overflow_in_second_step)
            trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 8.0})
            trainer.run()
            weights = dict(trainer.model.network.named_parameters())
            return {"losses": trainer.losses, "scale": trainer.scaler.get_scale(), "weights": weights}

    first, second = run_in_processes(2, tmp_path / "results", train)
    assert [loss is None for loss in first["losses"]] == [False, True, False]
    assert first["losses"] == second["losses"]
    assert first["scale"] == second["scale"] == 4.0
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name])
        assert weight.isfinite().all()


def test_rank_0_decides_about_early_stopping(stores: Stores, tmp_path: Path) -> None:
    def train(runtime: DistributedRuntime) -> tuple[bool, int]:
        with tiny_trainer(runtime, stores, tmp_path / "run", *SMALL, "train.patience=3", "train.epochs=2") as trainer:
            trainer.validate = lambda: 1.0
            trainer.progress.best = math.inf
            trainer.progress.best_kind = "val_loss"
            trainer.progress.stale = 2 if runtime.rank == 0 else -9
            return trainer.run(), trainer.progress.epoch

    assert run_in_processes(2, tmp_path / "results", train) == [(False, 1), (False, 1)]


def test_two_ranks_validate_every_image_once(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    truth = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    config = load_config(None, [*TINY_OVERRIDES, *coco_overrides(tiny_coco)])

    def validate(runtime: Runtime) -> dict[str, Any]:
        evaluate = CocoValidation.from_config(config, PoseNet.from_config(config), runtime, SilentLog())
        predicted_images = []

        def predict(images: Iterable[Any]) -> Iterator[list[Person]]:
            for image in images:
                predicted_images.append(image)
                yield [Person(torch.full((18, 3), float(image.mean())).numpy(), 0.5)]

        evaluate.predictor.stream = predict
        with tiny_trainer(runtime, stores, tmp_path / f"run{runtime.world_size}", *SMALL) as trainer:
            return {"metrics": evaluate(1, 1), "count": len(predicted_images), "loss": trainer.validate()}

    single = validate(Runtime(CPU))
    first, second = run_in_processes(2, tmp_path / "results", validate)
    assert single["count"] == first["count"] + second["count"] == len(truth["images"])
    assert first["count"] > 0 and second["count"] > 0
    assert first["metrics"] == second["metrics"] == single["metrics"]
    assert first["loss"] == second["loss"] == pytest.approx(single["loss"], rel=1e-6)

"""Several processes: what they tell each other, bad batches, signals, deaths, evaluation and devices."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenet.annotations.coco_file import CocoImage
from posenet.checkpoints.file import read_checkpoint
from posenet.devices.distributed import DistributedRuntime, device_of_rank, is_lost_contact, process_group_backends
from posenet.devices.rank_info import RankInfo
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError, TrainingError
from posenet.inference.person import Person
from posenet.model.posenet import PoseNet
from posenet.settings import load_config
from posenet.training import coco_validation
from posenet.training.run_log import SilentLog
from tests.helpers.process_groups import in_world, run

SMALL = ("train.batch_size=2", "optim.lr=1e-4")


def test_processes_tell_each_other(tmp_path: Path) -> None:
    def talk(runtime: DistributedRuntime) -> tuple[Any, ...]:
        mine = torch.full((2,), float(runtime.rank))
        runtime.broadcast_tensors([mine])
        total = torch.tensor([1.0, float(runtime.rank)])
        return (
            runtime.rank,
            runtime.world_size,
            runtime.is_main,
            runtime.any_rank(runtime.rank == 1),
            runtime.any_rank(False),
            runtime.vote(False, True, runtime.rank == 0),
            runtime.all_reduce_sum(total).tolist(),
            total.tolist(),
            runtime.gather_objects({"rank": runtime.rank}),
            runtime.broadcast_object(f"from {runtime.rank}"),
            mine.tolist(),
        )

    said = in_world(2, tmp_path, talk)
    shared = (True, False, (False, True, True), [2.0, 1.0])
    assert said == [
        (rank, 2, rank == 0, *shared, [1.0, rank], [{"rank": 0}, {"rank": 1}], "from 0", [0.0, 0.0])
        for rank in range(2)
    ]


def test_accumulation_communicates_once_a_step(tmp_path: Path) -> None:
    def count(runtime: DistributedRuntime) -> tuple[int, Tensor]:
        from posenet.data.batch import Batch
        from posenet.devices.precision import grad_scaler
        from posenet.settings import GuardConfig
        from posenet.training.loss_guard import LossGuard
        from posenet.training.trainer import TrainStep

        calls = []

        def average(_, bucket):  # with types PyTorch takes it for another kind of hook
            calls.append(bucket)
            gradient = runtime.all_reduce_sum(bucket.buffer()) / runtime.world_size
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(gradient)
            return future

        torch.manual_seed(0)
        linear = nn.Linear(3, 1, bias=False)
        wrapped = runtime.wrap(_PerImage(linear))
        wrapped.register_comm_hook(None, average)
        optimizer = torch.optim.SGD(linear.parameters(), 0.1)
        scaler = grad_scaler(runtime.device, "off")
        train_step = TrainStep(wrapped, optimizer, scaler, LossGuard(GuardConfig()), runtime, max_grad_norm=0.0)
        images = torch.arange(24.0).reshape(2, 2, 2, 3)  # process, batch, image, value
        good, bad = images[runtime.rank], torch.stack([images[runtime.rank][0], torch.full((2, 3), math.nan)])
        train_step([Batch(batch, None, None, None, None) for batch in good])
        weight, counts = linear.weight.detach().clone(), [len(calls)]
        for batches in (bad, good):  # what a dropped step has left undone must not be done in the next one
            train_step([Batch(batch, None, None, None, None) for batch in batches])
            counts.append(len(calls))
        return counts, weight

    (calls, weight), (_, other) = in_world(2, tmp_path, count)
    torch.manual_seed(0)
    start = nn.Linear(3, 1, bias=False).weight.detach()
    assert calls == [1, 2, 3] and torch.equal(weight, other)
    torch.testing.assert_close(weight, start - 0.1 * torch.arange(24.0).reshape(-1, 3).mean(0, keepdim=True))


class _PerImage(nn.Module):
    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, images: Tensor, *_: None) -> Tensor:
        return self.linear(images)[:, 0]


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if line["kind"] == kind]


def test_nan_on_one_process_makes_both_skip_and_names_its_images(stores, tmp_path):
    def explode(runtime: DistributedRuntime) -> Any:
        with run(runtime, stores, tmp_path / "run", *SMALL, steps=5) as trainer:
            forward, before, images = trainer.model.forward, [], []

            def bad_second(*batch: Tensor) -> Tensor:
                before.append({n: t.clone() for n, t in trainer.model.network.state_dict().items()})
                second = len(before) == 2 and runtime.rank == 1
                return forward(*batch) * (math.nan if second else 1)

            react = trainer._react_to

            def remember_bad_images(result: Any, batches: Any) -> None:
                if result.loss is None:
                    images.extend(batches[0].image_ids.tolist())
                react(result, batches)

            trainer._react_to = remember_bad_images
            trainer.model.forward = bad_second
            trainer.run()
            return before, images, trainer.losses, {n: t.clone() for n, t in trainer.model.network.state_dict().items()}

    one, two = in_world(2, tmp_path / "w", explode)
    assert [loss is None for loss in one[2]] == [False, True, False, False, False] and one[2] == two[2]
    for before, *_ in (one, two):  # the second step changed neither weights nor statistics of either
        assert all(torch.equal(before[1][n], before[2][n]) for n in before[1])
    trained = dict(PoseNet(stacks=1, width=16, growth=2).named_parameters())
    assert all(torch.equal(one[3][n], two[3][n]) for n in trained)
    (skip,) = lines(tmp_path / "run", "skip")
    assert skip["image_ids"] == two[1] != one[1] and skip["value"] == "nan"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_process_stops_both_with_a_checkpoint(stores, tmp_path, number):
    def stopped(runtime: DistributedRuntime) -> tuple[bool, int]:
        with run(runtime, stores, tmp_path / "run", *SMALL, steps=50) as trainer:
            update = trainer.train_step

            def interrupted(batches: Any) -> Any:
                if runtime.rank == 1 and len(trainer.losses) == 1:
                    os.kill(os.getpid(), number)
                return update(batches)

            trainer.train_step = interrupted
            return trainer.run(), trainer.progress.total_steps

    assert in_world(2, tmp_path / "w", stopped) == [(False, 2), (False, 2)]
    assert read_checkpoint(tmp_path / "run" / "last.pth")["progress"]["total_steps"] == 2


@pytest.mark.parametrize("where", ["loss", "AP"])
def test_a_signal_to_one_process_breaks_off_validation_on_both(stores, tiny_coco, tmp_path, where):
    pictures = [
        f"data.val_images={str(tiny_coco / 'val2017')!r}",
        "inference.height=64",
        "log.pictures=0",
        f"data.val_annotations={str(tiny_coco / 'annotations' / 'person_keypoints_val2017.json')!r}",
    ]

    def stopped(runtime: DistributedRuntime) -> tuple[bool, int, int]:
        with run(runtime, stores, tmp_path / "run", *SMALL, *pictures, "train.epochs=1") as trainer:
            owner, name = {"loss": (trainer.model, "eval"), "AP": (trainer.evaluate.predictor, "batch")}[where]
            work = getattr(owner, name)

            def interrupted(*args: Any) -> Any:
                if runtime.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                return work(*args)

            setattr(owner, name, interrupted)
            trainer.evaluate.share *= 20  # batches are left when the signal comes
            return trainer.run(), trainer.progress.epoch, trainer.progress.step - trainer.input.steps_per_epoch

    assert in_world(2, tmp_path / "w", stopped) == [(False, 0, 0), (False, 0, 0)]
    assert lines(tmp_path / "run", "epoch") == []


def test_in_fp16_an_overflow_on_one_process_lowers_the_scale_of_both(stores, tmp_path):
    def overflow(runtime: DistributedRuntime) -> tuple[list[float | None], float, dict[str, Tensor]]:
        with run(runtime, stores, tmp_path / "run", *SMALL, "train.amp=fp16", steps=3) as trainer:
            weight, calls = next(trainer.model.network.parameters()), []

            def infinite_second(gradient: Tensor) -> Tensor:
                calls.append(1)
                return gradient * (math.inf if len(calls) == 2 and runtime.rank == 1 else 1)

            weight.register_hook(infinite_second)
            trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 8.0})
            trainer.run()
            return trainer.losses, trainer.scaler.get_scale(), dict(trainer.model.network.named_parameters())

    one, two = in_world(2, tmp_path / "w", overflow)
    assert [loss is None for loss in one[0]] == [False, True, False] and one[0] == two[0]
    assert one[1] == two[1] == 4.0
    assert all(torch.equal(one[2][n], two[2][n]) and one[2][n].isfinite().all() for n in one[2])


def test_early_stopping_is_decided_on_the_main_process(stores, tmp_path):
    def stale(runtime: DistributedRuntime) -> tuple[bool, int]:
        with run(runtime, stores, tmp_path / "run", *SMALL, "train.patience=3", "train.epochs=2") as trainer:
            trainer.validate = lambda: 1.0
            trainer.progress.best, trainer.progress.best_kind = math.inf, "val_loss"
            trainer.progress.stale = 2 if runtime.rank == 0 else -9
            return trainer.run(), trainer.progress.epoch

    assert in_world(2, tmp_path / "w", stale) == [(False, 1), (False, 1)]


def test_a_killed_process_ends_the_others_and_is_named(stores, tmp_path, capfd):
    def killed(runtime: DistributedRuntime) -> None:
        with run(runtime, stores, tmp_path / "run", *SMALL) as trainer:
            update = trainer.train_step

            def fatal(batches: Any) -> Any:
                if runtime.rank == 1 and len(trainer.losses) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return update(batches)

            trainer.train_step = fatal
            try:
                trainer.run()
            except RuntimeError as error:
                assert is_lost_contact(error)
                raise

    with pytest.raises(TrainingError, match="rank 1 of 2 was ended by SIGKILL"):
        in_world(2, tmp_path / "w", killed)


def test_validation_counts_every_image_once(stores, tiny_coco, tmp_path):
    truth = json.loads((tiny_coco / "annotations" / "person_keypoints_val2017.json").read_text())
    config = load_config(
        None,
        [
            "model.stacks=1",
            "model.width=16",
            "model.growth=2",
            "inference.height=64",
            "log.pictures=0",
            f"data.val_images={str(tiny_coco / 'val2017')!r}",
            f"data.val_annotations={str(tiny_coco / 'annotations' / 'person_keypoints_val2017.json')!r}",
        ],
    )

    def measure(runtime: Runtime) -> tuple[dict[str, float], int, float]:
        coco = coco_validation.CocoValidation.from_config(config, PoseNet.from_config(config), runtime, SilentLog())
        seen = []

        def batch(images: list[Any]) -> list[list[Person]]:
            seen.extend(images)
            return [[Person(torch.full((18, 3), float(image.mean())).numpy(), 0.5)] for image in images]

        coco.predictor.batch = batch
        with run(runtime, stores, tmp_path / f"run{runtime.world_size}", *SMALL) as trainer:
            return coco(1, 1), len(seen), trainer.validate()

    (metrics, count, loss), (one, two) = measure(Runtime(torch.device("cpu"))), in_world(2, tmp_path / "w", measure)
    assert count == one[1] + two[1] == len(truth["images"]) and one[1] > 0 and two[1] > 0
    assert one[0] == two[0] == metrics
    assert one[2] == two[2] == pytest.approx(loss, rel=1e-6)


def test_shares_hold_every_picture_once_and_as_many_of_every_shape() -> None:
    images = [CocoImage(i, f"{i}.jpg", height=100, width=100 + 100 * (i % 2)) for i in range(11)]
    shares = [coco_validation.share_of_rank(images, rank, 3) for rank in range(3)]
    assert sorted(image.id for share in shares for image in share) == list(range(11))
    assert [len(share) for share in shares] == [4, 4, 3]
    assert all(sum(image.width == 200 for image in share) in (1, 2) for share in shares)


def test_every_process_takes_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert device_of_rank(torch.device("xpu"), RankInfo(5, 8, 1)) == torch.device("xpu", 1) and chosen == [1]
    assert device_of_rank(torch.device("cpu"), RankInfo(5, 8, 1)) == torch.device("cpu")
    with pytest.raises(ConfigError, match="only 2"):
        device_of_rank(torch.device("cuda"), RankInfo(2, 3, 2))
    with pytest.raises(ConfigError, match="--device cuda:1"):
        device_of_rank(torch.device("cuda:1"), RankInfo(0, 2, 0))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)  # a scheduler shows each process one
    assert device_of_rank(torch.device("cuda"), RankInfo(2, 4, 2)) == torch.device("cuda", 0)


def test_the_backend_is_the_device_s_own() -> None:
    assert process_group_backends(torch.device("cpu")) == "gloo"
    assert process_group_backends(torch.device("cuda")) == "cpu:gloo,cuda:nccl"
    assert process_group_backends(torch.device("xpu")) == "cpu:gloo,xpu:xccl"


def test_on_an_accelerator_batch_norm_is_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = DistributedRuntime.__new__(DistributedRuntime)
    runtime.device = torch.device("cuda")
    assert isinstance(runtime.convert_sync_batch_norm(nn.Sequential(nn.BatchNorm2d(2)))[0], nn.SyncBatchNorm)

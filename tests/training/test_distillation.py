"""Distillation: where the teacher's maps replace labels, its checkpoint in a run, and unlabelled images."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.cli.main import run_tool
from posenet.data.build import build_store
from posenet.data.targets import TargetRenderer
from posenet.devices.runtime import Runtime
from posenet.errors import CheckpointError, ConfigError
from posenet.model.fused import FusedNetwork
from posenet.settings import Config, LossConfig, ModelConfig, TargetsConfig, config_to_dict, load_config
from posenet.skeleton import COCO, Skeleton
from posenet.training.agreement import require_same_run
from posenet.training.distillation import Teacher, load_teacher
from posenet.training.loss import FocalL2Loss
from posenet.training.model_with_loss import ModelWithLoss
from posenet.training.setup import open_stores
from tests.helpers.faceless_people import FACELESS
from tests.helpers.networks import random_network, tiny_network
from tests.helpers.process_groups import run_in_processes, train_in_one_and_two_processes
from tests.helpers.tiny_training import CPU, train_tiny_network

SELECT_AMP = "posenet.training.distillation.select_amp"
LEARNING = ("optim.name='adamw'", "optim.lr=1e-3", "train.batch_size=2", "train.epochs=2")
SIZE = 64
MAP = SIZE // 4


@pytest.fixture
def teacher_file(tmp_path: Path) -> Path:
    """A checkpoint of a network with random weights."""
    return write_teacher(tmp_path / "teacher.pth")


@pytest.fixture
def unlabelled(stores: dict[str, Path], tiny_coco: Path, tmp_path: Path) -> Path:
    """A store of the training images without their annotations."""
    build_store(tiny_coco / "train2017", None, tmp_path / "unlabelled.h5", workers=1, progress=False)
    return tmp_path / "unlabelled.h5"


def write_teacher(path: Path, skeleton: Skeleton = COCO, change: float = 0.0) -> Path:
    """Write a checkpoint of a network with random weights; ``change`` is added to some of them."""
    model = ModelConfig(stacks=1, width=16, growth=2, skeleton=skeleton)
    weights = random_network(1, skeleton).state_dict()
    next(iter(weights.values())).add_(change)
    write_checkpoint(path, {"model": weights, "config": config_to_dict(Config(model=model))})
    return path


def make_teacher(weight: float = 0.5, threshold: float = 0.0, input_size: tuple[int, int] | None = None) -> Teacher:
    return Teacher(FusedNetwork(random_network(1)), weight, threshold, LossConfig.positive_threshold, input_size)


def make_model(teacher: Teacher | None) -> ModelWithLoss:
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    return ModelWithLoss(tiny_network(stacks=1), renderer, loss, "off", channels_last=False, teacher=teacher).train()


def random_batch(supervised_value: int = 255) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, joints, person masks and masks of the supervised cells."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, SIZE, SIZE, 3), dtype=torch.uint8, generator=generator)
    joints = torch.rand(2, 3, 18, 3, generator=generator) * SIZE
    person_mask = torch.randint(0, 256, (2, MAP, MAP), dtype=torch.uint8, generator=generator)
    return images, joints, person_mask, torch.full_like(person_mask, supervised_value)


def gradients(model: ModelWithLoss, *batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The losses, and the gradients of all parameters."""
    model = copy.deepcopy(model)
    losses = model(*batch)
    losses.mean().backward()
    return losses.detach(), [parameter.grad for parameter in model.network.parameters()]


class TestTargets:
    """Where the teacher's maps replace those of the labels."""

    def test_the_teacher_counts_alone_in_exactly_the_cells_and_channels_without_labels(self) -> None:
        teacher = make_teacher(weight=0.25)
        images = torch.rand(2, 3, SIZE, SIZE)
        labels = torch.rand(2, 50, MAP, MAP)
        mask = torch.ones(2, 1, MAP, MAP)
        mask[0, 0, 3, 7] = 0  # one cell of the first image is masked
        supervised = torch.ones(2, 50, dtype=torch.uint8)
        supervised[1, 31] = 0  # one channel of the second image has no labels
        maps = teacher.maps(images, (MAP, MAP))
        target = teacher.teach(images, labels, mask, supervised)
        expected = labels + 0.25 * (maps - labels)
        expected = torch.maximum(expected, labels.clamp(max=LossConfig.positive_threshold))
        expected[0, :, 3, 7] = maps[0, :, 3, 7]
        expected[1, 31] = maps[1, 31]
        assert torch.equal(target, expected)
        assert maps.std() > 0.05, "the maps of this teacher must differ from constant ones"

    def test_a_lit_pixel_of_the_teacher_arrives_in_its_cell(self) -> None:
        """The teacher of this test answers 1 in the cell of the only bright pixel, whatever its input size."""

        class Echo(torch.nn.Module):
            def heatmaps(self, images: Tensor) -> Tensor:
                return torch.nn.functional.max_pool2d(images, 4).mean(1, keepdim=True).expand(-1, 50, -1, -1)

        images = torch.zeros(1, 3, SIZE, SIZE)
        images[0, :, 4 * 5 + 1, 4 * 9 + 2] = 1
        for size in (None, (2 * SIZE, 2 * SIZE), (2 * SIZE, SIZE)):
            teacher = Teacher(Echo(), 1.0, 0.0, 0.01, size)  # type: ignore[arg-type]  # it needs only heatmaps
            maps = teacher.maps(images, (MAP, MAP))
            assert maps.shape == (1, 50, MAP, MAP)
            assert maps[0, 7].argmax() == 5 * MAP + 9

    def test_foreground_of_the_labels_remains_foreground(self) -> None:
        teacher = make_teacher(weight=1.0, threshold=0.999)
        labels = torch.zeros(1, 50, MAP, MAP)
        labels[0, 2, 4, 4] = 0.8
        images = torch.zeros(1, 3, SIZE, SIZE)
        target = teacher.teach(images, labels, torch.ones(1, 1, MAP, MAP))
        assert target[0, 2, 4, 4] >= LossConfig.positive_threshold

    def test_responses_below_the_threshold_count_as_zero_and_all_are_clamped(self) -> None:
        images = torch.rand(1, 3, SIZE, SIZE)
        all_maps = make_teacher().maps(images, (MAP, MAP))
        maps = make_teacher(threshold=0.2).maps(images, (MAP, MAP))
        assert all_maps.min() == 0 and all_maps.max() <= 1
        assert ((all_maps > 0) & (all_maps < 0.2)).any()
        assert torch.equal(maps, torch.where(all_maps < 0.2, 0, all_maps))


class TestLoss:
    """The teacher in the loss of a batch."""

    def test_with_weight_zero_and_labels_everywhere_nothing_changes_to_the_bit(self) -> None:
        losses, expected = gradients(make_model(None), *random_batch())
        taught_losses, taught = gradients(make_model(make_teacher(weight=0)), *random_batch())
        assert torch.equal(losses, taught_losses)
        assert all(map(torch.equal, taught, expected))

    def test_a_masked_region_is_taught(self) -> None:
        batch = random_batch(supervised_value=0)
        losses, grads = gradients(make_model(None), *batch)
        assert not losses.any() and not any(grad.any() for grad in grads)
        losses, grads = gradients(make_model(make_teacher(weight=0)), *batch)
        assert losses.all() and any(grad.any() for grad in grads)

    def test_with_weight_one_labels_change_the_foreground_only(self) -> None:
        model = make_model(make_teacher(weight=1))
        model.loss.positive_threshold = 0.0
        model.teacher.positive_threshold = 0.0
        images, joints, person_mask, mask = random_batch()
        with_labels = gradients(model, images, joints, person_mask, mask)[0]
        without = gradients(model, images, torch.zeros_like(joints), torch.zeros_like(person_mask), mask)[0]
        assert torch.equal(with_labels, without)

    def test_the_validation_loss_is_that_of_the_labels_alone(self) -> None:
        batch = random_batch()
        assert torch.equal(make_model(make_teacher()).eval()(*batch), make_model(None).eval()(*batch))
        assert not torch.equal(make_model(make_teacher())(*batch), make_model(None)(*batch))

    def test_the_teacher_is_no_part_of_the_module(self) -> None:
        taught = make_model(make_teacher())
        alone = make_model(None)
        assert taught.state_dict().keys() == alone.state_dict().keys()
        assert len(list(taught.parameters())) == len(list(alone.parameters()))
        assert len(list(taught.buffers())) == len(list(alone.buffers()))

    def test_each_device_has_its_own_copy_of_the_teacher(self) -> None:
        teacher = make_teacher()
        devices = [torch.device("cpu"), torch.device("meta")]
        copies = [teacher.network_on(device) for device in devices]
        for device, network in zip(devices, copies):
            assert {parameter.device for parameter in network.parameters()} == {device}
            assert teacher.network_on(device) is network

    def test_a_taught_step_compiles_to_one_graph(self) -> None:
        model = make_model(make_teacher())
        batch = random_batch()
        expected = model(*batch)
        model.compile(backend="eager", fullgraph=True)
        torch.testing.assert_close(model(*batch), expected)


class TestRuns:
    """Runs with a teacher: checkpoints, resuming, processes."""

    @pytest.mark.parametrize("step", [1, 4])
    def test_a_run_resumes_exactly_in_the_middle_of_an_epoch(
        self, stores: dict[str, Path], tmp_path: Path, teacher_file: Path, unlabelled: Path, step: int
    ) -> None:
        data = f'data.train=[{{path="{stores["train"]}"}}, {{path="{unlabelled}"}}]'
        overrides = (*LEARNING, f"train.teacher={str(teacher_file)!r}", data)
        losses, weights = train_tiny_network(Runtime(CPU), stores, tmp_path / "whole", *overrides)
        first, _ = train_tiny_network(Runtime(CPU), stores, tmp_path / "parts", *overrides, steps=step)
        last = tmp_path / "parts" / "last.pth"
        rest, resumed = train_tiny_network(Runtime(CPU), stores, tmp_path / "parts", *overrides, resume=last)
        assert first + rest == losses
        assert all(torch.equal(resumed[name], weights[name]) for name in weights)

    def test_a_checkpoint_has_the_digest_of_the_teacher_and_not_its_weights(
        self, stores: dict[str, Path], tmp_path: Path, teacher_file: Path
    ) -> None:
        overrides = (*LEARNING, f"train.teacher={str(teacher_file)!r}")
        train_tiny_network(Runtime(CPU), stores, tmp_path / "taught", *overrides, steps=1)
        train_tiny_network(Runtime(CPU), stores, tmp_path / "alone", *LEARNING, steps=1)
        taught = read_checkpoint(tmp_path / "taught" / "last.pth")
        alone = read_checkpoint(tmp_path / "alone" / "last.pth")
        assert len(taught.pop("teacher")) == 64
        assert taught.keys() == alone.keys()
        assert taught["model"].keys() == alone["model"].keys()

    def test_resuming_with_another_teacher_is_refused(
        self, stores: dict[str, Path], tmp_path: Path, teacher_file: Path
    ) -> None:
        overrides = (*LEARNING, f"train.teacher={str(teacher_file)!r}")
        train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *overrides, steps=1)
        last = tmp_path / "run" / "last.pth"
        write_teacher(teacher_file, change=0.1)
        with pytest.raises(CheckpointError, match="trained with another teacher than the file .*; restore that file"):
            train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *overrides, steps=2, resume=last)
        # Going on without a teacher is a decision, not a mistake.
        train_tiny_network(Runtime(CPU), stores, tmp_path / "run", *LEARNING, steps=2, resume=last)

    def test_two_processes_learn_what_one_learns(
        self, stores: dict[str, Path], tmp_path: Path, teacher_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SELECT_AMP, lambda device, name: "off")
        overrides = (*LEARNING[:1], "train.epochs=1", "optim.lr=1e-6")
        taught = (*overrides, f"train.teacher={str(teacher_file)!r}")
        alone, together = train_in_one_and_two_processes(stores, tmp_path, *taught)
        assert together == pytest.approx(alone, rel=1e-3)
        untaught, _ = train_tiny_network(Runtime(CPU), stores, tmp_path / "untaught", *overrides, "train.batch_size=4")
        assert untaught != pytest.approx(alone, rel=1e-3)

    def test_processes_with_different_teachers_are_refused(
        self, stores: dict[str, Path], tmp_path: Path, teacher_file: Path
    ) -> None:
        write_teacher(tmp_path / "1.pth", change=0.1)
        teacher_file.rename(tmp_path / "0.pth")

        def compare(runtime: Runtime) -> str:
            paths = [f"data.{split}={str(path)!r}" for split, path in stores.items()]
            config = load_config(None, [*paths, f"train.teacher={str(tmp_path / f'{runtime.rank}.pth')!r}"])
            with contextlib.ExitStack() as stack:
                try:
                    require_same_run(runtime, config, *open_stores(config, stack))
                except ConfigError as error:
                    return str(error)
            return ""

        for message in run_in_processes(2, tmp_path / "results", compare):
            assert "the processes differ in train.teacher: a file with the digest" in message


class TestUserErrors:
    """Mistakes end in one line with status 2."""

    @pytest.fixture
    def fail(
        self,
        stores: dict[str, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> Callable[..., str]:
        """A function that trains a tiny network with these flags, which must fail; returns the message."""
        monkeypatch.chdir(tmp_path)

        def run(*flags: str) -> str:
            overrides = ["model.stacks=1", "model.width=16", "model.growth=2", "train.input_size=64", "data.workers=0"]
            paths = [f"data.train={stores['train']}", f"data.val={stores['val']}"]
            assert run_tool("train", ["--quiet", "--set", *overrides, *paths, *flags]) == 2
            message = capsys.readouterr().err
            assert message.count("\n") == 1, message
            return message

        return run

    def test_a_missing_teacher(self, fail: Callable[..., str]) -> None:
        assert "nothing.pth" in fail("--teacher", "nothing.pth")

    def test_a_damaged_teacher(self, fail: Callable[..., str], teacher_file: Path) -> None:
        teacher_file.write_bytes(teacher_file.read_bytes()[:-100])
        assert str(teacher_file) in fail("--teacher", str(teacher_file))

    def test_a_teacher_with_another_skeleton(self, fail: Callable[..., str], tmp_path: Path) -> None:
        write_teacher(tmp_path / "other.pth", FACELESS)
        assert "the teacher other.pth predicts another skeleton than model.skeleton" in fail("--teacher", "other.pth")

    def test_images_without_annotations_need_a_teacher(self, fail: Callable[..., str], unlabelled: Path) -> None:
        message = fail(f"data.train={unlabelled}")
        assert "images without annotations, which only a teacher supervises; set train.teacher" in message

    def test_validation_needs_labels(self, fail: Callable[..., str], unlabelled: Path, teacher_file: Path) -> None:
        message = fail(f"data.val={unlabelled}", "--teacher", str(teacher_file))
        assert "images without annotations, but validation needs labels" in message

    def test_unlabelled_copies_of_validation_images_are_refused(
        self, fail: Callable[..., str], tiny_coco: Path, tmp_path: Path, teacher_file: Path
    ) -> None:
        folder = tmp_path / "renamed"
        folder.mkdir()
        for number, path in enumerate(sorted((tiny_coco / "val2017").iterdir())):
            (folder / f"frame_{number}.jpg").write_bytes(path.read_bytes())
        build_store(folder, None, tmp_path / "renamed.h5", workers=1, progress=False)
        assert "share" in fail("data.train=renamed.h5", "--teacher", str(teacher_file))


def test_the_teacher_computes_in_the_fastest_precision_of_the_device(
    teacher_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SELECT_AMP, lambda device, name: "bf16")
    teacher = load_teacher(load_config(None, [f"train.teacher={str(teacher_file)!r}"]), CPU)
    assert teacher is not None
    assert {parameter.dtype for parameter in teacher.network_on(CPU).parameters()} == {torch.bfloat16}
    assert teacher.maps(torch.rand(1, 3, SIZE, SIZE), (MAP, MAP)).dtype == torch.float32


def test_other_widths_of_the_maps_cause_a_warning(teacher_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    setting = f"train.teacher={str(teacher_file)!r}"
    load_teacher(load_config(None, [setting]), CPU)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    load_teacher(load_config(None, [setting, "targets.keypoint_sigma=4"]), CPU)
    assert "targets.keypoint_sigma of 9 pixels of this network's input, and the labels 4" in caplog.text
    caplog.clear()
    half_size = ["train.input_size=256", "targets.keypoint_sigma=4.5", "targets.part_sigma=3.5"]
    load_teacher(load_config(None, [setting, *half_size, "distill.input_size=512"]), CPU)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_there_is_no_teacher_by_default() -> None:
    assert load_teacher(Config(), CPU) is None

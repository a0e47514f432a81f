"""Distillation: where the teacher's maps replace labels, runs with a teacher, and images without annotations."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenet
from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.data.build import build_store
from posenet.errors import CheckpointError
from posenet.model.fused import FusedNetwork
from posenet.settings import Config, ModelConfig, config_to_dict, load_config
from posenet.skeleton import COCO, Skeleton
from posenet.training.loss import POSITIVE_THRESHOLD
from posenet.training.step import ModelWithLoss
from posenet.training.teacher import Teacher, load_teacher
from tests.helpers.faceless_people import FACELESS, write_faceless_store
from tests.helpers.networks import random_network
from tests.helpers.process_groups import run_in_processes
from tests.helpers.process_runs import assert_same_run
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import CPU, Stores, last, train_tiny
from tests.training.test_step import make_model, random_batch

SIZE = 64
MAP = SIZE // 4


@pytest.fixture
def teacher_file(tmp_path: Path) -> Path:
    """A checkpoint of a network with random weights."""
    return write_teacher(tmp_path / "teacher.pth")


@pytest.fixture(scope="module")
def unlabelled(tiny_coco: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the training images without their annotations."""
    path = tmp_path_factory.mktemp("unlabelled") / "unlabelled.h5"
    build_store(tiny_coco / "train2017", None, path, workers=1, progress=False)
    return path


def write_teacher(path: Path, skeleton: Skeleton = COCO) -> Path:
    """Write a checkpoint of a network with random weights."""
    model = ModelConfig(stacks=1, width=16, growth=2, skeleton=skeleton)
    state = random_network(1, skeleton).state_dict()
    write_checkpoint(path, {"model": state, "config": config_to_dict(Config(model=model))})
    return path


def make_teacher(weight: float = 0.5) -> Teacher:
    return Teacher(FusedNetwork(random_network(1)), weight)


def losses_and_gradients(model: ModelWithLoss, batch: tuple[Tensor, ...]) -> list[Tensor]:
    model = copy.deepcopy(model.train())
    losses = model(*batch)
    return [losses.detach(), *torch.autograd.grad(losses.mean(), list(model.network.parameters()))]


def test_the_teacher_counts_alone_in_exactly_the_cells_and_channels_without_labels() -> None:
    teacher = make_teacher(weight=0.25)
    images, labels = torch.rand(2, 3, SIZE, SIZE), torch.rand(2, 50, MAP, MAP)
    mask = torch.ones(2, 1, MAP, MAP)
    mask[0, 0, 3, 7] = 0  # one cell of the first image is masked
    supervised = torch.ones(2, 50, dtype=torch.uint8)
    supervised[1, 31] = 0  # one channel of the second image has no labels
    maps = teacher.maps(images)
    expected = labels + 0.25 * (maps - labels)
    expected = torch.maximum(expected, labels.clamp(max=POSITIVE_THRESHOLD))
    expected[0, :, 3, 7] = maps[0, :, 3, 7]
    expected[1, 31] = maps[1, 31]
    assert torch.equal(teacher.teach(images, labels, mask, supervised), expected)
    assert maps.std() > 0.05, "the maps of this teacher must differ from constant ones"


def test_foreground_of_the_labels_remains_and_small_responses_of_the_teacher_are_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = torch.zeros(1, 50, MAP, MAP)
    labels[0, 2, 4, 4] = 0.8
    images = torch.rand(1, 3, SIZE, SIZE)
    maps = make_teacher().maps(images)
    monkeypatch.setattr("posenet.training.teacher.THRESHOLD", 0.0)
    all_maps = make_teacher().maps(images)
    monkeypatch.setattr("posenet.training.teacher.THRESHOLD", 0.999)
    target = make_teacher(weight=1.0).teach(images, labels, torch.ones(1, 1, MAP, MAP))
    assert target[0, 2, 4, 4] >= POSITIVE_THRESHOLD
    assert all_maps.min() == 0 and all_maps.max() <= 1
    assert ((all_maps > 0) & (all_maps < 0.2)).any()
    assert torch.equal(maps, torch.where(all_maps < 0.2, 0, all_maps))


def test_the_loss_with_a_teacher() -> None:
    batch, masked = random_batch(), random_batch(supervised=0)
    alone = losses_and_gradients(make_model(), batch)
    without_weight = losses_and_gradients(make_model(teacher=make_teacher(weight=0)), batch)
    assert all(map(torch.equal, without_weight, alone)), "weight 0, labels everywhere: nothing changes"
    assert not any(value.any() for value in losses_and_gradients(make_model(), masked))
    assert all(value.any() for value in losses_and_gradients(make_model(teacher=make_teacher(0)), masked)[:1])
    taught = make_model(teacher=make_teacher())
    no_channels = losses_and_gradients(taught, (*batch, torch.zeros(2, 50, dtype=torch.uint8)))
    assert all(map(torch.equal, no_channels, losses_and_gradients(taught, masked))), "no label counts"
    assert not torch.equal(losses_and_gradients(taught, batch)[0], alone[0])
    assert torch.equal(taught.eval()(*batch), make_model().eval()(*batch)), "validation is that of the labels"


def test_the_teacher_is_no_part_of_the_module() -> None:
    taught, alone = make_model(teacher=make_teacher()), make_model()
    assert taught.state_dict().keys() == alone.state_dict().keys()
    for parts in ("parameters", "buffers"):
        assert len(list(getattr(taught, parts)())) == len(list(getattr(alone, parts)()))


def test_a_run_with_a_teacher_resumes_exactly_and_refuses_another_one(
    stores: Stores, tmp_path: Path, teacher_file: Path, unlabelled: Path
) -> None:
    """It learns from images without annotations too; its checkpoints hold a digest, and not the teacher's weights."""
    data = f'data.train=[{{path="{stores["train"]}"}}, {{path="{unlabelled}"}}]'
    settings = (data, f"train.teacher={teacher_file}", "train.epochs=1", "train.batch_size=4")
    train_tiny(stores, tmp_path / "whole", *settings)
    train_tiny(stores, tmp_path / "parts", *settings, max_steps=2)
    train_tiny(stores, tmp_path / "parts", *settings, resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    state = last(tmp_path / "whole")
    names = "format model optimizer scaler guard progress steps_per_epoch config world_size contents"
    assert len(state["contents"]["train.teacher"]) == 64 and state.keys() == set(names.split())
    write_checkpoint(teacher_file, read_checkpoint(teacher_file) | {"another": True})
    digest = state.pop("contents")["train.teacher"]
    write_checkpoint(tmp_path / "earlier" / "last.pth", state | {"teacher": digest})  # as version 0.6 does
    for name in ("parts", "earlier"):
        with pytest.raises(CheckpointError, match="trained with another teacher than the file .*; restore that file"):
            train_tiny(stores, tmp_path / name, *settings, "train.epochs=2", resume=True)
    # Going on without a teacher is a decision, not a mistake.
    without = ("train.teacher=", f"data.train={stores['train']}", "train.batch_size=2", "train.epochs=9")
    assert train_tiny(stores, tmp_path / "parts", *without, resume=True, max_steps=9).steps == 9


def test_two_processes_learn_from_a_teacher_and_several_sets_what_one_learns(
    stores: Stores, tmp_path: Path, teacher_file: Path
) -> None:
    limbs = write_faceless_store(stores["val"], tmp_path / "limbs.h5")
    data = f'data.train=[{{path="{stores["train"]}"}}, {{path="{limbs}", weight=2.5}}]'
    teacher = f"train.teacher={teacher_file}"

    def train_as(name: str, *settings: str, **options: Any) -> list[float]:
        fixed = (data, "optim.lr=1e-6", "distill.weight=1", "parallel.sync_bn=true")
        train_tiny({}, tmp_path / name, *fixed, *settings, max_steps=3, **options)
        return [entry["loss"] for entry in read_log(tmp_path / name, "train")]

    one = train_as("one", teacher, "train.batch_size=4")
    run_in_processes(
        2, tmp_path / "out", lambda runtime: train_as("two", teacher, "train.batch_size=2", runtime=runtime)
    )
    two = [entry["loss"] for entry in read_log(tmp_path / "two", "train")]
    assert len(one) == 3 and two == pytest.approx(one, rel=1e-3)
    assert train_as("untaught", "train.batch_size=4") != pytest.approx(one, rel=1e-2)


def test_the_teacher_has_the_settings_of_the_run_and_the_fastest_precision_of_the_device(
    teacher_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("distill.weight=0.25", f"train.teacher={teacher_file}")
    for has_bf16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16}, raising=False)
        teacher = load_teacher(load_config(None, settings), CPU)
        assert teacher.weight == 0.25
        assert {parameter.dtype for parameter in teacher.network.parameters()} == {dtype}
        assert teacher.maps(torch.rand(1, 3, SIZE, SIZE)).dtype == torch.float32


def test_unusable_teachers_and_data_are_refused(
    stores: Stores, tmp_path: Path, teacher_file: Path, unlabelled: Path
) -> None:
    write_teacher(tmp_path / "other.pth", FACELESS)
    (tmp_path / "damaged.pth").write_bytes(teacher_file.read_bytes()[:-100])
    teacher = f"train.teacher={teacher_file}"
    for overrides, message in {
        ("train.teacher=nothing.pth",): r"nothing\.pth",
        (f"train.teacher={tmp_path / 'damaged.pth'}",): r"damaged\.pth .*damaged",
        (f"train.teacher={tmp_path / 'other.pth'}",): "predicts another skeleton than model.skeleton",
        (f"data.train={unlabelled}",): "images without annotations; .*train.teacher",
        (teacher, f"data.val={unlabelled}"): "images without annotations; build it with some",
    }.items():
        with pytest.raises(posenet.PosenetError, match=message):
            train_tiny(stores, tmp_path / "run", *overrides)
    assert not list(tmp_path.glob("run/*.pth"))

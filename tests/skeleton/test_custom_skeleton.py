"""Chairs instead of people: a skeleton from the annotations to the evaluation, with the tools that a user runs."""

import json
from pathlib import Path
from types import SimpleNamespace as Project

import cv2
import numpy as np
import pytest
import torch

from posenet import Predictor, decode
from posenet.annotations.people import read_split
from posenet.cli.main import run_tool
from posenet.data.build import build_store
from posenet.data.dataset import PoseDataset
from posenet.data.store import Store
from posenet.data.targets import TargetRenderer
from posenet.errors import ConfigError
from posenet.inference.evaluation import compute_coco_metrics
from posenet.person import Person
from posenet.settings import AugmentConfig, TargetsConfig, config_from_dict, config_to_dict, load_config
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import load_skeleton
from tests.helpers.chairs import NAMES, write_chairs

DERIVED = '\n[derived]\nfront_middle = ["seat_front_left", "seat_front_right"]\n'
SETTINGS = (
    "--set model.stacks=1 model.width=16 model.growth=2 train.input_size=128 train.batch_size=8 optim.name=adamw "
    "data.workers=0 log.tensorboard=false inference.height=128 train.epochs=1"
)


def tool(command: str) -> None:
    name, *words = command.split()
    assert run_tool(name, words, prog=name) == 0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The folder of a user with chairs: images, annotations, a skeleton file and a store."""
    root = tmp_path_factory.mktemp("chairs")
    project = Project(root=root, toml=root / "chair.toml", store=root / "train.h5")
    project.train, project.train_json = write_chairs(root, "train", 14, seed=1)
    project.val, project.val_json = write_chairs(root, "val", 4, seed=2)
    tool(f"annotations skeleton {project.train_json} --output {project.toml}")
    # A user adds a keypoint and parts that join it to the others.
    text = project.toml.read_text().replace(
        "parts = [", 'parts = [\n    ["front_middle", "seat_back_left"],\n    ["front_middle", "seat_back_right"],'
    )
    project.toml.write_text(text.partition("\n[layout]")[0] + DERIVED)
    project.skeleton = load_skeleton(project.toml)
    build_store(project.train, project.train_json, project.store, workers=1, skeleton=project.skeleton)
    return project


@pytest.fixture(scope="module")
def checkpoint(project: Project) -> Path:
    """A network trained for an epoch. The skeleton file is deleted afterwards, as if on another machine."""
    run = project.root / "run"
    copy = project.root / "copy.toml"
    copy.write_text(project.toml.read_text())
    data = f"data.train={project.store} data.val_images={project.val} data.val_annotations={project.val_json}"
    tool(f"train -p {run} {SETTINGS} model.skeleton={copy} {data}")
    copy.unlink()
    return run / "last.pth"


def test_the_draft_and_the_store_have_the_names_edges_and_sides_of_the_annotations(project: Project) -> None:
    skeleton = project.skeleton
    assert list(skeleton.file_names) == NAMES and skeleton.keypoints == (*NAMES, "front_middle")
    assert ("back_top_left", "back_top_right") in skeleton.left_right and len(skeleton.left_right) == 5
    assert len(skeleton.drawn) == 11 and ("front_middle", "seat_back_left") in skeleton.parts
    assert skeleton.num_channels == len(skeleton.parts) + 11 + 2 > 33
    with Store(project.store) as store:
        assert store.skeleton == skeleton
    tool(f"build-hdf5 --output {project.store} --verify")
    np.testing.assert_array_equal(skeleton.flip_channels[skeleton.flip_channels], np.arange(skeleton.num_channels))


def test_mirrored_samples_have_mirrored_targets(project: Project) -> None:
    """Flipping the image and flipping the maps is the same, left and right swapped by the skeleton's names."""
    skeleton, size = project.skeleton, (128, 128)
    render = TargetRenderer(TargetsConfig(), skeleton)
    still = dict(scale_probability=0, degrees=0.0, shift=0.0, jitter_probability=0)
    with Store(project.store) as store:
        plain, flipped = (
            PoseDataset(store, size, "image", AugmentConfig(flip_probability=p, **still)).__getitems__([(0, 0)])
            for p in (0, 1)
        )
    maps, mirrored = (render(batch.joints, batch.person_mask / 255) for batch in (plain, flipped))
    assert maps[:, skeleton.keypoint_channels].amax((0, 2, 3)).min() > 0.5
    difference = (mirrored - maps[:, skeleton.flip_channels].flip(-1)).abs()
    # Rectangles end at whole cells, which are rounded to the same side in both images.
    assert difference[:, skeleton.keypoint_channels].max() < 0.02 and difference.mean() < 0.02
    assert (mirrored - maps.flip(-1)).abs().mean() > 2 * difference.mean()


@pytest.mark.parametrize("is_drafted", [False, True])
def test_perfect_maps_are_decoded_to_nearly_all_chairs(project: Project, is_drafted: bool) -> None:
    """With a layout, which a draft has, and without."""
    skeleton = project.skeleton
    if is_drafted:
        drafted = project.root / "drafted.toml"
        tool(f"annotations skeleton {project.train_json} --output {drafted} --overwrite")
        skeleton = load_skeleton(drafted)
        assert skeleton.layout["back_top_left"][0] < -0.5 < 0.5 < skeleton.layout["leg_front_left"][0]
    renderer = TargetRenderer(TargetsConfig(), skeleton)
    split = read_split(project.val_json, None, skeleton)
    results = []
    for image in split.images:
        own = [person["keypoints"] for person in split.people if person["image_id"] == image.id]
        joints = skeleton.to_network_order(np.reshape(own, (len(own), -1, 3)).astype(np.float32))
        joints[..., :2] = (joints[..., :2] + 0.5) * 2 - 0.5  # chairs are small, so they are rendered twice as large
        joints[..., 2] = joints[..., 2] > 0
        mask = torch.zeros(1, image.height // 2, image.width // 2)
        for person in decode(renderer(torch.from_numpy(joints)[None], mask)[0].numpy(), skeleton=skeleton):
            person.keypoints[:, :2] = (person.keypoints[:, :2] + 0.5) / 2 - 0.5
            found = Person(person.keypoints, person.score, skeleton)
            results.append(found.to_coco_result(image.id, split.category, fill_missing=True))
    assert compute_coco_metrics(results, split, skeleton).metrics["AP"] > 0.95


def test_a_checkpoint_needs_no_skeleton_file(project: Project, checkpoint: Path, tmp_path: Path) -> None:
    predictor = Predictor(checkpoint, keypoint_threshold=1e-9)
    assert predictor.skeleton.derived
    people = predictor(cv2.imread(str(project.val / "1.jpg")))
    assert all(person.keypoints.shape == (11, 3) and person.to_coco().shape == (10, 3) for person in people)
    lines = [json.loads(line) for line in (checkpoint.parent / "log.jsonl").read_text().splitlines()]
    assert any("AP" in line for line in lines), "the run was evaluated during training"
    results, found = tmp_path / "results.json", tmp_path / "found.json"
    threshold = "--set inference.keypoint_threshold=1e-4"
    data = f"--images {project.val} --annotations {project.val_json}"
    tool(f"evaluate --checkpoint {checkpoint} {data} --output {results} {threshold}")
    outputs = f"--output {tmp_path}/drawn --json {found} --min-score 0"
    tool(f"predict --checkpoint {checkpoint} {project.val} {outputs} {threshold}")
    assert len(list((tmp_path / "drawn").iterdir())) == 4
    for entry in json.loads(results.read_text()) + json.loads(found.read_text()):
        assert len(entry["keypoints"]) == 30
    assert {entry["category_id"] for entry in json.loads(results.read_text())} <= {62}


def test_resuming_needs_no_file_and_refuses_another_skeleton(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(f"train --resume {checkpoint} --epochs 2 --max-steps 4")
    capsys.readouterr()
    assert run_tool("train", ["--resume", str(checkpoint), "--set", "model.skeleton=coco"], prog="train") == 2
    assert "another skeleton" in capsys.readouterr().err


def test_an_experiment_file_may_contain_a_skeleton(tmp_path: Path) -> None:
    file = tmp_path / "hand.toml"
    text = '[model.skeleton]\nkeypoints = ["thumb", "index"]\nparts = [["thumb", "index"]]\n'
    file.write_text(text)
    config = load_config(file)
    assert config.model.skeleton.num_channels == 5
    assert config_from_dict(config_to_dict(config)) == config
    assert load_config(None, ["model.skeleton=coco"]).model.skeleton == COCO
    file.write_text(text.replace('"index"]]', '"wrist"]]'))
    with pytest.raises(ConfigError, match=r"hand.toml: model.skeleton: .*wrist"):
        load_config(file)

"""Drawn people: the labels are true of the pixels, a data set is reproducible, and no other file is harmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO as CocoFile

from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO
from posenet.synthetic.body_and_posture import random_body, random_posture
from posenet.synthetic.canvas import Canvas
from posenet.synthetic.dataset import MARKER, SPLITS, write_dataset
from posenet.synthetic.dressed_person import Figure, Part, random_look
from posenet.synthetic.labels import annotate
from posenet.synthetic.scene import Actor, Scene, render_scene
from tests.helpers.drawn_data import file_contents

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
FACE = ("nose", "left_eye", "right_eye")


def keypoints_of(annotation: dict) -> dict[str, tuple[float, float, int]]:
    values = np.reshape(annotation["keypoints"], (-1, 3))
    return dict(zip(COCO.file_keypoints, map(tuple, values.tolist())))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    write_dataset(folder, train=60, val=5, seed=3, workers=1, size=240)
    return folder


@pytest.fixture(scope="module")
def coco(dataset: Path) -> CocoFile:
    return CocoFile(dataset / "annotations" / "person_keypoints_train2017.json")


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [render_scene(np.random.default_rng(seed), 320, 240) for seed in range(25)]


def lone_figure(seed: int, height: float = 200) -> tuple[Canvas, Figure]:
    """One person alone on a plain canvas of 320x280."""
    rng = np.random.default_rng(seed)
    canvas = Canvas(np.full((280, 320, 3), 200, np.uint8))
    body = random_body(rng)
    posture = random_posture(rng, body, tilt=5)
    figure = Figure(body, posture, random_look(rng), height, np.array([160, 260]), len(Part))
    figure.paint(canvas)
    return canvas, figure


def annotate_alone(canvas: Canvas, figure: Figure, painted: int = 1) -> dict:
    scene = Scene(canvas.image, canvas.owner, (Actor("person", 1, (figure,), painted),))
    return annotate(np.random.default_rng(0), scene)[0]


def test_an_earlier_data_set_is_replaced_by_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    write_dataset(tmp_path / "two", train=12, val=2, seed=0, workers=1, size=64)
    for name, seed, workers in (("one", 5, 1), ("two", 5, 2), ("other", 6, 1)):
        write_dataset(tmp_path / name, train=10, val=3, seed=seed, workers=workers, size=96, overwrite=True)
    one, two, other = (file_contents(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert one.keys() == other.keys()
    assert not any(one[name] == other[name] for name in one)


def test_the_folders_and_entries_are_cocos(dataset: Path) -> None:
    ids: set[int] = set()
    for split, count in (("train", 60), ("val", 5)):
        content = json.loads((dataset / f"annotations/person_keypoints_{split}2017.json").read_text())
        assert [image["id"] for image in content["images"]] == list(range(SPLITS[split], SPLITS[split] + count))
        assert ids.isdisjoint(image["id"] for image in content["images"])
        ids |= {image["id"] for image in content["images"]}
        (category,) = content["categories"]
        assert category["keypoints"] == list(COCO.file_names) and category["id"] == 1
        assert len(category["skeleton"]) == 19 and [16, 14] in category["skeleton"]
        for image in content["images"]:
            pixels = cv2.imread(str(dataset / f"{split}2017" / image["file_name"]))
            assert pixels.shape == (image["height"], image["width"], 3)
            assert image["file_name"] == f"{image['id']:012d}.jpg"
        numbers = [annotation["id"] for annotation in content["annotations"]]
        assert len(set(numbers)) == len(numbers)


def test_masks_boxes_and_areas_agree(coco: CocoFile) -> None:
    forms = set()
    for annotation in coco.anns.values():
        mask = coco.annToMask(annotation)
        rows, columns = np.nonzero(mask)
        left, top, width, height = annotation["bbox"]
        assert annotation["area"] == mask.sum() > 0
        assert (left, top) == (columns.min(), rows.min())
        assert (left + width, top + height) == (columns.max() + 1, rows.max() + 1)
        segmentation = annotation["segmentation"]
        forms.add(list if isinstance(segmentation, list) else type(segmentation["counts"]).__name__)
    assert forms == {list, "list", "str"}


def test_there_are_people_crowds_and_unlabelled_people(coco: CocoFile) -> None:
    crowds = [a for a in coco.anns.values() if a["iscrowd"]]
    people = [a for a in coco.anns.values() if not a["iscrowd"]]
    unlabelled = [a for a in people if not a["num_keypoints"]]
    assert 1 <= len({a["image_id"] for a in crowds}) <= 20
    assert all(not a["num_keypoints"] and isinstance(a["segmentation"], dict) for a in crowds)
    assert 0 < len(unlabelled) < 0.25 * len(people)
    assert {len(coco.getAnnIds([i], iscrowd=False)) for i in coco.imgs} >= {1, 2, 3, 4}
    for annotation in coco.anns.values():
        points = np.reshape(annotation["keypoints"], (17, 3))
        image = coco.imgs[annotation["image_id"]]
        assert annotation["num_keypoints"] == np.count_nonzero(points[:, 2])
        assert not points[points[:, 2] == 0].any()
        assert (points[:, :2] >= 0).all() and (points[:, :2] <= (image["width"] - 1, image["height"] - 1)).all()


def test_visible_keypoints_lie_on_their_person_and_hidden_ones_do_not(scenes: list[Scene]) -> None:
    seen = {1: 0, 2: 0}
    for scene in scenes:
        annotations = annotate(np.random.default_rng(0), scene)
        shown = [actor for actor in scene.actors if scene.mask(actor).any()]
        for actor, annotation in zip(shown, annotations, strict=True):
            for name, (x, y, visibility) in keypoints_of(annotation).items():
                if not visibility:
                    continue
                exact = actor.figures[0].at[name]  # the annotation has one decimal
                np.testing.assert_allclose((x, y), exact, atol=0.5)
                x, y = exact
                owners = scene.owner[max(round(y) - 1, 0) : round(y) + 2, max(round(x) - 1, 0) : round(x) + 2]
                codes = actor.figures[0].codes_showing(name)
                assert all(code // len(Part) == actor.slot for code in codes)
                assert (np.isin(owners, codes).mean() > 0.5) == (visibility == 2), name
                seen[visibility] += 1
    assert seen[2] > 4 * seen[1] > 0


def test_heavily_hidden_people_lose_hidden_keypoints_and_barely_seen_ones_lose_all() -> None:
    canvas, figure = lone_figure(1)
    canvas.owner[130:] = 1
    seen = np.count_nonzero(canvas.owner >= len(Part))
    full, some, none = (annotate_alone(canvas, figure, round(seen / share)) for share in (0.9, 0.3, 0.05))
    assert 0 == none["num_keypoints"] < some["num_keypoints"] < full["num_keypoints"]
    visible = [name for name, point in keypoints_of(full).items() if point[2] == 2]
    assert visible and all(keypoints_of(some)[name][2] == 2 for name in visible)


def test_left_is_left_and_averted_faces_are_not_labelled() -> None:
    front = behind = 0
    for seed in range(60):
        canvas, figure = lone_figure(seed)
        facing = figure.posture.chest[2, 2]
        points = keypoints_of(annotate_alone(canvas, figure))
        if facing > 0.8:
            front += 1
            assert (
                figure.at["left_shoulder"][0] > figure.at["right_shoulder"][0]
                and figure.at["left_hip"][0] > figure.at["right_hip"][0]
            )
            assert points["nose"][2] and figure.at["left_eye"][0] > figure.at["right_eye"][0]
            columns = [np.nonzero(canvas.owner == len(Part) + part)[1] for part in (Part.LEFT_LEG, Part.RIGHT_LEG)]
            assert columns[0].mean() > columns[1].mean()
        if facing < -0.8:
            behind += 1
            assert figure.at["left_shoulder"][0] < figure.at["right_shoulder"][0]
            assert all(points[name] == (0, 0, 0) for name in FACE)
            assert points["left_ear"][2] or points["right_ear"][2]
    assert front > 30 and behind > 3


def apart_from_outlines(text: bytes) -> tuple[dict[str, Any], list[float]]:
    """The content of an annotation file without outlines, which differ by a pixel between versions of OpenCV; areas."""
    content = json.loads(text)
    areas = []
    for entry in content.get("annotations", []):
        del entry["segmentation"]
        areas.append(entry.pop("area"))
    return content, areas


def test_the_sample_is_what_the_generator_draws(tmp_path: Path) -> None:
    marker = json.loads((SAMPLE / MARKER).read_text())
    write_dataset(tmp_path, marker["train"], marker["val"], marker["seed"], workers=1, size=marker["size"])
    drawn, kept = file_contents(tmp_path), file_contents(SAMPLE)
    assert drawn.keys() == kept.keys()
    assert sum(map(len, kept.values())) < 400_000
    for name in kept:
        if name.endswith(".json"):
            (contents, areas), (kept_contents, kept_areas) = (apart_from_outlines(part[name]) for part in (drawn, kept))
            assert contents == kept_contents, name
            assert areas == pytest.approx(kept_areas, rel=0.01), name
        else:
            image, expected = (cv2.imread(str(folder / name)) for folder in (tmp_path, SAMPLE))
            assert image.shape == expected.shape
            difference = cv2.blur(cv2.absdiff(image, expected), (5, 5))
            assert difference.max() < 10, name  # other versions of OpenCV may round and compress differently


@pytest.mark.parametrize("name", ["notes.txt", "train2017/9.jpg"])
@pytest.mark.parametrize("ours", [True, False])
def test_foreign_files_are_left_alone(tmp_path: Path, name: str, ours: bool) -> None:
    if ours:
        write_dataset(tmp_path, train=2, val=1, workers=1, size=64)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = file_contents(tmp_path)
    with pytest.raises(DataError, match=name):
        write_dataset(tmp_path, train=20, val=1, workers=1, size=64)
    assert file_contents(tmp_path) == before


def test_an_interrupted_run_does_not_look_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path, train=3, val=1, workers=1, size=64)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = file_contents(tmp_path)
    with pytest.raises(DataError, match="contains a data set; .*overwrite=True"):
        write_dataset(tmp_path, train=2, val=1, workers=1, size=64)
    assert file_contents(tmp_path) == before
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("posenet.synthetic.dataset._write_image", interrupted)
        write_dataset(tmp_path, train=3, val=1, workers=1, size=64, overwrite=True)
    assert not list(tmp_path.glob("annotations/*"))
    write_dataset(tmp_path, train=3, val=1, workers=1, size=64, overwrite=True)
    assert file_contents(tmp_path) == before


@pytest.mark.parametrize("flags", ["--train -1", "--seed -1", "--workers 0", "--size 10", "--size 99999x480"])
def test_a_number_out_of_range_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str) -> None:
    assert run_tool("make-synthetic", ["--output", str(tmp_path / "out"), *flags.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_tool_writes_the_requested_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--train 2 --val 0 --seed 5 --workers 1".split()
    for text, size in (("96x64", (96, 64)), ("96", 96)):
        one, two = tmp_path / text, tmp_path / f"same as {text}"
        assert run_tool("make-synthetic", ["--output", str(one), *flags, "--size", text]) == 0
        assert capsys.readouterr().out == f"2 training and 0 validation images in {one}\n"
        write_dataset(two, 2, 0, 5, 1, size)
        assert file_contents(one) == file_contents(two)
    for text in ("wide", "96x64x3"):
        with pytest.raises(SystemExit, match="2"):
            run_tool("make-synthetic", ["--output", str(tmp_path), "--size", text])

"""Drawn people: the labels are true of the pixels, a data set is reproducible, and no other file is harmed."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO as CocoFile

from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.skeleton import COCO
from posenet.synthetic.dataset import SPLITS, write_dataset
from posenet.synthetic.scene import PARTS, Canvas, Figure, label_person, paint_person
from tests.helpers.drawn_data import file_contents

FACE = ("nose", "left_eye", "right_eye")


def keypoints_of(annotation: dict) -> dict[str, list[float]]:
    return dict(zip(COCO.file_keypoints, np.reshape(annotation["keypoints"], (-1, 3)).tolist(), strict=True))


def lone_person(seed: int) -> tuple[Canvas, Figure]:
    """One person alone on a plain canvas of 320x280, with the codes ``len(PARTS)`` and above."""
    canvas = Canvas(np.full((280, 320, 3), 200, np.uint8))
    return canvas, paint_person(np.random.default_rng(seed), canvas, 200, np.array([160, 260]), 1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    write_dataset(folder, train=60, val=5, seed=3, workers=1, size=240)
    return folder


@pytest.fixture(scope="module")
def coco(dataset: Path) -> CocoFile:
    return CocoFile(dataset / "annotations" / "person_keypoints_train2017.json")


def test_the_bytes_depend_on_the_seed_and_not_on_the_number_of_workers(tmp_path: Path) -> None:
    for name, seed, workers in (("one", 5, 1), ("two", 5, 2), ("other", 6, 1)):
        write_dataset(tmp_path / name, train=10, val=3, seed=seed, workers=workers, size=96)
    one, two, other = (file_contents(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert one.keys() == other.keys()
    assert not any(one[name] == other[name] for name in one)


def test_the_folders_and_entries_are_cocos(dataset: Path) -> None:
    for split, count in (("train", 60), ("val", 5)):
        content = json.loads((dataset / f"annotations/person_keypoints_{split}2017.json").read_text())
        assert [image["id"] for image in content["images"]] == list(range(SPLITS[split], SPLITS[split] + count))
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
    for annotation in coco.anns.values():
        rows, columns = np.nonzero(coco.annToMask(annotation))
        left, top, width, height = annotation["bbox"]
        assert annotation["area"] == len(rows) > 0
        assert (left, top) == (columns.min(), rows.min())
        assert (left + width, top + height) == (columns.max() + 1, rows.max() + 1)


def test_there_are_people_and_crowds_and_visible_keypoints_lie_on_their_person(coco: CocoFile) -> None:
    crowds = [annotation for annotation in coco.anns.values() if annotation["iscrowd"]]
    assert 1 <= len(crowds) <= 20 and not any(crowd["num_keypoints"] for crowd in crowds)
    assert {len(coco.getAnnIds([image], iscrowd=False)) for image in coco.imgs} >= {1, 2, 3, 4}
    seen = {0: 0, 1: 0, 2: 0}
    for annotation in coco.anns.values():
        mask = coco.annToMask(annotation)
        points = list(keypoints_of(annotation).values())
        assert annotation["num_keypoints"] == sum(visibility > 0 for _, _, visibility in points)
        for x, y, visibility in points:
            seen[int(visibility)] += 1
            assert (x, y) == (0, 0) if visibility == 0 else mask[round(y), round(x)] or visibility == 1
            assert 0 <= x <= mask.shape[1] - 1 and 0 <= y <= mask.shape[0] - 1
    assert seen[2] > 4 * seen[1] > 0


def test_a_keypoint_is_visible_where_its_own_part_is() -> None:
    canvas, figure = lone_person(1)
    points = keypoints_of(label_person(figure, canvas.owner))
    x, y = np.rint(figure.at["left_wrist"]).astype(int)
    canvas.owner[y, x] = len(PARTS) + PARTS.index("trunk")
    covered = keypoints_of(label_person(figure, canvas.owner))
    assert points["left_wrist"][2] == 2 and covered["left_wrist"][2] == 1
    np.testing.assert_allclose(points["left_wrist"][:2], figure.at["left_wrist"], atol=0.051)


def test_a_person_covers_the_pixels_that_it_owns_and_no_others() -> None:
    canvas, _ = lone_person(1)
    is_changed = (canvas.image != 200).any(axis=2)
    is_own = canvas.owner > 0
    assert (is_changed & is_own).sum() > 0.95 * is_own.sum(), "clothes may have the colour of the canvas in places"
    assert not is_changed[cv2.dilate(is_own.astype(np.uint8), np.ones((9, 9))) == 0].any(), "but for the dark edges"


def test_heavily_hidden_people_lose_hidden_keypoints_and_barely_seen_ones_lose_all() -> None:
    canvas, figure = lone_person(1)
    canvas.owner[130:] = 0
    seen = np.count_nonzero(canvas.owner)
    full, some, none = (
        label_person(figure._replace(painted=round(seen / share)), canvas.owner) for share in (0.9, 0.3, 0.05)
    )
    assert 0 == none["num_keypoints"] < some["num_keypoints"] < full["num_keypoints"]
    visible = [name for name, point in keypoints_of(full).items() if point[2] == 2]
    assert visible and all(keypoints_of(some)[name][2] == 2 for name in visible)


def test_left_is_left_and_averted_faces_are_not_labelled() -> None:
    front = behind = 0
    for seed in range(60):
        canvas, figure = lone_person(seed)
        points = keypoints_of(label_person(figure, canvas.owner))
        width = figure.at["left_shoulder"][0] - figure.at["right_shoulder"][0]
        if width > 0.8 * 0.2 * 200:
            front += 1
            assert figure.at["left_hip"][0] > figure.at["right_hip"][0]
            assert points["nose"][2] and figure.at["left_eye"][0] > figure.at["right_eye"][0]
            columns = [
                np.nonzero(canvas.owner == len(PARTS) + PARTS.index(leg))[1] for leg in ("left_leg", "right_leg")
            ]
            assert columns[0].mean() > columns[1].mean()
        if width < -0.8 * 0.2 * 200:
            behind += 1
            assert all(points[name] == [0, 0, 0] for name in FACE)
            assert points["left_ear"][2] or points["right_ear"][2]
    assert front > 30 and behind > 3


def test_a_folder_with_files_is_refused_and_an_interrupted_run_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("posenet.synthetic.dataset._write_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, train=3, val=1, workers=1, size=64)
    assert not list(tmp_path.glob("annotations/*"))
    with pytest.raises(DataError, match="is not empty"):
        write_dataset(tmp_path, train=3, val=1, workers=1, size=64)


@pytest.mark.parametrize("flags", ["--train -1", "--seed -1", "--workers 0", "--size 10", "--size 99999"])
def test_a_number_out_of_range_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str) -> None:
    assert run_tool("make-synthetic", ["--output", str(tmp_path / "out"), *flags.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_tool_writes_the_requested_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--train 2 --val 0 --seed 5 --workers 1 --size 96".split()
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_tool("make-synthetic", ["--output", str(one), *flags]) == 0
    assert capsys.readouterr().out == f"2 training and 0 validation images in {one}\n"
    write_dataset(two, 2, 0, 5, 1, 96)
    assert file_contents(one) == file_contents(two)

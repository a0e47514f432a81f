"""What is exported for correction comes back from the labelling tool with the same keypoints."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import posenet
from posenet.annotations.importing.formats import read_annotations
from posenet.annotations.importing.imported import ImportedAnnotations
from posenet.errors import ConfigError, DataError
from posenet.images import write_image
from posenet.inference.media.sources import IN_MEMORY, Frame, Source
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.person import Person
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO, Skeleton
from tests.helpers.drawn_data import HEIGHT, WIDTH, document, write_images
from tests.helpers.spot_networks import SpotNetwork, spot_image
from tests.helpers.videos import write_video

KITE = Skeleton(
    keypoints=("top", "left_corner", "right_corner", "tail"),
    parts=(("top", "left_corner"), ("top", "right_corner"), ("left_corner", "tail"), ("right_corner", "tail")),
    left_right=(("left_corner", "right_corner"),),
    derived={},
    file_keypoints=("top", "left_corner", "right_corner", "tail"),
    file_names=("top", "left corner", "right corner", "tail"),
    sigmas=(0.05,) * 4,
    category="kite",
)
FORMATS = ["a.slp", "a.xml", "a.json"]


def people(count: int, skeleton: Skeleton, seed: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> list[Person]:
    """People somewhere in an image; the last keypoint of the file was not found."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        points = rng.uniform(1, min(size) - 1, (len(skeleton.file_names), 3))
        points[:, 2] = 0.5
        points[-1] = 0
        found.append(Person.from_coco(points, 0.9 - index / 10, skeleton))
    return found


def image_results(folder: Path, skeleton: Skeleton = COCO) -> list[Result]:
    """Two images, with two people and with one."""
    write_images(folder, document([1, 2], []))
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    sources = [Source("image", folder / f"{number:012d}.jpg") for number in (1, 2)]
    return [
        Result(Frame(source, image), people(count, skeleton, count), skeleton) for source, count in zip(sources, (2, 1))
    ]


def points_of(imported: ImportedAnnotations) -> dict[str, list[np.ndarray]]:
    name_of = {image["id"]: image["file_name"] for image in imported.document["images"]}
    found: dict[str, list[np.ndarray]] = {}
    for entry in imported.document["annotations"]:
        found.setdefault(name_of[entry["image_id"]], []).append(np.reshape(entry["keypoints"], (-1, 3)))
    return found


def submit(path: Path) -> None:
    """What Label Studio does when an annotator accepts the predictions."""
    tasks = json.loads(path.read_text())
    for number, task in enumerate(tasks, 1):
        [prediction] = task.pop("predictions")
        task |= {"id": number, "annotations": [{"result": prediction["result"]}]}
    path.write_text(json.dumps(tasks))


def require(name: str) -> None:
    if name.endswith(".slp"):
        pytest.importorskip("sleap_io", reason="sleap-io is not installed: pip install 'simplepose[sleap]'")


@pytest.mark.parametrize("name, skeleton", [*itertools.product(FORMATS, [COCO, KITE])])
def test_exported_images_come_back_with_the_same_keypoints(tmp_path: Path, name: str, skeleton: Skeleton) -> None:
    require(name)
    results = image_results(tmp_path / "images", skeleton)
    path = tmp_path / name
    posenet.export_results(results, path)
    if name == "a.json":
        submit(path)
    found = read_annotations(path, images=tmp_path / "images")
    [category] = found.document["categories"]
    assert category["name"] == skeleton.category
    names = category["keypoints"]
    assert set(names) >= set(skeleton.file_names[:-1])
    points = points_of(found)
    for result in results:
        own = points[Path(str(result.path)).name]
        assert len(own) == len(result)
        for keypoints, person in zip(own, result):
            for index, label in enumerate(skeleton.file_names[:-1]):
                x, y, _ = person.to_coco()[index]
                assert keypoints[names.index(label)] == pytest.approx((x, y, 2), abs=0.002)
            assert np.count_nonzero(keypoints[:, 2]) == len(skeleton.file_names) - 1
    if name != "a.json":  # which has no skeleton
        assert names == list(skeleton.file_names)
        assert [1, 2] in category["skeleton"]
    if skeleton is KITE and name == "a.slp":
        assert category["flip_idx"] == [0, 2, 1, 3]


@pytest.mark.parametrize("name", FORMATS)
def test_images_at_addresses_are_exported_where_the_tool_does_not_open_them(tmp_path: Path, name: str) -> None:
    require(name)
    [result, _] = image_results(tmp_path / "images")
    source = Source("image", "http://host/000000000001.jpg")
    results = [dataclasses.replace(result, frame=dataclasses.replace(result.frame, source=source))]
    if name == "a.slp":
        with pytest.raises(DataError, match="http://host/000000000001.jpg is no file"):
            posenet.export_results(results, tmp_path / name)
    else:
        posenet.export_results(results, tmp_path / name)
        assert "000000000001.jpg" in (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["a.slp"])
def test_exported_frames_come_back_with_the_same_keypoints(tmp_path: Path, name: str) -> None:
    require(name)
    pytest.importorskip("av", reason="needs PyAV to make the video")
    video = Source("video", write_video(tmp_path / "clip.mp4", 6))
    image = np.zeros((48, 64, 3), np.uint8)
    results = []
    for number in (0, 1, 2, 4):
        own = [dataclasses.replace(one, id=1) for one in people(1, COCO, number, (48, 64))]
        others = people(1, COCO, 9, (48, 64)) if number == 1 else []
        results.append(Result(Frame(video, image, number), [] if number == 4 else own + others))
    posenet.export_results(results, tmp_path / name)
    found = read_annotations(tmp_path / name, frames=tmp_path / "frames")
    points = points_of(found)
    for result in results:
        own = points.get(f"video1_clip_{result.frame.number:06d}.png", [])
        assert len(own) == len(result)
        for keypoints, person in zip(own, result):
            np.testing.assert_allclose(keypoints[:16, :2], person.to_coco()[:16, :2], atol=0.002)
    assert all((tmp_path / "frames" / image["file_name"]).is_file() for image in found.document["images"])


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [result, _] = image_results(tmp_path / "images")
    memory = dataclasses.replace(result, frame=dataclasses.replace(result.frame, source=IN_MEMORY))
    video = Source("video", tmp_path / "clip.mp4")
    frame = dataclasses.replace(result, frame=dataclasses.replace(result.frame, source=video, number=3))
    cases: list[tuple[list[Result], str, type[Exception], str]] = [
        ([], "a.xml", DataError, "no results"),
        ([result], "a.txt", ConfigError, "a.txt is no file for corrections"),
        ([frame], "a.json", DataError, "clip.mp4 is no single image"),
        ([memory], "a.json", DataError, "an image in memory is no file"),
        ([result], "missing/images/../../images/000000000001.jpg", ConfigError, "no file for corrections"),
    ]
    for results, name, kind, message in cases:
        with pytest.raises(kind, match=message):
            posenet.export_results(results, tmp_path / name)
        assert not (tmp_path / name).exists() or name.endswith(".jpg")
    monkeypatch.setitem(sys.modules, "sleap_io", None)
    with pytest.raises(ConfigError, match=r"pip install 'simplepose\[sleap\]'"):
        posenet.export_results([result], tmp_path / "a.slp")


def test_predict_exports_what_it_finds(tmp_path: Path) -> None:
    for number, x in enumerate((40, 70)):
        write_image(tmp_path / "photos" / f"{number}.png", spot_image(98, 132, (x, 20), (90, 60), 4))
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=64), min_score=0)
    results = list(predictor.stream(tmp_path / "photos"))
    options = {"export": tmp_path / "a.xml", "coco": tmp_path / "coco.json", "progress": False}
    summary = posenet.predict(tmp_path / "photos", predictor, **options)
    assert str(tmp_path / "a.xml") in summary.files
    exported, coco = (read_annotations(tmp_path / name, images=tmp_path / "photos") for name in ("a.xml", "coco.json"))
    assert len(exported.document["annotations"]) == sum(map(len, results)) > 0
    for own, others in zip(points_of(exported).values(), points_of(coco).values(), strict=True):
        np.testing.assert_allclose(own, others, atol=0.002)

"""``Result``: the people in an image, and what can be done with them."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media.frames import IN_MEMORY, Frame
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.person import Person
from posenet.settings import InferenceConfig
from tests.helpers.spot_networks import NOSE, SpotNetwork, spot_people_image


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "two.png"
    cv2.imwrite(str(path), spot_people_image(192, 256, 2))
    return path


@pytest.fixture
def result(path: Path) -> Result:
    return Predictor(SpotNetwork(), InferenceConfig(height=192), min_score=0)(path)


def test_a_result_is_a_sequence_of_people_with_arrays(result: Result, path: Path) -> None:
    assert len(result) == 2 and [*result] == [result[0], result[1]] == list(result[:2])
    assert result.keypoints.shape == (2, 18, 3) and result.keypoints.dtype == np.float32
    np.testing.assert_array_equal(result.keypoints[1], result[1].keypoints)
    np.testing.assert_array_equal(result.scores, np.float32([person.score for person in result]))
    np.testing.assert_array_equal(result.boxes[0], result[0].box)
    assert result.ids == [None, None] and result.seconds is None and result.error is None
    assert result.path == str(path) and np.array_equal(result.image, cv2.imread(str(path)))
    assert str(result) == f"{path}: 256 x 192, 2 people" and "\n" not in repr(result)
    assert result[0].named()["nose"] == tuple(result.keypoints[0, NOSE].tolist())


def test_a_result_without_people_has_empty_arrays() -> None:
    result = Result(Frame(IN_MEMORY, np.zeros((4, 6, 3), np.uint8)))
    assert not result and result.path is None
    assert result.keypoints.shape == (0, 18, 3) and result.scores.shape == (0,) and result.boxes.shape == (0, 4)
    assert result.to_json() == "[]" and result.to_coco(1) == []
    assert np.array_equal(result.plot(), result.image)
    assert str(result) == "an image in memory: 6 x 4, 0 people"


def test_results_are_written_as_drawings_and_text(result: Result, path: Path, tmp_path: Path) -> None:
    drawing = result.plot()
    assert drawing.shape == result.image.shape and not np.array_equal(drawing, result.image)
    assert not np.array_equal(result.plot(numbers=True), drawing)
    for options in ({"numbers": True}, {}):
        result.save(tmp_path / "drawn.png", **options)
        assert np.array_equal(cv2.imread(str(tmp_path / "drawn.png")), result.plot(**options))
    faint = Result(result.frame, [Person(np.float32([[9, 9, 0.1]] * 18), 0.5)])
    assert np.array_equal(faint.plot(), faint.image)
    assert not np.array_equal(faint.plot(keypoint_min_score=0), faint.image)
    before = path.read_bytes()
    (tmp_path / "link.png").symlink_to(path)
    for name in (path, tmp_path / "link.png"):
        with pytest.raises(DataError, match="is the image that the people were found in"):
            result.save(name)
    assert path.read_bytes() == before
    entries = json.loads(result.to_json())
    assert entries == result.to_dicts() and entries[0]["keypoints"].keys() == result[0].named().keys()
    assert [(entry["image_id"], entry["category_id"]) for entry in result.to_coco(5, 7)] == [(5, 7)] * 2


def test_an_image_that_could_not_be_read_is_not_drawn() -> None:
    result = Result(Frame(IN_MEMORY, error=DataError("a.png is damaged")))
    assert str(result) == "a.png is damaged" and len(result) == 0
    with pytest.raises(DataError, match="a.png is damaged"):
        result.plot()


def test_equal_results_have_the_same_hash(result: Result, path: Path) -> None:
    again = Predictor(SpotNetwork(), InferenceConfig(height=192), min_score=0)(path)
    empty = Result(Frame(IN_MEMORY, np.zeros((4, 6, 3), np.uint8)))
    assert len({result, again, empty}) == 2 and {result: 1}[tuple(result)] == 1

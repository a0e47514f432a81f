"""The one-liners of docs/python.md that hand people to supervision, pandas and PIL."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from posenet.inference.media.sources import IN_MEMORY, Frame
from posenet.inference.result import Result
from posenet.skeleton import COCO
from tests.helpers.rendered_maps import person_at

WRIST = COCO.index("left_wrist")
IMAGE = np.full((400, 600, 3), 90, np.uint8)


@pytest.fixture
def result() -> Result:
    """Two people in an image. Of the first one the left wrist was not found."""
    people = [dataclasses.replace(person_at(x), id=number) for number, x in enumerate((150, 450), 1)]
    people[0].keypoints[WRIST] = 0
    return Result(Frame(IN_MEMORY, IMAGE), people)


def test_supervision_draws_and_filters_the_people(result: Result) -> None:
    sv = pytest.importorskip("supervision", reason="supervision is not installed (pip install supervision)")
    keypoints = sv.KeyPoints(xy=result.keypoints[..., :2], keypoint_confidence=result.keypoints[..., 2])
    assert len(keypoints) == 2
    np.testing.assert_array_equal(keypoints.xy, result.keypoints[..., :2])
    person_class = np.zeros(len(result.scores), int)
    detections = sv.Detections(
        result.boxes, confidence=result.scores, class_id=person_class, tracker_id=np.array(result.ids)
    )
    assert detections[detections.tracker_id == 2].xyxy.tolist() == [result.boxes[1].tolist()]
    edges = (result.skeleton.part_ends + 1).tolist()
    drawn = sv.EdgeAnnotator(edges=edges, thickness=2).annotate(IMAGE.copy(), keypoints)
    drawn = sv.BoxAnnotator().annotate(drawn, detections)
    assert (drawn != IMAGE).any(axis=2).sum() > 1000
    assert (drawn[:5, :5] == IMAGE[:5, :5]).all(), "no edge leads to a keypoint that was not found"


def test_pandas_makes_tables_of_people_and_of_keypoints(result: Result) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (pip install pandas)")
    people = pandas.DataFrame(result.to_dicts())
    assert people[people.id == 2].score.tolist() == [pytest.approx(result.scores[1])]
    assert "left_wrist" not in people.keypoints[0] and "left_wrist" in people.keypoints[1]
    rows = pandas.MultiIndex.from_product([range(2), result.skeleton.keypoints], names=["person", "keypoint"])
    keypoints = pandas.DataFrame(result.keypoints.reshape(-1, 3), rows, ["x", "y", "score"])
    assert keypoints.loc[1, "left_wrist"].tolist() == result.keypoints[1, WRIST].tolist()
    found = keypoints[keypoints.score > 0]
    assert (0, "left_wrist") not in found.index and len(found) == 2 * COCO.num_keypoints - 1

"""From frames to people."""

from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.inference.media import frame_prediction
from posenet.inference.media.frame_prediction import predict_frames
from posenet.inference.media.sources import CameraSource, FileSource, Frame, UnreadableFrame
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from tests.helpers.spot_networks import NOSE, SpotNetwork, spot_image

VIDEO = FileSource("video", Path("v.mp4"))


@pytest.fixture
def predictor():
    return Predictor(SpotNetwork(), InferenceConfig(height=128, batch_size=3))


def test_only_a_few_frames_are_in_memory_at_a_time(predictor, monkeypatch):
    num_read = 0

    def read_frames(sources, selection, stop_requested):
        nonlocal num_read
        for number in range(60):
            num_read += 1
            yield Frame(VIDEO, spot_image(98, 132, (40, 20), (90, 60), 4), number, number / 10, 10.0)

    monkeypatch.setattr(frame_prediction, "read_frames", read_frames)
    in_memory = [num_read - num_predicted for num_predicted, _ in enumerate(predict_frames(predictor, [VIDEO]))]
    assert len(in_memory) == 60 and max(in_memory) <= 16


@pytest.mark.parametrize("source", [VIDEO, CameraSource(0)], ids=["video", "camera"])
def test_people_belong_to_their_frames_among_unreadable_ones(predictor, monkeypatch, source):
    """The nose moves by two pixels from frame to frame; some frames are unreadable, some are without people."""
    unreadable = {0, 1, 5, 6, 7, 8, 15, 23}
    empty = {12, 13}

    def read_frames(sources, selection, stop_requested):
        for number in range(24):
            if number in unreadable:
                yield UnreadableFrame(source, DataError(f"frame {number}"))
            elif number in empty:
                yield Frame(source, np.zeros((98, 132, 3), np.uint8), number, is_live=source != VIDEO)
            else:
                image = spot_image(98, 132, (20 + 2 * number, 20), (90, 60), 4)
                yield Frame(source, image, number, is_live=source != VIDEO)

    monkeypatch.setattr(frame_prediction, "read_frames", read_frames)
    predictions = list(predict_frames(predictor, [source]))
    assert len(predictions) == 24
    for number, (frame, people, _) in enumerate(predictions):
        if number in unreadable:
            assert str(frame.error) == f"frame {number}" and people == []
        else:
            assert frame.number == number and len(people) == (number not in empty)
        for person in people:
            assert person.keypoints[NOSE, 0] == pytest.approx(20 + 2 * number, abs=0.6)

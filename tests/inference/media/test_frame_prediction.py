"""From frames to people."""

import time
from pathlib import Path

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.backends.backend import InputBatch, NetworkOutput
from posenet.inference.media import frame_prediction
from posenet.inference.media import sources as sources_module
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

    def read_frames(sources, selection, stop_requested, ahead):
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

    def read_frames(sources, selection, stop_requested, ahead):
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


def test_a_batch_is_read_while_the_network_runs_on_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number:03d}.png" for number in range(100)]
    for path in paths:
        write_image(path, np.zeros((8, 8, 3), np.uint8))
    opened: list[Path] = []

    def read(path: Path) -> np.ndarray:
        opened.append(path)
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(sources_module, "read_image", read)
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=64, batch_size=16))
    run_network = predictor.run_network
    opened_before: list[int] = []

    def count_opened(batch: InputBatch) -> NetworkOutput:
        deadline = time.monotonic() + 10
        while len(opened) < min(100, 16 * (len(opened_before) + 3)) and time.monotonic() < deadline:
            time.sleep(0.01)
        opened_before.append(len(opened))
        return run_network(batch)

    monkeypatch.setattr(predictor, "run_network", count_opened)
    assert len(list(predict_frames(predictor, [FileSource("image", path) for path in paths]))) == 100
    assert all(count >= min(100, 16 * (index + 3)) for index, count in enumerate(opened_before))

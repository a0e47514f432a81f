"""Predictions whose people are tracked."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from posenet.images import write_image
from posenet.inference.predict import predict
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from tests.helpers.spot_networks import SpotNetwork, spot_image

PREDICTOR = Predictor(SpotNetwork(), InferenceConfig(height=64), min_score=0)


def test_people_of_videos_are_tracked_and_smoothed(tmp_path: Path) -> None:
    video = pytest.importorskip("posenet.inference.media.video")
    clip = tmp_path / "clip.mp4"
    with contextlib.closing(video.VideoWriter(clip, (98, 132), 10)) as writer:
        for number in range(12):
            writer.write(spot_image(98, 132, (40 + 2 * number, 20), (60 + 2 * number, 60), 4), number / 10)

    def people(**options: Any) -> list[dict[str, Any]]:
        predict(clip, PREDICTOR, json=tmp_path / "p.json", overwrite=True, progress=False, **options)
        found: list[dict[str, Any]] = json.loads((tmp_path / "p.json").read_text())
        return found

    assert len(people()) == 12 and all("id" not in person for person in people())
    tracked, smoothed = people(track=True), people(smooth=True)
    assert [(p["frame"], p["id"], p["time"]) for p in tracked] == [(n, 1, n / 10) for n in range(12)]
    assert [p["id"] for p in smoothed] == [1] * 12
    assert [p["keypoints"] for p in smoothed] != [p["keypoints"] for p in tracked]


def test_tracking_photographs_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_image(tmp_path / "a.png", spot_image(98, 132, (20, 20), (90, 60), 4))
    predict(tmp_path, PREDICTOR, json=tmp_path / "p.json", track=True, progress=False)
    assert "tracking has no effect on images" in caplog.text
    assert all("id" not in person for person in json.loads((tmp_path / "p.json").read_text()))

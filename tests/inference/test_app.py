"""The page of ``posenet app``, asked as a browser asks it."""

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest

import posenet
from posenet.errors import ConfigError
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image
from tests.helpers.videos import read_video, write_video

if TYPE_CHECKING:
    from gradio_client import Client
    from torch import Tensor

START_SECONDS = 60
MIN_SCORE = 0.05
"""People of coloured spots have few keypoints, and so low scores."""


@pytest.fixture
def predictor() -> posenet.Predictor:
    return posenet.Predictor(LinearSpotNetwork(), height=192, min_score=MIN_SCORE)


@pytest.fixture
def client(predictor: posenet.Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Client]":
    """A program that uses the page: not by way of a proxy, and the page removes its files at its end."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pytest.importorskip("gradio", reason="pip install 'simplepose[app]'")
    from gradio_client import Client

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ended = threading.Event()
    server = threading.Thread(
        target=posenet.app, args=[predictor], kwargs={"port": port, "stop_requested": ended.is_set}
    )
    server.start()
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.is_alive() and time.monotonic() < end
            time.sleep(0.1)
        yield Client(f"http://127.0.0.1:{port}", verbose=False, download_files=str(tmp_path / "downloads"))
    finally:
        ended.set()
        server.join()
    assert list(tmp_path.glob("posenet-app-*")) == []


def find(client: "Client", path: Path, min_score: float = MIN_SCORE) -> tuple[str, Path, list[dict[str, Any]]]:
    """Send a file to the page; the text, the drawing and the people of the JSON file that it shows."""
    from gradio_client import handle_file

    text, [shown], file = client.predict(handle_file(str(path)), min_score, api_name="/find")
    return text, Path(shown.get("image") or shown["video"]), json.loads(Path(file).read_text())


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photograph of two people that was taken with the camera on its side."""
    path = tmp_path / "holiday.jpg"
    path.write_bytes(with_orientation(encode(np.rot90(spot_people_image(192, 256, 2)).copy()), 6))
    return path


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A video of two people who stand still."""
    pytest.importorskip("av", reason="videos need PyAV")
    from posenet.inference.media.video import VideoWriter

    path = tmp_path / "clip.mp4"
    with contextlib.closing(VideoWriter(path, (128, 192), 10)) as writer:
        for number in range(6):
            writer.write(spot_people_image(128, 192, 2), number / 10)
    return path


def people_of(path: Path, predictor: posenet.Predictor, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """The people that ``posenet.predict`` writes, under the name of the file alone."""
    file = tmp_path / "expected.json"
    posenet.predict(path, predictor, json=str(file), progress=False, **options)
    people: list[dict[str, Any]] = json.loads(file.read_text())
    for person in people:
        person["file_name"] = path.name
        person["image_id"] = str(person["image_id"]).replace(str(path), path.name)
    return people


@pytest.mark.slow
def test_a_photograph_gives_the_people_of_predict(
    client: "Client", photo: Path, predictor: posenet.Predictor, tmp_path: Path
) -> None:
    text, drawing, people = find(client, photo)
    assert text == "2 people in 1 image"
    assert people == people_of(photo, predictor, tmp_path) and len(people) == 2
    difference = cv2.imread(str(drawing)).astype(int) - predictor(photo).plot(numbers=True)
    assert np.abs(difference).mean() < 4  # JPEG
    text, _, people = find(client, photo, 1.0)
    assert text == "0 people in 1 image" and people == []
    assert client.config["analytics_enabled"] is False, "nothing is reported to others"


@pytest.mark.slow
def test_a_video_gives_the_people_of_predict(
    client: "Client", clip: Path, predictor: posenet.Predictor, tmp_path: Path
) -> None:
    pytest.importorskip("posenet.inference.tracking")
    text, drawing, people = find(client, clip)
    assert text == "2 tracked people in 6 video frames"
    assert people == people_of(clip, predictor, tmp_path, track=True)
    assert {person["id"] for person in people} == {1, 2}
    assert len(read_video(drawing)) == 6


@pytest.mark.slow
def test_a_stopped_video_makes_way_for_the_next_user(
    client: "Client", photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradio_client import Client, handle_file

    computed = []
    compute = LinearSpotNetwork.heatmaps

    def compute_and_count(network: LinearSpotNetwork, images: "Tensor") -> "Tensor":
        computed.extend(images)
        return compute(network, images)

    monkeypatch.setattr(LinearSpotNetwork, "heatmaps", compute_and_count)
    clip = write_video(tmp_path / "long.mp4", 1000)
    job = client.submit(handle_file(str(clip)), api_name="/find")
    while not job.outputs():
        time.sleep(0.1)
    job.cancel()  # as the stop button does
    assert find(Client(client.src, verbose=False, download_files=str(tmp_path)), photo)[0] == "2 people in 1 image"
    assert len(computed) < 1000


@pytest.mark.slow
def test_a_damaged_file_is_named_on_the_page_which_works_on(client: "Client", photo: Path, tmp_path: Path) -> None:
    from gradio_client.exceptions import AppError

    for name, reason in (("damaged.jpg", "cannot be decoded"), ("cut.mp4", "is damaged: no frame can be decoded")):
        path = tmp_path / name
        path.write_bytes(photo.read_bytes()[:50])
        with pytest.raises(AppError, match=f"^{name} {reason}"):
            find(client, path)
    assert find(client, photo)[0] == "2 people in 1 image"


@pytest.mark.slow
def test_an_address_that_cannot_be_used_is_named(predictor: posenet.Predictor) -> None:
    pytest.importorskip("gradio", reason="pip install 'simplepose[app]'")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for host, port in (("127.0.0.1", taken), ("127.0.0.1", 70_000), ("192.0.2.1", None)):
            with pytest.raises(ConfigError, match=f"cannot listen at {host}, port {port or 'any'}: "):
                posenet.app(predictor, host=host, port=port)

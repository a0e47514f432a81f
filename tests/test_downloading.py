"""Reading images at web addresses."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from posenet import downloading
from posenet.downloading import download_image, fetch_video
from posenet.errors import DataError
from posenet.images import write_image
from tests.helpers.media_server import media_server
from tests.helpers.videos import GREY


def test_an_image_is_downloaded(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GREY)
    with media_server(tmp_path) as address:
        assert (download_image(f"{address}/a.png") == GREY).all()


def test_a_user_name_and_a_password_are_sent_and_not_shown(tmp_path: Path) -> None:
    write_image(tmp_path / "secret.png", GREY)
    with media_server(tmp_path) as address:
        address = address.replace("http://", "http://me:{}@")
        assert (download_image(f"{address.format('p%40ss')}/secret.png") == GREY).all()
        with pytest.raises(DataError, match="cannot read http://127.0.0.1:[0-9]+/secret.png: .*401"):
            download_image(f"{address.format('wrong')}/secret.png")


@pytest.mark.parametrize(
    "name, message",
    [("missing.png", "404"), ("bad.png", "cannot be decoded"), ("empty.png", "empty|cannot be decoded")],
)
def test_what_cannot_be_downloaded_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    (tmp_path / "empty.png").write_bytes(b"")
    with media_server(tmp_path) as address, pytest.raises(DataError, match=f"{name}.*({message})"):
        download_image(f"{address}/{name}")
    with pytest.raises(DataError, match="cannot read http://127.0.0.1:9/a.png"):
        download_image("http://127.0.0.1:9/a.png")  # where no server answers


def test_a_password_is_not_sent_to_a_server_to_which_the_first_one_redirects(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", GREY)
    received: list[str | None] = []

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{target.server_port}/a.png")
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    class Target(Redirect):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write((tmp_path / "a.png").read_bytes())

    with HTTPServer(("127.0.0.1", 0), Redirect) as first, HTTPServer(("127.0.0.1", 0), Target) as target:
        for server in (first, target):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        assert (download_image(f"http://me:secret@127.0.0.1:{first.server_port}/a.png") == GREY).all()
        first.shutdown()
        target.shutdown()
    assert received[0] is not None
    assert received[1] is None


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a.png", GREY)
    monkeypatch.setattr(downloading, "MAX_BYTES", 100)
    with media_server(tmp_path) as address, pytest.raises(DataError, match="a.png has more than"):
        download_image(f"{address}/a.png")


def test_a_video_on_a_server_without_parts_is_copied_and_a_stream_is_not(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"content")
    (tmp_path / "out").mkdir()
    with media_server(tmp_path) as address:
        video = fetch_video(f"{address}/clip.mp4", tmp_path / "out")
        assert video.is_file and video.copy is not None and video.copy.read_bytes() == b"content"
        for name in ("live", "list.m3u8", "missing.mp4"):
            video = fetch_video(f"{address}/{name}", tmp_path / "out")
            assert not video.is_file and video.copy is None
    assert not fetch_video("rtsp://127.0.0.1:9/live", tmp_path).is_file

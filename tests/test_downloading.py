"""Reading images at web addresses."""

from __future__ import annotations

import io
import threading
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import Request

import pytest
from tqdm import tqdm

from posenet.downloading import (
    Download,
    DownloadError,
    RedirectHandler,
    download_file,
    is_address,
    receive,
    without_credentials,
)
from posenet.errors import DataError
from posenet.images import download_image, write_image
from tests.helpers.media_server import answer, endless, media_server, raw_server
from tests.helpers.videos import GREY


def save(url: str, path: Path) -> None:
    download_file(path, lambda download: receive(url, download))


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
    monkeypatch.setattr("posenet.downloading.IMAGE_LIMITS", (0.0001, 60))
    with (
        media_server(tmp_path) as address,
        pytest.raises(DataError, match="a.png: it has more than 0.0001 MiB; download it with another program"),
    ):
        download_image(f"{address}/a.png")


@pytest.mark.parametrize(
    "data, message",
    [
        (answer("Content-Length: 10", body=b"1234"), "it ends early: 4 of 10 bytes arrived"),
        (answer("Transfer-Encoding: chunked", body=b"a\r\n1234"), "IncompleteRead"),
        (answer("Transfer-Encoding: chunked", body=b"xyz\r\n1234"), "IncompleteRead|chunk"),
        (b"", "Remote end closed connection"),
        (b"no http\r\n\r\n", "no http"),
    ],
    ids=["length", "chunk", "no chunk", "nothing", "no http"],
)
def test_a_file_that_ends_early_is_an_error_and_not_kept(tmp_path: Path, data: bytes, message: str) -> None:
    with raw_server(data) as server, pytest.raises(DownloadError, match=message):
        save(server.address, tmp_path / "a.bin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["abc", "-5", "", "9" * 5000])
def test_a_length_that_is_none_counts_as_unknown(tmp_path: Path, length: str) -> None:
    with raw_server(answer(f"Content-Length: {length}", body=b"12345")) as server:
        save(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"12345"


@pytest.mark.parametrize(
    "start, part",
    [
        (answer("Content-Length: 1000"), b"x"),
        (answer("Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
        (answer("Transfer-Encoding: chunked"), b"0"),
        (answer(), b"x"),
        (b"HTTP/1.1 200 O", b"K"),
        (b"HTTP/1.1 302 Found\r\nLocation: /b\r\nX: ", b"y"),
    ],
    ids=["body", "chunks", "size of a chunk", "body without length", "status", "header"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, part: bytes
) -> None:
    monkeypatch.setattr("posenet.downloading.FILE_LIMITS", (1, 0.2))
    with raw_server(start, endless(part), pause=0.02) as server:
        with pytest.raises(DownloadError, match="it takes more than 0.2 s; download it with another program"):
            save(f"{server.address}/a.pth", tmp_path / "a.pth")
    assert list(tmp_path.iterdir()) == []


def test_the_time_limit_holds_while_both_sides_agree_on_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenet.downloading.IMAGE_LIMITS", (1, 0.2))
    with raw_server(b"\x16\x03\x03\x3f\xff", endless(b"\0"), pause=0.02) as server:
        with pytest.raises(DataError, match="a.jpg: it takes more than 0.2 s"):
            download_image(f"{server.address.replace('http', 'https')}/a.jpg")


def test_a_download_that_nobody_waits_for_ends_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenet.downloading.FILE_LIMITS", (1, 0.2))
    server_answers, has_ended = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def receive_late(download: Download) -> None:
        server_answers.wait(60)
        for write in (lambda: download.check(0, None), lambda: download.file.write(b"late")):
            try:
                write()
            except (DownloadError, ValueError) as error:
                errors.append(error)
        has_ended.set()

    with pytest.raises(DownloadError, match="it takes more than 0.2 s"):
        download_file(tmp_path / "a.pth", receive_late)
    server_answers.set()
    assert has_ended.wait(60)
    assert [type(error) for error in errors] == [DownloadError, ValueError]
    assert list(tmp_path.iterdir()) == []


def test_a_download_with_a_title_shows_its_progress_in_mebibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("posenet.progress_bar.LINE_SECONDS", 0.0)
    body = bytes(2 * 2**20 + 2**19)
    for title, headers, shown in (
        ("weights", [f"Content-Length: {len(body)}"], "weights: 100% 2/2 ["),
        ("weights", [], "weights: 2MiB ["),
        ("", [], ""),
    ):
        with raw_server(answer(*headers, body=body)) as server:
            download_file(tmp_path / "a", lambda download: receive(server.address, download), title)
        assert (tmp_path / "a").read_bytes() == body
        last = (capsys.readouterr().err.splitlines() or [""])[-1]
        assert shown in last and bool(last) == bool(title)


def test_ctrl_c_ends_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tqdm, "update", interrupt)
    for download in (lambda url: save(url, tmp_path / "a.pth"), download_image):
        with raw_server(answer("Content-Length: 100000"), endless(b"x"), pause=0.02) as server:
            with pytest.raises(KeyboardInterrupt):
                download(f"{server.address}/a.pth")
            assert server.is_closed.wait(60)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("headers", [(), ("Transfer-Encoding: chunked",), (f"Content-Length: {2**40}",)])
def test_an_endless_file_is_stopped_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: tuple[str, ...]
) -> None:
    monkeypatch.setattr("posenet.downloading.FILE_LIMITS", (1.5, 60))
    part = b"10000\r\n" + bytes(2**16) + b"\r\n"
    with raw_server(answer(*headers), endless(part)) as server:
        with pytest.raises(DownloadError, match="it has more than 1.5 MiB; download it with another program"):
            save(f"{server.address}/a.pth", tmp_path / "a.pth")
        assert server.is_closed.wait(10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["ftp://127.0.0.1:9/a.jpg", "file:///etc/hostname", "data:text/plain,abc"])
def test_a_redirect_to_another_kind_of_address_is_refused(target: str) -> None:
    with raw_server(answer(f"Location: {target}", status="302 Found")) as server:
        with pytest.raises(DataError, match="redirected to an address of another kind|Redirection to .* not allowed"):
            download_image(f"{server.address}/a.jpg")
    for address in (target, "FILE:///etc/hostname"):
        with pytest.raises(DataError, match="only http and https addresses can be downloaded"):
            download_image(address)


@pytest.mark.parametrize(
    "first, target, is_followed",
    [("http", "https", True), ("http", "http", True), ("https", "https", True), ("https", "http", False)],
)
def test_a_redirect_from_an_encrypted_address_leads_to_another(first: str, target: str, is_followed: bool) -> None:
    old = Request(f"{first}://example.org/a.jpg")
    arguments = (old, io.BytesIO(), 302, "Found", Message(), f"{target}://example.com/a.jpg")
    if is_followed:
        new = RedirectHandler().redirect_request(*arguments)
        assert new is not None and new.full_url == f"{target}://example.com/a.jpg"
    else:
        with pytest.raises(DownloadError, match="redirected to an address of another kind, http; give the final"):
            RedirectHandler().redirect_request(*arguments)


def test_what_a_server_says_is_a_short_line() -> None:
    with raw_server(answer(status="404 \x1b[31mred\x07" + "long" * 10000)) as server:
        with pytest.raises(DataError, match=r"HTTP Error 404: \?\[31mred\?long") as caught:
            download_image(f"{server.address}/a.jpg")
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address",
    ["http://[::1/x.jpg", "http://127.0.0.1:port/x.jpg", "http://127.0.0.1:99999999/x.jpg", "http:///x.jpg", "http://",
     "http://127.0.0.1:0/x.jpg", "http://\udcff/x.jpg", "http://me:p[w@[/x.jpg", "http://me:secret@\u2100/x.jpg"],
)  # fmt: skip
def test_a_malformed_address_is_one_line(address: str) -> None:
    assert is_address(address)
    with pytest.raises(DataError, match="cannot read http://.*; correct the address") as caught:
        download_image(address)
    assert "\n" not in str(caught.value)
    assert "me:" not in str(caught.value) and "secret" not in str(caught.value)
    assert "me:" not in without_credentials(address)


def test_letters_and_spaces_in_an_address_are_encoded(tmp_path: Path) -> None:
    write_image(tmp_path / "über uns.png", GREY)
    with media_server(tmp_path) as address:
        for name in ("über uns.png", "%C3%BCber%20uns.png", "über uns.png?größe=1#x"):
            assert (download_image(f"{address}/{name}") == GREY).all()

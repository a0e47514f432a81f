"""Reading images at web addresses."""

from pathlib import Path

import pytest

from posenet.downloading import download_bytes, is_address, without_credentials
from posenet.errors import DataError
from posenet.images import read_image, write_image
from tests.helpers.image_bytes import encode
from tests.helpers.media_server import answer, endless, media_server, raw_server
from tests.helpers.videos import GREY


def test_a_user_name_and_a_password_are_sent_and_not_shown(tmp_path: Path) -> None:
    write_image(tmp_path / "secret.png", GREY)
    with media_server(tmp_path) as address:
        address = address.replace("http://", "http://me:{}@")
        assert (read_image(f"{address.format('p%40ss')}/secret.png") == GREY).all()
        with pytest.raises(DataError, match="cannot read http://127.0.0.1:[0-9]+/secret.png: .*401"):
            read_image(f"{address.format('wrong')}/secret.png")


def test_what_cannot_be_downloaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    with media_server(tmp_path) as address:
        for name, message in (("missing.png", "404"), ("bad.png", "cannot be decoded")):
            with pytest.raises(DataError, match=f"{name}.*{message}"):
                read_image(f"{address}/{name}")
    with pytest.raises(DataError, match="cannot read http://127.0.0.1:9/a.png"):
        read_image("http://127.0.0.1:9/a.png")  # where no server answers


def test_a_password_is_not_sent_to_a_server_to_which_the_first_one_redirects() -> None:
    with raw_server(answer(body=encode(GREY, ".png"))) as target:
        with raw_server(answer(f"Location: {target.address}/a.png", status="302 Found")) as first:
            assert (read_image(f"{first.address.replace('http://', 'http://me:secret@')}/a.png") == GREY).all()
    assert b"Authorization" in first.requests[0] and b"Authorization" not in target.requests[0]


@pytest.mark.parametrize(
    "data, message",
    [
        (answer("Content-Length: 10", body=b"1234"), "it ends early: 4 of 10 bytes arrived"),
        (answer("Transfer-Encoding: chunked", body=b"a\r\n1234"), "IncompleteRead"),
        (b"no http\r\n\r\n", "no http"),
    ],
    ids=["length", "chunk", "no http"],
)
def test_a_file_that_ends_early_is_an_error(data: bytes, message: str) -> None:
    with raw_server(data) as server, pytest.raises(DataError, match=message):
        download_bytes(server.address)


@pytest.mark.parametrize("length", ["abc", "-5", "9" * 5000])
def test_a_length_that_is_none_counts_as_unknown(length: str) -> None:
    with raw_server(answer(f"Content-Length: {length}", body=b"12345")) as server:
        assert download_bytes(server.address) == b"12345"


@pytest.mark.parametrize(
    "start, part",
    [(answer("Content-Length: 1000"), b"x"), (answer("Transfer-Encoding: chunked"), b"1\r\nx\r\n")],
    ids=["body", "chunks"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_left(
    monkeypatch: pytest.MonkeyPatch, start: bytes, part: bytes
) -> None:
    monkeypatch.setattr("posenet.downloading.MAX_SECONDS", 0.2)
    with raw_server(start, endless(part), pause=0.02) as server:
        with pytest.raises(DataError, match="0.2 s"):
            download_bytes(f"{server.address}/a.jpg")


@pytest.mark.parametrize("headers", [(), ("Transfer-Encoding: chunked",)])
def test_an_endless_file_is_stopped(monkeypatch: pytest.MonkeyPatch, headers: tuple[str, ...]) -> None:
    monkeypatch.setattr("posenet.downloading.MAX_MEBIBYTES", 1.5)
    part = b"10000\r\n" + bytes(2**16) + b"\r\n"
    with raw_server(answer(*headers), endless(part)) as server:
        with pytest.raises(DataError, match="1.5 MiB"):
            download_bytes(f"{server.address}/a.jpg")
        assert server.is_closed.wait(10)


def test_a_file_that_is_too_large_is_refused_with_its_first_data() -> None:
    with raw_server(answer(f"Content-Length: {2**40}", body=b"x")) as server:
        with pytest.raises(DataError, match="more than 256 MiB"):
            download_bytes(f"{server.address}/a.jpg")


@pytest.mark.parametrize("target", ["file:///etc/hostname", "data:text/plain,abc"])
def test_a_redirect_to_another_kind_of_address_is_refused(target: str) -> None:
    with raw_server(answer(f"Location: {target}", status="302 Found")) as server:
        with pytest.raises(DataError, match="Redirection"):
            read_image(f"{server.address}/a.jpg")
    with pytest.raises(DataError, match="only http and https"):
        read_image("FILE:///etc/hostname")


def test_what_a_server_says_is_a_short_line() -> None:
    with raw_server(answer(status="404 \x1b[31mred\x07" + "long" * 10000)) as server:
        with pytest.raises(DataError, match=r"HTTP Error 404: \?\[31mred\?long") as caught:
            read_image(f"{server.address}/a.jpg")
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address",
    ["http://[::1/x.jpg", "http://127.0.0.1:port/x.jpg", "http://127.0.0.1:99999999/x.jpg", "http:///x.jpg", "http://",
     "http://127.0.0.1:0/x.jpg", "http://\udcff/x.jpg", "http://me:p[w@[/x.jpg", "http://me:secret@\u2100/x.jpg"],
)  # fmt: skip
def test_a_malformed_address_is_one_line(address: str) -> None:
    assert is_address(address)
    with pytest.raises(DataError, match="cannot read http://") as caught:
        read_image(address)
    assert "\n" not in str(caught.value)
    assert "me:" not in str(caught.value) and "secret" not in str(caught.value)
    assert "me:" not in without_credentials(address)


def test_letters_and_spaces_in_an_address_are_encoded(tmp_path: Path) -> None:
    write_image(tmp_path / "über uns.png", GREY)
    with media_server(tmp_path) as address:
        for name in ("über uns.png", "%C3%BCber%20uns.png", "über uns.png?größe=1#x"):
            assert (read_image(f"{address}/{name}") == GREY).all()

"""Reading images at web addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.errors import DataError
from posenet.images.downloading import download_image
from posenet.images.image_files import write_image
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


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(DataError, match="cannot read http://127.0.0.1:9/a.png"):
        download_image("http://127.0.0.1:9/a.png")

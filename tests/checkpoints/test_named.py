"""Weights by name: downloaded once, checked, and then a file; what is not the file is refused."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from unittest.mock import create_autospec

import gdown
import pytest
import torch

from posenet.checkpoints.named import NAMED_WEIGHTS, NamedWeights, cached_path, fetch_weights, find_weights
from posenet.checkpoints.weights import import_weights, load_model, load_weights
from posenet.errors import CheckpointError
from posenet.model.published_names import rename_to_published
from tests.helpers.networks import tiny_network
from tests.helpers.weights_server import WeightsHost, weights_host


def to_bytes(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


PUBLISHED = to_bytes({"weights": rename_to_published(tiny_network(stacks=1).state_dict())})
"""The published file of a tiny network."""


@pytest.fixture(autouse=True)
def empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and an empty current folder."""
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsHost]:
    """A server with ``PUBLISHED``, named "tiny" on the web and "drive" on Google Drive."""
    with weights_host(PUBLISHED) as host:

        def download(*, id: str, output: IO[bytes], progress: Callable[[int, int], None], **options: Any) -> None:
            assert id == "1aB2cD3eF4"
            progress(len(host.data), len(host.data))
            output.write(host.data)
            output.flush()

        monkeypatch.setattr("gdown.download", create_autospec(gdown.download, side_effect=download))
        addresses = {"tiny": f"{host.address}/tiny.pth", "drive": "https://drive.google.com/file/d/1aB2cD3eF4/view"}
        for name, url in addresses.items():
            monkeypatch.setitem(NAMED_WEIGHTS, name, NamedWeights("", license="CC0", url=url))
        yield host


def test_weights_are_downloaded_once_and_every_way_to_load_them_accepts_the_name(
    host: WeightsHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Path("drive").write_bytes(b"")
    assert find_weights("drive") == Path("drive")  # a file comes before a name
    Path("tiny").mkdir()  # a folder does not
    expected = tiny_network(stacks=1).state_dict()
    network, config = load_model("tiny")
    assert (config.model.stacks, config.model.width, config.model.growth) == (1, 16, 2)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())
    assert not load_weights(tiny_network(stacks=1), "tiny").missing
    assert import_weights("tiny", tmp_path / "ours.pth").model.stacks == 1
    assert host.requests == ["/tiny.pth"]
    assert f"Downloading tiny from {host.address}/tiny.pth to {cached_path('tiny')}; licence: CC0" in caplog.text


def test_a_file_of_google_drive_is_downloaded_by_gdown(host: WeightsHost) -> None:
    assert fetch_weights("drive").read_bytes() == PUBLISHED and not host.requests


def test_without_gdown_the_package_is_named(host: WeightsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(CheckpointError, match=r"pip install 'simplepose\[weights\]'"):
        fetch_weights("drive")


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("code-was-run",)


@pytest.mark.parametrize(
    "name, data",
    [("drive", b"<!DOCTYPE html><html>sign in</html>"), ("tiny", PUBLISHED[:-2000]), ("tiny", to_bytes({"a": Code()}))],
    ids=["a web page", "a part", "code"],
)
def test_a_wrong_file_is_refused_and_not_kept(host: WeightsHost, name: str, data: bytes) -> None:
    host.data = data
    with pytest.raises(CheckpointError, match=f"{name} .*incomplete, or a web page") as error:
        find_weights(name)
    assert "\n" not in str(error.value)
    assert os.listdir() == []  # the code of the last file was not run
    assert {path.suffix for path in cached_path(name).parent.iterdir()} <= {".lock"}
    host.data = PUBLISHED
    assert find_weights(name).read_bytes() == PUBLISHED


def test_a_download_that_fails_is_one_line_and_leaves_nothing(
    host: WeightsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.status = 404
    with pytest.raises(CheckpointError, match="tiny .*404"):
        fetch_weights("tiny")
    host.status = 200
    assert not cached_path("tiny").exists()
    assert fetch_weights("tiny").read_bytes() == PUBLISHED
    monkeypatch.setitem(NAMED_WEIGHTS, "tiny", NamedWeights("", license="CC0", url="http://127.0.0.1:9/tiny.pth"))
    with pytest.raises(CheckpointError, match="http://127.0.0.1:9/tiny.pth .*refused"):
        fetch_weights("tiny")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", ["tiny", "drive"])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_disk_is_one_line_that_names_the_folder(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    full = contextlib.nullcontext("/dev/full")
    monkeypatch.setattr("posenet.checkpoints.named.atomic_replacement", lambda path: full)
    with pytest.raises(CheckpointError, match=f"{name} .*{cached_path(name).parent}: No space left.*POSENET_HOME"):
        fetch_weights(name)


def test_one_of_several_callers_downloads_and_the_others_wait(host: WeightsHost) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_weights("tiny"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in paths] == 5 * [PUBLISHED]
    assert host.requests == ["/tiny.pth"]


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSENET_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    # A later variable replaces the earlier ones.
    for name, value, folder in (
        ("HOME", str(tmp_path), tmp_path / ".cache" / "posenet" / "weights"),
        ("XDG_CACHE_HOME", "/cache", Path("/cache/posenet/weights")),
        ("POSENET_HOME", "/home", Path("/home/weights")),
    ):
        monkeypatch.setenv(name, value)
        assert cached_path("simplepose").parent == folder


@pytest.mark.skipif(os.name == "nt", reason="the list of users is that of POSIX")
def test_without_a_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSENET_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    with pytest.raises(CheckpointError, match="no home folder.*POSENET_HOME"):
        find_weights("simplepose")

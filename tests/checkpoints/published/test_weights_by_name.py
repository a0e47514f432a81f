"""Weights by name: downloaded once, checked, and then a file; what is not the file is refused."""

import contextlib
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.checkpoints.file import find_weights
from posenet.checkpoints.published.convert import import_weights
from posenet.checkpoints.published.names import rename_to_published
from posenet.checkpoints.published.weights import cached_path, fetch_weights
from posenet.checkpoints.weights import load_model, load_weights
from posenet.errors import CheckpointError
from tests.helpers.drive import Drive, drive_with
from tests.helpers.networks import tiny_network


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
def drive(monkeypatch: pytest.MonkeyPatch) -> Drive:
    """Google Drive with ``PUBLISHED``, named "tiny"."""
    return drive_with(PUBLISHED, "tiny", monkeypatch)


def test_weights_are_downloaded_once_and_every_way_to_load_them_accepts_the_name(drive: Drive, tmp_path: Path) -> None:
    Path("simplepose").write_bytes(b"")
    assert find_weights("simplepose") == Path("simplepose")  # a file comes before a name
    Path("tiny").mkdir()  # a folder does not
    expected = tiny_network(stacks=1).state_dict()
    network, config = load_model("tiny")
    assert (config.model.stacks, config.model.width, config.model.growth) == (1, 16, 2)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())
    assert not load_weights(tiny_network(stacks=1), "tiny").missing
    assert import_weights("tiny", tmp_path / "ours.pth").model.stacks == 1
    assert drive.downloads == 1


def test_without_gdown_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(CheckpointError, match=r"pip install 'simplepose\[weights\]'"):
        fetch_weights("simplepose")


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("code-was-run",)


@pytest.mark.parametrize(
    "data",
    [b"<!DOCTYPE html><html>sign in</html>", PUBLISHED[:-2000], to_bytes({"a": Code()})],
    ids=["a web page", "a part", "code"],
)
def test_a_wrong_file_is_refused_and_not_kept(drive: Drive, data: bytes) -> None:
    drive.data = data
    with pytest.raises(CheckpointError, match="tiny .*incomplete, or a web page") as error:
        find_weights("tiny")
    assert "\n" not in str(error.value)
    assert os.listdir() == []  # the code of the last file was not run
    assert {path.suffix for path in cached_path("tiny").parent.iterdir()} <= {".lock"}
    drive.data = PUBLISHED
    assert find_weights("tiny").read_bytes() == PUBLISHED


@pytest.mark.usefixtures("drive")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_disk_is_one_line_that_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    full = contextlib.nullcontext("/dev/full")
    monkeypatch.setattr("posenet.checkpoints.published.weights.atomic_replacement", lambda path: full)
    with pytest.raises(CheckpointError, match=f"tiny .*{cached_path('tiny').parent}: No space left.*POSENET_HOME"):
        fetch_weights("tiny")


def test_one_of_several_callers_downloads_and_the_others_wait(drive: Drive) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_weights("tiny"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in paths] == 5 * [PUBLISHED]
    assert drive.downloads == 1


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSENET_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="no home folder.*POSENET_HOME"):
        patch.setattr("pwd.getpwuid", lambda user: {}[user])
        find_weights("simplepose")
    # A later variable replaces the earlier ones.
    for name, value, folder in (
        ("HOME", str(tmp_path), tmp_path / ".cache" / "posenet" / "weights"),
        ("XDG_CACHE_HOME", "/cache", Path("/cache/posenet/weights")),
        ("POSENET_HOME", "/home", Path("/home/weights")),
    ):
        monkeypatch.setenv(name, value)
        assert cached_path("simplepose").parent == folder

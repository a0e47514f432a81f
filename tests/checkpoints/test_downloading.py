"""Downloading from web servers and from Google Drive: cut connections, continued downloads, wrong answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gdown  # noqa: F401  # its module is patched
import pytest

from posenet.checkpoints import downloading
from posenet.checkpoints.downloading import Report, download_google_drive, download_url
from posenet.errors import CheckpointError
from tests.helpers.weights_server import DRIVE_ID, WeightsHost, redirect_google_drive, weights_host

DATA = bytes(range(256)) * 40


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsHost]:
    monkeypatch.setattr(downloading, "_CHUNK_SIZE", 1000)
    monkeypatch.setattr(sys.modules["gdown.download"], "CHUNK_SIZE", 1000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with weights_host(DATA) as host:
        redirect_google_drive(monkeypatch, host)
        yield host


def ignore(received: int, total: int | None) -> None: ...


class Interrupt:
    """A report that interrupts the download, as Ctrl-C or an error of the disk does."""

    def __init__(self, error: BaseException, after: int = 1) -> None:
        self.error = error
        self.after = after

    def __call__(self, received: int, total: int | None) -> None:
        if received >= self.after:
            raise self.error


def download(host: WeightsHost, source: str, target: Path, report: Report = ignore) -> None:
    if source == "drive":
        download_google_drive(DRIVE_ID, target, report)
    else:
        download_url(f"{host.address}/a.pth", target, report)


both_sources = pytest.mark.parametrize("source", ["web", "drive"])


@both_sources
def test_a_file_is_downloaded_and_its_progress_reported(host: WeightsHost, tmp_path: Path, source: str) -> None:
    reports: list[tuple[int, int | None]] = []
    download(host, source, tmp_path / "a", lambda *report: reports.append(report))
    assert (tmp_path / "a").read_bytes() == DATA
    assert reports[-1] == (len(DATA), len(DATA))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_confirmation_page_of_google_drive_is_answered(host: WeightsHost, tmp_path: Path) -> None:
    download(host, "drive", tmp_path / "a")
    assert [request.partition("?")[0] for request in host.requests] == ["/uc", "/download"]


def test_a_cut_connection_is_continued(host: WeightsHost, tmp_path: Path) -> None:
    host.cut_after = 4000
    download(host, "web", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert host.requests == ["/a.pth", "/a.pth bytes=4000-", "/a.pth bytes=8000-"]


def test_google_drive_continues_a_cut_connection(host: WeightsHost, tmp_path: Path) -> None:
    host.cut_after = 4000
    download(host, "drive", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert [request.partition(" ")[2] for request in host.requests[1:]] == ["", "bytes=4000-", "bytes=8000-"]


@both_sources
def test_an_interrupted_download_leaves_no_file_and_is_continued(
    host: WeightsHost, tmp_path: Path, source: str
) -> None:
    host.cut_after = 4000
    with pytest.raises(KeyboardInterrupt):
        download(host, source, tmp_path / "a", Interrupt(KeyboardInterrupt()))
    assert not (tmp_path / "a").exists()
    host.cut_after = None
    host.requests.clear()
    download(host, source, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert any("bytes=" in request for request in host.requests)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@both_sources
@pytest.mark.parametrize("change", ["another file", "no ranges", "no version"])
def test_a_file_that_cannot_be_continued_is_downloaded_again(
    host: WeightsHost, tmp_path: Path, source: str, change: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        download(host, source, tmp_path / "a", Interrupt(KeyboardInterrupt()))
    if change == "another file":
        host.version = '"2"'
        host.data = b"shorter"
    elif change == "no ranges":
        host.has_ranges = False
    else:
        host.version = ""
    download(host, source, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == host.data
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_bytes_of_two_versions_are_never_joined(host: WeightsHost, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        download(host, "web", tmp_path / "a", Interrupt(KeyboardInterrupt(), after=5000))
    host.version = '"2"'
    host.data = bytes(reversed(DATA))
    download(host, "web", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == host.data


def test_a_server_that_always_cuts_and_cannot_continue_is_given_up(host: WeightsHost, tmp_path: Path) -> None:
    host.cut_after = 100
    host.has_ranges = False
    with pytest.raises(CheckpointError, match=r"a.pth: the connection was cut after 100 of 10240 bytes"):
        download(host, "web", tmp_path / "a")
    assert len(host.requests) < 10


def test_a_file_of_unknown_length_is_downloaded(host: WeightsHost, tmp_path: Path) -> None:
    host.sends_length = False
    download(host, "web", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA


@both_sources
def test_a_missing_file_is_named(host: WeightsHost, tmp_path: Path, source: str) -> None:
    host.status = 404
    with pytest.raises(CheckpointError, match=DRIVE_ID if source == "drive" else r"a.pth: HTTP status 404"):
        download(host, source, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again(host: WeightsHost, tmp_path: Path) -> None:
    host.status = 503
    with pytest.raises(CheckpointError, match="HTTP status 503; try again later"):
        download(host, "web", tmp_path / "a")
    assert len(host.requests) == downloading.MAX_FAILURES


def test_an_exceeded_quota_of_google_drive_is_reported_with_the_page_to_open(host: WeightsHost, tmp_path: Path) -> None:
    host.quota_is_exceeded = True
    with pytest.raises(CheckpointError, match="Too many users") as caught:
        download(host, "drive", tmp_path / "a")
    assert f"https://drive.google.com/file/d/{DRIVE_ID}/view with a browser" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@both_sources
def test_an_error_of_the_disk_keeps_the_bytes_so_far(host: WeightsHost, tmp_path: Path, source: str) -> None:
    with pytest.raises(OSError, match="No space left"):
        download(host, source, tmp_path / "a", Interrupt(OSError(28, "No space left on device")))
    assert not (tmp_path / "a").exists()
    assert [path.suffix for path in tmp_path.iterdir() if path.stat().st_size > 10] == [".part"]


@both_sources
def test_a_file_without_end_is_given_up(
    host: WeightsHost, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "MAX_BYTES", 5000)
    with pytest.raises(CheckpointError, match="sends more than"):
        download(host, source, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_without_gdown_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(CheckpointError, match=r"pip install 'posenet\[weights\]'"):
        download_google_drive(DRIVE_ID, tmp_path / "a", ignore)

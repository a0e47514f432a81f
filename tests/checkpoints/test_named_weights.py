"""Weights by name: downloaded once, checked, remembered; what is not the expected file is refused."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gdown  # noqa: F401  # its module is patched
import pytest
import torch

import posenet
from posenet.checkpoints import downloading, named_weights
from posenet.checkpoints.conversion import import_weights
from posenet.checkpoints.named_weights import cached_path, fetch_weights, find_weights
from posenet.checkpoints.registry import RegisteredWeights, read_registries
from posenet.checkpoints.weights import load_model, load_weights
from posenet.errors import CheckpointError, ConfigError
from posenet.model.posenet import PoseNet
from posenet.model.published_names import rename_to_published
from posenet.settings import load_config
from tests.helpers.weights_server import DRIVE_ID, WeightsHost, redirect_google_drive, weights_host

TINY = ["model.stacks=1", "model.width=16", "model.growth=2"]
PUBLISHED_SHAPES = Path(__file__).parents[1] / "fixtures" / "published_checkpoint_keys.json"


def to_bytes(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def tiny_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return PoseNet.from_config(load_config(None, TINY)).state_dict()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsHost]:
    """A server with the published file of a tiny network, registered as "tiny" on the web and "drive" on Drive."""
    monkeypatch.setenv("POSENET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POSENET_REGISTRY", str(tmp_path / "registry.toml"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)
    with weights_host(to_bytes({"weights": rename_to_published(tiny_weights())})) as host:
        redirect_google_drive(monkeypatch, host)
        network = "model = {stacks = 1, width = 16, growth = 2}\n"
        (tmp_path / "registry.toml").write_text(
            f"[tiny]\nurl = '{host.address}/tiny.pth'\n{network}"
            f"inference = {{flip = true}}\nlicense = 'none stated'\n"
            f"[drive]\ngoogle_drive = '{DRIVE_ID}'\n{network}"
        )
        yield host


def entry(name: str = "tiny") -> RegisteredWeights:
    return read_registries()[name]


def test_weights_are_downloaded_once_and_loaded_with_the_settings_of_the_registry(host: WeightsHost) -> None:
    network, config = load_model("tiny")
    assert config.model.stacks == 1
    assert config.inference.flip
    assert all(torch.equal(tensor, tiny_weights()[name]) for name, tensor in network.state_dict().items())
    assert posenet.Predictor.from_checkpoint("tiny", device="cpu").settings.flip
    assert host.requests == ["/tiny.pth"]


def test_all_ways_to_load_weights_accept_a_name(host: WeightsHost, tmp_path: Path) -> None:
    network = PoseNet.from_config(load_config(None, TINY))
    assert not load_weights(network, "tiny").missing
    assert import_weights("tiny", tmp_path / "ours.pth").model.stacks == 1
    assert load_model(tmp_path / "ours.pth")[1].inference.flip


@pytest.mark.parametrize("name", ["tiny", "drive"])
def test_the_cache_holds_the_file_and_its_checksum(host: WeightsHost, name: str) -> None:
    path = fetch_weights(entry(name), progress=False)
    assert path.read_bytes() == host.data
    checksum_file = path.with_name(f"{path.name}.sha256")
    assert checksum_file.read_text().endswith(f"  {path.name}\n")
    assert {other.suffix for other in path.parent.iterdir()} == {".pth", ".sha256", ".lock"}


def test_the_published_file_of_the_authors_is_accepted_by_names_and_shapes(
    host: WeightsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors of this file share one number, so that it is small. The download needs a page to be confirmed."""
    shapes = json.loads(PUBLISHED_SHAPES.read_text())
    number = torch.zeros(())
    tensors = {name: number.expand(shape) for name, shape in shapes.items()}
    host.data = to_bytes({"weights": tensors, "epoch": 52})
    monkeypatch.setattr(named_weights, "download_google_drive", lambda id, *args: drive(DRIVE_ID, *args))
    drive = downloading.download_google_drive
    assert fetch_weights(entry("simplepose")).read_bytes() == host.data
    name, shape = next(iter(shapes.items()))
    tensors[name] = number.expand([2 * shape[0], *shape[1:]])
    cached_path(entry("simplepose")).unlink()
    cached_path(entry("simplepose")).with_suffix(".pth.sha256").unlink()
    host.data = to_bytes({"weights": tensors})
    with pytest.raises(CheckpointError, match="did not send simplepose: .*another architecture"):
        fetch_weights(entry("simplepose"))


def without_one_tensor() -> bytes:
    weights = tiny_weights()
    weights.popitem()
    return to_bytes({"weights": rename_to_published(weights)})


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("code-was-run",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no checkpoint", "the file is (damaged|not a checkpoint)"),
        (b"", "the file is (damaged|not a checkpoint)"),
        (b"\n <!DOCTYPE html><html>sign in</html>", "sent a web page instead of tiny; open the address in a browser"),
        (without_one_tensor(), "1 tensors do not fit"),
        (to_bytes({"weights": tiny_weights(), "more": Code()}), "contains code, which is never run"),
    ],
    ids=["other bytes", "nothing", "a web page", "a tensor is missing", "code"],
)
def test_a_wrong_file_is_refused_and_not_kept(host: WeightsHost, tmp_path: Path, data: bytes, message: str) -> None:
    good = host.data
    host.data = data
    with pytest.raises(CheckpointError, match=message) as caught:
        find_weights("tiny")
    assert "tiny" in str(caught.value)
    assert not (tmp_path / "code-was-run").exists()
    folder = cached_path(entry()).parent
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    host.data = good
    assert find_weights("tiny").path.read_bytes() == good


def test_a_file_that_changes_in_the_cache_is_refused(host: WeightsHost) -> None:
    path = find_weights("tiny").path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"the first download had .*delete {path} to download it again"):
        load_model("tiny")
    path.unlink()
    load_model("tiny")


def test_another_file_at_the_source_is_refused_until_the_checksum_is_deleted(host: WeightsHost) -> None:
    path = find_weights("tiny").path
    path.unlink()
    host.data = to_bytes({"weights": rename_to_published(tiny_weights(seed=1))})
    with pytest.raises(CheckpointError, match=r"if you trust it, delete .*\.sha256"):
        find_weights("tiny")
    assert not path.exists()
    path.with_name(f"{path.name}.sha256").unlink()
    assert find_weights("tiny").path.read_bytes() == host.data


def test_a_registered_checksum_is_required(host: WeightsHost, tmp_path: Path) -> None:
    (tmp_path / "registry.toml").write_text(f"[tiny]\nurl = '{host.address}/tiny.pth'\nsha256 = '{'0' * 64}'\n")
    with pytest.raises(CheckpointError, match="but the registry states 0000"):
        find_weights("tiny")


def test_an_entry_with_a_new_source_is_downloaded_again(host: WeightsHost, tmp_path: Path) -> None:
    first = find_weights("tiny").path
    registry = tmp_path / "registry.toml"
    registry.write_text(registry.read_text().replace("/tiny.pth", "/newer.pth"))
    assert find_weights("tiny").path != first
    assert host.requests == ["/tiny.pth", "/newer.pth"]


def test_a_file_copied_into_the_cache_is_checked_and_used(host: WeightsHost) -> None:
    path = cached_path(entry())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=f"{path} does not contain tiny: .*; delete it"):
        find_weights("tiny")
    path.write_bytes(host.data)
    assert find_weights("tiny").path == path
    assert host.requests == []
    assert path.with_name(f"{path.name}.sha256").exists()


def test_one_of_several_callers_downloads_and_the_others_wait(host: WeightsHost) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_weights(entry(), False))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in paths] == 5 * [host.data]
    assert host.requests == ["/tiny.pth"]


def test_an_interrupted_download_leaves_nothing_under_the_final_name_and_continues(
    host: WeightsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive_and_interrupt(url: str, target: Path, report: downloading.Report) -> None:
        def interrupt(received: int, total: int | None) -> None:
            raise KeyboardInterrupt

        downloading.download_url(url, target, interrupt)

    monkeypatch.setattr(downloading, "_CHUNK_SIZE", 10_000)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(named_weights, "download_url", receive_and_interrupt)
        find_weights("tiny")
    assert not cached_path(entry()).exists()
    assert find_weights("tiny").path.read_bytes() == host.data
    assert host.requests == ["/tiny.pth", "/tiny.pth bytes=10000-"]


def test_a_full_disk_is_reported_with_the_variable_to_set(host: WeightsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(named_weights, "download_url", fill)
    with pytest.raises(CheckpointError, match="No space left on device; .*POSENET_HOME"):
        find_weights("tiny")
    assert not cached_path(entry()).exists()


def test_an_existing_file_comes_before_a_name(host: WeightsHost, caplog: pytest.LogCaptureFixture) -> None:
    Path("tiny").write_bytes(b"")
    with caplog.at_level(logging.INFO):
        assert find_weights("tiny").path == Path("tiny")
    assert "tiny is a file in the current folder" in caplog.text
    assert host.requests == []


def test_a_broken_registry_does_not_stop_an_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_bytes(b"")
    registry = tmp_path / "weights.toml"
    registry.write_text("not TOML")
    monkeypatch.setenv("POSENET_REGISTRY", str(registry))
    monkeypatch.chdir(tmp_path)
    assert find_weights("mine").path == Path("mine")
    with pytest.raises(ConfigError, match=re.escape(str(registry))):
        find_weights("other")


def test_a_folder_does_not_hide_a_name(host: WeightsHost) -> None:
    Path("tiny").mkdir()
    assert find_weights("tiny").path.read_bytes() == host.data


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simplepos", "simplepos is neither a file nor .* did you mean simplepose"),
        ("nonsense", "nonsense is neither a file nor the name of registered weights; posenet weights list"),
        ("simplepose.pth", "checkpoint simplepose.pth is not a file"),
        ("checkpoints/simplepose", "checkpoint checkpoints/simplepose is not a file"),
    ],
)
def test_an_unknown_name_is_an_error_of_one_line(host: WeightsHost, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_a_path_needs_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a registry does not stop those who use files."""
    monkeypatch.setenv("POSENET_REGISTRY", str(tmp_path / "missing.toml"))
    torch.save({"model": tiny_weights()}, tmp_path / "a.pth")
    assert load_model(tmp_path / "a.pth", load_config(None, TINY))[1].model.stacks == 1


def test_a_local_file_is_used_where_it_is(host: WeightsHost, tmp_path: Path) -> None:
    registry = tmp_path / "registry.toml"
    registry.write_text("[local]\nfile = 'weights.pth'\n[local.model]\nstacks = 1\nwidth = 16\ngrowth = 2\n")
    with pytest.raises(CheckpointError, match=r"registry.toml: local is the file .*weights.pth, which does not exist"):
        find_weights("local")
    (tmp_path / "weights.pth").write_bytes(host.data)
    assert load_model("local")[1].model.width == 16

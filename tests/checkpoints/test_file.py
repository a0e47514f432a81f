"""Checkpoint files: damaged and foreign ones are refused, nothing in them is run, and memory stays bounded."""

import copy
import errno
import io
import os
import pickle
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import config_of_checkpoint, load_model, load_weights, require_fitting_weights
from posenet.errors import CheckpointError, DamagedCheckpointError
from posenet.settings import Config, config_to_dict, load_config
from tests.helpers.malformed_inputs import ODD, mutate_bytes, mutate_tree, try_all
from tests.helpers.networks import tiny_network
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import Stores, train_tiny

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")
LIST_LENGTH = 2000
"""Bytes at the end of a checkpoint with the list of the zip file's entries."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("checkpoint") / "last.pth"
    torch.manual_seed(0)
    model = {f"layer.{i}.weight": torch.randn(40, 40) for i in range(8)}
    write_checkpoint(path, {"format": 1, "model": model, "progress": {"epoch": 3, "best": 0.25}})
    return path.read_bytes()


@pytest.mark.parametrize(
    "make_file, name",
    [
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_text("not a checkpoint"), "plain tensors"),
        (lambda path: torch.save([1, 2, 3], path), "dictionary"),
        (lambda path: torch.save({"model": {}}, path), "no weights"),
        (lambda path: torch.save({"format": 99}, path), "format 99"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: write_checkpoint(path / "best.pth", {}), "foreign.pth/best.pth"),
        (lambda path: None, "not a file"),
    ],
)
def test_the_error_of_a_foreign_file_names_it_and_the_fault_in_one_line(
    tmp_path: Path, make_file: Callable[[Path], None], name: str
) -> None:
    path = tmp_path / "foreign.pth"
    make_file(path)
    with pytest.raises(CheckpointError, match=f"foreign.pth .*{name}") as error:
        load_weights(tiny_network(), path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.torture)])
def test_flipped_bits_and_truncations_are_detected_or_harmless(content: bytes, tmp_path: Path, count: int) -> None:
    """Only bytes that nobody reads may differ, such as those between entries."""
    path = tmp_path / "damaged.pth"
    path.write_bytes(content)
    sound = read_checkpoint(path)
    rng = random.Random(1)
    in_list = range(8 * (len(content) - LIST_LENGTH), 8 * len(content))
    for bit in [8 * (len(content) // 3), *rng.sample(range(8 * len(content)), count), *rng.sample(in_list, count)]:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            state = read_checkpoint(path)
        except CheckpointError as error:
            assert path.name in str(error) and "\n" not in str(error)
        else:
            assert find_differences(state, sound) == [], f"not detected: bit {bit} of {len(content)} bytes"
    for length in rng.sample(range(len(content)), count):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=path.name):
            read_checkpoint(path)


def test_an_entry_that_is_marked_as_a_folder_is_refused(content: bytes, tmp_path: Path) -> None:
    """A single flipped bit in the list of entries: PyTorch would leave the tensor as its memory was."""
    path = tmp_path / "damaged.pth"
    start = content.rindex(b"archive/data/5") - 8  # the attributes end 4 bytes before the name, after the offset
    path.write_bytes(content[:start] + bytes([content[start] ^ 0x10]) + content[start + 1 :])
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("archive/data/5").external_attr == 0x10 and archive.testzip() is None
    with pytest.raises(CheckpointError, match="damaged.pth"):
        read_checkpoint(path)


def test_compressed_entries_and_two_of_one_name_or_place_are_refused(content: bytes, tmp_path: Path) -> None:
    twice, compressed, shared = (tmp_path / f"{name}.pth" for name in ("twice", "compressed", "shared"))
    twice.write_bytes(content)
    with zipfile.ZipFile(twice, "a") as archive, zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in archive.namelist():
            target.writestr(name, archive.read(name))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(name, b"")
    shared.write_bytes(content)
    with zipfile.ZipFile(shared, "a") as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        for number in range(20):
            entry = copy.copy(largest)
            entry.filename = f"{largest.filename}{number}"
            archive.filelist.append(entry)
        archive.comment = b"changed"  # so that the list of entries is written
    for path in (twice, compressed, shared):
        with pytest.raises(DamagedCheckpointError, match=path.name):
            read_checkpoint(path)


def test_files_of_other_programs_load(tmp_path: Path) -> None:
    path = tmp_path / "PoseNet_52_epoch.pth"
    for legacy in (True, False):
        torch.save({"weights": {"a": torch.ones(3)}}, path, _use_new_zipfile_serialization=not legacy)
        assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"made by hand"
    assert torch.equal(read_checkpoint(path)["weights"]["a"], torch.ones(3))


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle"), MemoryError()])
def test_what_says_nothing_about_the_file_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "a.pth"
    torch.save({"a": torch.ones(3)}, path)

    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(CheckpointError, match="a.pth .*(Stale|memory)") as caught:
        read_checkpoint(path)
    assert not isinstance(caught.value, DamagedCheckpointError) and "\n" not in str(caught.value)


class Call:
    """Pickled, it is a call of any function; unpickled, that call is made."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_no_code_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "evil.pth"
    system = Call(os.system, f"touch {trace}")
    for evil in (system, Call(pickle.loads, pickle.dumps(system)), Call(Path.touch, trace)):
        files: list[Callable[[], Any]] = [
            lambda evil=evil: torch.save({"model": {"stem.weight": evil}}, path),
            lambda evil=evil: torch.save({"model": evil}, path, _use_new_zipfile_serialization=False),
            lambda evil=evil: path.write_bytes(pickle.dumps(evil)),
            lambda: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path),
        ]
        for write in files:
            write()
            with pytest.raises(CheckpointError, match="evil.pth .*code"):
                read_checkpoint(path)
    assert not trace.exists()


def huge_tensor(path: Path, state: dict[str, Any]) -> None:
    torch.save(state | {"model": {"a": torch.zeros(1).expand(2**40)}}, path)


def huge_legacy_storage(path: Path, state: dict[str, Any]) -> None:
    torch.save({"model": {"a": torch.zeros(1000003)}}, path, _use_new_zipfile_serialization=False)
    count, huge = (b"J" + struct.pack("<I", number) for number in (1000003, 2**31 - 1))
    data = path.read_bytes()
    assert count in data
    path.write_bytes(data.replace(count, huge))


def billion_laughs(path: Path, state: dict[str, Any]) -> None:
    """A list of ten lists of ten lists, and so on: a billion words, of which one exists."""
    laugh: list[Any] = ["ha"] * 10
    for _ in range(9):
        laugh = [laugh] * 10
    torch.save(state | {"format": laugh, "config": {"model": {"stacks": laugh}}}, path)


@linux_only
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("bomb", [huge_tensor, huge_legacy_storage, billion_laughs])
def test_a_checkpoint_takes_no_more_memory_than_it_has(tmp_path: Path, bomb: Callable[..., None]) -> None:
    path = tmp_path / "bomb.pth"
    config = config_to_dict(load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"]))
    bomb(path, {"model": {"a": torch.zeros(3)}, "config": config})
    assert path.stat().st_size < 10 * 2**20
    findings = try_all(1, lambda _: load_model(path), max_growth=200 * 2**20)
    assert findings.counts == {"refused": 1}, findings.faults or findings


def rezipped(rng: np.random.Generator, data: bytes) -> bytes:
    """The archive anew, its checksums fitting, with one entry mutated."""
    source, result = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = source.namelist()
    chosen = next(n for n in names if n.endswith("data.pkl")) if rng.random() < 0.8 else str(rng.choice(names))
    with zipfile.ZipFile(result, "w") as target:
        for name in names:
            content = source.read(name)
            target.writestr(name, mutate_bytes(rng, content) if name == chosen else content)
    return result.getvalue()


@linux_only
@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.torture)])
def test_mutated_checkpoints_are_used_correctly_or_refused(stores: Stores, tmp_path: Path, count: int) -> None:
    """Every input is a function of its number alone. ``make torture`` tries hundreds."""
    run = tmp_path / "run"
    train_tiny(stores, run, max_steps=2)
    path, legacy = tmp_path / "mutated.pth", tmp_path / "legacy.pth"
    sound, state = (run / "last.pth").read_bytes(), read_checkpoint(run / "last.pth")
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    old = legacy.read_bytes()

    def use(number: int) -> None:
        rng = np.random.default_rng((5, number))
        if number % 4 == 0:
            path.write_bytes(rezipped(rng, sound))
        elif number % 4 == 1:
            path.write_bytes(mutate_bytes(rng, old, range(4096) if rng.random() < 0.8 else ()))
        else:
            torch.save(mutate_tree(rng, state, (*ODD, torch.zeros(2), torch.full((3,), float("nan")))), path)
        found = read_checkpoint(path)
        require_fitting_weights(config_of_checkpoint(found, path) or Config(), found, path)
        if number % 5 == 0:
            load_model(path)
        if number % 8 == 2:  # resume from it; the next step is the run's third
            train_tiny(stores, tmp_path / f"resumed-{number}", resume=path, max_steps=3)

    findings = try_all(count, use)
    assert not findings.faults
    assert findings.counts["refused"]

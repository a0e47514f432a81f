"""Ranks with other settings, other data or other code are refused before the first step, on all ranks alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from posenet.devices.parallel import DistributedRuntime
from posenet.settings import load_config
from posenet.training import fingerprints
from posenet.training.fingerprints import code_digest, describe_inputs, require_same_run
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.tiny_training import Stores, train_tiny

OTHER_RANK = "OtherRankError: the processes differ; rank 0 names the differences"


@pytest.fixture(autouse=True)
def host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")


def test_the_first_five_differences_are_named_with_both_values_and_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "chair.toml").write_text('keypoints = ["a", "b"]\nparts = [["a", "b"]]\n')
    skeleton = [f"model.skeleton={tmp_path / 'chair.toml'}"]
    contents = {"data.train": "6 images", "--max-steps": 0}, {"data.train": "7 images", "--max-steps": 5}

    def check(runtime: DistributedRuntime) -> None:
        other = [*skeleton, "optim.lr=0.5", "data.val=a.h5", "model.width=32"]
        config = load_config(None, other if runtime.rank else [])
        require_same_run(runtime, describe_inputs(config, contents[runtime.rank]))

    first, second = errors_in_processes(2, tmp_path, check)
    assert second == OTHER_RANK and first.startswith(
        "ConfigError: the processes differ in data.train: '6 images' on here (rank 0), '7 images' on here (rank 1); "
        "--max-steps: 0 on here (rank 0), 5 on here (rank 1); "
        "model.width: 256 on here (rank 0), 32 on here (rank 1); model.skeleton: 'coco' on here (rank 0), {"
    )
    assert first.endswith(
        "data.val: False on here (rank 0), True on here (rank 1); start all with the same settings, data and code"
    )


def test_another_version_of_the_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = code_digest()

    def check(runtime: DistributedRuntime) -> None:
        if runtime.rank:
            monkeypatch.setattr(fingerprints, "code_digest", lambda: "01234567")
        require_same_run(runtime, {})

    first, _ = errors_in_processes(2, tmp_path, check)
    assert "differ in the code of posenet: " in first
    assert f"digest {own}' on here (rank 0)" in first and "digest 01234567' on here (rank 1)" in first


def test_runs_differ_neither_in_paths_nor_in_workers_but_in_data(stores: Stores, tmp_path: Path) -> None:
    """``train`` compares the digests of the stores and of the teacher, and ``--max-steps``."""
    copy = tmp_path / "copy.h5"
    shutil.copy(stores["train"], copy)
    train_tiny(stores, tmp_path / "one", max_steps=1)
    train_tiny(stores, tmp_path / "two", "optim.lr=1e-3", max_steps=2)
    teachers = [f"train.teacher={tmp_path / name / 'last.pth'}" for name in ("one", "two")]

    def start(*other: str, same: tuple[str, ...] = (), steps: int = 1) -> list[str]:
        def check(runtime: DistributedRuntime) -> None:
            settings = (*same, *other) if runtime.rank else same
            max_steps = steps if runtime.rank else 1
            train_tiny(stores, tmp_path / "run", *settings, runtime=runtime, max_steps=max_steps)

        return errors_in_processes(2, tmp_path / "results", check)

    for name, errors in {
        "data.train": start(
            "data.allow_overlap=true", f"data.train={stores['val']}", same=("data.allow_overlap=true",)
        ),
        "data.val": start("data.val="),
        "train.teacher": start(teachers[1], same=(teachers[0],)),
        "--max-steps": start(steps=2),
    }.items():
        assert f"{name}: " in errors[0] and "(rank 1)" in errors[0] and "\n" not in errors[0], errors
        assert errors[0].startswith("ConfigError: the processes differ in ") and errors[1] == OTHER_RANK
    assert not list(tmp_path.glob("run/*.pth"))
    assert start(f"data.train={copy}", "train.device=cpu") == ["", ""]

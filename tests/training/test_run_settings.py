"""What is refused before a run starts and before PyTorch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posenet.errors import PosenetError
from posenet.training.run_settings import check_before_start, config_of_new_run, name_of_run
from tests.helpers.locks import locked_by_another_process
from tests.helpers.source_files import ROOT


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("posenet.checkpoints.folder.LOCK_SECONDS", 0.1)
    for name in ("a.h5", "old/last.pth", "weights.pth"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()


STORE = "data.train=a.h5"
NEW = "checkpoint.path=new"
OLD = "checkpoint.path=old"


@pytest.mark.parametrize(
    "overrides, options",
    [
        ([STORE, NEW], {}),
        ([STORE, NEW], {"resume": True}),
        ([STORE, NEW, "train.weights=weights.pth"], {}),
        # The run that continues has its data and its weights in the checkpoint.
        ([OLD], {"resume": True}),
        ([OLD], {"restarted": True}),
        ([OLD], {"resume": "missing.pth", "restarted": True}),
        ([OLD, "train.weights=missing.pth"], {"resume": True}),
        ([NEW], {"resume": "old/last.pth"}),
        ([NEW], {"resume": "old"}),
        ([], {"resume": "old"}),
        # Four stacks, as in the defaults, would need four weights; but the checkpoint may have one stack.
        (["loss.stack_weights=[1]"], {"resume": "old"}),
    ],
)
def test_a_run_that_can_start_leaves_no_trace(overrides: list[str], options: dict[str, Any]) -> None:
    before = sorted(Path().rglob("*"))
    check_before_start(None, overrides, options.pop("resume", False), **options)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "overrides, options, message",
    [
        ([NEW], {}, "data.train is not set"),
        ([NEW, "data.train=b.h5"], {}, "b.h5 does not exist; build it with posenet build-hdf5"),
        ([NEW, 'data.train=["a.h5", "b.h5"]'], {}, "b.h5 does not exist"),
        ([NEW, 'data.train=[{path="*.h5"}]'], {}, "*.h5 does not exist"),
        ([NEW, STORE, "data.val=b.h5"], {}, "b.h5 does not exist"),
        ([NEW, STORE, "train.teacher=missing.pth"], {}, "missing.pth is not a file"),
        ([NEW, STORE, "train.weights=old"], {}, "old is a folder; give a file in it"),
        ([OLD, STORE], {}, "old already contains a run; continue it with resume=True"),
        ([OLD], {"resume": "missing.pth"}, "missing.pth is not a file"),
        ([NEW, "train.epoch=3"], {"resume": True}, "train.epochs"),
    ],
)
def test_a_run_that_cannot_start_is_refused(overrides: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(PosenetError) as error:
        check_before_start(None, overrides, options.pop("resume", False), **options)
    assert message in str(error.value)


@pytest.mark.parametrize("path", ["demo", ROOT / "config" / "demo.toml"])
def test_a_missing_store_of_an_experiment_says_what_to_do_before(path: str | Path) -> None:
    with pytest.raises(PosenetError) as error:
        check_before_start(path, [], False)
    assert str(error.value) == (
        f"{Path.cwd()}/data/demo/train.h5 does not exist; build it with posenet build-hdf5, or correct the path; "
        "the first lines of posenet config demo say how, or name your own with data.train=FILE.h5"
    )
    with pytest.raises(PosenetError, match="b.h5 does not exist; build it with posenet build-hdf5"):
        check_before_start(path, ["data.train=b.h5"], False)


def test_a_folder_in_use_is_refused_before_anything_else() -> None:
    with locked_by_another_process(Path("old")), pytest.raises(PosenetError, match="old is in use by another process"):
        check_before_start(None, [OLD, "data.train=missing.h5"], True)


def test_a_file_of_another_program_is_not_taken_for_a_lock() -> None:
    Path("old/run.lock").write_bytes(b"mine")
    check_before_start(None, [OLD], True)
    assert Path("old/run.lock").read_bytes() == b"mine"


@pytest.mark.parametrize("given, expected", [("0", 1), ("2", 2)])
def test_a_warmup_is_added_only_where_there_is_none(given: str, expected: float) -> None:
    overrides = [f"optim.warmup_epochs={given}"]
    assert config_of_new_run(None, overrides).optim.warmup_epochs == float(given)
    assert config_of_new_run(None, overrides, warmup=True).optim.warmup_epochs == expected


def test_a_run_is_called_after_the_first_name_that_tells_sets_apart(tmp_path: Path) -> None:
    folder = tmp_path / "birds.v2"
    folder.mkdir()
    for source in (folder, folder / "train.json", folder / "annotations" / "person_keypoints_a.json"):
        assert name_of_run(source) == "birds.v2"
    assert name_of_run(folder / "owls.json") == "owls"
    assert name_of_run(Path("/data/train.json")) == "run"

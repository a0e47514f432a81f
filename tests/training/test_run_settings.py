"""What is refused before a run starts and before PyTorch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.errors import PosenetError
from posenet.training.run_settings import check_before_start, name_of_run


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.h5", "old/last.pth", "weights.pth"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()


STORE = "data.train=a.h5"
NEW = "checkpoint.path=new"


@pytest.mark.parametrize("weights", ["", "weights.pth"])
def test_a_run_that_can_start_leaves_no_trace(weights: str) -> None:
    before = sorted(Path().rglob("*"))
    check_before_start(None, [STORE, NEW, f"train.weights={weights}"])
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "overrides, named",
    [
        ([], "data.train"),
        (["data.train=b.h5"], "b.h5"),
        (['data.train=["a.h5", "b.h5"]'], "b.h5"),
        (['data.train=[{path="*.h5"}]'], "*.h5"),
        ([STORE, "data.val=b.h5"], "b.h5"),
        ([STORE, "train.teacher=missing.pth"], "missing.pth"),
        ([STORE, "train.weights=old"], "there is old/last.pth"),
        ([STORE, "train.epoch=3"], "train.epochs"),
    ],
)
def test_a_run_that_cannot_start_is_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(PosenetError) as error:
        check_before_start(None, [NEW, *overrides])
    assert named in str(error.value)


def test_a_missing_store_of_an_experiment_says_what_to_do_before() -> None:
    with pytest.raises(PosenetError) as error:
        check_before_start("demo", [])
    assert "data/demo/train.h5" in str(error.value) and "posenet config demo" in str(error.value)
    with pytest.raises(PosenetError, match=r"b.h5 does not exist; build it"):
        check_before_start("demo", ["data.train=b.h5"])


def test_a_run_is_called_after_the_first_name_that_tells_sets_apart(tmp_path: Path) -> None:
    folder = tmp_path / "birds.v2"
    folder.mkdir()
    for source in (folder, folder / "train.json", folder / "annotations" / "person_keypoints_a.json"):
        assert name_of_run(source) == "birds.v2"
    assert name_of_run(folder / "owls.json") == "owls"
    assert name_of_run(Path("/data/train.json")) == "run"

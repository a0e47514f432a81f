"""What a run is made from: what is refused before it starts, images of both sides, and ranks that differ."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posenet.data.store import Store
from posenet.data.store_list import describe_content, open_data_sets
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.settings import Config, DataSetConfig, load_config
from posenet.skeleton import COCO
from posenet.training import inputs
from posenet.training.inputs import code_digest, describe_contents, describe_inputs, require_same_run
from tests.helpers.drawn_data import write_annotations, write_store
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.tiny_training import Stores, coco_settings, train_tiny

OTHER_RANK = "OtherRankError: rank 0 has failed and reports why"


def test_a_validation_store_with_renumbered_training_images_is_refused(stores: Stores, tmp_path: Path) -> None:
    with Store(stores["train"]) as train, Store(stores["val"]) as val:
        shared = train.read_record(2)._replace(image_id=77, file_name="renamed.jpg")
        path = write_store(tmp_path / "val.h5", [val.read_record(0), shared])
    settings = f"data.val={path}"
    with pytest.raises(DataError, match=r"share 1 images \(first id in data.val 77\); .*data\.allow_overlap=true"):
        train_tiny(stores, tmp_path / "run", settings)
    assert train_tiny(stores, tmp_path / "run", settings, "data.allow_overlap=true", max_steps=1).steps == 1


def test_an_ap_of_images_that_are_trained_on_is_refused(stores: Stores, tiny_coco: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_coco, tmp_path / "coco")
    path = folder / "annotations" / "person_keypoints_val2017.json"
    content: dict[str, Any] = json.loads(path.read_text())
    train = json.loads((folder / "annotations" / "person_keypoints_train2017.json").read_text())["images"][1]
    shutil.copy(folder / "train2017" / train["file_name"], folder / "val2017" / "copy.jpg")
    content["images"].append(train | {"id": 999, "file_name": "copy.jpg"})
    write_annotations(path, content)
    settings = (*coco_settings(folder), "data.val=", "train.epochs=1")
    with pytest.raises(DataError, match=r"contains 1 of 4 images of data\.val_images .*copy\.jpg.*data\.allow_overlap"):
        train_tiny(stores, tmp_path / "run", *settings)
    train_tiny(stores, tmp_path / "run", *settings, "data.allow_overlap=true", max_steps=1)


def test_the_contents_tell_data_and_weights_of_sets_apart(stores: Stores) -> None:
    sets = tuple(DataSetConfig(str(stores[name]), weight=weight) for name, weight in (("train", 2.5), ("val", 1.0)))
    with open_data_sets(sets, COCO) as both, open_data_sets(str(stores["val"]), COCO) as one:
        assert describe_contents(Config(), both, one, has_ap=False) == {
            "data.train": f"{describe_content(both)} and the weights [2.5, 1.0]",
            "data.val": describe_content(one),
        }


def test_the_differences_of_ranks_are_named_with_both_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")

    def check(runtime: Runtime) -> None:
        if runtime.rank:
            monkeypatch.setattr(inputs, "code_digest", lambda: "01234567")
        config = load_config(None, ["data.val=a.h5", "model.width=32"] if runtime.rank else [])
        require_same_run(runtime, describe_inputs(config, {}))

    first, second = errors_in_processes(2, tmp_path, check)
    code, *values = first.removesuffix("; start all with the same settings, data and code").split("; ")
    assert second == OTHER_RANK
    assert f"digest {code_digest()}' on here (rank 0)" in code and "digest 01234567' on here (rank 1)" in code
    assert values == [
        "model.width: 256 on here (rank 0), 32 on here (rank 1)",
        "data.val: False on here (rank 0), True on here (rank 1)",
    ]


def test_runs_differ_neither_in_paths_nor_in_workers_but_in_data(stores: Stores, tmp_path: Path) -> None:
    """``train`` compares the digests of the stores and of the teacher, and ``--max-steps``."""
    pytest.importorskip("posenet.training.teacher")
    copy = tmp_path / "copy.h5"
    shutil.copy(stores["train"], copy)
    train_tiny(stores, tmp_path / "one", max_steps=1)
    train_tiny(stores, tmp_path / "two", "optim.lr=1e-3", max_steps=2)
    teachers = [f"train.teacher={tmp_path / name / 'last.pth'}" for name in ("one", "two")]

    def start(*other: str, same: tuple[str, ...] = (), steps: int = 1) -> list[str]:
        def check(runtime: Runtime) -> None:
            settings = (*same, *other) if runtime.rank else same
            max_steps = steps if runtime.rank else 1
            train_tiny(stores, tmp_path / "run", *settings, runtime=runtime, max_steps=max_steps)

        return errors_in_processes(2, tmp_path / "results", check)

    overlap = "data.allow_overlap=true"
    for name, errors in {
        "data.train": start(overlap, f"data.train={stores['val']}", same=(overlap,)),
        "data.val": start("data.val="),
        "train.teacher": start(teachers[1], same=(teachers[0],)),
        "--max-steps": start(steps=2),
    }.items():
        assert f"{name}: " in errors[0] and "(rank 1)" in errors[0] and "\n" not in errors[0], errors
        assert errors[0].startswith("ConfigError: the processes differ in ") and errors[1] == OTHER_RANK
    assert not list(tmp_path.glob("run/*.pth"))
    assert start(f"data.train={copy}", "train.device=cpu", "data.workers=1") == ["", ""]

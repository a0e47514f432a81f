"""Ranks with other settings, other data or another folder are refused before the first step, on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posenet.data.store import Store, open_data_sets
from posenet.devices.distributed import DistributedRuntime
from posenet.devices.runtime import Runtime
from posenet.errors import PosenetError
from posenet.settings import Config, load_config
from posenet.training import agreement
from posenet.training.agreement import require_same_run, require_shared_folder
from tests.helpers.drawn_data import split_store
from tests.helpers.process_groups import run_in_processes
from tests.helpers.tiny_training import CPU

Check = Callable[[DistributedRuntime], None]


def errors_of(check: Check, folder: Path) -> list[str | None]:
    """The message of the error that ``check`` raises on each of two ranks; None if it raises none."""

    def message(runtime: DistributedRuntime) -> str | None:
        try:
            check(runtime)
        except PosenetError as error:
            assert error.on_all_ranks
            return str(error)
        return None

    return run_in_processes(2, folder, message)


def config_of_rank(runtime: DistributedRuntime, *overrides_of_rank_1: str) -> Config:
    return load_config(None, overrides_of_rank_1 if runtime.rank else [])


def test_equal_runs_are_accepted_whatever_their_paths_devices_and_workers(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes(stores["train"].read_bytes())

    def check(runtime: DistributedRuntime) -> None:
        path = copy if runtime.rank else stores["train"]
        own = [f"data.workers={runtime.rank}", f"data.train={path}", f"train.threads={runtime.rank}"]
        config = load_config(None, [*own, "train.device=cpu" if runtime.rank else "train.device=auto"])
        with Store(path) as train_store, Store(stores["val"]) as val_store:
            require_same_run(runtime, config, train_store, val_store)

    assert errors_of(check, tmp_path / "results") == [None, None]


def test_settings_that_differ_are_named_with_both_values_and_the_ranks(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")

    def check(runtime: DistributedRuntime) -> None:
        with Store(stores["train"]) as store:
            require_same_run(runtime, config_of_rank(runtime, "optim.lr=0.5", "model.width=32"), store, None)

    expected = (
        "the processes differ in model.width: 256 on here (rank 0), 32 on here (rank 1); "
        "optim.lr: 0.00025 on here (rank 0), 0.5 on here (rank 1); start all with the same settings and data"
    )
    assert errors_of(check, tmp_path) == [expected, expected]


def test_many_differences_are_counted(stores: dict[str, Path], tmp_path: Path) -> None:
    values = [
        "lr=1",
        "momentum=0.5",
        "weight_decay=0",
        "warmup_epochs=1",
        "step_epochs=9",
        "accumulate=2",
        "max_grad_norm=5",
    ]
    overrides = [f"optim.{value}" for value in values]

    def check(runtime: DistributedRuntime) -> None:
        with Store(stores["train"]) as store:
            require_same_run(runtime, config_of_rank(runtime, *overrides), store, None)

    for message in errors_of(check, tmp_path):
        assert message is not None
        assert "optim.warmup_epochs: 3.0 on" in message
        assert message.endswith("; and 2 more; start all with the same settings and data")


def test_other_stores_annotations_and_numbers_of_steps_are_named(stores: dict[str, Path], tmp_path: Path) -> None:
    def differ_in(name: str, check_rank: Callable[[DistributedRuntime, Any], None]) -> None:
        def check(runtime: DistributedRuntime) -> None:
            with Store(stores["train"]) as train, Store(stores["val"]) as val:
                check_rank(runtime, (train, val))

        for message in errors_of(check, tmp_path):
            assert message is not None and f"differ in {name}: " in message

    def train_store(runtime: DistributedRuntime, both: Any) -> None:
        require_same_run(runtime, load_config(), both[runtime.rank], None)

    def val_store(runtime: DistributedRuntime, both: Any) -> None:
        require_same_run(runtime, load_config(), both[0], both[1] if runtime.rank else None)

    def steps(runtime: DistributedRuntime, both: Any) -> None:
        require_same_run(runtime, load_config(), both[0], None, max_steps=runtime.rank)

    def annotations(runtime: DistributedRuntime, both: Any) -> None:
        (tmp_path / "0.json").write_text("{}")
        config = load_config(None, [f"data.val_annotations={tmp_path / f'{runtime.rank}.json'}"])
        require_same_run(runtime, config, both[0], None)

    differ_in("data.train", train_store)
    differ_in("data.val", val_store)
    differ_in("--max-steps", steps)
    differ_in("data.val_annotations", annotations)


def test_a_single_store_with_other_joints_is_noticed(stores: dict[str, Path], tmp_path: Path) -> None:
    first = split_store(stores["train"], tmp_path / "first", 2)
    copy = split_store(stores["train"], tmp_path / "copy", 2)
    changed = split_store(stores["train"], tmp_path / "changed", 2, shift=0.5)

    def compare(paths_of_rank_1: list[str]) -> list[str | None]:
        def check(runtime: DistributedRuntime) -> None:
            config = load_config(None, [f"data.train={paths_of_rank_1 if runtime.rank else first}"])
            with open_data_sets(config.data.train, config.model.skeleton) as store:
                require_same_run(runtime, config, store, None)

        return errors_of(check, tmp_path / "results")

    assert compare(copy) == [None, None]
    for message in compare(changed):
        assert message is not None and "differ in data.train: " in message and message.count("samples with") == 2


def test_data_sets_and_their_weights_are_compared(stores: dict[str, Path], tmp_path: Path) -> None:
    changed = split_store(stores["train"], tmp_path / "changed", 2, shift=0.5)

    def compare(table_of_rank_1: str) -> list[str | None]:
        def check(runtime: DistributedRuntime) -> None:
            table = table_of_rank_1 if runtime.rank else f'{{path="{stores["train"]}"}}'
            config = load_config(None, [f'data.train=[{{path="{stores["val"]}"}}, {table}]'])
            with open_data_sets(config.data.train, config.model.skeleton) as store:
                require_same_run(runtime, config, store, None)

        return errors_of(check, tmp_path / "results")

    assert compare(f'{{path="{stores["train"]}"}}') == [None, None]
    for message in compare(f'{{path="{changed}"}}'):
        assert message is not None and "differ in data.train: " in message
    for message in compare(f'{{path="{stores["train"]}", weight=2}}'):
        assert message is not None and " + 2 x (" in message


def test_a_folder_that_all_ranks_see_is_accepted_and_stays_as_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert errors_of(lambda runtime: require_shared_folder(runtime, run), tmp_path / "results") == [None, None]
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_a_rank_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr(agreement, "SECONDS_UNTIL_VISIBLE", 0.3)
    folders = [tmp_path / "run", tmp_path / "elsewhere" / "run"]
    for folder in folders[: 1 + exists]:
        folder.mkdir(parents=True)
    messages = errors_of(lambda runtime: require_shared_folder(runtime, folders[runtime.rank]), tmp_path / "results")
    for folder, message in zip(folders, messages):
        assert message is not None
        assert message.startswith(f"{folder} is not shared: here cannot see the files that here writes there")
    assert list(folders[0].iterdir()) == []


def test_a_folder_that_rank_0_cannot_write_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    messages = errors_of(lambda runtime: require_shared_folder(runtime, missing), tmp_path / "results")
    assert messages == [f"cannot write into {missing}: No such file or directory"] * 2


def test_one_process_needs_no_checks(tmp_path: Path) -> None:
    require_shared_folder(Runtime(CPU), tmp_path / "missing")

"""Places that launchers assign, and processes that are started without one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from posenet.devices.data_parallel import ParallelRuntime, parallel_devices
from posenet.devices.device import select_device
from posenet.devices.launch import launch
from posenet.devices.rank_info import RankInfo, first_host, rank_info_from_environment
from posenet.errors import ConfigError, TrainingError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "40123",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}


def test_torchrun_and_the_old_launcher_tell_the_place() -> None:
    assert rank_info_from_environment(TORCHRUN) == RankInfo(5, 8, 1, restarts=2)
    old = {"RANK": "5", "WORLD_SIZE": "8"}
    assert rank_info_from_environment(old, local_rank=1) == RankInfo(5, 8, 1)
    assert rank_info_from_environment(TORCHRUN, local_rank=3).local_rank == 3


def test_slurm_tells_the_place() -> None:
    assert rank_info_from_environment(SLURM) == RankInfo(3, 4, 1, "tcp://gpu07:20123")
    assert rank_info_from_environment(SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "9"}).init_method == "tcp://here:9"
    assert rank_info_from_environment(SLURM | {"SLURM_RESTART_COUNT": "1"}).restarts == 1


@pytest.mark.parametrize("environment", [{}, {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, SLURM | {"SLURM_NTASKS": "1"}])
def test_without_a_launcher_there_is_no_place(environment: dict[str, str]) -> None:
    assert rank_info_from_environment(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        TORCHRUN | {"RANK": "8"},
        TORCHRUN | {"RANK": "first"},
        {name: value for name, value in SLURM.items() if name != "SLURM_LOCALID"},
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--nproc"):
        rank_info_from_environment(environment)


@pytest.mark.parametrize(
    "nodes, host",
    [
        ("one", "one"),
        ("gpu[07-09,12],big1", "gpu07"),
        ("a,b", "a"),
        ("n[3]", "n3"),
        ("rack2-node[001-100]", "rack2-node001"),
        ("n[1,5].cluster", "n1.cluster"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_a_process_that_fails_is_named(tmp_path: Path) -> None:
    def fail() -> None:
        (tmp_path / os.environ["RANK"]).write_text(str(rank_info_from_environment(os.environ)))
        sys.exit(2 * int(os.environ["RANK"]))

    with pytest.raises(TrainingError, match="rank 1 of 2 ended with status 2"):
        launch(2, fail, start_method="fork")
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_data_parallel_on_one_device_is_the_plain_tool_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    runtime, module = ParallelRuntime(parallel_devices(torch.device("cpu"), [0, 1])), nn.BatchNorm2d(2)
    with caplog.at_level("INFO"):
        assert runtime.wrap(module) is module
    assert "cpu is the only device" in caplog.text and runtime.convert_sync_batch_norm(module) is module


def test_data_parallel_cuts_batches_that_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr("posenet.devices.data_parallel.select_device", torch.device)
    devices = parallel_devices(torch.device("cuda"))
    assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert parallel_devices(torch.device("cuda"), [1]) == [torch.device("cuda:1")]
    with pytest.raises(ConfigError, match="twice"):
        parallel_devices(torch.device("cuda"), [1, 1])
    runtime, batch, wrapped = ParallelRuntime(devices), object(), []
    assert runtime.to_device(batch) is batch
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module)
    monkeypatch.setattr(nn, "DataParallel", lambda module, device_ids: wrapped.append((module, device_ids)))
    module = nn.Linear(1, 1)
    runtime.wrap(module)
    assert wrapped == [(module, devices)]
    with pytest.raises(ConfigError, match="train_distributed"):
        runtime.convert_sync_batch_norm(module)


def test_torch_npu_is_imported_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("posenet.devices.device.importlib.import_module", imported.append)
    select_device("cpu")
    assert imported == []
    with pytest.raises(ConfigError, match="npu:0"):
        select_device("npu:0")
    assert imported == ["torch_npu"]

"""Several devices: one process for each with DistributedDataParallel, and DataParallel in one process."""

from __future__ import annotations

from pathlib import Path

import torch

from posenet.devices.data_parallel import DataParallelRuntime
from posenet.devices.distributed import DistributedRuntime
from posenet.devices.rank_info import SINGLE_PROCESS
from tests.helpers.device_training import (
    FROZEN_NORM,
    assert_same_training,
    run_rank,
    train_small_network,
)
from tests.helpers.process_groups import TIMEOUT_MINUTES, run_on_devices
from tests.helpers.tiny_training import CPU

TOLERANCE = 1e-4
FLOAT32_ROUNDING = 1e-5


def test_a_process_group_of_one_process_trains_like_no_group(accelerator: torch.device) -> None:
    """The group uses the backend of the device, such as NCCL."""
    plain = train_small_network(accelerator, FROZEN_NORM)
    runtime = DistributedRuntime(accelerator, SINGLE_PROCESS, timeout_minutes=TIMEOUT_MINUTES)
    try:
        distributed = train_small_network(accelerator, FROZEN_NORM, runtime=runtime)
    finally:
        runtime.close()
    assert_same_training(distributed, plain, FLOAT32_ROUNDING)


def test_two_processes_train_like_one_and_their_batch_norms_agree(
    accelerators: list[torch.device], tmp_path: Path
) -> None:
    first, second = run_on_devices(accelerators, tmp_path, run_rank)
    assert_same_training(second.trained, first.trained, 0)
    assert_same_training(first.trained, train_small_network(CPU, FROZEN_NORM), TOLERANCE)
    for name, difference in (first.batch_norm_differences | second.batch_norm_differences).items():
        assert difference <= TOLERANCE, f"{name} of nn.SyncBatchNorm and GroupBatchNorm2d differs by {difference:.1e}"


def test_data_parallel_trains_like_one_device(accelerators: list[torch.device]) -> None:
    trained = train_small_network(accelerators[0], FROZEN_NORM, runtime=DataParallelRuntime(accelerators))
    assert_same_training(trained, train_small_network(CPU, FROZEN_NORM), TOLERANCE)

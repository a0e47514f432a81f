"""Several devices: one process for each with DistributedDataParallel, and DataParallel in one process."""

from __future__ import annotations

from pathlib import Path

import torch

from posenet.devices.parallel import DataParallelRuntime
from tests.helpers.device_training import (
    FROZEN_NORM,
    assert_same_training,
    run_on_devices,
    train_small_network,
)
from tests.helpers.process_groups import single_process_group
from tests.helpers.tiny_training import CPU

TOLERANCE = 1e-4
FLOAT32_ROUNDING = 1e-5


def test_a_process_group_of_one_process_trains_like_no_group(accelerator: torch.device) -> None:
    """The group uses the backend of the device, such as NCCL."""
    plain = train_small_network(accelerator, FROZEN_NORM)
    with single_process_group() as runtime:
        runtime.select_device(accelerator.type)
        distributed = train_small_network(accelerator, FROZEN_NORM, runtime=runtime)
    assert_same_training(distributed, plain, FLOAT32_ROUNDING)


def test_two_processes_train_like_one_and_their_batch_norms_agree(
    accelerators: list[torch.device], tmp_path: Path
) -> None:
    (first, first_differences), (second, second_differences) = run_on_devices(2, accelerators[0].type, tmp_path)
    assert_same_training(second, first, 0)
    assert_same_training(first, train_small_network(CPU, FROZEN_NORM), TOLERANCE)
    for name, difference in (first_differences | second_differences).items():
        assert difference <= TOLERANCE, f"{name} of nn.SyncBatchNorm and GroupBatchNorm2d differs by {difference:.1e}"


def test_data_parallel_trains_like_one_device(accelerators: list[torch.device]) -> None:
    runtime = DataParallelRuntime()
    runtime.select_device(accelerators[0].type)
    assert runtime.devices == accelerators
    trained = train_small_network(accelerators[0], FROZEN_NORM, runtime=runtime)
    assert_same_training(trained, train_small_network(CPU, FROZEN_NORM), TOLERANCE)

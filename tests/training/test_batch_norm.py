"""BatchNorm layers and the snapshot of their statistics."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from posenet.training.batch_norm import BatchNormSnapshot, batch_norm_layers, batch_norm_statistics
from tests.helpers.networks import conv_and_batch_norm


def test_synchronized_layers_are_batch_norm_layers_too() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(conv_and_batch_norm())
    assert [type(layer) for layer in batch_norm_layers(model)] == [nn.SyncBatchNorm, nn.SyncBatchNorm]


def test_a_snapshot_restores_all_statistics_as_often_as_needed() -> None:
    model = conv_and_batch_norm()
    snapshot = BatchNormSnapshot(model)
    model(torch.randn(4, 1, 8, 8))
    snapshot.save()
    saved = [statistic.clone() for statistic in batch_norm_statistics(model)]
    assert len(saved) == 2 * len(("running_mean", "running_var", "num_batches_tracked"))
    for _ in range(2):
        model(torch.randn(4, 1, 8, 8))
        changed = batch_norm_statistics(model)
        assert not any(torch.equal(statistic, old) for statistic, old in zip(changed, saved))
        snapshot.restore()
        assert all(torch.equal(statistic, old) for statistic, old in zip(batch_norm_statistics(model), saved))


@pytest.mark.parametrize("condition", [True, False])
def test_a_snapshot_is_restored_on_a_condition_that_the_host_does_not_read(condition: bool) -> None:
    model = conv_and_batch_norm()
    snapshot = BatchNormSnapshot(model)
    snapshot.save()
    saved = [statistic.clone() for statistic in batch_norm_statistics(model)]
    model(torch.full((4, 1, 8, 8), math.nan))
    changed = [statistic.clone() for statistic in batch_norm_statistics(model)]
    snapshot.restore_if(torch.tensor(condition))
    for statistic, expected in zip(batch_norm_statistics(model), saved if condition else changed):
        assert torch.equal(statistic.nan_to_num(-1), expected.nan_to_num(-1))


def test_a_snapshot_of_a_model_without_batch_norm_does_nothing() -> None:
    snapshot = BatchNormSnapshot(nn.Linear(1, 1))
    snapshot.save()
    snapshot.restore()

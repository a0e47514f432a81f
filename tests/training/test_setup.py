"""Building a run from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posenet.training.trainer import Trainer


@pytest.mark.parametrize("channels_last, expected", [("false", torch.contiguous_format), ("true", torch.channels_last)])
def test_the_network_computes_in_the_configured_memory_layout(
    make_trainer: Callable[..., Trainer], channels_last: str, expected: torch.memory_format
) -> None:
    trainer = make_trainer(f"train.channels_last={channels_last}", steps=1)
    outputs: list[Tensor] = []

    def record_output(module: Any, inputs: Any, output: Tensor) -> None:
        outputs.append(output)

    trainer.model.network.stem.register_forward_hook(record_output)
    trainer.run()
    assert outputs[0].is_contiguous(memory_format=expected)

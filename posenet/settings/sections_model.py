"""Settings of the network; part of ``posenet.settings.sections``."""

from __future__ import annotations

from dataclasses import dataclass

from posenet.skeleton.skeleton import COCO, Skeleton

INPUT_MULTIPLE = 64
"""Input heights and widths are multiples of this: the coarsest maps lie at stride 64."""


def check(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class ModelConfig:
    stacks: int = 4
    width: int = 256
    """Channels at stride 4; the stem is a quarter and a half of it."""
    growth: int = 128
    """Channels that each coarser level adds."""
    conv_std: float = 0.001
    """Standard deviation of the initial convolution weights."""
    linear_std: float = 0.01
    skeleton: Skeleton = COCO
    """What the network predicts: "coco", the name of a TOML file (docs/custom_data.md), or a table of its keys."""

    def __post_init__(self) -> None:
        check(1 <= self.stacks <= 16, "model.stacks must be 1 to 16")
        check(16 <= self.width <= 4096 and self.width % 16 == 0, "model.width must be a multiple of 16, up to 4096")
        check(0 <= self.growth <= 4096 and self.growth % 2 == 0, "model.growth must be even, 0 to 4096")
        check(self.conv_std > 0 and self.linear_std > 0, "model.conv_std and model.linear_std must be positive")

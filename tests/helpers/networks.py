"""Small networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from posenet.model.posenet import PoseNet
from posenet.settings import ModelConfig
from posenet.skeleton import COCO, Skeleton


def tiny_network(**settings: Any) -> PoseNet:
    """A network of 2 stacks with 16 channels, with the same weights at every call; ``settings`` change its section."""
    torch.manual_seed(0)
    return PoseNet(ModelConfig(**{"stacks": 2, "width": 16, "growth": 2} | settings))


def random_network(stacks: int = 2, skeleton: Skeleton = COCO) -> PoseNet:
    """A tiny network with random BatchNorm parameters and statistics, whose maps have values of about 1."""
    return random_batch_norm(tiny_network(stacks=stacks, skeleton=skeleton, conv_std=0.1, linear_std=0.1))


def random_batch_norm(network: PoseNet) -> PoseNet:
    """Give the BatchNorm layers of a network random parameters and statistics; return the network."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network


def conv_and_batch_norm() -> nn.Sequential:
    """Two convolutions, each with a BatchNorm layer: layers 0 to 3, from 1 to 2 channels."""
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))

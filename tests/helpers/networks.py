"""Small networks."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenet.checkpoints.file import FORMAT
from posenet.model.posenet import PoseNet
from posenet.settings import ModelConfig, config_to_dict, load_config
from posenet.skeleton import COCO, Skeleton


def tiny_network(**settings: Any) -> PoseNet:
    """A network of 2 stacks with 16 channels, with the same weights at every call; ``settings`` change its section."""
    torch.manual_seed(0)
    return PoseNet(ModelConfig(**{"stacks": 2, "width": 16, "growth": 2} | settings))


def random_network(stacks: int = 2, skeleton: Skeleton = COCO) -> PoseNet:
    """A tiny network with random BatchNorm parameters and statistics, whose maps have values of about 1."""
    network = tiny_network(stacks=stacks, skeleton=skeleton, conv_std=0.1)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.data *= 10
    return random_batch_norm(network)


def write_checkpoint(path: Path, *settings: str, stacks: int = 1) -> Path:
    """Write ``random_network(stacks)`` with its settings and some others; return the path."""
    config = load_config(None, [f"model.stacks={stacks}", "model.width=16", "model.growth=2", *settings])
    state = {"format": FORMAT, "model": random_network(stacks).state_dict(), "config": config_to_dict(config)}
    torch.save(state, path)
    return path


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

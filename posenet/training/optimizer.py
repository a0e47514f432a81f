"""What is trained and how fast: freezing, parameter groups and the learning-rate schedule."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from posenet.errors import ConfigError
from posenet.settings import OptimConfig

FUSED_ON = {"cpu", "cuda", "mps", "xpu"}
"""Device types for which PyTorch has fused optimizers."""


def make_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """The configured optimizer over the parameters that are not frozen.

    Raises:
        ConfigError: everything is frozen.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError("train.freeze leaves nothing to train; freeze fewer parameters")
    # One kernel for all of it: a half to a third of the time on a CPU, and no number read by the host.
    fused = all(p.device.type in FUSED_ON for p in trained)
    if config.name == "sgd":
        return SGD(trained, config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused)
    return AdamW(trained, config.lr, weight_decay=config.weight_decay, fused=fused)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load what the optimizer has gathered, such as momentum; its settings stay as they are configured now.

    Raises:
        ValueError: the state is of another kind of optimizer or of other parameters.
    """
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    if [set(group) for group in state["param_groups"]] != [set(group) for group in optimizer.param_groups]:
        raise ValueError("another kind of optimizer")
    optimizer.load_state_dict(state)
    for parameter, gathered in optimizer.state.items():
        # Single numbers, such as Adam's count of steps, aside.
        if any(isinstance(t, Tensor) and t.ndim and t.shape != parameter.shape for t in gathered.values()):
            raise ValueError("what was gathered is of another shape")
    for group, own in zip(optimizer.param_groups, settings):
        group.update(own)

"""The optimizer: creating it, setting its learning rate, restoring its state."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from posenet.errors import ConfigError
from posenet.settings import OptimConfig

FUSED_DEVICE_TYPES = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Device types for which PyTorch has fused optimizers."""


def make_optimizer(model: nn.Module, settings: OptimConfig) -> Optimizer:
    """The configured optimizer over the parameters that are not frozen; ``ConfigError`` if all are frozen."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("train.freeze leaves nothing to train; freeze fewer parameters")
    # A fused optimizer updates all parameters in one kernel: on a CPU in a third to half of the time, and without
    # reading any number from the device.
    fused = all(parameter.device.type in FUSED_DEVICE_TYPES for parameter in parameters)
    if settings.name == "sgd":
        return SGD(parameters, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused)
    return AdamW(parameters, settings.lr, weight_decay=settings.weight_decay, fused=fused)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore the accumulated state, such as momentum. Hyperparameters keep their current values.

    ``ValueError`` if the state belongs to another kind of optimizer or to other parameters.
    """
    hyperparameters = [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    if [set(group) for group in state["param_groups"]] != [set(group) for group in optimizer.param_groups]:
        raise ValueError("another kind of optimizer")
    optimizer.load_state_dict(state)
    for parameter, parameter_state in optimizer.state.items():
        for value in parameter_state.values():
            # Scalars, such as Adam's number of steps, have no shape to compare.
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError("the optimizer's state has another shape")
    for group, current in zip(optimizer.param_groups, hyperparameters):
        group.update(current)

"""The optimizer: creating it, setting its learning rate, restoring its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from posenet.errors import ConfigError
from posenet.settings import OptimConfig

FUSED_DEVICE_TYPES = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Device types for which PyTorch has fused optimizers. Other packages register their kernels with PyTorch."""


def make_optimizer(model: nn.Module, settings: OptimConfig) -> Optimizer:
    """The configured optimizer over the parameters that are not frozen; ``ConfigError`` if all are frozen."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("train.freeze leaves nothing to train; freeze fewer parameters")
    # A fused optimizer updates all parameters in one kernel: on a CPU in a third to half of the time, and without
    # reading any number from the device.
    fused = all(_has_fused_kernels(parameter.device) for parameter in parameters)
    optimizer: Optimizer
    if settings.name == "sgd":
        optimizer = SGD(
            parameters, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused
        )
    else:
        optimizer = AdamW(parameters, settings.lr, weight_decay=settings.weight_decay, fused=fused)
    _create_momentum(optimizer)
    return optimizer


def can_skip_on_device(optimizer: Optimizer) -> bool:
    """Whether a tensor ``found_inf`` on the device can make ``optimizer.step`` change nothing."""
    fused = bool(optimizer.defaults["fused"])
    # The kernels of MPS ignore ``found_inf``.
    return fused and all(value.device.type != "mps" for group in optimizer.param_groups for value in group["params"])


def _has_fused_kernels(device: torch.device) -> bool:
    """Whether fused optimizers can update parameters on a device."""
    if device.type in FUSED_DEVICE_TYPES:
        return True
    if device.type != torch._C._get_privateuse1_backend_name():
        return False
    operators = ("aten::_fused_sgd_", "aten::_fused_adamw_")
    return all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1") for name in operators)


def _create_momentum(optimizer: Optimizer) -> None:
    """Fill in the momentum that is missing, with zeros; the result of the first step is the same.

    PyTorch creates it in the first step. If a fused optimizer is made to skip that step, PyTorch leaves the new memory
    uninitialized.
    """
    for group in optimizer.param_groups:
        if group.get("momentum"):
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


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
    _create_momentum(optimizer)

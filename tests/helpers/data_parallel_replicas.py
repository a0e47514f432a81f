"""Replicas of a module as DataParallel makes them, without a second device."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def replicate(module: Module) -> Module:
    """The replica that DataParallel makes for another device, with copies of all parameters and buffers.

    ``torch.nn.parallel.replicate`` does the same, but only for accelerators. The parameters are not leaves: the
    gradients of the copies are added to the original parameters.
    """
    replicas = {child: child._replicate_for_data_parallel() for child in module.modules()}
    for original, replica in replicas.items():
        replica._former_parameters = {}
        for name, child in original._modules.items():
            setattr(replica, name, None if child is None else replicas[child])
        for name, parameter in original._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                copy = parameter.clone()
                setattr(replica, name, copy)
                replica._former_parameters[name] = copy
        for name, buffer in original._buffers.items():
            setattr(replica, name, None if buffer is None else buffer.clone())
    return replicas[module]

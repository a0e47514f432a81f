"""What an accelerator offers, asked of its PyTorch module: no list of device types has to be kept."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def describe_device(device: torch.device) -> str:
    """``cpu``, or ``cuda:0 (NVIDIA H100)``: a device with the name of its model, if its module knows it."""
    get_name = _function_of_module(device, "get_device_name")
    return f"{device} ({get_name(device)})" if get_name else str(device)


def computes_in_bf16(device: torch.device) -> bool:
    """Whether an accelerator computes in bf16 natively, as far as its module tells.

    ``torch.mps`` does not tell, and older Apple chips emulate bf16, so the answer is False for it.
    """
    is_supported = _function_of_module(device, "is_bf16_supported")
    if is_supported is None:
        return torch.bfloat16 in _autocast_dtypes(device)
    # CUDA and XPU count emulation as support unless they are asked not to; torch_npu has no such parameter.
    if "including_emulation" in inspect.signature(is_supported).parameters:
        return bool(is_supported(including_emulation=False))
    return bool(is_supported())


def prefers_fp16(device: torch.device) -> bool:
    """Whether a device that does not compute in bf16 natively is faster in fp16 than in float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)  # it has tensor cores
    return torch.float16 in _autocast_dtypes(device)


def has_tf32(device: torch.device) -> bool:
    """Whether a device can round the factors of float32 products to TF32."""
    is_supported = _function_of_module(device, "is_tf32_supported")
    return is_supported is not None and bool(is_supported())


def supports_channels_last(device: torch.device) -> bool:
    """Whether tensors of a device can have the channels-last memory format; those of Ascend NPUs cannot."""
    try:
        torch.empty(1, 2, 2, 2, device=device).contiguous(memory_format=torch.channels_last)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def supports_pinned_memory(device: torch.device) -> bool:
    """Whether a data loader can pin batches, so that they are copied to a device in the background."""
    if device.type in ("cpu", "mps"):  # DataLoader refuses to pin memory for MPS
        return False
    try:
        return torch.empty(1).pin_memory().is_pinned()
    except (RuntimeError, NotImplementedError):
        return False


def peak_memory(device: torch.device) -> int | None:
    """The most memory, in bytes, that tensors on a device had so far; None on a CPU and on MPS, which do not count."""
    measure = _function_of_module(device, "max_memory_allocated")
    return None if measure is None else int(measure(device))


def device_identity(device: torch.device, environment: Mapping[str, str] = os.environ) -> str:
    """A text that differs between the devices of one host, in whatever order its processes see them; empty for a CPU.

    It is the UUID or the PCI address of the device. A device that has neither is identified by its entry in a variable
    such as CUDA_VISIBLE_DEVICES, and without that by its index. Slices of one GPU (MIG) share its UUID on some drivers,
    so their entry counts too.
    """
    if device.type == "cpu":
        return ""
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    get_properties = _function_of_module(device, "get_device_properties")
    properties = get_properties(index) if get_properties else None
    hardware = getattr(properties, "uuid", None)
    if hardware is None:
        address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        hardware = None if None in address else ":".join(map(str, address))
    visible = [
        _entry(value, index)
        for name, value in sorted(environment.items())
        if value and name.endswith(("VISIBLE_DEVICES", "ZE_AFFINITY_MASK"))
    ]
    if hardware is not None:
        slices = [entry for entry in visible if entry.startswith("MIG-")]
        return " ".join([str(hardware), *slices])
    return " ".join(visible) or str(index)


def _entry(visible_devices: str, index: int) -> str:
    """The entry of a device in a list of visible devices; the list with the index if it is too short."""
    entries = visible_devices.split(",")
    return entries[index].strip() if index < len(entries) else f"{visible_devices}[{index}]"


def _autocast_dtypes(device: torch.device) -> Sequence[torch.dtype]:
    """The precisions that the module of a device outside PyTorch, such as an NPU, must name for autocast."""
    get_dtypes = _function_of_module(device, "get_amp_supported_dtype")
    return get_dtypes() if get_dtypes else ()


def _function_of_module(device: torch.device, name: str) -> Callable[..., Any] | None:
    """The function ``name`` of an accelerator's module, such as ``torch.cuda``; None if it has no such function."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    function: Callable[..., Any] | None = getattr(module, name, None)
    return function

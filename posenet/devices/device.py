"""Selecting a device by name, what it can do by its PyTorch module, and the flags of its library of convolutions."""

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from posenet.errors import ConfigError
from posenet.messages import first_sentence


def select_device(name: str) -> torch.device:
    """The device called ``name``, now current; "auto" is an accelerator or the CPU. ``ConfigError`` without it."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = first_sentence(error)  # kilobytes of backend names may follow it
        if name.startswith("npu") and find_spec("torch_npu") is None:
            reason = "Ascend NPUs need CANN and the torch_npu of PyTorch's version: pip install torch_npu"
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}); try the device cpu, or cuda:0 for a GPU"
        ) from error
    if device.type != "cpu" and device.index is not None:
        # PyTorch pins memory for the current device, and opens a context of some hundred megabytes on it. A loader's
        # pinning thread uses the current device of the thread that starts it.
        torch.accelerator.set_device_index(device)
    return device


def computes_in_bf16(device: torch.device) -> bool:
    """Whether a CPU or a CUDA device computes in bf16 natively; of other devices this is not known."""
    if device.type == "cpu":  # it needs bf16 instructions, and PyTorch the library that uses them
        capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        has_instructions = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
        return bool(has_instructions and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def supports_pinned_memory(device: torch.device) -> bool:
    """Whether a data loader can pin batches, so that they are copied to a device in the background."""
    if device.type in ("cpu", "mps"):  # DataLoader refuses to pin memory for MPS
        return False
    try:
        return torch.empty(1).pin_memory().is_pinned()
    except (RuntimeError, NotImplementedError):
        return False


def peak_memory(device: torch.device) -> int | None:
    """The most memory, in bytes, that tensors on a CUDA device had so far; None on other devices."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Within this context, PyTorch uses only deterministic algorithms, or raises an error that names an operator.

    The environment variable stays, without which PyTorch refuses products of matrices on CUDA devices. Outside of
    ``cudnn_flags``, it also makes the choice of cuDNN's algorithms deterministic.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextlib.contextmanager
def cudnn_flags(*, benchmark: bool, tf32: bool | None = None) -> Iterator[None]:
    """Within this context, cuDNN (MIOpen on ROCm) has these flags; other devices ignore them.

    Args:
        benchmark: try all algorithms for every new shape of input, which pays for shapes that come back often. It is
            left off if the algorithms must be deterministic, because the choice would not be.
        tf32: let convolutions round float32 to TF32; None changes nothing.
    """
    flags = torch.backends.cudnn
    is_deterministic = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    changes: list[tuple[Any, str, object]] = [(flags, "benchmark", benchmark and not is_deterministic)]
    if tf32 is not None:
        operations = [flags.conv, flags.rnn] if hasattr(flags, "conv") else []  # since PyTorch 2.9
        changes += [(operation, "fp32_precision", "tf32" if tf32 else "ieee") for operation in operations]
        changes.append((flags, "allow_tf32", tf32))
    with contextlib.ExitStack() as stack:
        for owner, name, _ in changes:
            with contextlib.suppress(RuntimeError):  # PyTorch does not tell allow_tf32 if only one operation may round
                stack.callback(setattr, owner, name, getattr(owner, name))
        for owner, name, value in reversed(changes):  # allow_tf32 changes the precision of the operations
            setattr(owner, name, value)
        yield

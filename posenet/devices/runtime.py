"""Where and how a computation runs: device, precision, random states and, for one process, the collectives.

The trainer asks a ``Runtime`` whether it may write, what all processes together decided, and for the
wrapped module. This one is the world of a single process on a single device; ``parallel.py`` and
``distributed.py`` have the larger worlds.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenet.errors import ConfigError

Amp = Literal["off", "bf16", "fp16"]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))
DTYPES: dict[Amp, torch.dtype] = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def select_device(name: str = "auto") -> torch.device:
    """The device called ``name``; "auto" is the accelerator PyTorch finds, else the CPU.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        if name.partition(":")[0] == "npu":
            importlib.import_module("torch_npu")  # registers the device
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        # PyTorch's first sentence says it all; the rest can be kilobytes of backend names.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from error
    return device


def select_amp(device: torch.device, name: Amp | Literal["auto"] = "auto") -> Amp:
    """The precision called ``name``; "auto" is the fastest that is as accurate on this device.

    That is bf16, which reaches as far as float32, where the device computes in it, and fp16 on older CUDA devices with
    tensor cores. A CPU without bf16 instructions only imitates it, slower than float32.
    """
    if name != "auto":
        return name
    if device.type == "cpu":
        asked = (getattr(torch.cpu, ask, None) for ask in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        native = torch.backends.mkldnn.is_available() and any(ask is not None and ask() for ask in asked)
        return "bf16" if native else "off"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "off"
    return "off"


def autocast(device: torch.device, amp: Amp) -> contextlib.AbstractContextManager[Any]:
    """Run the network in bf16 or fp16 where that is safe; "off" does nothing."""
    if amp == "off":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[amp])


def grad_scaler(device: torch.device, amp: Amp, fixed: float = 0.0) -> torch.amp.GradScaler:
    """The loss scaler of fp16 training; for other precisions one that does nothing.

    Args:
        fixed: constant loss scale; 0 adapts it.
    """
    if not fixed:
        return torch.amp.GradScaler(device.type, enabled=amp == "fp16")
    # A growth interval that no run reaches and a backoff of 1, which only the setter takes, hold the scale.
    scaler = torch.amp.GradScaler(device.type, init_scale=fixed, growth_interval=2**31 - 1, enabled=amp == "fp16")
    scaler.set_backoff_factor(1.0)
    return scaler


class StopRequested(Exception):
    """A signal came while the network was validated."""


class Runtime:
    """One process on one device.

    Attributes:
        device: where the network runs.
        rank, world_size: this process's number and how many there are.
    """

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device and make it train as one over all processes."""
        return module.to(self.device)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        """Let every BatchNorm take its statistics over all processes; a process alone has nothing to share."""
        return network

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Within it, forward and backward of a wrapped module keep the gradient on this process."""
        return contextlib.nullcontext()

    def to_device(self, batch: Any) -> Any:
        """A batch where the wrapped module takes it."""
        return batch.to(self.device)

    def any_rank(self, flag: bool) -> bool:
        """Whether any process says so."""
        return self.vote(flag)[0]

    def vote(self, *flags: bool) -> tuple[bool, ...]:
        """``any`` for several flags at once."""
        return flags

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over processes."""
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        """One value from every process, in rank order."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The main process's value."""
        return value

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of the main process."""

    def close(self) -> None:
        """Leave the other processes."""

    def random_state(self) -> dict[str, Any]:
        """PyTorch's generators on the CPU and this device."""
        state = {"cpu": torch.get_rng_state()}
        if self.device.type != "cpu":
            state["device"] = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def set_random_state(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if self.device.type != "cpu" and "device" in state:
            torch.get_device_module(self.device).set_rng_state(state["device"], self.device)

    def synchronize(self) -> None:
        """Wait for the device, before a clock is read."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, SIGTERM and SIGUSR1 into a flag, so that a step in progress ends well.

    SIGTERM and SIGUSR1 are how SLURM announces the end of a job (``--signal=USR1@120``).

    Yields a function that tells whether a signal has come. A second Ctrl-C interrupts at once. Outside the
    main thread, where Python lets nobody catch signals, it never has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    previous = {number: signal.signal(number, remember) for number in STOP_SIGNALS}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""The machine that a benchmark runs on."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch

from posenet.devices.cpu import usable_cores


@dataclass(frozen=True)
class Machine:
    """The hardware and software that measured times depend on; None where the system does not report a value."""

    cpu: str
    usable_cores: int
    threads: int
    """CPU threads of PyTorch."""
    opencv_threads: int
    memory_gib: float | None
    load: float | None
    """Average number of running processes in the last minute."""
    device: str
    python: str
    torch: str
    opencv: str
    system: str

    def as_text(self) -> str:
        """Two lines with the hardware and the software, and a warning if other programs use cores that are needed."""
        hardware = [self.cpu, f"{self.usable_cores} usable cores", f"threads used: {self.threads}"]
        if self.memory_gib is not None:
            hardware.append(f"{self.memory_gib:.0f} GiB memory")
        if self.load is not None:
            hardware.append(f"load {self.load} at the start")
        software = (
            f"device {self.device}, PyTorch {self.torch}, OpenCV {self.opencv}, Python {self.python}, {self.system}"
        )
        lines = [", ".join(hardware), software]
        if self.load is not None and self.load + self.threads > self.usable_cores + 0.5:
            lines.append("WARNING: other programs use the cores; the measured times will be too long")
        return "\n".join(lines)


def describe_machine(device: torch.device) -> Machine:
    """Describe this machine, its present load and ``device``."""
    return Machine(
        cpu=_cpu_model(),
        usable_cores=usable_cores(),
        threads=torch.get_num_threads(),
        opencv_threads=cv2.getNumThreads(),
        memory_gib=_memory_gib(),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        device=_device_name(device),
        python=platform.python_version(),
        torch=str(torch.__version__),
        opencv=cv2.__version__,
        system=f"{platform.system()} {platform.machine()}",
    )


def peak_memory_mib() -> float | None:
    """Largest memory of this process so far in MiB; None on Windows, which has no such count."""
    if sys.platform == "win32":
        return None
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, ``getrusage`` of a new process starts at the memory of the process that started it
        lines = status.read_text(encoding="utf-8").splitlines()
        peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        if peaks:
            return int(peaks[0]) / 2**10
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return str(device)
    get_name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device} ({get_name(device)})" if get_name else str(device)

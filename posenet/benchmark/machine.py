"""The machine a benchmark ran on, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import cv2
import torch

from posenet.devices.cpu import usable_cores


def describe(device: torch.device) -> dict[str, Any]:
    """What the speed depends on, as plain values; None where this system does not tell."""
    return {
        "cpu": _cpu_model(),
        "usable_cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "opencv_threads": cv2.getNumThreads(),
        "memory_gib": _memory_gib(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "device": _device_name(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "opencv": cv2.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def in_words(machine: dict[str, Any]) -> str:
    """The hardware and its load, the device and the software; a warning where other work is running."""
    m = machine
    busy = m["load"] is not None and m["load"] + m["threads"] > m["usable_cores"] + 0.5
    memory = "" if m["memory_gib"] is None else f", {m['memory_gib']:.0f} GiB memory"
    load = "" if m["load"] is None else f", load {m['load']} at the start"
    return (
        f"{m['cpu']}, {m['usable_cores']} usable cores, threads used: {m['threads']}{memory}{load}\n"
        f"device {m['device']}, PyTorch {m['torch']}, OpenCV {m['opencv']}, Python {m['python']}, {m['system']}"
        + ("\nWARNING: other work keeps the cores busy; expect times that are too long" if busy else "")
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown CPU"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _device_name(device: torch.device) -> str:
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if device.type == "cpu" or name is None else f"{device} ({name(device)})"

"""What all benchmarks share: timing tasks in turn, the machine's limit, synthetic batches, and tables."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from posenet.data.dataset import Batch
from posenet.settings import MAP_STRIDE, Config

MATMUL_SIDE = {"cpu": 1024}
"""Rows and columns of the matrices whose product is the limit of a device; 8192 for other types of devices."""
SHORTEST_RUN = 0.02
"""Seconds that one timed run takes at least: a faster task is repeated within it."""

Cell = str | int | float | None


@dataclass
class Table:
    """The result of a benchmark: a table for readers and numbers for programs."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    """Measured values by name; the name includes the unit."""
    notes: list[str] = field(default_factory=list)

    def as_markdown(self) -> str:
        """A heading, a table that is aligned for reading as plain text, and the notes."""
        lines = [list(self.header)]
        for row in self.rows:
            empty_cells = [""] * (len(self.header) - len(row))
            lines.append([_format(cell) for cell in row] + empty_cells)
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines.insert(1, ["-" * width for width in widths])
        table = "\n".join(f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths))} |" for line in lines)
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(block for block in (f"### {self.title}", table, notes) if block)


def _format(cell: Cell) -> str:
    """Three significant digits of a number, at least."""
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return "" if cell is None else str(cell)


def measure(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each task.

    The tasks run in turn, so that a change in the speed of the machine affects all of them. PyTorch's timer waits for
    the device at the end of each run.
    """
    timers = {name: Timer("task()", globals={"task": task}) for name, task in tasks.items()}
    numbers = {}
    for name, timer in timers.items():
        timer.timeit(1)  # the first run warms up
        numbers[name] = max(1, round(SHORTEST_RUN / max(timer.timeit(1).mean, 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, timer in timers.items():
            seconds[name].append(timer.timeit(numbers[name]).mean)
    return {name: median(values) for name, values in seconds.items()}


def count_flop(function: Callable[[], object]) -> int:
    """Floating-point operations of matrix products and convolutions in one call; a multiplication and a sum are two."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def matmul_flop_per_s(device: torch.device, dtype: torch.dtype, repeats: int, side: int = 0) -> float:
    """Operations per second of a large matrix product, the practical limit of a device."""
    side = side or MATMUL_SIDE.get(device.type, 8192)
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    return 2 * side**3 / measure({"matmul": lambda: a @ b}, repeats)["matmul"]


def random_batch(config: Config, device: torch.device, people: int = 4) -> Batch:
    """A batch of noise with people at random places, as the loader yields it, on a device."""
    generator = torch.Generator().manual_seed(0)
    height, width = config.train.size
    size = config.train.batch_size
    cells = (size, height // MAP_STRIDE, width // MAP_STRIDE)
    joints = torch.rand(size, people, config.model.skeleton.num_keypoints, 3, generator=generator)
    joints[..., :2] *= torch.tensor([width, height])
    joints[..., 2] = 2
    return Batch(
        images=torch.randint(0, 256, (size, height, width, 3), dtype=torch.uint8, generator=generator),
        joints=joints,
        person_mask=torch.zeros(cells, dtype=torch.uint8),
        mask_miss=torch.full(cells, 255, dtype=torch.uint8),
        image_ids=torch.arange(size),
    ).to(device)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on."""
    accelerator = None if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    get_capabilities = getattr(torch.cpu, "get_capabilities", dict)  # older releases of PyTorch do not tell
    return {
        "device": str(device),
        "accelerator": accelerator,
        "processor": get_capabilities().get("cpu_name", platform.processor()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def write_json(path: Path, tables: Sequence[Table], machine: Mapping[str, Any]) -> None:
    """Write the numbers of all tables and the machine."""
    numbers: dict[str, Any] = {}
    for table in tables:
        numbers |= table.numbers
    path.write_text(json.dumps({**numbers, "machine": machine}, indent=2) + "\n", encoding="utf-8")

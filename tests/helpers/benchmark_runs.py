"""Running one benchmark and checking the numbers that it writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenet.cli.main import run_tool

TINY_NETWORK = ["--set", "model.stacks=1", "model.width=16", "model.growth=2"]


def run_benchmark(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    """Run a benchmark with --quick and return its numbers; ``folder`` is empty and receives only their file."""
    path = folder / "out.json"
    assert run_tool("benchmark", [*map(str, arguments), "--quick", "--json", str(path)]) == 0
    assert [file.name for file in folder.iterdir()] == ["out.json"]
    numbers: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    assert numbers["benchmark"] == arguments[0]
    return numbers


def assert_positive(numbers: dict[str, Any], *keys: str) -> None:
    """Check that the values under ``keys``, also those in nested tables, are finite and above zero."""
    for key in keys:
        values = list(_values(numbers[key]))
        assert values and all(math.isfinite(value) and value > 0 for value in values), key


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    else:
        yield value

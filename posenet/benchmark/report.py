"""What a benchmark found: a table to read and numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True)
class Report:
    """The result of one benchmark.

    Attributes:
        title: one line that says what was measured on what.
        header, rows: the table; None is an empty cell.
        numbers: the same and more, under names with units, for JSON.
        notes: what to know when reading the numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: dict[str, Any]
    notes: Sequence[str] = field(default=())

    def text(self) -> str:
        """Title, table and notes as plain text."""
        blocks = [self.title, table(self.header, self.rows), "\n".join(self.notes)]
        return "\n\n".join(block for block in blocks if block)


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns two spaces apart, the first one flush left, numbers flush right to three or more digits."""
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    digits = next((n for n, limit in enumerate((100, 10, 1)) if abs(value) >= limit), 3)
    return f"{value:.{digits}f}"

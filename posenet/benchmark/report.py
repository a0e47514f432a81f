"""The result of a benchmark: a table for readers and numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None
"""A value of the table; None is an empty cell."""


@dataclass(frozen=True)
class Report:
    """The result of one benchmark: a table with a title and notes, and numbers for ``--json``."""

    title: str
    """One line that names the measured part and the input."""
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: dict[str, Any]
    """Measured values by name; the name includes the unit."""
    notes: Sequence[str] = ()
    sections: Sequence[Report] = ()
    """Further tables, which follow this one; ``numbers`` has their numbers too."""

    def as_text(self) -> str:
        """Title, table and notes, separated by empty lines; then the sections."""
        blocks = [self.title, format_table(self.header, self.rows), "\n".join(self.notes)]
        blocks += [section.as_text() for section in self.sections]
        return "\n\n".join(block for block in blocks if block)

    def as_markdown(self) -> str:
        """The same as Markdown: a heading, a table and a list of notes, and the sections."""
        lines = [list(self.header), ["---", *["---:"] * (len(self.header) - 1)]]
        lines += [[_format_cell(value).replace("|", "\\|") for value in row] for row in self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks = [f"### {self.title}", table, "\n".join(f"- {note}" for note in self.notes)]
        blocks += [section.as_markdown() for section in self.sections]
        return "\n\n".join(block for block in blocks if block)


def format_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Align the first column left and the others right, with two spaces between columns."""
    lines = [list(header), *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_format_line(line, widths) for line in lines)


def percent(part: float, whole: float) -> str:
    """``part`` as a percentage of ``whole``."""
    return f"{part / whole:.1%}"


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    right_aligned = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
    return "  ".join([cells[0].ljust(widths[0]), *right_aligned]).rstrip()


def _format_cell(value: Cell) -> str:
    """Format one value; floats get at least three significant digits from 1 up, and three decimals below 1."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    magnitude = abs(value)
    if magnitude >= 100:
        decimals = 0
    elif magnitude >= 10:
        decimals = 1
    elif magnitude >= 1:
        decimals = 2
    else:
        decimals = 3
    return f"{value:.{decimals}f}"

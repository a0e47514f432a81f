"""Helpers for matplotlib, which is an optional dependency: figures without a window and without global state."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from posenet.errors import ConfigError
from posenet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RGBA = tuple[float, float, float, float]

MATPLOTLIB_MISSING = "matplotlib is not installed; pip install 'posenet[plot]'"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind people can distinguish."""
GREY = "#6b6b6b"
DPI = 110


def has_matplotlib() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(rows: int, columns: int, size: tuple[float, float], title: str = "") -> tuple[Figure, list[Axes]]:
    """Create a figure of (width, height) ``size`` x ``DPI`` pixels; return it and its axes row by row.

    Raises:
        ConfigError: matplotlib is missing or does not work.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        reason = error if has_matplotlib() else MATPLOTLIB_MISSING
        raise ConfigError(f"cannot draw charts: {reason}") from error
    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold", parse_math=False)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def style_axes(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> None:
    """Set the title and the axis labels; draw a faint grid and no frame."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def show_no_data(axes: Axes, text: str) -> None:
    """Write a line of text into the middle of axes without data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_axis_off()


def sequential_colours(count: int) -> list[RGBA]:
    """Colours in order, from dark to light."""
    from matplotlib import colormaps

    # The last 15 % of the colour map are too light for lines on white.
    return [colormaps["viridis"](0.85 * i / max(count - 1, 1)) for i in range(count)]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, completely or not at all; ``ConfigError`` if matplotlib does not know the format."""
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format=path.suffix.lstrip(".").lower() or "none")
    except ValueError as error:
        raise ConfigError(f"cannot write {path}; choose .png, .svg or .pdf") from error
    write_atomically(path, buffer.getvalue())

"""Charts by matplotlib, which is an extra: without a window, and without touching its global state."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenet.errors import ConfigError
from posenet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "matplotlib is not installed; pip install 'posenet[plot]'"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which the colour-blind can tell apart."""
GREY = "#6b6b6b"
DPI = 110


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(rows: int, columns: int, size: tuple[float, float], title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure of ``rows`` x ``columns`` panels, and these row by row.

    Args:
        size: width and height in units of ``DPI`` pixels.

    Raises:
        ConfigError: matplotlib is missing or does not work.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"no charts: {MISSING if not can_draw() else error}") from error
    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold", parse_math=False)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def dress(panel: Axes, title: str, x: str = "", y: str = "") -> None:
    """Title, axis labels, a faint grid and no frame."""
    panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def say(panel: Axes, text: str) -> None:
    """A line in the middle of a panel that has nothing to show."""
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=GREY)
    panel.set_axis_off()
    panel.set_title(panel.get_title(loc="left"), fontsize=11, loc="left")


def shades(count: int) -> list[Any]:
    """``count`` colours in order, dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * i / max(count - 1, 1)) for i in range(count)]


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the name's suffix, whole or not at all.

    Raises:
        ConfigError: a format that matplotlib does not know.
    """
    file = io.BytesIO()
    try:
        figure.savefig(file, format=path.suffix.lstrip(".").lower() or "none")
    except ValueError as error:
        raise ConfigError(f"cannot write {path}; choose .png, .svg or .pdf") from error
    write_atomically(path, file.getvalue())
